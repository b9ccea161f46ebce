"""What threads rely on that wait for the items of a queue themselves."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from rayka.actors.channel.frames import HEADER, encode
from rayka.actors.channel.requests import ShareFetched, encode_value
from rayka.actors.share.waiters import GroupPartition
from rayka.client.cluster import Cluster
from rayka.errors import ErrorCode, RaykaError
from rayka.queue import Queue
from rayka.queue.items import loads
from rayka.queue.waiting_reader import LeasedItem
from rayka.share.requests import ShareFetchParams, ShareFetchPartition, ShareFetchResult
from rayka.storage.log.log import Log
from rayka.testing import wait_until
from rayka.types import TopicPartition
from tests.unit.queue.test_refused_acknowledgements import WatchedLeaders

ENOUGH_S = 30.0


class Waiting:
    """A queue, and a thread that waits for its items."""

    def __init__(self, cluster: Cluster) -> None:
        partitions = cluster._connection.broker.share_leaders.partitions
        self._waiters, self._replicas = partitions._waiters, partitions._replicas
        self.queue = Queue(name=f"waited-for-{os.urandom(4).hex()}", lease="task_done", prefetch=1)
        self._thread = ThreadPoolExecutor(1)
        self.stopped = threading.Event()

    def wait(self, wait_s: float = ENOUGH_S) -> Future[LeasedItem | None]:
        """What the thread has got, which asks now."""
        return self._thread.submit(self.queue.wait, wait_s, self.stopped)

    def task_done(self) -> None:
        """The oldest item of the thread is done."""
        self._thread.submit(self.queue.task_done).result(ENOUGH_S)

    def lose_lease(self, offset: int) -> None:
        """Anybody may get the item now; the queue does not know it."""
        name, here = self.queue.name, self.queue._here
        place, member_id = TopicPartition(name, 0), here.reader._member._member_id
        leaders, topic_id = here.broker.share_leaders, here.topic.topic_id
        here.loop.run(leaders.give_back(name, member_id, place, topic_id, [(offset, offset)]))

    @property
    def log(self) -> Log:
        """The log of the queue's partition."""
        return self._replicas.get(TopicPartition(self.queue.name, 0)).log

    def is_at_leader(self) -> bool:
        """Whether its request waits at the leader."""
        return self._waiters.has_waiters(GroupPartition(self.queue.name, TopicPartition(self.queue.name, 0)))


@pytest.fixture
def waiting(cluster: Cluster) -> Iterator[Waiting]:
    waiting = Waiting(cluster)
    yield waiting
    waiting.stopped.set()
    waiting._thread.shutdown()
    waiting.queue.shutdown()


def got(future: Future[LeasedItem | None]) -> tuple[object, int, bool]:
    """The item, how often it was delivered, and whether it is new."""
    leased = future.result(ENOUGH_S)
    assert leased is not None
    return loads(leased.item.value), leased.item.delivery_count, leased.is_new


def test_an_item_is_new_only_if_it_was_put_while_its_thread_waited(waiting: Waiting) -> None:
    waiting.queue.put("before")
    assert got(waiting.wait()) == ("before", 1, False)
    after = waiting.wait()
    wait_until(waiting.is_at_leader, ENOUGH_S, "the thread waits")
    waiting.queue.put("after")
    assert got(after) == ("after", 1, True)


def test_an_item_that_a_new_leader_shows_only_later_is_not_new(waiting: Waiting) -> None:
    """The leader before it may have given it to somebody: it knew sooner than its followers what was committed."""
    waiting.queue.put("before")
    log = waiting.log
    log.high_watermark -= 1
    before = waiting.wait()
    wait_until(waiting.is_at_leader, ENOUGH_S, "the thread waits")
    log.high_watermark += 1
    waiting.queue.put("after")
    assert got(before) == ("before", 1, False)


def test_an_item_that_comes_back_while_its_thread_waits_is_not_new(waiting: Waiting) -> None:
    waiting.queue.put("again")
    waiting.queue.lease(timeout=ENOUGH_S)
    again = waiting.wait()
    wait_until(waiting.is_at_leader, ENOUGH_S, "the thread waits")
    waiting.queue.task_failed()
    assert got(again) == ("again", 2, False)


def test_close_does_not_wait_for_a_thread_that_waits_for_items(
    waiting: Waiting, caplog: pytest.LogCaptureFixture
) -> None:
    waited = waiting.wait()
    wait_until(waiting.is_at_leader, ENOUGH_S, "the thread waits")
    waiting.queue.close()
    assert isinstance(waited.exception(ENOUGH_S), RaykaError)  # and not None, as when its time is over
    assert "no leader takes" not in caplog.text
    waiting.queue = pickle.loads(pickle.dumps(waiting.queue))


def hold_ticks(waiting: Waiting) -> None:
    """The thread gets an item, and no tick acknowledges it."""
    waiting.queue._here.reader._ticking = True
    waiting.queue.put("first")
    assert got(waiting.wait())[0] == "first"


def wait_again(waiting: Waiting, wait_s: float = ENOUGH_S) -> Future[LeasedItem | None]:
    """The thread finishes an item, and waits for the next one: the acknowledgement goes with that request."""
    hold_ticks(waiting)
    waiting.task_done()
    return waiting.wait(wait_s)


def test_close_waits_for_a_thread_that_has_sent_acknowledgements_with_its_wait(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rayka.queue.reader._LAST_S", 0.05)
    other: Queue = pickle.loads(pickle.dumps(waiting.queue))
    wait_again(waiting)
    wait_until(waiting.is_at_leader, ENOUGH_S, "the thread waits")
    waiting.queue.close()
    assert other.lag() == 0
    assert "no leader takes" not in caplog.text
    waiting.queue = other


def test_a_wait_that_takes_acknowledgements_along_lasts_as_long_as_it_should(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayka.queue.waiting_reader.LONGEST_WAIT_S", 0.05)
    item = wait_again(waiting)
    with pytest.raises(TimeoutError):
        item.result(0.5)
    waiting.queue.put("second")
    assert got(item)[0] == "second"


def test_acknowledgements_that_come_back_to_a_thread_that_waits_no_longer_are_sent_again(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = waiting.queue._here
    leaders = here.broker.share_leaders

    class Moving(WatchedLeaders):
        async def fetch(self, params: ShareFetchParams, partitions: Sequence[ShareFetchPartition]) -> Any:
            if params.has_room and any(one.acknowledgement_batches for one in partitions):
                here.reader._ticking = False
                return 0, [ShareFetchResult(acknowledge_error=ErrorCode.NOT_LEADER_OR_FOLLOWER)]
            return await leaders.fetch(params, partitions)

    monkeypatch.setattr(here.broker, "share_leaders", Moving(leaders))
    assert wait_again(waiting, 0.0).result(ENOUGH_S) is None
    wait_until(lambda: waiting.queue.lag() == 0, ENOUGH_S, "it is done")


def test_a_thread_whose_turn_comes_after_the_end_gets_nothing(waiting: Waiting) -> None:
    waiting.queue.put("kept")
    waiting.stopped.set()
    assert waiting.wait().result(ENOUGH_S) is None
    assert waiting.queue.qsize() == 1


def test_an_item_whose_lease_was_lost_comes_again_and_others_stay_done(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayka.queue.lease_keeper._TICK_S", ENOUGH_S)  # Acknowledgements go with the next fetch.
    waiting.queue.put_nowait_batch(["done", "lost"])
    assert [got(waiting.wait())[0] for _ in range(2)] == ["done", "lost"]
    waiting.lose_lease(offset=1)
    for _ in range(2):
        waiting.task_done()
    assert got(waiting.wait()) == ("lost", 1, False)
    waiting.task_done()
    assert waiting.wait(wait_s=0.2).result(ENOUGH_S) is None
    wait_until(lambda: waiting.queue.lag() == 0, ENOUGH_S, "both are done")


@pytest.fixture
def leader(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """What listens in the place of the queue's leader."""
    path = f"\0leader-{os.urandom(8).hex()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        monkeypatch.setattr(waiting.queue._here.broker.partitions, "channel_of", lambda _: (path, 0))
        yield server


def test_a_leader_that_closes_the_connection_is_asked_through_the_event_loop(
    waiting: Waiting, leader: socket.socket
) -> None:
    item = waiting.wait()
    leader.accept()[0].close()
    waiting.queue.put("here")
    assert got(item)[0] == "here"


def test_a_thread_that_ends_with_its_wait_leaves_no_connection(waiting: Waiting, leader: socket.socket) -> None:
    item = waiting.wait()
    connection = leader.accept()[0]
    with connection:
        connection.settimeout(ENOUGH_S)
        _, correlation_id, operation, *_ = HEADER.unpack_from(connection.recv(65_536))
        waiting.stopped.set()
        nothing = encode_value(ShareFetched(0, (ShareFetchResult(),)))
        connection.sendall(encode(operation, correlation_id, nothing))
        assert item.result(ENOUGH_S) is None
        assert connection.recv(1) == b"", "the connection is open"
