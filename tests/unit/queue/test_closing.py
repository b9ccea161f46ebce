"""What a close does for acknowledgements and for items that go back, while a leader or another thread is slow."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.errors import ErrorCode
from rayka.queue import Queue
from rayka.queue.leases import Leases
from rayka.share.requests import ShareFetchParams, ShareFetchPartition, ShareFetchResult
from rayka.testing import wait_until
from tests.unit.queue.test_refused_acknowledgements import (
    ENOUGH_S,
    WatchedLeaders,
    get_all,
    leaders,
    let_tick,
    queue,
    send_to,
)
from tests.unit.queue.test_standing_leader import TwoLeaders, half_standing
from tests.unit.queue.test_waiting_reader import Waiting, hold_ticks, waiting

__all__ = ["half_standing", "leaders", "queue", "waiting"]


@pytest.fixture
def other(request: pytest.FixtureRequest) -> Iterator[Queue]:
    """Another handle of the queue of `half_standing`."""
    standing, _ = request.getfixturevalue("half_standing")
    other: Queue = pickle.loads(pickle.dumps(standing))
    yield other
    other.close()


def test_items_go_back_at_once_though_a_leader_takes_no_acknowledgements_of_a_close(
    cluster: Cluster, half_standing: tuple[Queue, TwoLeaders], other: Queue
) -> None:
    queue, leaders = half_standing
    here = queue._here
    send_to(cluster, queue, 1, "ready")
    here.reader._ticking = True
    here.loop.run(here.reader.fetch(1, 0.0))
    assert here.reader.ready_count
    queue.task_done()
    ended = here.loop.submit(here.reader.end())
    wait_until(lambda: other.qsize() == 5, ENOUGH_S, "all of the second leader are there again")
    items = [other.lease(block=False) for _ in range(5)]
    assert not ended.done()
    assert {(item.partition, item.delivery_count) for item in items} == {(1, 1)}
    here.loop.call_soon(leaders.gate.set)
    ended.result(ENOUGH_S)


def test_a_close_sends_again_what_a_leader_refuses_though_another_one_stands_still(
    half_standing: tuple[Queue, TwoLeaders], other: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, leaders = half_standing
    refused = [ShareFetchResult(acknowledge_error=ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    moving, ask = [(0, refused)], leaders._ask

    async def ask_moving(params: ShareFetchParams, partition: ShareFetchPartition) -> Any:
        is_refused = moving and not params.has_room and partition.topic_partition.partition == 1
        return moving.pop() if is_refused else await ask(params, partition)

    monkeypatch.setattr(leaders, "_ask", ask_moving)
    queue._here.reader._ticking = True
    for _ in range(5):
        queue.task_done()
    ended = queue._here.loop.submit(queue._here.reader.end())
    wait_until(lambda: other.lag() == 2, ENOUGH_S, "all others of the second leader are done")
    assert not moving
    assert not ended.done()
    queue._here.loop.call_soon(leaders.gate.set)
    ended.result(ENOUGH_S)


def test_a_close_waits_as_long_for_the_answer_to_a_tick_as_for_one_to_itself(
    queue: Queue, leaders: WatchedLeaders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rayka.queue.reader._LAST_S", 0.05)
    other: Queue = pickle.loads(pickle.dumps(queue))
    get_all(queue, 1)
    queue.task_done()
    leaders.gate.clear()
    let_tick(queue._here.reader)
    wait_until(lambda: bool(leaders.alone), ENOUGH_S, "the tick has sent it")
    ended = queue._here.loop.submit(queue._here.reader.end())
    with pytest.raises(TimeoutError):
        ended.result(0.5)
    queue._here.loop.call_soon(leaders.gate.set)
    ended.result(ENOUGH_S)
    assert other.lag() == 0
    assert "no leader takes" not in caplog.text
    other.close()


def test_close_notices_acknowledgements_that_a_thread_takes_just_then(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, other = waiting.queue._here.reader, pickle.loads(pickle.dumps(waiting.queue))
    hold_ticks(waiting)
    waiting.task_done()
    due = reader._leases.take_acknowledgements()
    taking: list[threading.Thread] = []
    has_acknowledgements = Leases.has_acknowledgements.fget  # type: ignore[attr-defined]

    def take() -> None:
        with reader._lock:
            reader._asks_with_acknowledgements = bool(reader._leases.take_acknowledgements())

    def look(leases: Leases) -> bool:
        if not taking and leases is reader._leases:
            leases.send_again(due)
            taking.append(threading.Thread(target=take))
            taking[0].start()
            taking[0].join(0.2)
        return bool(has_acknowledgements(leases))

    monkeypatch.setattr(Leases, "has_acknowledgements", property(look))
    monkeypatch.setattr(reader, "_send_due", lambda: None)
    ended = waiting.queue._here.loop.submit(reader._send_last())
    wait_until(lambda: reader._asks_with_acknowledgements, ENOUGH_S, "the thread has taken it")
    with pytest.raises(TimeoutError):
        ended.result(0.2)
    reader._asks_with_acknowledgements = False
    ended.result(ENOUGH_S)
    waiting.queue = other
