"""`rayka.Queue` in one program: what programs rely on in `ray.util.queue`, and leases."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pickle
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray.util.queue

import rayka
from rayka.client import joined
from rayka.client.cluster import Cluster
from rayka.client.joined import RayCluster, leave
from rayka.client.loop import LoopThread
from rayka.client.share.records import RecordAcknowledgement
from rayka.coordinator.shares.requests import DeleteShareGroupStateRequest
from rayka.errors import ErrorCode
from rayka.metadata.commands import TopicResult
from rayka.queue import Empty, Full, Queue, connected, leases
from rayka.queue.items import loads
from rayka.queue.leased_offsets import LeasedOffsets, RangeAcknowledgement
from rayka.queue.leases import Leases
from rayka.queue.reader import QueueReader
from rayka.share.persister import PersistedBatch, PersistedState
from rayka.share.record_state import AcknowledgeType, RecordState
from rayka.share.requests import ShareFetchResult
from rayka.storage.segments.reader import SegmentReader
from rayka.testing import wait_until
from rayka.types import FileSlice, TopicPartition
from tests.support.client_connection import LocalConnection
from tests.support.faulty_partitions import Fault
from tests.support.local_queues import HERE, local_queues

ENOUGH_S = 60.0
LEASE_MS = 1200


@pytest.fixture
def queue(an_empty_queue: Queue) -> Queue:
    return an_empty_queue


def copy_of(queue: Queue) -> Queue:
    """The queue as another process has it, with a reader of its own."""
    copied: Queue = pickle.loads(pickle.dumps(queue))
    return copied


def later(function: Any, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def leased(cluster: Cluster, **settings: Any) -> Queue:
    """A queue with leases shorter than a program may ask for."""
    queue = Queue(name=f"leased-{time.monotonic_ns()}", **settings)
    group = rayka.client.ConfigResource(rayka.client.ResourceType.GROUP, queue.name)
    cluster.admin().alter_configs(group, {"share.record.lock.duration.ms": LEASE_MS})
    return queue


def test_the_exceptions_are_ray_s_own() -> None:
    assert (Empty, Full) == (ray.util.queue.Empty, ray.util.queue.Full)


def test_a_queue_goes_on_when_another_part_of_the_program_leaves_the_cluster(queue: Queue) -> None:
    """As `rayka.spark.stop()` does, which closes the connection that they share if nothing else uses it."""
    queue.put(1)
    leave()
    queue.put(2)
    assert [queue.get(), queue.get()] == [1, 2]


def test_a_connection_is_closed_when_what_used_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[RayCluster] = []
    here, user = RayCluster("elsewhere", "rayka"), threading.Event()
    monkeypatch.setattr(joined, "_connections", {here: SimpleNamespace(close=lambda: closed.append(here))})
    here.keep_for(user)
    leave()
    assert not closed
    del user
    leave()
    assert closed == [here]


def test_items_come_in_the_order_in_which_they_were_put(queue: Queue) -> None:
    for number in range(10):
        queue.put(number)
    assert [queue.get() for _ in range(10)] == [*range(10)]


def test_the_asynchronous_forms_do_the_same(queue: Queue) -> None:
    async def use() -> list[int]:
        for number in range(10):
            await queue.put_async(number)
        return [await queue.get_async() for _ in range(10)]

    assert asyncio.run(use()) == [*range(10)]


def test_a_coroutine_that_waits_gets_an_item_that_is_put_later(queue: Queue) -> None:
    async def use() -> object:
        waiting = asyncio.ensure_future(queue.get_async())
        await asyncio.sleep(0)
        with pytest.raises(Empty):
            await queue.get_async(block=False)
        with pytest.raises(Empty):
            await queue.get_async(timeout=0.05)
        await queue.put_async("late")
        return await asyncio.wait_for(waiting, ENOUGH_S)

    assert asyncio.run(use()) == "late"


def test_a_batch_that_does_not_fit_is_not_put_at_all() -> None:
    queue = Queue(5)
    queue.put_nowait_batch([0, 1, 2])
    with pytest.raises(Full):
        queue.put_nowait_batch([3, 4, 5])
    assert queue.qsize() == 3
    queue.put_nowait_batch([3, 4])
    assert queue.get_nowait_batch(5) == [0, 1, 2, 3, 4]
    queue.shutdown()


def test_looking_for_a_batch_that_is_not_here_wakes_nobody(queue: Queue) -> None:
    async def nothing() -> None: ...

    reader, loop = queue._here.reader, queue._here.loop
    assert reader.take_many("holder", 3, []) is None
    loop.run(nothing())
    assert not reader._ticking


def test_a_batch_is_got_as_a_whole_or_not_at_all(queue: Queue) -> None:
    queue.put_nowait_batch(range(10))
    with pytest.raises(Empty):
        queue.get_nowait_batch(11)
    assert queue.get_nowait_batch(3) == [0, 1, 2]
    assert queue.get_nowait_batch(0) == []
    assert queue.get_nowait_batch(7) == [3, 4, 5, 6, 7, 8, 9]
    with pytest.raises(TypeError):
        queue.get_nowait_batch("two")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nonnegative"):
        queue.get_nowait_batch(-1)
    with pytest.raises(TypeError):
        queue.put_nowait_batch(7)  # type: ignore[arg-type]


def test_the_size_counts_what_can_be_got(queue: Queue) -> None:
    assert queue.empty()
    assert not queue.full()
    for number in range(1, 11):
        queue.put(number)
        assert (queue.qsize(), len(queue), queue.empty()) == (number, number, False)
    for number in range(9, -1, -1):
        queue.get()
        assert queue.size() == number


def test_the_size_counts_items_on_their_way_here(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = queue._here.broker.share_leaders
    fetch = leaders.fetch

    async def late(*arguments: Any) -> Any:
        answer = await fetch(*arguments)
        await asyncio.sleep(0.05)
        return answer

    monkeypatch.setattr(leaders, "fetch", late)
    with pytest.raises(Empty):
        queue.get(timeout=0.01)  # a fetch goes on waiting
    queue.put(0)
    assert not queue.empty()
    queue.put_nowait_batch(range(1, 40))
    for number in range(40):
        assert queue.qsize() == 40 - number
        assert queue.get() == number
    assert queue.empty()


def test_the_size_counts_items_that_go_back(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.put_nowait_batch(range(300))
    assert [queue.get() for _ in range(20)] == [*range(20)]
    assert give_back_begins(queue, monkeypatch).wait(ENOUGH_S)
    assert queue.qsize() == 280


def give_back_begins(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when items go back, which takes a moment."""
    leaders = queue._here.broker.share_leaders
    give_back, begun = leaders.give_back, threading.Event()

    async def late(*arguments: Any) -> None:
        begun.set()
        await asyncio.sleep(0.2)
        await give_back(*arguments)

    monkeypatch.setattr(leaders, "give_back", late)
    return begun


def test_an_item_that_can_t_be_pickled_is_not_put(queue: Queue) -> None:
    with pytest.raises(TypeError):
        queue.put(threading.Lock())
    assert queue.empty()


def test_what_a_process_fetched_ahead_and_does_not_take_goes_to_others(queue: Queue) -> None:
    queue.put_nowait_batch(range(100))
    mine = [queue.get() for _ in range(30)]
    assert mine == [*range(30)]
    other = copy_of(queue)
    others = [other.get(timeout=ENOUGH_S) for _ in range(3)]
    assert set(others).isdisjoint(mine)
    wait_until(lambda: queue.qsize() == 67, ENOUGH_S, "nobody keeps what it does not take")


def test_after_shutdown_nobody_can_use_the_queue(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayka.queue.topic._IMAGE_LAG_S", 0.1)  # here every image is the latest
    queue = Queue()
    copy = copy_of(queue)
    with pytest.raises(Empty):
        copy.get_nowait()
    queue.shutdown()
    with pytest.raises(rayka.RaykaError):
        queue.get_nowait()
    with pytest.raises(rayka.RaykaError, match="was shut down"):
        copy.put(1)
    with pytest.raises(rayka.RaykaError, match="was shut down"):
        copy.get(timeout=ENOUGH_S)
    assert queue.name not in cluster.admin().list_topics()
    assert queue.name not in {group.group_id for group in cluster.admin().list_groups()}


def test_a_living_process_keeps_its_item_for_as_long_as_it_likes(cluster: Cluster, monkeypatch: Any) -> None:
    monkeypatch.setattr("rayka.queue.lease_keeper._RENEWALS", 60)
    queue = leased(cluster)
    queue.put("long")
    other = copy_of(queue)
    assert queue.get() == "long"
    with pytest.raises(Empty):
        other.get(timeout=3 * LEASE_MS / 1000)
    queue.shutdown()


def test_task_done_and_task_failed_end_leases_where_the_program_asks_for_it(cluster: Cluster) -> None:
    queue = leased(cluster, lease="task_done")
    queue.put_nowait_batch(["good", "bad", "lost"])
    assert [queue.get() for _ in range(3)] == ["good", "bad", "lost"]
    queue.task_done()
    queue.task_failed()
    assert queue.get(timeout=ENOUGH_S) == "bad"
    other = copy_of(queue)
    queue.close()
    assert sorted(other.get(timeout=ENOUGH_S) for _ in range(2)) == ["bad", "lost"]
    other.task_done()
    other.task_done()
    with pytest.raises(ValueError, match="more often than get"):
        other.task_done()
    other.shutdown()


def test_an_item_that_failed_comes_again_after_its_delay_in_seconds(cluster: Cluster) -> None:
    queue = leased(cluster, lease="task_done")
    queue.put("render")
    assert queue.get(timeout=ENOUGH_S) == "render"
    for wrong in (-0.001, 86_401, float("nan")):
        with pytest.raises(ValueError, match="delay_s must be between 0 and 86400"):
            queue.task_failed(delay_s=wrong)
    failed_s = time.monotonic()
    queue.task_failed(delay_s=0.5)
    assert queue.get(timeout=ENOUGH_S) == "render"
    assert time.monotonic() - failed_s >= 0.4, "the leader counts whole milliseconds of its own clock"
    queue.task_done()
    queue.shutdown()


def test_an_item_that_fails_as_often_as_allowed_is_a_dead_letter(cluster: Cluster) -> None:
    queue = leased(cluster, lease="task_done", max_attempts=2, dead_letters=True)
    queue.put("poison")
    for _ in range(2):
        assert queue.get(timeout=ENOUGH_S) == "poison"
        queue.task_failed()
    topic = queue.dead_letter_topic
    assert topic == f"dlq.{queue.name}"
    with cluster.consumer(auto_offset_reset="earliest", consumer_timeout_ms=ENOUGH_S * 1000) as consumer:
        consumer.assign([(topic, 0)])
        letter = next(iter(consumer))
    assert pickle.loads(letter.value) == "poison"
    assert dict(letter.headers)["__dlq.errors.delivery.count"] == b"2"
    with pytest.raises(Empty):
        queue.get_nowait()
    queue.shutdown()


@pytest.mark.parametrize(
    "settings",
    [
        {"lease": "never"},
        {"lease_s": 5},
        {"max_attempts": 1},
        {"partitions": 0},
        {"maxsize": "many"},
        {"put_ahead": 5, "maxsize": 5},
    ],
)
def test_settings_that_can_t_be_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Queue(**settings)


def test_a_full_queue_refuses_or_waits(cluster: Cluster) -> None:
    queue = Queue(1)
    other = copy_of(queue)
    queue.put(0, block=False)
    assert queue.full()
    with pytest.raises(Full):
        other.put_nowait(1)
    with pytest.raises(Full):
        queue.put(1, timeout=0.1)
    with pytest.raises(ValueError, match="non-negative"):
        queue.put(1, timeout=-1)
    assert other.get() == 0
    queue.put(1, timeout=ENOUGH_S)
    putting = later(queue.put, 2)
    assert other.get(timeout=ENOUGH_S) == 1
    putting.join(ENOUGH_S)
    assert other.get() == 2
    queue.shutdown()


def test_an_empty_queue_refuses_or_waits(queue: Queue) -> None:
    with pytest.raises(Empty):
        queue.get_nowait()
    with pytest.raises(Empty):
        queue.get(timeout=0.1)
    with pytest.raises(ValueError, match="non-negative"):
        queue.get(timeout=-1)
    later(copy_of(queue).put, "late")
    assert queue.get(timeout=ENOUGH_S) == "late"
    queue.put("at once")
    assert queue.get(block=False) == "at once"


def test_many_threads_and_programs_get_every_item_once(queue: Queue) -> None:
    found: list[int] = []

    def drain(queue: Queue) -> None:
        while (item := queue.get(timeout=ENOUGH_S)) is not None:
            found.append(item)

    copies = [copy_of(queue) for _ in range(2)]
    drains = [later(drain, copy) for copy in copies for _ in range(2)]
    putters = [later(lambda: [queue.put(number) for number in range(100)]) for _ in range(2)]
    for putter in putters:
        putter.join(ENOUGH_S)
    queue.put_nowait_batch(range(100, 1500))
    queue.put_nowait_batch([None] * len(drains))
    for each in drains:
        each.join(ENOUGH_S)
    assert sorted(found) == sorted(itertools.chain([*range(100)] * 2, range(100, 1500)))


def test_a_queue_without_partitions_in_order_gives_every_item_too(cluster: Cluster) -> None:
    queue = Queue(partitions=3)
    for number in range(60):
        queue.put(number)
    assert queue.qsize() == 60
    assert sorted(queue.get(timeout=ENOUGH_S) for _ in range(60)) == [*range(60)]
    queue.shutdown()


def test_items_that_are_done_with_leave_the_lag_of_the_group(cluster: Cluster, queue: Queue) -> None:
    queue.put_nowait_batch(range(10))
    assert queue.get_nowait_batch(10) == [*range(10)]
    with pytest.raises(Empty):
        queue.get_nowait()
    loop: LoopThread = cluster._connection.loop
    depths = queue._here.topic.depths
    wait_until(lambda: loop.run(depths())[0].start_offset == 10, ENOUGH_S, "all items are done")


def test_items_that_are_done_with_are_deleted_from_the_log(
    cluster: Cluster, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayka.queue.reader._TRIM_ITEMS", 10)
    queue.put_nowait_batch(range(40))
    assert [queue.get() for _ in range(30)] == [*range(30)]
    loop, depths = queue._here.loop, queue._here.topic.depths
    wait_until(lambda: loop.run(depths())[0].start_offset == 29, ENOUGH_S, "the items before the last are done")
    assert queue.get() == 30
    admin, partition = cluster.admin(), (queue.name, 0)
    assert [queue.get() for _ in range(9)] == [*range(31, 40)]
    queue.put_nowait_batch(range(40, 50))
    assert [queue.get() for _ in range(10)] == [*range(40, 50)]
    started = lambda: next(iter(admin.list_offsets({partition: -2}).values())).offset  # noqa: E731
    wait_until(lambda: started() >= 29, ENOUGH_S, "they are deleted")


def test_a_lease_that_has_ended_does_not_keep_the_others_from_being_renewed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayka.queue.lease_keeper._RENEWALS", 6)
    queue = leased(cluster, lease="program")
    queue.put_nowait_batch(["lost", "kept"])
    assert queue.get() == "lost"
    reader = queue._here.reader
    reader._renewing.cancel()  # as in a process that stands still; so it takes no part until the next get
    other = copy_of(queue)
    assert [other.get(timeout=ENOUGH_S) for _ in range(2)] == ["kept", "lost"]
    other.put("mine")
    reader._renewing = None
    assert queue.get(timeout=ENOUGH_S) == "mine"
    with pytest.raises(Empty):
        other.get(timeout=2 * LEASE_MS / 1000)
    queue.shutdown()


def test_leases_are_renewed_though_a_renewal_comes_while_acknowledgements_are_sent(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayka.queue.lease_keeper._RENEWALS", 6)
    queue = leased(cluster)
    queue.put("long")
    other = copy_of(queue)
    assert queue.get() == "long"
    reader = queue._here.reader

    async def renew_in_a_tick() -> None:
        reader._renewing.cancel()
        reader._ticking = True
        await reader._renew()
        await reader._settle()

    queue._here.loop.run(renew_in_a_tick())
    with pytest.raises(Empty):
        other.get(timeout=2 * LEASE_MS / 1000)
    queue.shutdown()


def test_leases_are_renewed_though_a_renewal_found_none_while_acknowledgements_were_sent(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayka.queue.lease_keeper._RENEWALS", 6)
    queue = leased(cluster)
    other = copy_of(queue)
    reader = queue._here.reader
    reader._ticking = True
    queue._here.loop.run(reader._renew())
    queue.put("long")
    assert queue.get() == "long"
    queue._here.loop.run(reader._settle())
    with pytest.raises(Empty):
        other.get(timeout=2 * LEASE_MS / 1000)
    queue.shutdown()


def fetch_ahead(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> QueueReader:
    """Let the queue's reader have items that were not delivered, and that do not go back for a while."""
    monkeypatch.setattr("rayka.queue.leases._IDLE_MS", 600_000)
    monkeypatch.setattr("rayka.queue.leases._QUICK_MS", 600_000)
    queue.put_nowait_batch(range(300))
    reader = queue._here.reader
    wait_until(lambda: queue.get() < 300 and reader.ready_count > 1, ENOUGH_S, "items are fetched ahead")
    return reader


def test_items_of_a_replaced_leader_are_forgotten_though_a_fetch_asks_the_new_one(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = fetch_ahead(queue, monkeypatch)

    async def fetch_after_an_election() -> int:
        reader._epochs = {0: -1}
        outcome = await reader.fetch(1, 0.0)
        return reader.ready_count - outcome.item_count

    wait_until(lambda: reader._pumping is None, ENOUGH_S, "nothing is fetched")
    assert queue._here.loop.run(fetch_after_an_election()) == 0


def test_leases_are_renewed_as_often_as_the_group_s_setting_demands(cluster: Cluster) -> None:
    queue = leased(cluster, lease_s=60)
    queue.put("long")
    other = copy_of(queue)
    assert queue.get() == "long"
    with pytest.raises(Empty):
        other.get(timeout=2 * LEASE_MS / 1000)
    queue.shutdown()


def test_an_item_put_while_many_wait_makes_none_of_the_others_look_again_and_again(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_IDLE_MS", "_LONGEST_AHEAD_MS"):  # a thread that is slow to wake up finds its item all the same
        monkeypatch.setattr(leases, limit, 600_000)
    found: list[int] = []
    getting = [later(lambda: found.append(queue.get(timeout=ENOUGH_S))) for _ in range(6)]
    reader = queue._here.reader
    wait_until(lambda: len(reader._waiters) == 6, ENOUGH_S, "all wait")
    looks: list[Any] = []
    take = reader.take
    monkeypatch.setattr(reader, "take", lambda *asked: looks.append(asked) or take(*asked))
    queue.put(0)
    wait_until(lambda: found == [0], ENOUGH_S, "one gets it")
    queue.put_nowait_batch(range(1, 6))
    for each in getting:
        each.join(ENOUGH_S)
    assert sorted(found) == [*range(6)]
    assert len(looks) == 6


def test_a_get_under_way_ends_when_the_handle_is_closed(queue: Queue) -> None:
    reader = queue._here.reader
    reader.begin("me")
    queue.close()
    with pytest.raises(rayka.RaykaError, match="closed"):
        reader.arrival().result(ENOUGH_S)


def test_a_closed_handle_fetches_nothing_more(queue: Queue) -> None:
    queue.put(1)
    program = copy_of(queue)
    reader = program._here.reader
    program.close()
    with pytest.raises(rayka.RaykaError, match="closed"):
        program._here.loop.run(reader.look(1))
    assert queue.get_nowait() == 1


def test_a_topic_that_is_no_queue_is_not_opened_as_one(cluster: Cluster) -> None:
    cluster.admin().create_topic("orders")
    with pytest.raises(rayka.RaykaError, match="not a queue"):
        Queue(name="orders")


def test_an_old_handle_does_not_delete_a_new_queue_of_the_same_name(cluster: Cluster) -> None:
    old = Queue(name="again")
    copy_of(old).shutdown()
    new = Queue(name="again")
    new.put("kept")
    old.shutdown()
    assert new.get(timeout=ENOUGH_S) == "kept"
    new.shutdown()


def test_who_opens_a_queue_by_name_leaves_its_settings_as_they_are(cluster: Cluster) -> None:
    queue = Queue(name="settings", lease="task_done", max_attempts=2, dead_letters=True)
    Queue(name="settings")
    queue.put("poison")
    for _ in range(2):
        assert queue.get(timeout=ENOUGH_S) == "poison"
        queue.task_failed()
    with pytest.raises(Empty):
        queue.get(timeout=0.5)
    queue.shutdown()


def test_of_a_batch_with_a_damaged_item_the_others_go_back(queue: Queue) -> None:
    queue.put(0)
    queue._here.writer._producer.send(queue.name, b"not a pickle").get()
    queue.put(2)
    with pytest.raises(pickle.UnpicklingError):
        queue.get_nowait_batch(3)
    assert [queue.get(timeout=ENOUGH_S) for _ in range(2)] == [0, 2]
    wait_until(lambda: queue.lag() == 1, ENOUGH_S, "the damaged one is rejected, the first one done")


def test_what_a_thread_has_got_is_not_taken_for_that_of_its_successor(cluster: Cluster) -> None:
    queue = Queue(lease="task_done")
    queue.put_nowait_batch(["abandoned", "done"])

    def work(finishes: bool) -> None:
        queue.get()
        if finishes:
            queue.task_done()

    for finishes in (False, True):
        later(work, finishes).join(ENOUGH_S)
    queue.close()
    assert copy_of(queue).get(timeout=ENOUGH_S) == "abandoned"
    copy_of(queue).shutdown()


def test_the_task_that_asks_has_the_lease_however_it_asks(cluster: Cluster) -> None:
    queue = Queue(lease="task_done")

    async def use() -> None:
        await asyncio.create_task(queue.put_async(1))
        assert await asyncio.wait_for(queue.get_async(), ENOUGH_S) == 1
        assert queue.lag() == 1
        queue.task_done()
        await queue.put_async(2)
        assert queue.get(timeout=ENOUGH_S) == 2
        queue.task_done()

    asyncio.run(use())
    wait_until(lambda: queue.lag() == 0, ENOUGH_S, "both are done")
    queue.shutdown()


def test_a_get_without_any_time_looks_as_one_that_does_not_block(queue: Queue) -> None:
    queue.put(1)
    assert queue.get(timeout=0) == 1
    with pytest.raises(Empty):
        queue.get(timeout=0)


def test_an_item_is_done_soon_though_another_thread_waits_already(queue: Queue) -> None:
    queue.put("mine")
    assert queue.get(timeout=ENOUGH_S) == "mine"
    waiting = later(lambda: queue.get(timeout=ENOUGH_S))
    reader = queue._here.reader
    wait_until(lambda: len(reader._waiters) == 1 and not reader._ticking, ENOUGH_S, "the other one waits")
    started = time.monotonic()
    with pytest.raises(Empty):
        queue.get(timeout=1)
    wait_until(lambda: queue.lag() == 0, ENOUGH_S, "the item is done")
    assert time.monotonic() - started < 9, "acknowledgements do not wait for the other thread's item"
    queue.put(None)
    waiting.join(ENOUGH_S)


def test_what_goes_back_comes_before_what_was_put_after_it(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.put_nowait_batch(range(300))
    found = [queue.get() for _ in range(20)]
    assert give_back_begins(queue, monkeypatch).wait(ENOUGH_S)
    found += [queue.get(timeout=ENOUGH_S) for _ in range(280)]
    assert found == [*range(300)]


def test_a_coroutine_that_gives_up_waiting_for_room_leaves_nothing_behind(cluster: Cluster) -> None:
    queue = Queue(1)
    queue.put(0)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.put_async(1), 0.1)

    running = later(asyncio.run, give_up())
    running.join(5)
    assert not running.is_alive()
    assert queue.get() == 0
    with pytest.raises(Empty):
        queue.get(timeout=0.2)
    queue.shutdown()


def test_a_forked_process_is_told_that_it_can_t_use_the_handle(queue: Queue) -> None:
    def told(use: Any) -> bool:
        try:
            use()
        except rayka.RaykaError as error:
            return "fork" in str(error)
        return False

    child = os.fork()
    if child == 0:
        os._exit(0 if told(lambda: queue.put(1)) and told(lambda: queue.get(timeout=1)) and told(queue.qsize) else 1)
    ended: list[int] = []

    def has_ended() -> bool:
        pid, status = os.waitpid(child, os.WNOHANG)
        ended.append(status)
        return pid == child

    try:
        wait_until(has_ended, 60, "the child ends")
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    assert ended[-1] == 0


def test_a_batch_is_whole_though_a_get_that_gave_up_has_begun_to_fetch(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayka.queue.reader._ARRIVAL_S", ENOUGH_S)  # on a machine that is overloaded too
    for _ in range(20):
        with pytest.raises(Empty):
            queue.get(timeout=0.01)
        queue.put_nowait_batch(range(100))
        assert queue.get_nowait_batch(100) == list(range(100))


def test_an_item_that_ends_every_program_is_delivered_as_often_as_allowed(cluster: Cluster) -> None:
    queue = leased(cluster, lease="task_done", max_attempts=2)
    queue.put("poison")
    for _ in range(2):
        program = copy_of(queue)
        assert program.get(timeout=ENOUGH_S) == "poison"
        program._here.loop.run(program._here.reader.end(is_exit=True))
    wait_until(lambda: queue.lag() == 0, ENOUGH_S, "it is not delivered again")
    queue.shutdown()


def test_nothing_goes_back_while_a_fetch_that_began_meanwhile_is_under_way(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = fetch_ahead(queue, monkeypatch)

    async def settle_while_a_fetch_begins() -> bool:
        reader._ticking = True
        async with reader._giving_back:
            ready_count = reader.ready_count
            reader._leases._taken_ms -= 600_000
            settling = asyncio.ensure_future(reader._settle())
            while not reader._giving_back._waiters:
                await asyncio.sleep(0)
            reader._fetches[(fetch := asyncio.get_running_loop().create_future())] = 0.0
        await settling
        del reader._fetches[fetch]
        return reader.ready_count >= ready_count

    wait_until(lambda: reader._pumping is None, ENOUGH_S, "nothing is fetched")
    assert queue._here.loop.run(settle_while_a_fetch_begins())


def test_items_go_back_soon_though_a_fetch_of_a_get_that_gave_up_still_waits(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put_nowait_batch(range(3))
    other = copy_of(queue)
    reader = queue._here.reader
    fetch, waits_s = reader._member.fetch, []

    async def fetch_noting_the_wait(count: int, wait_s: float, *rest: Any) -> Any:
        waits_s.append(wait_s)
        return await fetch(count, wait_s, *rest)

    monkeypatch.setattr(reader._member, "fetch", fetch_noting_the_wait)

    async def fetch_while_another_waits() -> None:
        results = await fetch(3, 0.0, 0, (), 0.0)
        reader._waiters.add()
        reader._start_pumping()
        while not reader._fetches:
            await asyncio.sleep(0)
        reader._waiters.fail(rayka.RaykaError(ErrorCode.REQUEST_TIMED_OUT, "it gives up"))
        runs = reader._member.read(results).runs
        assert reader._add(runs, 3, time.monotonic_ns() // 1_000_000) == 3
        reader._start_ticking()

    queue._here.loop.run(fetch_while_another_waits())
    assert [other.get(timeout=ENOUGH_S) for _ in range(3)] == [0, 1, 2]
    assert 0 < max(waits_s) <= 2


def test_the_size_of_a_queue_whose_leader_is_away_keeps_nobody_from_getting(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()

    async def away() -> Any:
        asked.set()
        raise rayka.RaykaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "away")

    queue.put("here")
    with monkeypatch.context() as patch:
        patch.setattr(queue._here.topic, "depths", away)
        sizes: list[int] = []
        counting = later(lambda: sizes.append(queue.qsize()))
        assert asked.wait(ENOUGH_S)
        assert queue.get(timeout=20) == "here"
        assert not sizes
    counting.join(ENOUGH_S)
    assert sizes == [0]


def test_an_item_that_came_while_the_process_stood_still_is_not_delivered_under_its_old_lease(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = leased(cluster, max_attempts=10)
    queue.put("once")
    member, late = queue._here.reader._member, [2 * LEASE_MS / 1000]
    fetch = member.fetch

    async def fetch_late(*arguments: Any) -> Any:
        results = await fetch(*arguments)
        await asyncio.sleep(late.pop() if late else 0)
        return results

    monkeypatch.setattr(member, "fetch", fetch_late)
    assert queue.lease(timeout=ENOUGH_S).delivery_count > 1
    queue.shutdown()


def test_items_put_ahead_are_in_order_and_all_there_after_flush(cluster: Cluster) -> None:
    queue = Queue(put_ahead=50)
    for number in range(300):
        queue.put(number)
    for number in range(300, 600, 30):
        queue.put_nowait_batch(range(number, number + 30))
    queue.flush()
    assert queue.qsize() == 600
    assert queue.get_nowait_batch(600) == [*range(600)]
    queue.shutdown()


def test_flush_raises_the_error_of_an_item_that_was_put_ahead(cluster: Cluster) -> None:
    queue = Queue(put_ahead=10)
    queue._here.broker.partitions.fail_appends(Fault(0, ErrorCode.INVALID_RECORD))
    queue.put("refused")
    with pytest.raises(rayka.RaykaError, match="INVALID_RECORD"):
        queue.flush()
    queue.put("kept")
    queue.close()
    assert copy_of(queue).get(timeout=ENOUGH_S) == "kept"
    copy_of(queue).shutdown()


def test_a_put_raises_the_error_of_the_item_that_it_had_to_wait_for(cluster: Cluster) -> None:
    queue = Queue(put_ahead=1)
    queue._here.broker.partitions.fail_appends(Fault(0, ErrorCode.INVALID_RECORD))
    queue.put("refused")
    with pytest.raises(rayka.RaykaError, match="INVALID_RECORD"):
        queue.put("kept")
    queue.shutdown()


def lose_segments(queue: Queue, monkeypatch: pytest.MonkeyPatch, times: int) -> list[FileSlice]:
    """So many fetches find that what they were told to read is gone."""
    leaders, lost = queue._here.broker.share_leaders, []
    fetch = leaders.fetch

    async def fetch_what_is_gone(*arguments: Any) -> Any:
        lock_duration_ms, results = await fetch(*arguments)
        for number, result in enumerate(results):
            if isinstance(result.records, FileSlice) and len(lost) < times:
                lost.append(result.records)
                results[number] = result._replace(records=result.records._replace(path="/nowhere/0.log"))
        return lock_duration_ms, results

    monkeypatch.setattr(leaders, "fetch", fetch_what_is_gone)
    return lost


@pytest.mark.parametrize("wait", ["get", "look", "wait"])
def test_items_whose_segment_was_gone_are_fetched_again(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, wait: str
) -> None:
    """The process stood still until its leases ended, and others were done with what was in the segment."""
    queue.put("kept")
    lost = lose_segments(queue, monkeypatch, 2)
    match wait:
        case "get":
            item = queue.lease(timeout=10)
        case "look":
            item = queue.lease(block=False)
        case _:
            leased = [found for _ in range(3) if (found := queue.wait(10, threading.Event())) is not None]
            (item, _, _), *_ = leased
    assert (loads(item.value), item.delivery_count, len(lost)) == ("kept", 1, 2)


def test_a_program_that_can_t_read_items_gets_the_error_and_keeps_none(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put_nowait_batch(range(3))
    with monkeypatch.context() as patch:
        lose_segments(queue, patch, 1000)
        with pytest.raises(rayka.RaykaError) as raised:
            queue.get(timeout=10)
        assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    other = copy_of(queue)
    assert other.get(timeout=10) == 0


@pytest.mark.parametrize("way", ["get_nowait", "get", "wait"])
def test_an_item_that_comes_after_its_handle_was_closed_is_for_others(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    leaders = queue._here.broker.share_leaders
    fetch, arrived, goes_on = leaders.fetch, threading.Event(), threading.Event()

    async def late(*arguments: Any) -> Any:
        answer = await fetch(*arguments)
        if any(result.acquired for result in answer[1]) and not arrived.is_set():
            arrived.set()
            await asyncio.to_thread(goes_on.wait, ENOUGH_S)
        return answer

    monkeypatch.setattr(leaders, "fetch", late)
    queue.put("once")
    program, found = copy_of(queue), []

    def get() -> None:
        try:
            found.append(program.wait(ENOUGH_S, threading.Event()) if way == "wait" else getattr(program, way)())
        except rayka.RaykaError as error:
            found.append(error.code)

    getting = later(get)
    assert arrived.wait(ENOUGH_S)
    program.close()
    goes_on.set()
    getting.join(ENOUGH_S)
    assert found == [ErrorCode.INVALID_REQUEST]
    item = queue.lease(timeout=10)
    assert (loads(item.value), item.delivery_count) == ("once", 1)


@pytest.mark.parametrize("way", ["get_nowait", "get_nowait_batch"])
def test_an_item_that_comes_after_ctrl_c_goes_back_at_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    leaders = queue._here.broker.share_leaders
    fetch = leaders.fetch

    async def fetch_during_ctrl_c(*arguments: Any) -> Any:
        monkeypatch.setattr(leaders, "fetch", fetch)
        answer = await fetch(*arguments)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        await asyncio.sleep(0.2)
        return answer

    queue.put("kept")
    program = copy_of(queue)
    assert program.qsize() == 1
    monkeypatch.setattr(leaders, "fetch", fetch_during_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        program.get_nowait() if way == "get_nowait" else program.get_nowait_batch(1)
    item = queue.lease(timeout=10)
    assert (loads(item.value), item.delivery_count) == ("kept", 1)


@pytest.mark.parametrize("way", ["get", "lease", "get_nowait_batch"])
@pytest.mark.parametrize("is_late", [False, True])
def test_an_item_that_ctrl_c_keeps_from_the_program_goes_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, way: str, is_late: bool
) -> None:
    """It is taken already and not returned yet. `task_done` would finish it instead of the next item."""
    queue = Queue(lease="task_done")
    queue.put_nowait_batch(range(2))
    take = "take_many" if way == "get_nowait_batch" else "take"
    kind, step = (QueueReader, take) if is_late else (Leases, "_add_delivered")
    undisturbed = getattr(kind, step)

    def interrupted(*arguments: Any) -> Any:
        taken = undisturbed(*arguments)
        if queue._here.reader._leases.delivered():
            monkeypatch.setattr(kind, step, undisturbed)
            raise KeyboardInterrupt
        return taken

    monkeypatch.setattr(kind, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        queue.get_nowait_batch(1) if way == "get_nowait_batch" else getattr(queue, way)(timeout=ENOUGH_S)
    got = []
    for _ in range(2):
        got.append(queue.get(timeout=10))
        queue.task_done()
    assert sorted(got) == [0, 1]
    queue.shutdown()


def test_items_beside_a_damaged_one_are_delivered_once_and_the_damaged_one_is_no_gap(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaders = queue._here.broker.share_leaders
    fetch = leaders.fetch

    async def damage(*arguments: Any) -> Any:
        lock_duration_ms, results = await fetch(*arguments)
        for number, result in enumerate(results):
            if isinstance(result.records, FileSlice):
                data = SegmentReader().read(result.records)
                results[number] = result._replace(records=data.replace(b"damaged", b"DAMAGED"))
        return lock_duration_ms, results

    monkeypatch.setattr(leaders, "fetch", damage)
    for item in ("damaged", "whole"):
        queue.put(item)
    with pytest.raises(rayka.RaykaError, match=f"{queue.name}-0 from offset 0 on") as raised:
        queue.get_nowait_batch(2)
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
    assert queue.get(timeout=10) == "whole"
    with pytest.raises(Empty):
        queue.get(timeout=0.1)
    assert queue.lag() == 1


@contextlib.contextmanager
def damaged_log(queue: Queue) -> Iterator[None]:
    """The leader finds no items: the length of the batch of the first one is lost."""
    log = queue._here.broker.share_leaders.partitions._replicas.get(TopicPartition(queue.name, 0)).log
    with open(log._segments.active.path, "r+b", buffering=0) as file:
        length = os.pread(file.fileno(), 4, 8)
        os.pwrite(file.fileno(), bytes(4), 8)
        try:
            yield
        finally:
            os.pwrite(file.fileno(), length, 8)


GETS: dict[str, Callable[[Queue], Any]] = {
    "get": lambda queue: queue.get(timeout=10),
    "get_async": lambda queue: asyncio.run(asyncio.wait_for(queue.get_async(timeout=10), ENOUGH_S)),
    "get_nowait": lambda queue: queue.get_nowait(),
    "get_nowait_batch": lambda queue: queue.get_nowait_batch(2),
    "wait": lambda queue: queue.wait(10, threading.Event()),
}


@pytest.mark.parametrize("way", GETS)
@pytest.mark.parametrize("offset", [0, 1])
def test_a_leader_that_finds_its_log_damaged_is_an_error_with_the_place(queue: Queue, offset: int, way: str) -> None:
    """Kafka calls CORRUPT_MESSAGE retriable, for producers: a get that tried again would do so for ever."""
    for item in range(3):
        queue.put(item)
    assert [queue.get() for _ in range(offset)] == [*range(offset)]
    with damaged_log(queue):
        with pytest.raises(rayka.RaykaError, match=f"{queue.name}-0: offset {offset} can't be read") as raised:
            GETS[way](queue)
        assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
    assert [queue.get(timeout=ENOUGH_S) for _ in range(offset, 3)] == [*range(offset, 3)]


def test_an_error_of_a_leader_that_may_pass_is_waited_for(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    leaders, answered = queue._here.broker.share_leaders, []
    fetch, errors = leaders.fetch, [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_SERVER_ERROR]

    async def refuse(params: Any, partitions: Any) -> Any:
        if errors:
            answered.append(errors.pop())
            return 0, [ShareFetchResult(answered[-1])] * len(partitions)
        return await fetch(params, partitions)

    monkeypatch.setattr(leaders, "fetch", refuse)
    queue.put("here")
    assert queue.get(timeout=ENOUGH_S) == "here"
    assert len(answered) == 2


def test_a_damaged_partition_is_no_error_while_another_has_items(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(partitions=2)
    leaders = queue._here.broker.share_leaders
    fetch = leaders.fetch

    async def damage(*arguments: Any) -> Any:
        lock_duration_ms, (_, second) = await fetch(*arguments)
        return lock_duration_ms, [ShareFetchResult(ErrorCode.CORRUPT_MESSAGE, "damaged"), second]

    monkeypatch.setattr(leaders, "fetch", damage)
    queue._here.writer._producer.send(queue.name, pickle.dumps("whole"), partition=1).get()
    assert queue.get(timeout=ENOUGH_S) == "whole"
    with pytest.raises(rayka.RaykaError, match=f"CORRUPT_MESSAGE: {queue.name}-0: damaged"):
        queue.get(timeout=10)
    queue.shutdown()


@pytest.fixture
def half_damaged(cluster: Cluster) -> Iterator[Queue]:
    """A queue of two partitions. The items of the first can't be read."""
    queue = Queue(partitions=2)
    put_into(queue, 0, "not delivered")
    with damaged_log(queue):
        yield queue
    queue.shutdown()


def put_into(queue: Queue, partition: int, item: object) -> None:
    queue._here.writer._producer.send(queue.name, pickle.dumps(item), partition=partition).get()


def got(queue: Queue, way: str, timeout: float) -> object:
    """The item, or the error."""
    try:
        match way:
            case "wait":
                leased = queue.wait(timeout, threading.Event())
                return leased and loads(leased.item.value)
            case "get_async":
                return asyncio.run(queue.get_async(timeout=timeout))
            case _:
                return queue.get(timeout=timeout)
    except rayka.RaykaError as error:
        return error.code


@pytest.mark.parametrize("way", ["get", "get_async", "wait"])
def test_who_gets_again_after_an_error_waits_for_the_sound_partitions(half_damaged: Queue, way: str) -> None:
    assert got(half_damaged, way, ENOUGH_S) is ErrorCode.CORRUPT_MESSAGE
    putting = threading.Timer(0.5, put_into, (half_damaged, 1, "whole"))
    putting.start()
    found = []
    while not found or found[-1] is None:
        found.append(got(half_damaged, way, 5))
    putting.join()
    assert found[-1] == "whole"
    assert len(found) == 1 or way == "wait"
    assert len(found) < 30


def test_the_error_of_a_partition_comes_instead_of_empty(half_damaged: Queue) -> None:
    began = time.monotonic()
    assert [got(half_damaged, "get", 0.4) for _ in range(4)] == [ErrorCode.CORRUPT_MESSAGE] * 4
    assert 1.2 <= time.monotonic() - began < 3
    with pytest.raises(rayka.RaykaError, match="CORRUPT_MESSAGE"):
        half_damaged.get_nowait()


def test_an_error_of_a_partition_is_logged_once_while_another_has_items(
    half_damaged: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5):
        put_into(half_damaged, 1, number)
        assert half_damaged.get(timeout=ENOUGH_S) == number
    assert caplog.text.count("no items are delivered of ") == 1
    assert f"no items are delivered of {half_damaged.name}-0: offset 0 can't be read" in caplog.text


@pytest.mark.parametrize("error", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_a_fault_of_a_leader_that_lasts_is_logged_and_is_not_an_empty_queue(
    queue: Queue, error: ErrorCode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(_: Any, partitions: Any) -> Any:
        return 0, [ShareFetchResult(error, "disk")] * len(partitions)

    queue.put("kept")
    with monkeypatch.context() as patch:
        patch.setattr(queue._here.broker.share_leaders, "fetch", refuse)
        with pytest.raises(Empty):  # it may pass
            queue.get(timeout=0.3)
        assert got(queue, "get", 1.5) is error
        assert caplog.text.count(f"no items are delivered of {queue.name}-0: disk ({error.name})") == 1
    assert queue.get(timeout=ENOUGH_S) == "kept"


def test_a_get_without_time_limit_does_not_wait_for_ever_for_a_share_partition_with_damaged_state(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rayka.queue.partition_errors._LONG_FAULT_S", 1.0)
    queue.put("kept")
    here, place = queue._here, TopicPartition(queue.name, 0)
    partitions = here.broker.share_leaders.partitions
    damaged = PersistedState(start_offset=0, state_batches=(PersistedBatch(0, 0, RecordState.ACQUIRED, 1),))

    async def read(*_: Any) -> PersistedState:
        return damaged

    with monkeypatch.context() as patch:
        patch.setattr(partitions._persister, "read", read)
        here.loop.call(lambda: partitions.released(place))
        with pytest.raises(rayka.RaykaError, match=f"{place}: the persisted state of .* is damaged") as raised:
            queue.get()
        assert raised.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert caplog.text.count(f"no items are delivered of {place}: the persisted state of ") == 1
    assert queue.get(timeout=ENOUGH_S) == "kept"


def test_the_group_of_a_queue_that_is_read_is_not_deleted(cluster: Cluster, queue: Queue) -> None:
    queue.put_nowait_batch([1, 2])
    assert queue.get(timeout=ENOUGH_S) == 1
    with pytest.raises(rayka.RaykaError) as refused:
        cluster.admin().delete_groups([queue.name])
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    assert queue.get(timeout=ENOUGH_S) == 2


def test_other_groups_are_deleted_when_it_is_not_known_whether_one_is_read(
    cluster: Cluster, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_read(*_: Any) -> bool:
        raise rayka.RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "a leader does not answer")

    queue.put("kept")
    assert queue.get(timeout=ENOUGH_S) == "kept"
    monkeypatch.setattr(type(queue._here.broker.share_leaders), "is_read", is_read)
    assert cluster.admin().delete_groups([queue.name, "nothing"], raise_errors=False) == {
        queue.name: ErrorCode.COORDINATOR_NOT_AVAILABLE,
        "nothing": ErrorCode.GROUP_ID_NOT_FOUND,
    }


def test_a_queue_without_the_state_of_its_group_is_not_an_empty_queue(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayka.queue.partition_errors._MOVE_S", 1.0)
    queue.put("kept")
    here, place = queue._here, TopicPartition(queue.name, 0)
    delete = DeleteShareGroupStateRequest(queue.name, uuid.UUID(bytes=here.topic.topic_id), 0)
    assert here.loop.run(here.broker.shares.execute(delete)).error is ErrorCode.NONE
    here.loop.call(lambda: here.broker.share_leaders.partitions.released(place))
    with pytest.raises(Empty):  # it may pass
        queue.get(timeout=0.3)
    assert got(queue, "get", 3.0) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_segment_that_is_gone_is_not_an_empty_queue(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    queue.put("kept")
    log = queue._here.broker.share_leaders.partitions._replicas.get(TopicPartition(queue.name, 0)).log
    path = log._segments.active.path
    os.rename(path, path + ".away")
    try:
        assert got(queue, "get", 3.0) is ErrorCode.KAFKA_STORAGE_ERROR
        assert caplog.text.count("no items are delivered of ") == 1
    finally:
        os.rename(path + ".away", path)
    assert queue.get(timeout=ENOUGH_S) == "kept"


def test_a_topic_that_is_no_queue_is_not_found_as_one(cluster: Cluster) -> None:
    cluster.admin().create_topic("no-queue")
    with pytest.raises(rayka.RaykaError, match="not a queue"):
        Queue.find("no-queue")
    assert Queue.find("nothing") is None


def test_a_program_that_connects_again_can_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        contextlib.closing(LocalConnection(str(tmp_path / "second"))) as second,
        pytest.MonkeyPatch.context() as patch,
        local_queues(tmp_path / "first"),
    ):
        Queue(name="first").put(1)
        patch.setattr(ray, "is_initialized", lambda: True)
        connected._leave()
        joined.leave(is_exit=True)
        joined._connections[HERE] = second  # type: ignore[assignment]
        queue = Queue(name="second")
        queue.put(2)
        assert queue.get(timeout=ENOUGH_S) == 2


def test_a_queue_that_can_t_be_deleted_delivers_no_item_again(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(names: list[str], timeout_ms: int) -> list[TopicResult]:
        return [TopicResult(name, error=ErrorCode.TOPIC_DELETION_DISABLED) for name in names]

    queue.put_nowait_batch(["done", "left"])
    program = copy_of(queue)
    assert program.get() == "done"
    with monkeypatch.context() as patch:
        patch.setattr(queue._here.broker.controller, "delete_topics", refuse)
        with pytest.raises(rayka.RaykaError, match="TOPIC_DELETION_DISABLED"):
            program.shutdown()
    assert queue.get(timeout=ENOUGH_S) == "left"
    assert queue.lag() == 1


def test_a_release_that_was_taken_and_is_sent_again_does_not_end_the_next_lease(cluster: Cluster) -> None:
    """The leader refuses it in the same answer that leases the items to this handle once more."""
    queue = Queue()
    queue.put("a")
    queue.put("b")
    reader = queue._here.reader
    member = reader._member

    async def release_twice() -> list[tuple[int, int]]:
        results = await member.fetch(2, 10.0, 0, [], 0.0)
        ((partition, leased),) = [(each, result) for each, result in results.items() if result.acquired]
        released = RecordAcknowledgement(AcknowledgeType.RELEASE, 0)
        again = [
            RangeAcknowledgement(LeasedOffsets(partition.partition, first, last), released)
            for first, last in leased.acquired_offsets
        ]
        await member.acknowledge(again)
        results = await member.fetch(2, 10.0, 0, again, 0.0)
        assert results[partition].acquired_count == 2
        records = await member._broker.share_leaders.records(member._topic.name, partition)
        return [(record.state, record.delivery_count) for record in records or ()]

    assert {*reader._loop.run(release_twice())} == {(RecordState.ACQUIRED, 2)}
    queue.shutdown()
