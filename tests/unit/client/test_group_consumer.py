"""What a program that reads in a group relies on."""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.client.consumer import tables
from rayka.client.consumer.consumer import WakeupError
from rayka.client.consumer.fetch_collector import FetchCollector
from rayka.client.consumer.records import ConsumerRecord
from rayka.client.group.blocking import GroupConsumer
from rayka.client.group.coordinator import OffsetAndMetadata
from rayka.client.group.membership import MembershipState
from rayka.coordinator.groups.requests import OffsetCommitRequest, OffsetFetchRequest
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import NewTopic
from rayka.testing import wait_until
from rayka.types import TopicPartition
from tests.support.client_connection import LocalConnection
from tests.unit.client.grouped import FAST_GROUPS, write
from tests.unit.client.interrupts import interrupt_next_answer, interrupt_next_run

SETTINGS: dict[str, Any] = {"auto_offset_reset": "earliest", "retry_backoff_ms": 10}


@pytest.fixture
def broker_config() -> dict[str, str]:
    """Groups move fast."""
    return FAST_GROUPS


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    """A cluster with a topic of four partitions."""
    cluster.admin().create_topic("events", partitions=4)
    return cluster


def until(done: Callable[[], bool], *consumers: GroupConsumer, timeout_s: float = 60) -> list[ConsumerRecord]:
    """Poll all consumers in turn until something is so; gives what they got meanwhile."""
    records: list[ConsumerRecord] = []
    deadline_s = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline_s, "this took too long"
        for consumer in consumers:
            for polled in consumer.poll(5).values():
                records += polled
    return records


def take(count: int, *consumers: GroupConsumer) -> list[ConsumerRecord]:
    """Poll until there are so many records."""
    records: list[ConsumerRecord] = []

    def enough() -> bool:
        for consumer in consumers:
            for polled in consumer.poll(5).values():
                records.extend(polled)
        return len(records) >= count

    until(enough)
    return records


def numbers(records: list[ConsumerRecord]) -> list[int]:
    """The numbers that `write` wrote."""
    return sorted(int(record.value) for record in records)


def share(*consumers: GroupConsumer) -> Callable[[], bool]:
    """Whether the consumers have four partitions among them, as evenly as can be."""

    def is_even() -> bool:
        held = [consumer.assignment() for consumer in consumers]
        sizes = sorted(map(len, held))
        return sum(sizes) == len(set().union(*held)) == 4 and sizes[-1] - sizes[0] <= 1

    return is_even


def test_one_member_reads_everything(cluster: Cluster) -> None:
    write(cluster, 100)
    with cluster.consumer("g", ["events"], **SETTINGS) as consumer:
        assert numbers(take(100, consumer)) == [*range(100)]
        assert consumer.subscription() == {"events"}
        assert consumer.assignment() == {TopicPartition("events", number) for number in range(4)}
        assert consumer.group_metadata().member_epoch > 0
        assert consumer.lag(("events", 0)) == 0
    assert cluster.admin().describe_group("g").members == ()


def test_members_share_and_take_over(cluster: Cluster) -> None:
    first = cluster.consumer("g", ["events"], **SETTINGS)
    until(share(first), first)
    second = cluster.consumer("g", ["events"], **SETTINGS)
    until(share(first, second), first, second)
    third = cluster.consumer("g", ["events"], **SETTINGS)
    until(share(first, second, third), first, second, third)
    write(cluster, 100)
    assert numbers(take(100, first, second, third)) == [*range(100)]
    second.close()
    until(share(first, third), first, third)
    write(cluster, 100, first=100)
    assert numbers(take(100, first, third)) == [*range(100, 200)]


def test_closing_commits_and_the_next_goes_on_there(cluster: Cluster) -> None:
    write(cluster, 100)
    with cluster.consumer("g", ["events"], **SETTINGS) as consumer:
        take(100, consumer)
    write(cluster, 20, first=100)
    with cluster.consumer("g", ["events"], **SETTINGS) as consumer:
        assert numbers(take(20, consumer)) == [*range(100, 120)]


def test_iteration_commits_the_records_that_were_returned(cluster: Cluster) -> None:
    write(cluster, 100)
    with cluster.consumer("g", ["events"], consumer_timeout_ms=5000, **SETTINGS) as consumer:
        given = list(itertools.islice(consumer, 30))
    with cluster.consumer("g", ["events"], consumer_timeout_ms=300, **SETTINGS) as consumer:
        assert numbers(given + list(consumer)) == [*range(100)]


def test_a_program_that_becomes_slow_while_it_iterates_still_takes_part_in_the_group(cluster: Cluster) -> None:
    """However many records a quick program has at a time, it commits, and so polls, within `max_poll_records`."""
    write(cluster, 4000)
    with cluster.consumer(
        "g", ["events"], consumer_timeout_ms=5000, max_poll_records=10, auto_commit_interval_ms=0, **SETTINGS
    ) as consumer:
        records = iter(consumer)
        for _ in range(2000):
            next(records)
        time.sleep(0.15)
        for _ in range(20):
            next(records)

        def is_committed() -> bool:
            committed = consumer.committed([("events", number) for number in range(4)])
            return sum(one.offset for one in committed.values() if one is not None) >= 2000

        wait_until(is_committed, 30, "a commit of what was given out quickly")


def test_without_automatic_commits_only_the_program_commits(cluster: Cluster) -> None:
    write(cluster, 100)
    place = ("events", 1)
    with cluster.consumer("g", ["events"], enable_auto_commit=False, **SETTINGS) as consumer:
        take(100, consumer)
        assert consumer.committed(place) is None
        assert consumer.commit({place: OffsetAndMetadata(7, "half way")}) == {place: (7, "half way", -1)}
        assert consumer.committed(place) == OffsetAndMetadata(7, "half way")
        assert consumer.commit({place: 8}) == {place: OffsetAndMetadata(8)}
        assert consumer.commit()[TopicPartition(*place)].offset == 25
    described = cluster.admin().describe_group("g")
    assert {offset.current_offset for offset in described.offsets} == {25}


def test_automatic_commits_come_with_the_polls(cluster: Cluster) -> None:
    write(cluster, 40)
    with cluster.consumer("g", ["events"], auto_commit_interval_ms=0, **SETTINGS) as consumer:
        take(40, consumer)
        until(lambda: consumer.committed(("events", 3)) == OffsetAndMetadata(10), consumer)


def test_a_blocked_poll_commits_too(cluster: Cluster) -> None:
    write(cluster, 4)
    consumer = cluster.consumer("g", ["events"], auto_commit_interval_ms=100, **SETTINGS)
    take(4, consumer)
    blocked = threading.Thread(target=consumer.poll, args=(30_000,))
    blocked.start()
    other = cluster.consumer("g", **SETTINGS)
    until(lambda: other.committed(("events", 3)) == OffsetAndMetadata(1))
    assert blocked.is_alive()
    write(cluster, 1)
    blocked.join()


def test_committed_offsets_of_many_partitions(cluster: Cluster) -> None:
    with cluster.consumer("g", **SETTINGS) as consumer:
        consumer.commit({("events", 0): 3, ("events", 2): OffsetAndMetadata(5, "note")})
        assert consumer.committed(("events", 1)) is None
        assert consumer.committed([("events", 0), ("events", 1), ("events", 2)]) == {
            ("events", 0): OffsetAndMetadata(3),
            ("events", 1): None,
            ("events", 2): OffsetAndMetadata(5, "note"),
        }


def test_a_poll_in_a_group_is_woken_up(cluster: Cluster) -> None:
    with cluster.consumer("g", ["events"], **SETTINGS) as consumer:
        until(lambda: len(consumer.assignment()) == 4, consumer)
        timer = threading.Timer(0.1, consumer.wakeup)
        timer.start()
        with pytest.raises(WakeupError):
            consumer.poll(60_000)
        timer.join()
        assert consumer.poll(0) == {}


def test_asynchronous_commits_keep_their_order(cluster: Cluster) -> None:
    write(cluster, 100)
    place = ("events", 0)
    told: list[Any] = []
    with cluster.consumer("g", ["events"], enable_auto_commit=False, **SETTINGS) as consumer:
        take(100, consumer)
        futures = [
            consumer.commit_async({place: offset}, lambda done, error: told.append((done, error)))
            for offset in range(20)
        ]
        consumer.commit({place: 20})
        assert all(future.done() for future in futures)
        assert [done[place].offset for done, _ in told] == [*range(20)]
        assert consumer.committed(place) == OffsetAndMetadata(20)
        failing = consumer.commit_async({place: OffsetAndMetadata(1, "x" * 5000)}, lambda *both: told.append(both))
        with pytest.raises(RaykaError, match="OFFSET_METADATA_TOO_LARGE"):
            failing.result(60)
        until(lambda: len(told) == 21)
        assert told[-1][0] is None
        assert told[-1][1].code is ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_callbacks_run_in_the_polling_thread_and_revocation_comes_first(cluster: Cluster) -> None:
    """A partition is given up by one before it is assigned to another, and in between its offset can be committed."""
    write(cluster, 40)
    events: list[tuple[str, str, set[int]]] = []
    threads: set[int] = set()

    def note(name: str, what: str) -> Callable[[list[TopicPartition]], None]:
        def listener(partitions: list[TopicPartition]) -> None:
            events.append((name, what, {p.partition for p in partitions}))
            threads.add(threading.get_ident())

        return listener

    def listeners(name: str) -> dict[str, Any]:
        return {f"on_{what}": note(name, what) for what in ("assigned", "revoked", "lost")}

    first = cluster.consumer("g", **SETTINGS)
    first.subscribe(["events"], **listeners("first"))
    until(lambda: len(events) == 1, first)
    assert events == [("first", "assigned", {0, 1, 2, 3})]
    second = cluster.consumer("g", **SETTINGS)
    second.subscribe(["events"], **listeners("second"))
    until(lambda: len(events) == 3, first, second)
    _, revoked, assigned = events
    assert revoked[:2] == ("first", "revoked")
    assert assigned == ("second", "assigned", revoked[2])
    second.close()
    until(lambda: len(events) == 5, first)
    assert events[3:] == [("second", "revoked", revoked[2]), ("first", "assigned", revoked[2])]
    cluster.close()
    assert events[5:] == [("first", "revoked", {0, 1, 2, 3})]
    assert threads == {threading.get_ident()}


def test_callbacks_may_seek_commit_and_ask_but_not_poll(cluster: Cluster) -> None:
    write(cluster, 40)
    consumer = cluster.consumer("g", enable_auto_commit=False, **SETTINGS)
    committed: list[Any] = []

    def on_assigned(partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            consumer.seek(partition, 5)
        with pytest.raises(RaykaError, match="would wait for the callback itself"):
            consumer.poll(0)

    def on_revoked(partitions: list[TopicPartition]) -> None:
        assert consumer.position(partitions[0]) == 10
        committed.append(consumer.commit())

    consumer.subscribe(["events"], on_assigned=on_assigned, on_revoked=on_revoked)
    assert {record.offset for record in take(20, consumer)} == {5, 6, 7, 8, 9}
    consumer.close()
    assert [{offset.offset for offset in one.values()} for one in committed] == [{10}]


def test_poll_raises_the_error_of_a_callback_and_the_rebalance_continues(cluster: Cluster) -> None:
    write(cluster, 4)
    consumer = cluster.consumer("g", **SETTINGS)

    def fail(_: list[TopicPartition]) -> None:
        raise ValueError("not today")

    consumer.subscribe(["events"], on_assigned=fail, on_revoked=fail)
    with pytest.raises(ValueError, match="not today"):
        until(lambda: False, consumer)
    assert numbers(take(4, consumer)) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="not today"):
        consumer.close()
    assert cluster.admin().describe_group("g").members == ()


def test_an_interrupt_just_after_a_callback_does_not_stop_the_consumer(cluster: Cluster) -> None:
    write(cluster, 4)
    consumer = cluster.consumer("g", **SETTINGS)
    called: list[str] = []

    def on_assigned(_: list[TopicPartition]) -> None:
        called.append("assigned")
        interrupt_next_run(consumer)

    def on_revoked(_: list[TopicPartition]) -> None:
        called.append("revoked")
        interrupt_next_run(consumer)

    consumer.subscribe(["events"], on_assigned=on_assigned, on_revoked=on_revoked)
    with pytest.raises(KeyboardInterrupt):
        until(lambda: False, consumer)
    assert numbers(take(4, consumer)) == [0, 1, 2, 3]
    with pytest.raises(KeyboardInterrupt):
        consumer.unsubscribe()
    consumer.unsubscribe()
    assert called == ["assigned", "revoked"]
    assert cluster.admin().describe_group("g").members == ()


def test_a_member_that_does_not_poll_is_out_and_comes_back(cluster: Cluster) -> None:
    lost: list[TopicPartition] = []
    slow = cluster.consumer("g", max_poll_interval_ms=150, **SETTINGS)
    slow.subscribe(["events"], on_lost=lost.extend)
    until(share(slow), slow)
    other = cluster.consumer("g", ["events"], **SETTINGS)
    until(share(other), other)
    assert len(slow.assignment()) == 4
    with pytest.raises(RaykaError, match="can't commit the offset of events-0"):
        slow.commit({("events", 0): 1})
    write(cluster, 8)
    records = until(share(slow, other), slow, other)
    assert lost == [TopicPartition("events", number) for number in range(4)]
    records += take(8 - len(records), slow, other)
    assert numbers(records) == [*range(8)]


def test_a_member_that_dies_is_replaced(cluster: Cluster, connection: LocalConnection) -> None:
    """Its session ends; what it had not committed is read again."""
    write(cluster, 40)
    first = cluster.consumer("g", ["events"], auto_commit_interval_ms=60_000, **SETTINGS)
    take(40, first)
    core: Any = first
    connection.loop.run(core._core.stop())
    second = cluster.consumer("g", ["events"], **SETTINGS)
    assert numbers(take(40, second)) == [*range(40)]


def test_a_consumer_that_the_program_forgot_leaves_with_the_cluster(cluster: Cluster) -> None:
    forgotten = cluster.consumer("g", ["events"], **SETTINGS)
    until(share(forgotten), forgotten)
    del forgotten
    gc.collect()
    admin = cluster.admin()
    assert len(admin.describe_group("g").members) == 1
    cluster._close_clients()
    assert admin.describe_group("g").members == ()


def test_a_pattern_takes_new_topics(cluster: Cluster) -> None:
    cluster.admin().create_topic("other")
    consumer = cluster.consumer("g", **SETTINGS)
    consumer.subscribe(re.compile("ev.*"))
    until(share(consumer), consumer)
    consumer.subscribe(pattern="event.|even.*")
    cluster.admin().create_topic("evenings")
    until(lambda: ("evenings", 0) in consumer.assignment(), consumer)
    consumer.subscribe(["other"])
    until(lambda: consumer.assignment() == {("other", 0)}, consumer)


def test_a_topic_that_comes_later_and_grows(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    consumer = cluster.consumer("g", ["later"], **SETTINGS)
    consumer.subscribe(["later"])
    assert caplog.text.count("topic later does not exist: the consumer waits until it is created") == 1
    assert consumer.poll(100) == {}
    cluster.admin().create_topic("later")
    until(lambda: consumer.assignment() == {("later", 0)}, consumer)
    cluster.admin().create_partitions({"later": 3})
    until(lambda: len(consumer.assignment()) == 3, consumer)
    cluster.admin().delete_topic("later")
    until(lambda: not consumer.assignment(), consumer)


def test_the_end_of_a_deleted_topic_is_not_committed_for_one_of_its_name(cluster: Cluster) -> None:
    """An offset without a topic's id counts for every topic of that name, whose first records were skipped."""
    admin, settings = cluster.admin(), {**SETTINGS, "auto_commit_interval_ms": 3_600_000}
    admin.create_topic("single", partitions=1)
    write(cluster, 10, "single")
    with cluster.consumer("g", ["single"], **settings) as consumer:
        take(10, consumer)
        admin.delete_topic("single")
        until(lambda: consumer.assignment() == set(), consumer)
        admin.create_topic("single", partitions=1)
        assert consumer.committed(("single", 0)) is None
        write(cluster, 12, "single", first=10)
        assert numbers(take(12, consumer)) == [*range(10, 22)]


def test_positions_of_a_deleted_topic_do_not_count_for_one_that_is_created_before_their_commit_is_sent(
    cluster: Cluster, connection: LocalConnection
) -> None:
    controller, go_on = connection.broker.controller, threading.Event()

    async def recreate() -> None:
        await controller.delete_topics(["single"], timeout_ms=1000)
        await controller.create_topics([NewTopic("single", 1)], validate_only=False, timeout_ms=1000)

    cluster.admin().create_topic("single", partitions=1)
    write(cluster, 10, "single")
    with cluster.consumer("g", enable_auto_commit=False, **SETTINGS) as consumer:
        consumer.assign([("single", 0)])
        take(10, consumer)
        connection.loop.call_soon(go_on.wait)
        recreated = connection.loop.submit(recreate())
        waiting = consumer.commit_async()
        go_on.set()
        recreated.result(60)
        assert waiting.result(60) == {TopicPartition("single", 0): OffsetAndMetadata(10)}
        assert consumer.committed(("single", 0)) is None


def test_a_committed_offset_that_was_looked_up_before_its_topic_was_created_again_is_not_used(
    cluster: Cluster, connection: LocalConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, execute, answered = cluster.admin(), connection.broker.groups.execute, threading.Event()
    go_on = asyncio.Event()
    admin.create_topic("single", partitions=1)
    write(cluster, 10, "single")
    with cluster.consumer("g", enable_auto_commit=False, **SETTINGS) as consumer:
        consumer.assign([("single", 0)])
        consumer.commit({("single", 0): 5})

    async def late(*arguments: Any) -> Any:
        answer = await execute(*arguments)
        if isinstance(arguments[-1], OffsetFetchRequest) and not answered.is_set():
            answered.set()
            await go_on.wait()
        return answer

    monkeypatch.setattr(connection.broker.groups, "execute", late)
    with cluster.consumer("g", **SETTINGS) as consumer:
        with ThreadPoolExecutor(1) as program:
            assigning = program.submit(consumer.assign, [("single", 0)])
            assert answered.wait(60)
            admin.delete_topic("single")
            admin.create_topic("single", partitions=1)
            write(cluster, 12, "single", first=10)
            connection.loop.call_soon(go_on.set)
            assigning.result(60)
        assert numbers(take(12, consumer)) == [*range(10, 22)]


def test_a_static_member_comes_back_to_its_partitions(cluster: Cluster) -> None:
    one, two = (cluster.consumer("g", ["events"], group_instance_id=name, **SETTINGS) for name in ("one", "two"))
    until(share(one, two), one, two)
    held = one.assignment()
    one.close()
    again = cluster.consumer("g", ["events"], group_instance_id="one", **SETTINGS)
    until(lambda: again.assignment() == held, again)
    rival = cluster.consumer("g", ["events"], group_instance_id="one", **SETTINGS)
    with pytest.raises(RaykaError, match="UNRELEASED_INSTANCE_ID"):
        until(lambda: False, rival)
    again.close()
    until(lambda: rival.assignment() == held, rival)


def test_pause_and_seek(cluster: Cluster) -> None:
    write(cluster, 40)
    place = TopicPartition("events", 2)
    with cluster.consumer("g", ["events"], **SETTINGS) as consumer:
        take(40, consumer)
        consumer.pause(place)
        consumer.seek(place, 3)
        consumer.seek(("events", 0), 8)
        assert {record.partition for record in take(2, consumer)} == {0}
        consumer.resume(place)
        assert [record.offset for record in take(7, consumer)] == [*range(3, 10)]


def test_assigned_partitions_use_the_offsets_of_the_group(cluster: Cluster) -> None:
    write(cluster, 40)
    with cluster.consumer("g", **SETTINGS) as consumer:
        consumer.assign([("events", 0)])
        assert len(take(10, consumer)) == 10
        with pytest.raises(RaykaError, match="has assigned partitions"):
            consumer.subscribe(["events"])
    with cluster.consumer("g", **SETTINGS) as consumer:
        consumer.assign([("events", 0), ("events", 1)])
        assert consumer.position(("events", 0)) == 10
        assert consumer.position(("events", 1)) == 0
        consumer.unsubscribe()
        assert consumer.assignment() == set()
        consumer.subscribe(["events"])
        with pytest.raises(RaykaError, match="has subscribed to topics"):
            consumer.assign([("events", 0)])
        until(share(consumer), consumer)


def test_records_of_an_interrupted_poll_come_after_the_rebalance(cluster: Cluster) -> None:
    cluster.admin().create_topic("single", partitions=1)
    write(cluster, 10, "single")
    with cluster.consumer("g", ["single"], **SETTINGS) as consumer:
        interrupt_next_answer(consumer)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(30_000)
        consumer.subscribe(["single", "events"])
        membership = consumer._core._membership
        wait_until(lambda: membership.state is MembershipState.RECONCILING, 60, "the member has a new assignment")
        assert consumer.poll() == {}
        assert numbers(take(10, consumer)) == [*range(10)]


def test_unsubscribing_leaves_and_subscribing_joins_again(cluster: Cluster) -> None:
    write(cluster, 40)
    with cluster.consumer("g", ["events"], **SETTINGS) as consumer:
        take(40, consumer)
        consumer.unsubscribe()
        assert consumer.assignment() == set()
        assert consumer.subscription() == set()
        assert cluster.admin().describe_group("g").members == ()
        assert consumer.poll(10) == {}
        write(cluster, 4, first=40)
        consumer.subscribe(["events"])
        assert numbers(take(4, consumer)) == [40, 41, 42, 43]


def test_a_coordinator_that_is_away_is_waited_for(cluster: Cluster, connection: LocalConnection) -> None:
    write(cluster, 40)
    with cluster.consumer("g", ["events"], enable_auto_commit=False, **SETTINGS) as consumer:
        groups = connection.broker.groups
        groups.failure = RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert consumer.poll(50) == {}
        groups.failure = None
        take(40, consumer)
        groups.failure = RaykaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        with pytest.raises(RaykaError, match="COORDINATOR_LOAD_IN_PROGRESS"):
            consumer.commit(timeout_ms=30)
        waiting = consumer.commit_async()
        write(cluster, 4, first=40)
        assert numbers(take(4, consumer)) == [40, 41, 42, 43]
        assert not waiting.done()
        groups.failure = None
        assert {one.offset for one in waiting.result(60).values()} == {10}


def test_a_commit_is_not_tried_again_under_a_later_epoch(
    cluster: Cluster, connection: LocalConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partitions may have been another member's between the two epochs."""
    cluster.admin().create_topic("single", partitions=1)
    write(cluster, 10, "single")
    with cluster.consumer("g", ["single"], enable_auto_commit=False, **SETTINGS) as consumer:
        take(10, consumer)
        epoch = consumer.group_metadata().member_epoch
        is_loading, execute = True, connection.broker.groups.execute

        async def load(*arguments: Any) -> Any:
            if is_loading and isinstance(arguments[-1], OffsetCommitRequest):
                raise RaykaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return await execute(*arguments)

        monkeypatch.setattr(connection.broker.groups, "execute", load)
        waiting = consumer.commit_async({("single", 0): 10})
        consumer.unsubscribe()
        consumer.subscribe(["single"])
        until(lambda: consumer.assignment() != set(), consumer)
        assert consumer.group_metadata().member_epoch > epoch
        is_loading = False
        with pytest.raises(RaykaError) as refused:
            waiting.result(60)
        assert refused.value.code is ErrorCode.STALE_MEMBER_EPOCH
        assert consumer.committed(("single", 0)) is None


@pytest.mark.parametrize("may_wait", [True, False])
def test_close_waits_for_the_commits_that_are_under_way_before_it_leaves(
    cluster: Cluster, connection: LocalConnection, monkeypatch: pytest.MonkeyPatch, may_wait: bool
) -> None:
    """After leaving they would be refused. A coordinator that is away does not keep it longer than it has time."""
    cluster.admin().create_topic("single", partitions=1)
    write(cluster, 10, "single")
    consumer = cluster.consumer("g", ["single"], enable_auto_commit=False, **SETTINGS)
    take(10, consumer)
    answers, execute = itertools.count(), connection.broker.groups.execute

    async def load(*arguments: Any) -> Any:
        if isinstance(arguments[-1], OffsetCommitRequest) and (next(answers) < 5 or not may_wait):
            raise RaykaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return await execute(*arguments)

    monkeypatch.setattr(connection.broker.groups, "execute", load)
    waiting = consumer.commit_async({("single", 0): 10})
    consumer.close(60_000 if may_wait else 100)
    assert waiting.done() is may_wait
    if may_wait:
        assert cluster.consumer("g").committed(("single", 0)) == OffsetAndMetadata(10)
        assert cluster.admin().describe_group("g").members == ()


def test_an_asynchronous_commit_has_the_positions_of_its_call(cluster: Cluster, connection: LocalConnection) -> None:
    cluster.admin().create_topic("single", partitions=1)
    write(cluster, 10, "single")
    go_on = threading.Event()
    with cluster.consumer("g", ["single"], enable_auto_commit=False, **SETTINGS) as consumer:
        assert [int(record.value) for record in itertools.islice(consumer, 3)] == [0, 1, 2]
        connection.loop.call_soon(go_on.wait)
        waiting = consumer.commit_async()
        assert [int(record.value) for record in itertools.islice(consumer, 3)] == [3, 4, 5]
        go_on.set()
        assert waiting.result(60) == {TopicPartition("single", 0): OffsetAndMetadata(3)}


def test_positions_that_were_read_before_a_rebalance_are_not_committed_after_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`commit_async` in a thread of its own, while another thread polls and gives partitions up."""
    write(cluster, 8)
    first = cluster.consumer("g", ["events"], enable_auto_commit=False, **SETTINGS)
    take(8, first)
    read, have_read, go_on = first._core._commits._positions, threading.Event(), threading.Event()

    def read_slowly() -> Any:
        positions = read()
        have_read.set()
        assert go_on.wait(60)
        return positions

    monkeypatch.setattr(first._core._commits, "_positions", read_slowly)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(first.commit_async)
        assert have_read.wait(60)
        second = cluster.consumer("g", ["events"], enable_auto_commit=False, **SETTINGS)
        until(share(first, second), first, second)
        taken_over = dict.fromkeys(second.assignment(), 7)
        second.commit(taken_over)
        go_on.set()
        with pytest.raises(RaykaError) as refused:
            waiting.result(60).result(60)
    assert refused.value.code is ErrorCode.STALE_MEMBER_EPOCH
    assert second.committed([*taken_over]) == {partition: OffsetAndMetadata(7) for partition in taken_over}


def test_a_group_that_forgot_the_member_gets_it_back(cluster: Cluster, connection: LocalConnection) -> None:
    """As after a coordinator that lost its log: on_lost, and it joins again."""
    lost: list[TopicPartition] = []
    write(cluster, 8)
    consumer = cluster.consumer("g", **SETTINGS)
    consumer.subscribe(["events"], on_revoked=lost.extend)
    take(8, consumer)
    consumer.commit()
    connection.broker.groups.core.state.groups.clear()
    until(lambda: len(lost) == 4, consumer)
    write(cluster, 4, first=8)
    assert numbers(take(4, consumer)) == [8, 9, 10, 11]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_protocol": "classic"}, "on actor handles it must be consumer"),
        ({"max_poll_interval_ms": 0}, "at least 1"),
        ({"enable_auto_commit": "yes"}, "True or False"),
        ({"group.instance.id": ""}, "not empty"),
        ({"session.timeout.ms": 1}, "Unknown setting session_timeout_ms"),
    ],
)
def test_bad_settings(cluster: Cluster, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RaykaError, match=message):
        cluster.consumer("g", **settings)


def test_bad_arguments(cluster: Cluster) -> None:
    for group_id in ("", " "):
        with pytest.raises(RaykaError, match="INVALID_GROUP_ID"):
            cluster.consumer(group_id)
    with pytest.raises(RaykaError, match="topics need a group"):
        cluster.consumer(topics=["events"])  # type: ignore[call-overload]
    consumer = cluster.consumer("g", **SETTINGS)
    for topics in ("events", [], [7], [""]):
        with pytest.raises(RaykaError, match="topics must be a list of names"):
            consumer.subscribe(topics)  # type: ignore[arg-type]
    for arguments in ({}, {"topics": ["a"], "pattern": "a"}):
        with pytest.raises(RaykaError, match="topics or a pattern"):
            consumer.subscribe(**arguments)  # type: ignore[arg-type]
    with pytest.raises(RaykaError, match="INVALID_REGULAR_EXPRESSION"):
        consumer.subscribe(pattern="(")
    with pytest.raises(RaykaError, match="must be callable"):
        consumer.subscribe(["events"], on_assigned=7)  # type: ignore[arg-type]
    with pytest.raises(RaykaError, match="is not a valid offset to commit"):
        consumer.commit({("events", 0): -1})
    with pytest.raises(RaykaError, match="topic missing does not exist"):
        consumer.commit({("missing", 0): 1})
    consumer.close()
    consumer.close()
    with pytest.raises(RaykaError, match="The consumer is closed"):
        consumer.poll(0)


@pytest.mark.parametrize(
    "call",
    [GroupConsumer.commit, GroupConsumer.commit_async, GroupConsumer.read_offsets],
    ids=lambda call: call.__name__,
)
def test_a_closed_consumer_has_no_positions_to_commit(
    cluster: Cluster, call: Callable[[GroupConsumer], object]
) -> None:
    """A transaction that sent them would be committed without them, and its records would come again."""
    write(cluster, 10)
    with cluster.consumer("g", ["events"], **SETTINGS) as consumer:
        take(10, consumer)
    with pytest.raises(RaykaError, match="The consumer is closed"):
        call(consumer)


def test_an_unknown_assignor_is_an_error_of_poll(cluster: Cluster) -> None:
    consumer = cluster.consumer("g", ["events"], group_remote_assignor="mine", **SETTINGS)
    for _ in range(2):
        with pytest.raises(RaykaError, match="UNSUPPORTED_ASSIGNOR"):
            until(lambda: False, consumer)


def test_a_broker_without_the_protocol(tmp_path: Path) -> None:
    connection = LocalConnection(str(tmp_path), {"group.coordinator.rebalance.protocols": "classic"})
    with pytest.raises(RaykaError, match="UNSUPPORTED_VERSION"):
        Cluster(connection).consumer("g", ["events"])
    connection.close()


def test_the_asynchronous_form_in_a_loop_of_the_programs_own(cluster: Cluster) -> None:
    write(cluster, 100)
    events: list[str] = []

    async def program() -> list[ConsumerRecord]:
        consumer = cluster.async_consumer("g", consumer_timeout_ms=200, **SETTINGS)

        async def on_assigned(partitions: list[TopicPartition]) -> None:
            await consumer.seek(partitions[0], 1)
            events.append("assigned")

        def on_revoked(_: list[TopicPartition]) -> None:
            events.append("revoked")

        async with consumer:
            await consumer.subscribe(["events"], on_assigned=on_assigned, on_revoked=on_revoked)
            first: list[ConsumerRecord] = []
            while not first:
                first = [record for polled in (await consumer.poll(1000, 10)).values() for record in polled]
            rest = [record async for record in consumer]
            await consumer.commit()
        return first + rest

    assert numbers(asyncio.run(program())) == [*range(1, 100)]
    assert events == ["assigned", "revoked"]
    described = cluster.admin().describe_group("g")
    assert {offset.lag for offset in described.offsets} == {0}


def test_a_consumer_of_the_wire_and_one_on_handles_describe_alike(cluster: Cluster) -> None:
    consumer = cluster.consumer("g", ["events"], client_id="mine", group_instance_id="here", **SETTINGS)
    until(share(consumer), consumer)
    (member,) = cluster.admin().describe_group("g").members
    assert (member.member_id, member.group_instance_id, member.client_id) == (
        consumer.group_metadata().member_id,
        "here",
        "mine",
    )
    assert set(member.assignment) == consumer.assignment()


def test_a_commit_while_a_table_is_made_leaves_its_records_to_the_group(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`commit_async` and `close` may come from another thread. No program has received such a table yet."""
    write(cluster, 8)
    place = TopicPartition("events", 0)

    def commit_and_fail(*_: Any) -> None:
        assert consumer.commit_async().result(60)[place].offset == 0
        raise MemoryError

    with cluster.consumer("readers", **SETTINGS, enable_auto_commit=False) as consumer:
        consumer.assign([place])
        with monkeypatch.context() as patched:
            patched.setattr(tables, "table_of", commit_and_fail)
            with pytest.raises(MemoryError):
                consumer.poll_table(30_000)
        assert consumer.poll_table(30_000)["offset"].to_pylist() == [0, 1]
        consumer.commit()
        assert consumer.committed(place).offset == 2


@pytest.mark.parametrize("call", ["poll", "poll_batches", "poll_table", "iteration"])
def test_a_commit_while_records_are_taken_leaves_them_to_the_group(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The position is behind them by then, but the program has not received them."""
    write(cluster, 8)
    place = TopicPartition("events", 0)
    commits: list[Any] = []
    take, take_batches = FetchCollector.take, FetchCollector._take_batches

    def then_commit(taken: Any) -> Any:
        """As another thread that does not wait for the loop."""
        if taken and not commits:
            thread = threading.Thread(target=lambda: commits.append(consumer.commit_async()))
            thread.start()
            thread.join(30)
        return taken

    monkeypatch.setattr(FetchCollector, "take", lambda *arguments: then_commit(take(*arguments)))
    monkeypatch.setattr(FetchCollector, "_take_batches", lambda *arguments: then_commit(take_batches(*arguments)))
    with cluster.consumer("readers", **SETTINGS, enable_auto_commit=False) as consumer:
        consumer.assign([place])
        if call == "iteration":
            assert next(consumer).offset == 0
        else:
            assert getattr(consumer, call)(30_000)
        assert commits[0].result(60)[place].offset == 0


def test_a_commit_of_another_task_while_a_table_is_made_leaves_its_records_to_the_group(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that commits every few seconds."""
    write(cluster, 8)
    place = TopicPartition("events", 0)

    async def main() -> None:
        async with cluster.async_consumer("readers", **SETTINGS, enable_auto_commit=False) as consumer:

            def commit_and_fail(*_: Any) -> None:
                assert asyncio.run(consumer.commit())[place].offset == 0
                raise MemoryError

            await consumer.assign([place])
            with monkeypatch.context() as patched:
                patched.setattr(tables, "table_of", commit_and_fail)
                with pytest.raises(MemoryError):
                    await consumer.poll_table(30_000)
            assert (await consumer.poll_table(30_000))["offset"].to_pylist() == [0, 1]
            assert (await consumer.commit())[place].offset == 2

    asyncio.run(asyncio.wait_for(main(), 60))
