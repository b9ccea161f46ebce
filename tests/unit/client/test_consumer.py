"""What a program that reads records relies on."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import itertools
import os
import sys
import threading
import time
import tracemalloc
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from mmap import mmap
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.client.consumer import fetch_collector, tables
from rayka.client.consumer import fetcher as fetchers
from rayka.client.consumer.blocking import Consumer
from rayka.client.consumer.consumer import AsyncConsumer, WakeupError
from rayka.client.consumer.fetch_collector import FetchCollector
from rayka.client.consumer.fetcher import Fetcher
from rayka.client.consumer.pending import PendingRecords
from rayka.client.consumer.positions import AssignedPartition
from rayka.client.consumer.records import ConsumerRecord, RecordBatches
from rayka.client.consumer.sequence import ConsumerRecords, MadeRecords
from rayka.client.settings import ConsumerConfig, configure
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.server import segment_files
from rayka.storage.columns.read import ColumnsTooLarge
from rayka.storage.format.batch import iter_headers, seal
from rayka.storage.format.records import read_batch
from rayka.testing import wait_until
from rayka.types import FetchPartition, FetchResult, IsolationLevel, TimestampType, TopicPartition
from tests.support.client_connection import LocalConnection
from tests.support.descriptors import open_files
from tests.support.faulty_partitions import FaultyPartitions
from tests.unit.client.interrupts import interrupt_next_answer

EVENTS = TopicPartition("events", 0)


def fill(cluster: Cluster, count: int, topic: str = "events", partition: int = 0, **config: Any) -> None:
    """Write numbered records."""
    with cluster.producer(**config) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=partition, timestamp_ms=1_000_000 + number)


def reader(cluster: Cluster, *partitions: tuple[str, int], **config: Any) -> Consumer:
    """A consumer of these partitions from their beginning."""
    consumer = cluster.consumer(**{"auto_offset_reset": "earliest", **config})
    consumer.assign(partitions or [EVENTS])
    return consumer


def take(consumer: Consumer, count: int, **poll: Any) -> list[ConsumerRecord]:
    """Poll until there are so many records."""
    records: list[ConsumerRecord] = []
    deadline_s = time.monotonic() + 60
    while len(records) < count:
        assert time.monotonic() < deadline_s, f"{len(records)} of {count} records"
        for polled in consumer.poll(1000, **poll).values():
            records += polled
    return records


def numbers(records: list[ConsumerRecord]) -> list[int]:
    """The numbers that `fill` wrote."""
    return [int(record.value) for record in records]


def test_records_come_in_order_with_their_offsets(cluster: Cluster) -> None:
    fill(cluster, 1000, batch_size=500)
    with reader(cluster) as consumer:
        records = take(consumer, 1000)
        assert consumer.poll(0) == {}
    assert numbers(records) == [*range(1000)]
    assert [record.offset for record in records] == [*range(1000)]
    assert records[7].timestamp == 1_000_007
    assert records[7].topic_partition == EVENTS


@pytest.mark.parametrize("group", [None, "readers"])
@pytest.mark.parametrize("call", ["poll", "poll_batches", "poll_table"])
def test_records_that_came_when_their_poll_was_cancelled_come_again(
    cluster: Cluster, call: str, group: str | None
) -> None:
    fill(cluster, 3)

    async def main() -> list[ConsumerRecord]:
        async with cluster.async_consumer(group, auto_offset_reset="earliest") as consumer:
            await consumer.assign([EVENTS])
            cancelled = asyncio.ensure_future(getattr(consumer, call)(timeout_ms=30_000))
            await asyncio.sleep(0)
            state = consumer._fetcher.partitions[EVENTS]
            wait_until(lambda: state.position == 3, 60, "records have come")  # and this loop has not heard of it
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert await consumer.position(EVENTS) == 0
            return [record for records in (await consumer.poll(30_000)).values() for record in records]

    assert numbers(asyncio.run(asyncio.wait_for(main(), 60))) == [0, 1, 2]


@pytest.mark.parametrize("group", [None, "readers"])
def test_iteration_goes_on_with_the_records_of_a_poll_that_was_cancelled(cluster: Cluster, group: str | None) -> None:
    fill(cluster, 3)

    async def main() -> list[ConsumerRecord]:
        async with cluster.async_consumer(group, auto_offset_reset="earliest", consumer_timeout_ms=30_000) as consumer:
            await consumer.assign([EVENTS])
            cancelled = asyncio.ensure_future(consumer.poll(timeout_ms=30_000))
            await asyncio.sleep(0)
            state = consumer._fetcher.partitions[EVENTS]
            wait_until(lambda: state.position == 3, 60, "records have come")
            cancelled.cancel()
            found = [await anext(consumer) for _ in range(3)]
            return found + [record for records in (await consumer.poll(timeout_ms=200)).values() for record in records]

    assert numbers(asyncio.run(asyncio.wait_for(main(), 60))) == [0, 1, 2]


@pytest.mark.parametrize("group", [None, "readers"])
@pytest.mark.parametrize("call", ["poll", "poll_batches", "poll_table"])
def test_records_that_came_when_their_poll_was_interrupted_come_again(
    cluster: Cluster, call: str, group: str | None
) -> None:
    fill(cluster, 3)
    consumer: Any = cluster.consumer(group, auto_offset_reset="earliest")
    consumer.assign([EVENTS])
    interrupt_next_answer(consumer)
    with pytest.raises(KeyboardInterrupt):
        getattr(consumer, call)(timeout_ms=30_000)
    assert consumer.position(EVENTS) == 0
    assert numbers(take(consumer, 3)) == [0, 1, 2]
    consumer.close()


def test_records_of_an_interrupted_poll_are_not_committed(cluster: Cluster) -> None:
    fill(cluster, 3)
    consumer = cluster.consumer("readers", auto_offset_reset="earliest")
    consumer.assign([EVENTS])
    interrupt_next_answer(consumer)
    with pytest.raises(KeyboardInterrupt):
        consumer.poll(timeout_ms=30_000)
    consumer.close()
    with cluster.consumer("readers", auto_offset_reset="earliest") as successor:
        successor.assign([EVENTS])
        assert numbers(take(successor, 3)) == [0, 1, 2]


def test_records_come_again_when_no_table_was_made_of_them(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cluster, 3)

    def fail(*_: Any) -> None:
        raise MemoryError

    with reader(cluster) as consumer:
        with monkeypatch.context() as patched:
            patched.setattr(tables, "table_of", fail)
            with pytest.raises(MemoryError):
                consumer.poll_table(30_000)
        assert consumer.poll_table(30_000)["offset"].to_pylist() == [0, 1, 2]

    async def in_asyncio() -> list[int]:
        async with cluster.async_consumer(auto_offset_reset="earliest") as consumer:
            await consumer.assign([EVENTS])
            with monkeypatch.context() as patched:
                patched.setattr(tables, "table_of", fail)
                with pytest.raises(MemoryError):
                    await consumer.poll_table(30_000)
            return (await consumer.poll_table(30_000))["offset"].to_pylist()

    assert asyncio.run(asyncio.wait_for(in_asyncio(), 60)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("how", "owner", "name"),
    [
        ("poll", AssignedPartition, "take"),
        ("poll", Fetcher, "pump"),
        ("poll_batches", AssignedPartition, "take_batches"),
        ("poll_batches", Fetcher, "pump"),
        ("poll_table", AssignedPartition, "take_batches"),
        ("poll_table", Fetcher, "pump"),
        ("iterate", AssignedPartition, "take"),
        ("iterate", Fetcher, "pump"),
    ],
)
def test_records_come_again_when_memory_ends_while_they_are_taken(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, how: str, owner: type, name: str
) -> None:
    """Those of the first partition were taken already when that happens in the second one."""
    partitions = two_partitions(cluster)
    original, failed = getattr(owner, name), list[str]()

    def fail_when_all_are_taken(self: Any, *arguments: Any) -> Any:
        done = original(self, *arguments)
        if not failed and all(state.position == 3 for state in consumer._core._fetcher.partitions.values()):
            failed.append(name)
            raise MemoryError
        return done

    def read() -> list[tuple[int, int]]:
        if how == "iterate":
            return [record[1:3] for record in consumer]
        if how == "poll_table":
            table = consumer.poll_table(200)
            return list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
        if how == "poll_batches":
            found = [each for batches in consumer.poll_batches(timeout_ms=200).values() for each in batches]
            return [
                (each.topic_partition.partition, n) for each in found for n in range(each.position, each.next_offset)
            ]
        return [record[1:3] for records in consumer.poll(timeout_ms=200).values() for record in records]

    with reader(cluster, *partitions, consumer_timeout_ms=200) as consumer:
        wait_until(lambda: all_are_fetched(consumer), 60, "all records are there")
        monkeypatch.setattr(owner, name, fail_when_all_are_taken)
        with pytest.raises(MemoryError):
            read()
        assert [consumer.position(partition) for partition in partitions] == [0, 0]
        seen: list[tuple[int, int]] = []

        def have_come() -> bool:
            seen.extend(read())
            return len(seen) >= 6

        wait_until(have_come, 60, "all records come again")
        assert sorted(seen + read()) == [(partition, offset) for partition in (0, 1) for offset in range(3)]


def test_records_come_again_when_memory_ends_also_for_the_timer_of_the_next_fetch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = two_partitions(cluster)
    failing = ["_back_off", "pump"]
    original = Fetcher.pump

    def fail_once(name: str) -> None:
        if failing[-1:] == [name]:
            raise MemoryError(failing.pop())

    def pump(fetcher: Fetcher) -> None:
        original(fetcher)
        if all(state.position == 3 for state in consumer._core._fetcher.partitions.values()):
            fail_once("pump")

    def back_off(*_: object) -> None:
        fail_once("_back_off")

    with reader(cluster, *partitions, retry_backoff_ms=1) as consumer:
        wait_until(lambda: all_are_fetched(consumer), 60, "all records are there")
        seen = take(consumer, 1, max_records=1)  # so that its partition is the last to be taken from
        with monkeypatch.context() as patched:
            patched.setattr(Fetcher, "pump", pump)
            patched.setattr(Fetcher, "_back_off", back_off)
            with pytest.raises(MemoryError):
                consumer.poll(30_000)
        assert not failing
        seen += take(consumer, 5)
    assert sorted(record[1:3] for record in seen) == [
        (partition, offset) for partition in (0, 1) for offset in range(3)
    ]


def test_a_partition_for_whose_records_there_is_no_memory_does_not_keep_others_from_being_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = two_partitions(cluster)
    original = AssignedPartition.take

    def fail_in_the_first(state: AssignedPartition, limit: int) -> ConsumerRecords:
        if state.topic_partition == partitions[0]:
            raise MemoryError
        return original(state, limit)

    with reader(cluster, *partitions, retry_backoff_ms=2000) as consumer:
        wait_until(lambda: all_are_fetched(consumer), 60, "all records are there")
        monkeypatch.setattr(AssignedPartition, "take", fail_in_the_first)
        seen: list[int] = []

        def others_come() -> bool:
            with contextlib.suppress(MemoryError):
                seen.extend(record.offset for record in consumer.poll(timeout_ms=1000).get(partitions[1], []))
            return len(seen) >= 3

        wait_until(others_come, 60, "the records of the other partition")
        assert seen == [0, 1, 2]


def two_partitions(cluster: Cluster) -> list[TopicPartition]:
    """Of a new topic, with three records each."""
    cluster.admin().create_topic("two", partitions=2)
    partitions = [TopicPartition("two", 0), TopicPartition("two", 1)]
    for partition in partitions:
        fill(cluster, 3, *partition)
    return partitions


def all_are_fetched(consumer: Consumer) -> bool:
    """Whether the consumer has fetched records of all its partitions ahead."""
    return all(state.completed_fetches for state in consumer._core._fetcher.partitions.values())


def test_a_table_for_which_no_thread_can_be_started_is_not_made_later(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records were given back. Until then it would keep their memory, and deleted segments open."""
    fill(cluster, 3)
    make, made = tables.table_of, []

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def count(*arguments: Any) -> Any:
        made.append(arguments)
        return make(*arguments)

    async def main() -> list[int]:
        async with cluster.async_consumer(auto_offset_reset="earliest") as consumer:
            await consumer.assign([EVENTS])
            with monkeypatch.context() as limited:
                limited.setattr(threading.Thread, "start", no_thread)
                with pytest.raises(RuntimeError, match="new thread"):
                    await consumer.poll_table(30_000)
            return (await consumer.poll_table(30_000))["offset"].to_pylist()

    monkeypatch.setattr(tables, "table_of", count)
    assert asyncio.run(asyncio.wait_for(main(), 60)) == [0, 1, 2]
    assert len(made) == 1


@pytest.mark.parametrize("how", ["fails", "gets too large"])
def test_another_task_may_seek_while_a_table_is_made(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    fill(cluster, 3)
    make = tables.table_of

    async def run() -> list[int]:
        async with cluster.async_consumer(auto_offset_reset="earliest") as consumer:

            def seek_and_fail(*_: Any) -> None:
                asyncio.run(consumer.seek(EVENTS, 2))
                raise MemoryError if how == "fails" else ColumnsTooLarge

            await consumer.assign([EVENTS])
            with monkeypatch.context() as patched:
                patched.setattr(tables, "table_of", seek_and_fail)
                patched.setattr(tables, "first_part_of", lambda *arguments: (make(*arguments), {EVENTS: 1}))
                with contextlib.suppress(MemoryError):
                    await consumer.poll_table(30_000)
            return (await consumer.poll_table(30_000))["offset"].to_pylist()

    assert asyncio.run(asyncio.wait_for(run(), 60)) == [2]


@pytest.mark.parametrize("when", ["take", "give_back"])
def test_a_seek_of_another_task_holds_also_just_before_and_after_a_table_is_made(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    fill(cluster, 3)

    async def run() -> list[int]:
        async with cluster.async_consumer(auto_offset_reset="earliest") as consumer:
            call = getattr(consumer, when)

            async def seek_too(*arguments: Any, **named: Any) -> Any:
                if when == "give_back":
                    await consumer.seek(EVENTS, 2)
                found = await call(*arguments, **named)
                if when == "take":
                    await consumer.seek(EVENTS, 2)
                return found

            def fail(*_: Any) -> None:
                raise MemoryError

            await consumer.assign([EVENTS])
            with monkeypatch.context() as patched:
                patched.setattr(consumer, when, seek_too)
                patched.setattr(tables, "table_of", fail)
                with pytest.raises(MemoryError):
                    await consumer.poll_table(30_000)
            return (await consumer.poll_table(30_000))["offset"].to_pylist()

    assert asyncio.run(asyncio.wait_for(run(), 60)) == [2]


@pytest.mark.parametrize("call", ["give back", "take"])
def test_what_a_program_has_received_is_never_more_while_records_are_given_back_or_taken(
    cluster: Cluster, call: str
) -> None:
    """Another thread may ask, to commit; its reads and the loop's changes come in any order."""
    fill(cluster, 6)
    with reader(cluster, consumer_timeout_ms=10_000) as consumer:
        for place in range(1000):
            core, seen = consumer._core, list[int | None]()
            consumer.seek(EVENTS, 0)
            (state,) = core._fetcher.partitions.values()
            wait_until(lambda: state.completed_fetches, 30, "records")  # noqa: B023
            if call == "give back":
                assert next(consumer).offset == 0
            change = core.collector.return_pending if call == "give back" else partial(core.collector.fill)

            async def at_home(change: Callable[[], object] = change) -> None:
                change()

            def act(at_home: Callable[[], Any] = at_home) -> None:
                consumer._run(at_home())

            was_done = done_at({place: act}, lambda: seen.append(core.collector.received(state)))  # noqa: B023
            assert seen == [1 if call == "give back" else 0]
            if not was_done:
                assert place > 20, "instructions were traced"
                return
    raise AssertionError("It was done at each of 1000 instructions")


@pytest.mark.parametrize("gap", [1, 2, 5, 10])
def test_what_a_program_has_received_is_never_more_while_records_are_taken_and_given_back(
    cluster: Cluster, gap: int
) -> None:
    """Both may happen between two reads of the thread that asks."""
    fill(cluster, 6)
    with reader(cluster, consumer_timeout_ms=10_000) as consumer:
        core = consumer._core
        (state,) = core._fetcher.partitions.values()

        async def take() -> None:
            assert core.collector.fill()

        async def give_back() -> None:
            core.collector.return_pending()

        for place in range(1000):
            consumer.seek(EVENTS, 0)
            wait_until(lambda: state.completed_fetches, 30, "records")
            seen = list[int | None]()
            actions = {place: lambda: consumer._run(take()), place + gap: lambda: consumer._run(give_back())}
            was_done = done_at(actions, lambda: seen.append(core.collector.received(state)))  # noqa: B023
            assert seen == [0]
            if not was_done:
                assert place > 20, "instructions were traced"
                return
    raise AssertionError("It was done at each of 1000 instructions")


def done_at(actions: Mapping[int, Callable[[], object]], call: Callable[[], object]) -> bool:
    """Whether the actions could be done at these instructions of the consumer's code, counted from the start of a
    call."""
    instructions, last = itertools.count(), max(actions)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_opcodes = "rayka/client/consumer" in frame.f_code.co_filename
        if event == "opcode" and (action := actions.get(next(instructions))):
            sys.settrace(None)
            action()
            sys.settrace(trace)
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return next(instructions) > last


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_tasks_whose_tables_fail_lose_no_records(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, order: tuple[int, int]
) -> None:
    """One of them has the records behind those of the other one, and may fail later."""
    fill(cluster, 3000, batch_size=1000)
    begun, may_fail = list[int](), [threading.Event(), threading.Event()]

    def fail_late(polled: dict[TopicPartition, list[RecordBatches]], *_: Any) -> None:
        number = len(begun)
        begun.append(polled[EVENTS][0].position)
        assert may_fail[number].wait(60)
        raise MemoryError

    async def run() -> int:
        async with cluster.async_consumer(auto_offset_reset="earliest", max_partition_fetch_bytes=2000) as consumer:
            await consumer.assign([EVENTS])
            tasks = list[asyncio.Task[Any]]()
            with monkeypatch.context() as patched:
                patched.setattr(tables, "table_of", fail_late)
                for number in range(2):
                    tasks.append(asyncio.create_task(consumer.poll_table(30_000)))
                    while len(begun) == number:
                        await asyncio.sleep(0.001)
                for number in order:
                    may_fail[number].set()
                    assert isinstance((await asyncio.gather(tasks[number], return_exceptions=True))[0], MemoryError)
            assert begun[0] == 0 < begun[1]
            assert await consumer.position(EVENTS) == 0
            table = await consumer.poll_table(30_000)
            return int(table["offset"][0].as_py())

    assert asyncio.run(asyncio.wait_for(run(), 60)) == 0


def test_other_partitions_lose_nothing_if_one_is_given_up_while_a_table_is_made(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another task may assign partitions meanwhile."""
    given_up, kept = TopicPartition("given-up", 0), TopicPartition("kept", 0)
    for topic, _ in (given_up, kept):
        fill(cluster, 3, topic)

    async def run() -> list[int]:
        async with cluster.async_consumer(auto_offset_reset="earliest") as consumer:

            def give_up_and_fail(polled: dict[TopicPartition, object], *_: Any) -> None:
                asyncio.run(consumer.assign([kept]))
                raise MemoryError(f"{[*polled]}")

            await consumer.assign([given_up, kept])
            partitions = consumer._fetcher.partitions

            def are_fetched() -> bool:
                return all(each.completed_fetches for each in partitions.values())

            await asyncio.to_thread(wait_until, are_fetched, 30, "both partitions are fetched")
            with monkeypatch.context() as patched:
                patched.setattr(tables, "table_of", give_up_and_fail)
                with pytest.raises(MemoryError, match=r"given-up.*kept"):
                    await consumer.poll_table(30_000)
            return (await consumer.poll_table(30_000))["offset"].to_pylist()

    assert asyncio.run(asyncio.wait_for(run(), 60)) == [0, 1, 2]


class InterruptedSource(MadeRecords):
    """Records that are made two at a time; an interrupt comes before the third one is."""

    interrupted = False

    def records(self, start: int, end: int) -> list[ConsumerRecord]:
        if start == 2 and not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        return self[start : min(end, start + 2)]


def test_an_interrupt_while_records_are_made_loses_none() -> None:
    made = [ConsumerRecord(*EVENTS, offset, 0, TimestampType.CREATE_TIME, None, None, ()) for offset in range(7)]
    taken, pending = ConsumerRecords(), PendingRecords()
    taken.append(InterruptedSource(made), 0, 7)
    pending.add({EVENTS: taken})
    with pytest.raises(KeyboardInterrupt):
        pending.popleft()
    assert pending.first_offsets() == {EVENTS: 0}
    assert [pending.popleft() for _ in made] == made
    assert not pending


class InterruptedDeque(deque[ConsumerRecord]):
    """Ctrl-C comes when the fifth record has just been taken out."""

    count = 0

    def popleft(self) -> ConsumerRecord:
        record = super().popleft()
        self.count += 1
        if self.count == 5:
            raise KeyboardInterrupt
        return record


def test_an_interrupt_of_iteration_loses_no_record(cluster: Cluster) -> None:
    """As in a notebook, where the program then goes on with the same consumer."""
    fill(cluster, 10)
    with reader(cluster, consumer_timeout_ms=300) as consumer:
        consumer._core.pending.made = InterruptedDeque()
        given: list[ConsumerRecord] = []
        with pytest.raises(KeyboardInterrupt):
            given.extend(consumer)
        assert consumer.position(EVENTS) == 4
        assert numbers([*given, *consumer]) == [*range(10)]


def test_poll_is_bounded(cluster: Cluster) -> None:
    fill(cluster, 1000)
    with reader(cluster, max_poll_records=10) as consumer:
        assert len(take(consumer, 1)) == 10
        assert len(take(consumer, 1, max_records=3)) == 3
        assert len(take(consumer, 1, max_records=700)) == 700
        assert consumer.position(EVENTS) == 713


def test_a_deserializer_that_exits_does_not_stop_the_consumer(cluster: Cluster) -> None:
    fill(cluster, 1)
    seen: list[bytes] = []

    def deserialize(data: bytes) -> bytes:
        seen.append(data)
        return sys.exit(3) if len(seen) == 1 else data

    with reader(cluster, value_deserializer=deserialize) as consumer:
        with pytest.raises(SystemExit):
            consumer.poll(30_000)
        assert [record.value for record in take(consumer, 1)] == seen[:1]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "10"])
def test_a_bound_of_poll_that_gives_nothing_is_refused(cluster: Cluster, wrong: Any) -> None:
    fill(cluster, 1)
    with reader(cluster) as consumer:
        with pytest.raises(RaykaError, match="max_records must be an int, 1 or more") as raised:
            consumer.poll(30_000, max_records=wrong)
        assert raised.value.code is ErrorCode.INVALID_REQUEST
        assert numbers(take(consumer, 1)) == [0]


@pytest.mark.parametrize("group", [None, "g"])
def test_a_time_that_is_not_a_number_is_refused(cluster: Cluster, group: str | None) -> None:
    with cluster.consumer(group) as consumer:  # type: ignore[call-overload]
        consumer.assign([EVENTS])
        with pytest.raises(RaykaError, match="timeout_ms must be a number of milliseconds, not '5'") as raised:
            consumer.poll("5")
        assert raised.value.code is ErrorCode.INVALID_REQUEST


def test_the_columns_of_a_table_are_a_list_of_names(cluster: Cluster) -> None:
    with reader(cluster) as consumer, pytest.raises(RaykaError, match="columns must be a list of names, not the str"):
        consumer.poll_table(columns="value")


@pytest.mark.parametrize("call", ["subscribe", "unsubscribe", "commit", "commit_async", "committed", "read_offsets"])
def test_a_consumer_without_a_group_says_what_needs_one(cluster: Cluster, call: str) -> None:
    consumer = cluster.consumer()
    for each in (consumer, cluster.async_consumer()):
        with pytest.raises(AttributeError, match=f"{call} needs a group: create the consumer with cluster.consumer"):
            getattr(each, call)
        with pytest.raises(AttributeError, match="object has no attribute 'polll'"):
            each.polll  # type: ignore[attr-defined]  # noqa: B018


def test_poll_waits_for_a_record(cluster: Cluster) -> None:
    cluster.admin().create_topic("events")
    with reader(cluster) as consumer:
        assert consumer.poll(10) == {}
        writer = threading.Timer(0.05, fill, (cluster, 1))
        writer.start()
        assert numbers(consumer.poll(10_000)[EVENTS]) == [0]
        writer.join()


def test_iteration_ends_after_the_consumer_timeout(cluster: Cluster) -> None:
    fill(cluster, 1200)
    with reader(cluster, consumer_timeout_ms=50) as consumer:
        assert numbers(list(consumer)) == [*range(1200)]
        assert list(consumer) == []


def test_the_position_follows_iteration_record_by_record(cluster: Cluster) -> None:
    fill(cluster, 100)
    with reader(cluster) as consumer:
        for record in consumer:
            assert consumer.position(EVENTS) == record.offset + 1
            if record.offset == 41:
                break
        assert numbers(consumer.poll(1000, 2)[EVENTS]) == [42, 43]
        assert next(consumer).offset == 44
        consumer.seek(EVENTS, 7)
        assert next(consumer).offset == 7


def test_a_seek_into_the_middle_of_a_batch_skips_its_earlier_records(cluster: Cluster) -> None:
    fill(cluster, 100, linger_ms=50)
    with reader(cluster) as consumer:
        for offset in (50, 99, 0, 33):
            consumer.seek(EVENTS, offset)
            assert consumer.poll(1000)[EVENTS][0].offset == offset


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_small_fetches_get_everything(cluster: Cluster, codec: str | None) -> None:
    fill(cluster, 500, batch_size=300, compression_type=codec)
    with reader(cluster, max_partition_fetch_bytes=1, fetch_max_bytes=1) as consumer:
        assert numbers(take(consumer, 500)) == [*range(500)]
    with reader(cluster, max_partition_fetch_bytes=777) as consumer:
        assert numbers(take(consumer, 500)) == [*range(500)]


def test_many_partitions_are_read_together(cluster: Cluster) -> None:
    cluster.admin().create_topic("events", partitions=10)
    for partition in range(10):
        fill(cluster, 300, partition=partition)
    with reader(cluster, *[("events", partition) for partition in range(10)]) as consumer:
        records = take(consumer, 3000)
    for partition in range(10):
        assert numbers([record for record in records if record.partition == partition]) == [*range(300)]


def test_seek_to_beginning_and_end(cluster: Cluster) -> None:
    fill(cluster, 10)
    with cluster.consumer() as consumer:
        consumer.assign([EVENTS])
        assert consumer.position(EVENTS) == 10
        consumer.seek_to_beginning()
        assert consumer.position(EVENTS) == 0
        assert len(take(consumer, 10)) == 10
        consumer.seek(EVENTS, 3)
        consumer.seek_to_end(EVENTS)
        assert consumer.position(EVENTS) == 10


def test_latest_reads_what_comes_after(cluster: Cluster) -> None:
    fill(cluster, 10)
    with cluster.consumer() as consumer:
        consumer.assign([EVENTS])
        assert consumer.position(EVENTS) == 10
        fill(cluster, 2)
        assert [record.offset for record in take(consumer, 2)] == [10, 11]


def test_offset_out_of_range_resets_as_the_settings_say(cluster: Cluster) -> None:
    fill(cluster, 10)
    with reader(cluster) as consumer:
        consumer.seek(EVENTS, 10_000)
        assert len(take(consumer, 10)) == 10
    with cluster.consumer(auto_offset_reset="none") as consumer:
        consumer.assign([EVENTS])
        with pytest.raises(RaykaError, match="events-0 has no position"):
            consumer.poll(1000)
        consumer.seek(EVENTS, 10_000)
        with pytest.raises(RaykaError, match="events-0 has no offset 10000") as caught:
            consumer.poll(1000)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        consumer.seek(EVENTS, 5)
        assert take(consumer, 5)[0].offset == 5


def recreate(cluster: Cluster, count: int) -> None:
    """Another topic of the same name, with records."""
    cluster.admin().delete_topic("events")
    cluster.admin().create_topic("events", 1)
    fill(cluster, count)


def test_a_topic_that_was_created_again_is_read_by_the_reset(cluster: Cluster) -> None:
    fill(cluster, 5)
    with reader(cluster, max_poll_records=3) as consumer:
        assert numbers(take(consumer, 3)) == [0, 1, 2]
        recreate(cluster, 10)
        assert numbers(take(consumer, 10)) == [*range(10)]


def test_a_table_that_fails_says_nothing_of_a_topic_that_was_created_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, 5)

    def recreate_and_fail(*_: Any) -> None:
        recreate(cluster, 10)
        raise MemoryError

    with reader(cluster) as consumer:
        consumer.seek(EVENTS, 3)
        with monkeypatch.context() as patched:
            patched.setattr(tables, "table_of", recreate_and_fail)
            with pytest.raises(MemoryError):
                consumer.poll_table(30_000)
        assert numbers(take(consumer, 10)) == [*range(10)]


def test_a_table_that_fails_gives_no_partition_back_to_a_topic_that_was_created_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the consumer learns of it only now."""
    cluster.admin().create_topic("events", partitions=2)
    for partition in (0, 1):
        fill(cluster, 5, partition=partition)
    with reader(cluster, ("events", 0), ("events", 1)) as consumer:
        core = consumer._core
        states = [*core._fetcher.partitions.values()]

        def recreate_and_fail(*_: Any) -> None:
            with monkeypatch.context() as unnoticed:
                unnoticed.setattr(core._fetcher, "check_topic_ids", lambda: None)
                cluster.admin().delete_topic("events")
                cluster.admin().create_topic("events", partitions=2)
                for partition in (0, 1):
                    fill(cluster, 5, partition=partition)
            raise MemoryError

        for partition in (0, 1):
            consumer.seek(("events", partition), 3)
        wait_until(lambda: all(state.completed_fetches for state in states), 30, "both partitions")
        with monkeypatch.context() as patched:
            patched.setattr(tables, "table_of", recreate_and_fail)
            with pytest.raises(MemoryError):
                consumer.poll_table(30_000)
        found = {(record.partition, record.offset) for record in take(consumer, 10)}
        assert found == {(partition, offset) for partition in (0, 1) for offset in range(5)}


def test_the_rest_of_an_iteration_says_nothing_of_a_topic_that_was_created_again(cluster: Cluster) -> None:
    fill(cluster, 5)
    with reader(cluster) as consumer:
        assert next(consumer).offset == 0
        recreate(cluster, 10)
        assert numbers(take(consumer, 10)) == [*range(10)]


def test_a_topic_that_was_created_again_is_an_error_without_a_reset(cluster: Cluster) -> None:
    fill(cluster, 5)
    with reader(cluster, auto_offset_reset="none") as consumer:
        consumer.seek(EVENTS, 0)
        assert numbers(take(consumer, 5)) == [*range(5)]
        recreate(cluster, 10)
        with pytest.raises(RaykaError, match="events was deleted and created again") as failure:
            consumer.poll(5000)
        assert failure.value.code is ErrorCode.UNKNOWN_TOPIC_ID
        with pytest.raises(RaykaError, match="has no position"):
            consumer.poll(5000)
        consumer.seek(EVENTS, 0)
        assert numbers(take(consumer, 10)) == [*range(10)]


def test_a_leader_refuses_a_fetch_of_the_topic_before(cluster: Cluster, connection: LocalConnection) -> None:
    """The reader's image may be older than the leader's."""
    fill(cluster, 5)
    old = cluster.admin().describe_topics(["events"])[0].topic_id
    recreate(cluster, 10)
    partitions = connection.broker.partitions
    wanted = FetchPartition(EVENTS, 3, 1_000_000, topic_id=old.bytes)
    answer = partitions.replicas.fetch([wanted], 1_000_000, IsolationLevel.READ_UNCOMMITTED)
    assert [result.error for result in answer] == [ErrorCode.INCONSISTENT_TOPIC_ID]


def test_deleted_records_are_skipped_with_a_reset(cluster: Cluster) -> None:
    fill(cluster, 100, batch_size=200)
    assert cluster.admin().delete_records({EVENTS: 40}) == {EVENTS: 40}
    with reader(cluster) as consumer:
        assert take(consumer, 60)[0].offset == 40
        assert consumer.beginning_offsets([EVENTS]) == {EVENTS: 40}


def test_paused_partitions_give_nothing(cluster: Cluster) -> None:
    cluster.admin().create_topic("events", partitions=2)
    fill(cluster, 10, partition=0)
    fill(cluster, 10, partition=1)
    with reader(cluster, ("events", 0), ("events", 1)) as consumer:
        consumer.pause(("events", 0))
        assert consumer.paused() == {EVENTS}
        assert {record.partition for record in take(consumer, 10)} == {1}
        assert consumer.poll(20) == {}
        consumer.resume()
        assert {record.partition for record in take(consumer, 10)} == {0}


@pytest.mark.parametrize(("seek", "position"), [("seek_to_beginning", 0), ("seek_to_end", 10)])
def test_the_position_of_a_paused_partition_is_looked_up(cluster: Cluster, seek: str, position: int) -> None:
    fill(cluster, 10)
    with reader(cluster) as consumer:
        take(consumer, 5, max_records=5)
        consumer.pause(EVENTS)
        getattr(consumer, seek)(EVENTS)
        assert consumer.position(EVENTS, timeout_ms=5000) == position
        assert consumer.poll(100) == {}


def test_what_is_kept_of_a_paused_partition_does_not_hold_up_the_others(cluster: Cluster) -> None:
    cluster.admin().create_topic("events", partitions=2)
    fill(cluster, 100, batch_size=500, partition=0)
    with reader(cluster, ("events", 0), ("events", 1), fetch_max_bytes=1) as consumer:
        take(consumer, 1, max_records=1)
        consumer.pause(("events", 0))
        fill(cluster, 10, partition=1)
        assert {record.partition for record in take(consumer, 10)} == {1}
        consumer.resume()
        assert {record.partition for record in take(consumer, 99)} == {0}


def test_a_partition_that_is_far_behind_does_not_hold_up_the_others(cluster: Cluster) -> None:
    cluster.admin().create_topic("events", partitions=2)
    fill(cluster, 3000, partition=0)
    fill(cluster, 10, partition=1)
    with reader(cluster, ("events", 0), ("events", 1), max_poll_records=10) as consumer:
        assert {record.partition for record in take(consumer, 1000)} == {0, 1}


def test_iteration_gives_no_records_of_paused_partitions(cluster: Cluster) -> None:
    fill(cluster, 10)
    with reader(cluster, consumer_timeout_ms=300) as consumer:
        given = [next(consumer), next(consumer)]
        consumer.pause(EVENTS)
        assert list(consumer) == []
        assert consumer.position(EVENTS) == 2
        consumer.resume()
        assert numbers([*given, *take(consumer, 8)]) == [*range(10)]


def test_offsets_by_time(cluster: Cluster) -> None:
    fill(cluster, 100, batch_size=200)
    with reader(cluster) as consumer:
        found = consumer.offsets_for_times({EVENTS: 1_000_042})[EVENTS]
        assert found is not None
        assert (found.offset, found.timestamp) == (42, 1_000_042)
        assert consumer.offsets_for_times({EVENTS: 2_000_000}) == {EVENTS: None}
        with pytest.raises(RaykaError, match="timestamp of events-0"):
            consumer.offsets_for_times({EVENTS: -1})


def test_lag(cluster: Cluster) -> None:
    fill(cluster, 100)
    with reader(cluster) as consumer:
        assert consumer.lag(EVENTS) == 100
        take(consumer, 30, max_records=30)
        assert consumer.lag(EVENTS) == 70


def test_deserializers_and_one_that_fails(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        for value in (b"1", None, b"2", b"oops", b"3"):
            producer.send("events", value)
    with reader(cluster, value_deserializer=int) as consumer:
        assert [record.value for record in take(consumer, 3)] == [1, None, 2]
        with pytest.raises(RaykaError, match="a deserializer failed for offset 3 of events-0: ValueError"):
            take(consumer, 1)
        consumer.seek(EVENTS, 4)
        assert take(consumer, 1)[0].value == 3


@pytest.mark.parametrize("has_right_crc", [False, True])
def test_a_damaged_batch_is_an_error_at_its_place(cluster: Cluster, tmp_path: Path, has_right_crc: bool) -> None:
    with cluster.producer() as producer:
        for number in range(10):
            producer.send_batch("events", 0, [b"%d" % (10 * number + digit) for digit in range(10)])
    (segment,) = (tmp_path / "events-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    sixth, seventh = [place for place, _ in iter_headers(data)][5:7]
    data[sixth + 70] ^= 0xFF
    if has_right_crc:
        seal(data, sixth, seventh)
    segment.write_bytes(data)
    with reader(cluster, retry_backoff_ms=1) as consumer:
        good: list[ConsumerRecord] = []
        with pytest.raises(RaykaError, match="CORRUPT_MESSAGE"):
            good.extend(consumer)
        assert numbers(good) == [*range(50)]
        assert consumer.position(EVENTS) == 50
        with pytest.raises(RaykaError, match="CORRUPT_MESSAGE"):
            take(consumer, 1)
        consumer.seek(EVENTS, 61)
        assert numbers(take(consumer, 39)) == [*range(61, 100)]


@pytest.mark.parametrize("length", [0, 0x7F000000])
@pytest.mark.parametrize("call", ["poll", "poll_table"])
def test_a_batch_whose_length_is_damaged_is_an_error_also_behind_it(
    cluster: Cluster, tmp_path: Path, length: int, call: str
) -> None:
    with cluster.producer() as producer:
        for first in range(0, 100, 10):
            producer.send_batch("events", 0, [b"%d" % each for each in range(first, first + 10)])
    (segment,) = (tmp_path / "events-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    place = [place for place, _ in iter_headers(data)][5]
    data[place + 8 : place + 12] = length.to_bytes(4)
    segment.write_bytes(data)
    with reader(cluster, retry_backoff_ms=1) as consumer:
        for offset in (60, 50, 99):
            consumer.seek(EVENTS, offset)
            for _ in range(2):
                with pytest.raises(RaykaError, match="CORRUPT_MESSAGE"):
                    getattr(consumer, call)(5000)
                assert consumer.position(EVENTS) == offset
        consumer.seek(EVENTS, 0)
        assert numbers(take(consumer, 50)) == [*range(50)]


@pytest.mark.parametrize("call", ["poll", "poll_table"])
def test_a_damaged_length_before_an_open_transaction_is_an_error_for_readers_of_committed_records(
    cluster: Cluster, tmp_path: Path, call: str
) -> None:
    """It is not taken for the end of what may be read, at which they would wait silently."""
    with cluster.producer() as producer, cluster.producer(transactional_id="open") as transactions:
        for number in range(8):
            producer.send_batch("events", 0, [b"%d" % number])[0].get(30)
        transactions.begin_transaction()
        transactions.send_batch("events", 0, [b"open"])[0].get(30)
        (segment,) = (tmp_path / "events-0").glob("*.log")
        data = bytearray(segment.read_bytes())
        place = [place for place, _ in iter_headers(data)][5]
        data[place + 8 : place + 12] = (0).to_bytes(4)
        segment.write_bytes(data)
        with reader(cluster, retry_backoff_ms=1, isolation_level="read_committed") as consumer:
            consumer.seek(EVENTS, 5)
            with pytest.raises(RaykaError, match="CORRUPT_MESSAGE"):
                getattr(consumer, call)(5000)
        transactions.abort_transaction()


@pytest.mark.parametrize("size", [10, 20_000])
@pytest.mark.parametrize("left", [0, 30])
@pytest.mark.parametrize("call", ["poll", "poll_table"])
def test_the_batches_before_the_end_of_a_file_that_was_cut_off_are_read(
    cluster: Cluster, tmp_path: Path, size: int, left: int, call: str
) -> None:
    with cluster.producer() as producer:
        for _ in range(5):
            producer.send_batch("events", 0, [bytes(size)])
    (segment,) = (tmp_path / "events-0").glob("*.log")
    os.truncate(segment, [place for place, _ in iter_headers(segment.read_bytes())][3] + left)
    with reader(cluster, retry_backoff_ms=1) as consumer:
        while consumer.position(EVENTS) < 3:
            assert len(getattr(consumer, call)(30_000))
        with pytest.raises(RaykaError, match="CORRUPT_MESSAGE"):
            getattr(consumer, call)(30_000)


@pytest.mark.parametrize("call", ["poll", "poll_table"])
def test_a_file_that_was_cut_off_within_a_large_batch_is_an_error(cluster: Cluster, tmp_path: Path, call: str) -> None:
    """Also if the leader looks nothing up: it remembers where the reader will continue."""
    with cluster.producer() as producer:
        for _ in range(4):
            producer.send_batch("events", 0, [bytes(20_000)])
    (segment,) = (tmp_path / "events-0").glob("*.log")
    os.truncate(segment, [place for place, _ in iter_headers(segment.read_bytes())][3] + 10_000)
    with reader(cluster, retry_backoff_ms=1, max_partition_fetch_bytes=25_000) as consumer:
        while consumer.position(EVENTS) < 3:
            assert len(getattr(consumer, call)(30_000))
        for _ in range(2):
            with pytest.raises(RaykaError, match="CORRUPT_MESSAGE: events-0 can't be read at 3"):
                getattr(consumer, call)(30_000)
            assert consumer.position(EVENTS) == 3


@pytest.mark.parametrize("check_crcs", [True, False])
@pytest.mark.parametrize("size", [10, 100_000])
def test_tables_have_the_records_before_malformed_ones(
    cluster: Cluster, tmp_path: Path, check_crcs: bool, size: int
) -> None:
    """Their CRC is right: no fetch can end before them."""
    with cluster.producer() as producer:
        for number in range(10):
            producer.send_batch("events", 0, [b"%d" % number + bytes(size)] * 5)
    (segment,) = (tmp_path / "events-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    sixth, seventh = [place for place, _ in iter_headers(data)][5:7]
    data[sixth + 61] ^= 0xFF
    seal(data, sixth, seventh)
    segment.write_bytes(data)
    with reader(cluster, retry_backoff_ms=1, check_crcs=check_crcs) as consumer:
        read: list[int] = []
        errors: list[ErrorCode] = []
        while len(read) < 25 and len(errors) < 2:
            try:
                read += consumer.poll_table(30_000)["offset"].to_pylist()
            except RaykaError as error:  # of a table that was to have later records too
                errors.append(error.code)
        assert read == [*range(25)]
        assert errors in ([], [ErrorCode.CORRUPT_MESSAGE])
        for _ in range(2):
            with pytest.raises(RaykaError, match="CORRUPT_MESSAGE"):
                consumer.poll_table(30_000)
            assert consumer.position(EVENTS) == 25
        consumer.seek(EVENTS, 30)
        while len(read) < 45:
            read += consumer.poll_table(30_000)["offset"].to_pylist()
        assert read == [*range(25), *range(30, 50)]


@pytest.mark.parametrize("error", [ErrorCode.CORRUPT_MESSAGE, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_a_start_that_can_not_be_looked_up_is_an_error_and_is_looked_up_again(
    cluster: Cluster, faults: FaultyPartitions, error: ErrorCode
) -> None:
    fill(cluster, 10)
    faults.fail_look_ups(RaykaError(error))
    with reader(cluster, retry_backoff_ms=1) as consumer:
        with pytest.raises(RaykaError, match=f"{error.name}.*could not be looked up"):
            consumer.poll(5000)
        assert numbers(take(consumer, 10)) == [*range(10)]


@pytest.mark.parametrize("call", ["poll", "poll_table"])
@pytest.mark.parametrize("number", range(1, 5))
def test_a_batch_whose_offset_is_damaged_is_an_error(cluster: Cluster, tmp_path: Path, number: int, call: str) -> None:
    with cluster.producer() as producer:
        for first in range(0, 50, 10):
            producer.send_batch("events", 0, [b"%d" % each for each in range(first, first + 10)])
    (segment,) = (tmp_path / "events-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[[place for place, _ in iter_headers(data)][number] + 2] ^= 1
    segment.write_bytes(data)
    read: list[int] = []

    def read_on() -> None:
        while True:
            polled = getattr(consumer, call)(30_000)
            records = [] if call == "poll_table" else polled[EVENTS]
            read.extend([one.offset for one in records] or polled["offset"].to_pylist())

    with reader(cluster, retry_backoff_ms=1) as consumer, pytest.raises(RaykaError, match="CORRUPT_MESSAGE"):
        read_on()
    assert read == [*range(10 * number)]


@pytest.mark.parametrize("size", [10, 20_000])
def test_a_damaged_batch_is_an_error_for_tables(cluster: Cluster, tmp_path: Path, size: int) -> None:
    with cluster.producer() as producer:
        for number in range(3):
            producer.send_batch("events", 0, [b"%d" % number + bytes(size)])
    (segment,) = (tmp_path / "events-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    second, third = [place for place, _ in iter_headers(data)][1:]
    data[third - 1] ^= 0xFF
    segment.write_bytes(data)
    with reader(cluster, retry_backoff_ms=1) as consumer:
        with pytest.raises(RaykaError, match=f"CORRUPT_MESSAGE.*{second}"):
            consumer.poll_table(30_000)
        assert consumer.position(EVENTS) == 0
        assert consumer.poll_table(30_000)["offset"].to_pylist() == [0]
        for _ in range(2):
            with pytest.raises(RaykaError, match=r"CORRUPT_MESSAGE.*position 0"):
                consumer.poll_table(30_000)
            assert consumer.position(EVENTS) == 1
        consumer.seek(EVENTS, 2)
        assert consumer.poll_table(30_000)["offset"].to_pylist() == [2]


def test_the_batches_before_a_damaged_one_come_as_tables_also_if_they_stay_in_their_file(
    cluster: Cluster, tmp_path: Path
) -> None:
    with cluster.producer() as producer:
        for _ in range(60):
            producer.send_batch("events", 0, [bytes(100_000)])
    (segment,) = (tmp_path / "events-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[[place for place, _ in iter_headers(data)][51] - 1] ^= 0xFF
    segment.write_bytes(data)
    offsets: list[int] = []
    with reader(cluster, retry_backoff_ms=1) as consumer:
        for _ in range(100):
            with contextlib.suppress(RaykaError):
                offsets += consumer.poll_table(30_000, ["offset"])["offset"].to_pylist()
            if consumer.position(EVENTS) == 50:
                break
        with pytest.raises(RaykaError, match="CORRUPT_MESSAGE"):
            consumer.poll_table(30_000)
        consumer.seek(EVENTS, 51)
        while consumer.position(EVENTS) < 60:
            offsets += consumer.poll_table(30_000, ["offset"])["offset"].to_pylist()
    assert offsets == [*range(50), *range(51, 60)]


def test_a_damaged_batch_keeps_no_other_partition_from_tables(cluster: Cluster, tmp_path: Path) -> None:
    partitions = [("events", partition) for partition in range(3)]
    cluster.admin().create_topic("events", partitions=3)
    for partition in range(3):
        fill(cluster, 10, partition=partition)
    (segment,) = (tmp_path / "events-1").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[-1] ^= 0xFF
    segment.write_bytes(data)
    seen, errors = set[tuple[int, int]](), set[ErrorCode]()
    with reader(cluster, *partitions) as consumer:
        states = consumer._core._fetcher.partitions.values()
        for _ in range(8):
            wait_until(lambda: any(s.completed_fetches or s.error for s in states), 30, "something is fetched")
            try:
                table = consumer.poll_table(30_000, ["partition", "offset"])
            except RaykaError as error:
                errors.add(error.code)
            else:
                seen |= {*zip(*table.to_pydict().values(), strict=True)}
    assert seen == {(partition, offset) for partition in (0, 2) for offset in range(10)}
    assert errors == {ErrorCode.CORRUPT_MESSAGE}


def test_the_first_part_of_a_table_that_is_too_large_is_not_received_before_the_program_has_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may commit while the other part is given back."""
    monkeypatch.setattr(tables, "_MOST_BYTES", 1 << 20)
    with cluster.producer(compression_type="zstd") as producer:
        for _ in range(20):
            producer.send_batch("events", 0, [bytes(100_000)] * 2)
    with reader(cluster) as consumer:
        core, received = consumer._core, list[int | None]()
        (state,) = core._fetcher.partitions.values()
        end_delivery = core.pending.end_delivery

        def end(polled: Any) -> None:
            received.append(core.collector.received(state))
            end_delivery(polled)

        monkeypatch.setattr(core.pending, "end_delivery", end)
        offsets = list[int]()
        while len(offsets) < 40:
            table = consumer.poll_table(30_000)
            assert received.pop() == len(offsets)
            offsets += table["offset"].to_pylist()
            assert core.collector.received(state) == len(offsets)
        assert offsets == [*range(40)]


@pytest.mark.parametrize("place", ["before", "behind"])
def test_an_interrupt_at_the_delivery_of_a_table_gives_its_records_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Ctrl-C may come before the program has the table that is ready."""
    fill(cluster, 6)
    with reader(cluster) as consumer:
        core = consumer._core
        (state,) = core._fetcher.partitions.values()
        end, interrupts = core.collector.tables_being_made.end, [KeyboardInterrupt()]

        def interrupted_end(begun: Mapping[TopicPartition, int]) -> None:
            if place == "behind":
                end(begun)
            if interrupts:
                raise interrupts.pop()
            end(begun)

        monkeypatch.setattr(core.collector.tables_being_made, "end", interrupted_end)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll_table(30_000)
        assert core.collector.received(state) == 0
        offsets = list[int]()
        while len(offsets) < 6:
            offsets += consumer.poll_table(30_000)["offset"].to_pylist()
            assert core.collector.received(state) == len(offsets)
        assert offsets == [*range(6)]


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_compressed_records_that_are_too_many_for_a_table_come_with_the_next(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_asynchronous: bool
) -> None:
    monkeypatch.setattr(tables, "_MOST_BYTES", 1 << 20)
    partitions = [("events", partition) for partition in range(2)]
    cluster.admin().create_topic("events", partitions=2)
    with cluster.producer(compression_type="zstd") as producer:
        for partition in [0, 1] * 20:
            producer.send_batch("events", partition, [bytes(100_000)] * 2)
    offsets: dict[int, list[int]] = {0: [], 1: []}

    def add(table: Any) -> bool:
        for partition, offset in zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True):
            offsets[partition].append(offset)
        assert table.nbytes < 2 << 20
        return len(offsets[0] + offsets[1]) == 80

    async def run() -> None:
        async with cluster.async_consumer(auto_offset_reset="earliest") as consumer:
            await consumer.assign(partitions)
            while not add(await consumer.poll_table(30_000)):
                pass

    if is_asynchronous:
        asyncio.run(asyncio.wait_for(run(), 60))
    else:
        with reader(cluster, *partitions) as consumer:
            while not add(consumer.poll_table(30_000)):
                pass
    assert offsets == {0: [*range(40)], 1: [*range(40)]}


def test_partitions_take_turns_in_tables_that_have_enough_from_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_collector, "_TABLE_BYTES", 1)
    cluster.admin().create_topic("events", partitions=3)
    partitions = [("events", partition) for partition in range(3)]
    for partition in range(3):
        fill(cluster, 1500, partition=partition, batch_size=300)
    with reader(cluster, *partitions, max_partition_fetch_bytes=75) as consumer:
        seen = Counter(table["partition"][0].as_py() for table in (consumer.poll_table(30_000) for _ in range(60)))
    assert min(seen[partition] for partition in range(3)) >= 15


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
    ],
)
def test_retriable_errors_are_retried(cluster: Cluster, faults: FaultyPartitions, error: ErrorCode) -> None:
    fill(cluster, 300, batch_size=200)
    faults.fail_fetches(error, error)
    with reader(cluster, retry_backoff_ms=1) as consumer:
        assert numbers(take(consumer, 300)) == [*range(300)]


def test_a_lasting_error_is_raised_and_reading_goes_on_after_it(cluster: Cluster, faults: FaultyPartitions) -> None:
    fill(cluster, 10)
    faults.fail_fetches(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with reader(cluster, retry_backoff_ms=1) as consumer:
        with pytest.raises(RaykaError, match="events-0 can't be read at 0"):
            consumer.poll(1000)
        assert numbers(take(consumer, 10)) == [*range(10)]


def test_a_look_up_that_fails_in_any_way_is_done_again(cluster: Cluster, faults: FaultyPartitions) -> None:
    fill(cluster, 10)
    faults.fail_look_ups(MemoryError())
    with reader(cluster, retry_backoff_ms=1) as consumer:
        assert numbers(take(consumer, 10)) == [*range(10)]


@pytest.mark.parametrize("error", [MemoryError(), RaykaError(ErrorCode.NETWORK_EXCEPTION)])
def test_a_fetch_that_can_not_be_sent_is_sent_again(
    cluster: Cluster, faults: FaultyPartitions, error: Exception
) -> None:
    fill(cluster, 10)
    failing: list[Exception] = []

    def fail(_: FetchPartition) -> None:
        if failing:
            raise failing.pop()

    with reader(cluster, retry_backoff_ms=1, fetch_max_wait_ms=1) as consumer:
        assert numbers(take(consumer, 10)) == [*range(10)]
        faults.on_fetch = fail
        failing.append(error)
        wait_until(lambda: not failing, 60, "a fetch that fails")
        fill(cluster, 10)
        assert numbers(take(consumer, 10)) == [*range(10)]


def test_an_error_of_one_partition_leaves_the_others(cluster: Cluster, faults: FaultyPartitions) -> None:
    cluster.admin().create_topic("events", partitions=2)
    fill(cluster, 10, partition=1)

    def first_fails(partition: FetchPartition) -> ErrorCode | None:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if partition.topic_partition.partition == 0 else None

    faults.on_fetch = first_fails
    with reader(cluster, ("events", 0), ("events", 1), retry_backoff_ms=1) as consumer:
        assert numbers(take(consumer, 10)) == [*range(10)]


def test_raw_batches(cluster: Cluster) -> None:
    fill(cluster, 1000, batch_size=500, compression_type="lz4")
    with reader(cluster) as consumer:
        consumer.seek(EVENTS, 500)
        offsets: list[int] = []
        while len(offsets) < 500:
            for batches in consumer.poll_batches(1000).get(EVENTS, []):
                for place, header in batches.visible():
                    offsets += [
                        record.offset
                        for record in read_batch(batches.data, place, header)
                        if record.offset >= batches.position
                    ]
                assert consumer.position(EVENTS) >= batches.next_offset
    assert offsets == [*range(500, 1000)]


def test_raw_batches_go_on_where_polling_stopped(cluster: Cluster) -> None:
    fill(cluster, 100)
    with reader(cluster) as consumer:
        take(consumer, 30, max_records=30)
        next(consumer)
        (batches,) = consumer.poll_batches(1000)[EVENTS][:1]
        assert batches.position == 31


def test_a_new_assignment_keeps_positions_that_stay(cluster: Cluster) -> None:
    cluster.admin().create_topic("events", partitions=2)
    fill(cluster, 10, partition=0)
    fill(cluster, 10, partition=1)
    with reader(cluster) as consumer:
        take(consumer, 4, max_records=4)
        consumer.assign([("events", 1), EVENTS])
        assert consumer.assignment() == {EVENTS, TopicPartition("events", 1)}
        assert consumer.position(EVENTS) == 4
        consumer.assign([("events", 1)])
        assert {record.partition for record in take(consumer, 10)} == {1}
        with pytest.raises(RaykaError, match="not assigned"):
            consumer.seek(EVENTS, 0)


def test_a_partition_that_is_assigned_twice_keeps_its_position(cluster: Cluster) -> None:
    fill(cluster, 30)
    with reader(cluster) as consumer:
        given = take(consumer, 10, max_records=10)
        consumer.assign([EVENTS, EVENTS])
        assert numbers([*given, *take(consumer, 20)]) == [*range(30)]


def test_a_topic_that_does_not_exist_yet_is_waited_for(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with reader(cluster, retry_backoff_ms=1) as consumer:
        consumer.assign([EVENTS, ("events", 1)])
        consumer.assign([EVENTS])
        assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
            "topic events does not exist: the consumer waits until it is created"
        ]
        assert consumer.poll(20) == {}
        fill(cluster, 5)
        assert numbers(take(consumer, 5)) == [*range(5)]


def test_topics_and_partitions(cluster: Cluster) -> None:
    cluster.admin().create_topic("events", partitions=3)
    with cluster.consumer() as consumer:
        assert consumer.topics() == {"events"}
        assert consumer.partitions_for_topic("events") == {0, 1, 2}
        assert consumer.partitions_for_topic("missing") is None
        with pytest.raises(RaykaError, match="topic events has no partition 7; it has 3"):
            consumer.assign([("events", 7)])
        with pytest.raises(RaykaError, match="a partition is TopicPartition"):
            consumer.assign(["events"])
        consumer.assign([("events", 0)])
        with pytest.raises(RaykaError, match="offset must be an int"):
            consumer.seek(("events", 0), -1)


@pytest.mark.parametrize("call", ["poll", "poll_table", "next"])
def test_records_come_before_the_error_of_what_follows_them(
    cluster: Cluster, faults: FaultyPartitions, call: str
) -> None:
    fill(cluster, 3, batch_size=1)
    faults.on_fetch = lambda asked: ErrorCode.TOPIC_AUTHORIZATION_FAILED if asked.fetch_offset else None
    with reader(cluster, max_partition_fetch_bytes=1) as consumer:
        state = consumer._core._fetcher.partitions[EVENTS]
        wait_until(lambda: state.completed_fetches and (call == "poll_table" or state.error), 30, "the fetches")
        if call == "poll":
            assert numbers(consumer.poll(30_000)[EVENTS]) == [0]
        elif call == "poll_table":
            assert consumer.poll_table(30_000)["offset"].to_pylist() == [0]
        else:
            assert numbers([next(consumer)]) == [0]
        with pytest.raises(RaykaError, match="TOPIC_AUTHORIZATION_FAILED"):
            consumer.poll(30_000)
        assert consumer.position(EVENTS) == 1


def test_wakeup_ends_the_poll_that_waits_or_the_next_one(cluster: Cluster) -> None:
    fill(cluster, 1)
    with reader(cluster, auto_offset_reset="latest") as consumer:
        consumer.poll(0)
        timer = threading.Timer(0.1, consumer.wakeup)
        timer.start()
        with pytest.raises(WakeupError):
            consumer.poll(60_000)
        timer.join()
        consumer.wakeup()
        with pytest.raises(WakeupError):
            next(consumer)
        assert consumer.poll(0) == {}


def test_wakeup_on_a_closed_connection_does_nothing(cluster: Cluster) -> None:
    consumer, asynchronous = cluster.consumer(), cluster.async_consumer()
    cluster.close()
    consumer.wakeup()
    asynchronous.wakeup()
    with pytest.raises(RaykaError, match="closed"):
        asyncio.run(asynchronous.poll(0))


class Probe(TopicPartition):
    """A partition that calls `looked_up` whenever a dict looks for it, as another thread might run then."""

    looked_up: Callable[[], object] = lambda: None

    def __hash__(self) -> int:
        type(self).looked_up()
        return super().__hash__()


def test_no_partition_is_missing_while_records_arrive(cluster: Cluster, connection: LocalConnection) -> None:
    """A program takes the positions in its own thread, to commit them with a transaction."""
    fill(cluster, 1)
    config = configure(ConsumerConfig, {"auto_offset_reset": "earliest"})
    there: list[int] = []

    async def read() -> None:
        fetcher = Fetcher(connection.broker, config, asyncio.get_running_loop())
        collector = FetchCollector(fetcher, 1, 1)
        fetcher.assign([Probe(*EVENTS)])
        Probe.looked_up = lambda: there.append(len([*fetcher.partitions]))
        while not collector.take(1):
            assert await fetcher.wait(60)
        fetcher.close()
        Probe.looked_up = lambda: None

    connection.loop.run(read())
    assert set(there) == {1}


def test_a_read_that_fails_after_the_consumer_was_closed_is_not_reported(
    cluster: Cluster, connection: LocalConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, 1)
    is_reading, may_fail, reported = threading.Event(), threading.Event(), []

    def only_on_disk(*_: object) -> int:
        raise BlockingIOError

    def fail(*_: object) -> bytes:
        is_reading.set()
        may_fail.wait(60)
        raise OSError(errno.EIO, "the disk can't read it")

    async def ended() -> None:
        await asyncio.get_running_loop().shutdown_default_executor()
        await asyncio.sleep(0)
        gc.collect()

    disk = SimpleNamespace(**vars(os) | {"preadv": only_on_disk, "pread": fail})
    monkeypatch.setattr(segment_files, "os", disk)
    connection.loop.loop.set_exception_handler(lambda _, context: reported.append(context))
    consumer = reader(cluster)
    assert is_reading.wait(60)
    consumer.close()
    may_fail.set()
    connection.loop.run(ended())
    assert reported == []


def test_two_threads_in_one_consumer_get_an_error(cluster: Cluster) -> None:
    fill(cluster, 1)
    consumer = reader(cluster, auto_offset_reset="latest")
    polling = threading.Thread(target=consumer.poll, args=(60_000,))
    polling.start()

    def ask() -> None:
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            consumer.assignment()

    with pytest.raises(RaykaError, match="Another thread is using this consumer") as refused:
        ask()
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    fill(cluster, 1)
    polling.join()
    assert consumer.assignment() == {EVENTS}


def test_a_second_thread_gets_an_error_while_a_table_is_made(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cluster, 1)
    refused: list[RaykaError] = []

    def ask_meanwhile(*arguments: Any) -> Any:
        def ask() -> None:
            try:
                consumer.poll(0)
            except RaykaError as error:
                refused.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        asking.join()
        return table_of(*arguments)

    table_of = tables.table_of
    monkeypatch.setattr(tables, "table_of", ask_meanwhile)
    with reader(cluster) as consumer:
        assert consumer.poll_table(30_000)["offset"].to_pylist() == [0]
    assert [error.code for error in refused] == [ErrorCode.INVALID_REQUEST]


def test_highwater_is_that_of_the_last_fetch(cluster: Cluster) -> None:
    fill(cluster, 7)
    with reader(cluster) as consumer:
        take(consumer, 7)
        assert consumer.highwater(EVENTS) == 7


def test_clients_that_are_closed_after_their_cluster_are_quiet(connection: LocalConnection) -> None:
    cluster = Cluster(connection)
    clients = [cluster.producer(), cluster.reader(), cluster.consumer(), cluster.consumer("g"),
               cluster.consumer_connector("g")]  # fmt: skip
    cluster.close()
    for client in clients:
        client.close()


@pytest.mark.parametrize("group", [None, "readers"])
def test_the_position_of_a_closed_consumer_is_behind_what_it_gave_out(cluster: Cluster, group: str | None) -> None:
    fill(cluster, 10)
    consumer: Any = cluster.consumer(group, auto_offset_reset="earliest")
    consumer.assign([EVENTS])
    assert next(consumer).offset == 0
    if group is None:
        consumer.close()
    else:  # as by an interrupt while it leaves
        consumer._loop.run(consumer._core.stop())
    assert consumer.position(EVENTS) == 1


def test_a_closed_consumer_says_so(cluster: Cluster) -> None:
    consumer = reader(cluster, ("missing", 0))
    consumer.close()
    consumer.close()
    with pytest.raises(RaykaError, match="The consumer is closed"):
        consumer.poll(0)


@pytest.mark.parametrize("group", [None, "readers"])
def test_a_closed_consumer_keeps_neither_records_nor_memory_for_more(cluster: Cluster, group: str | None) -> None:
    mib = 1 << 20
    with cluster.producer() as producer:
        for _ in range(8):
            producer.send("events", bytes(900_000), partition=0)

    def read() -> Any:
        consumer: Any = cluster.consumer(group, auto_offset_reset="earliest")
        consumer.assign([EVENTS])
        assert consumer.poll_table(30_000).num_rows
        consumer.seek_to_beginning(EVENTS)
        assert consumer.poll(30_000, max_records=1)
        return consumer

    def kept_bytes() -> int:
        gc.collect()
        mapped = sum(len(each) for each in gc.get_objects() if type(each) is mmap)
        return tracemalloc.get_traced_memory()[0] + mapped

    read().close()
    tracemalloc.start()
    try:
        before = kept_bytes()
        consumer = read()
        assert kept_bytes() > before + 2 * mib
        consumer.close()
        assert kept_bytes() < before + mib // 2
    finally:
        tracemalloc.stop()


def test_closing_ends_an_iteration_that_waits(cluster: Cluster) -> None:
    cluster.admin().create_topic("events")
    consumer, ended = reader(cluster), []

    def iterate() -> None:
        with pytest.raises(RaykaError, match="The consumer is closed"):
            next(consumer)
        ended.append(True)

    thread = threading.Thread(target=iterate)
    thread.start()
    wait_until(lambda: consumer._core._fetcher._changed._waiters, 30, "the thread waits")
    consumer.close()
    thread.join(30)
    assert ended


def test_closing_ends_the_fetches(cluster: Cluster, faults: FaultyPartitions) -> None:
    cluster.admin().create_topic("events")
    consumer = reader(cluster, fetch_max_wait_ms=60_000)
    assert consumer.poll(20) == {}
    assert faults.last_fetch is not None
    assert not faults.last_fetch.done()
    consumer.close()
    assert faults.last_fetch.cancelled()


def test_a_consumer_that_the_program_forgot_fetches_no_more(cluster: Cluster, faults: FaultyPartitions) -> None:
    """As in a notebook, in which a cell that makes a consumer runs again and again."""
    fill(cluster, 1)
    forgotten = reader(cluster, fetch_max_wait_ms=60_000)
    take(forgotten, 1)
    del forgotten
    gc.collect()
    fetch = faults.last_fetch
    assert fetch is not None
    wait_until(fetch.cancelled, 30, "the fetch that waits is cancelled")


def test_what_is_read_ahead_is_bounded(cluster: Cluster, faults: FaultyPartitions) -> None:
    fill(cluster, 3000, batch_size=1000)
    fetched: list[int] = []

    def note(partition: FetchPartition) -> None:
        fetched.append(partition.fetch_offset)

    faults.on_fetch = note
    with reader(cluster, max_partition_fetch_bytes=2000) as consumer:
        take(consumer, 1, max_records=1)
        consumer.poll(20, 1)
        assert len(fetched) <= 3
        take(consumer, 2998)


def test_the_loop_does_other_work_between_large_answers_of_a_fetch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.admin().create_topic("events", partitions=4)
    for partition in range(4):
        fill(cluster, 10, partition=partition)
    done: list[str] = []
    accept = Fetcher._accept

    def note(fetcher: Fetcher, state: AssignedPartition, result: FetchResult, room: int) -> None:
        if result.size:
            done.append("answer")
            asyncio.get_running_loop().call_soon(done.append, "other work")
        accept(fetcher, state, result, room)

    monkeypatch.setattr(fetchers, "_LARGE_ANSWER", 100)
    monkeypatch.setattr(Fetcher, "_accept", note)
    with reader(cluster, *[("events", partition) for partition in range(4)]) as consumer:
        assert len(take(consumer, 40)) == 40
        wait_until(lambda: done.count("other work") == 4, 30, "all work is done")
    assert done == ["answer", "other work"] * 4


@pytest.mark.parametrize("call", ["poll", "poll_table"])
def test_fetches_that_wait_one_by_one_read_no_more_ahead_than_one_for_all(cluster: Cluster, call: str) -> None:
    cluster.admin().create_topic("events", partitions=24)
    partitions = [("events", partition) for partition in range(24)]
    limits = {"fetch_max_bytes": 100_000, "max_partition_fetch_bytes": 50_000, "fetch_max_wait_ms": 20_000}
    with reader(cluster, *partitions, **limits) as consumer:
        states, seen = consumer._core._fetcher.partitions.values(), 0
        for partition in range(24):  # from now on its fetch waits without the others
            fill(cluster, 1, partition=partition)
            while seen == partition:
                polled = getattr(consumer, call)(1000)
                seen += len(polled) if call == "poll_table" else sum(map(len, polled.values()))
        with cluster.producer() as producer:
            for partition in [*range(24)] * 4:
                producer.send_batch("events", partition, [bytes(1000)] * 40)
        wait_until(lambda: all(not state.is_fetching for state in states), 60, "all fetches are answered")
        assert sum(state.buffered_bytes for state in states) <= 200_000
        while seen < 24 + 24 * 160:
            polled = getattr(consumer, call)(30_000)
            seen += len(polled) if call == "poll_table" else sum(map(len, polled.values()))


def test_an_answer_that_fails_unexpectedly_is_fetched_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.admin().create_topic("events", partitions=2)
    for partition in range(2):
        fill(cluster, 10, partition=partition)
    put, failures = Fetcher._put, iter([MemoryError("no memory")])

    def fail_once(*arguments: Any) -> None:
        for failure in failures:
            raise failure
        put(*arguments)

    monkeypatch.setattr(Fetcher, "_put", fail_once)
    with reader(cluster, ("events", 0), ("events", 1), retry_backoff_ms=1) as consumer:
        assert len(take(consumer, 20)) == 20


def test_records_that_only_the_disk_has_are_fetched_again_if_they_can_not_be_kept(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, 10)
    put, failures = Fetcher._put, iter([MemoryError("no memory")])

    def fail_once(*arguments: Any) -> None:
        for failure in failures:
            raise failure
        put(*arguments)

    monkeypatch.setattr(Fetcher, "_put", fail_once)
    monkeypatch.setattr(segment_files.SegmentFile, "read_cached", lambda *_: 0)
    with reader(cluster, retry_backoff_ms=1) as consumer:
        assert numbers(consumer.poll(30_000)[EVENTS]) == [*range(10)]


def test_records_that_only_the_disk_has_are_fetched_again_if_no_thread_can_read_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, 10)
    monkeypatch.setattr(segment_files.SegmentFile, "read_cached", lambda *_: 0)
    with cluster.consumer(auto_offset_reset="earliest", retry_backoff_ms=1) as consumer:
        answer_reader = consumer._core._fetcher._reader
        loop, failures = answer_reader._loop, iter([RuntimeError("can't start new thread")])

        def run_in_executor(*arguments: Any) -> Any:
            for failure in failures:
                raise failure
            return loop.run_in_executor(*arguments)

        monkeypatch.setattr(answer_reader, "_loop", SimpleNamespace(run_in_executor=run_in_executor))
        consumer.assign([EVENTS])
        assert numbers(consumer.poll(30_000)[EVENTS]) == [*range(10)]
        assert next(failures, None) is None


def test_what_is_still_read_from_the_disk_before_a_seek_makes_room_for_what_follows_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, 10)
    is_reading, may_end = threading.Event(), threading.Event()
    read = segment_files.SegmentFile.read

    def read_late(*arguments: Any) -> bytes:
        is_reading.set()
        assert may_end.wait(60)
        return read(*arguments)

    monkeypatch.setattr(segment_files.SegmentFile, "read_cached", lambda *_: 0)
    monkeypatch.setattr(segment_files.SegmentFile, "read", read_late)
    with reader(cluster, fetch_max_bytes=1) as consumer:
        assert is_reading.wait(60)
        consumer.seek(EVENTS, 5)
        fetcher = consumer._core._fetcher
        wait = fetcher.wait

        async def let_the_disk_answer(*how: Any, **more: Any) -> bool:
            may_end.set()
            return await wait(*how, **more)

        monkeypatch.setattr(fetcher, "wait", let_the_disk_answer)
        assert numbers(consumer.poll(30_000)[EVENTS]) == [5, 6, 7, 8, 9]


def test_fetches_for_tables_are_four_times_as_large(cluster: Cluster, faults: FaultyPartitions) -> None:
    fill(cluster, 3000, batch_size=1000)
    asked: list[FetchPartition] = []
    faults.on_fetch = asked.append
    with reader(cluster, max_partition_fetch_bytes=2000) as consumer:
        for _ in range(2):  # fetches that were sent before a poll are taken first
            wait_until(lambda: consumer.poll_table(1000) and asked[-1].max_bytes == 8000, 30, "a fetch for a table")
            wait_until(lambda: consumer.poll(1000, 10_000) and asked[-1].max_bytes == 2000, 30, "a fetch for records")


def test_the_asynchronous_form(connection: LocalConnection, cluster: Cluster) -> None:
    fill(cluster, 1000)

    async def program() -> list[int]:
        async with AsyncConsumer(connection.broker, auto_offset_reset="earliest", consumer_timeout_ms=50) as consumer:
            await consumer.assign([EVENTS])
            polled = await consumer.poll(1000, 10)
            return [record.offset for record in polled[EVENTS]] + [record.offset async for record in consumer]

    assert connection.loop.run(program()) == [*range(1000)]


def test_the_asynchronous_form_in_a_loop_of_the_programs_own(cluster: Cluster) -> None:
    fill(cluster, 1000)

    async def program() -> list[int]:
        async with cluster.async_consumer(auto_offset_reset="earliest", consumer_timeout_ms=50) as consumer:
            await consumer.assign([EVENTS])
            await consumer.seek(EVENTS, 10)
            polled = await consumer.poll(1000, 10)
            assert await consumer.lag(EVENTS) == 980
            return [record.offset for record in polled[EVENTS]] + [record.offset async for record in consumer]

    assert asyncio.run(program()) == [*range(10, 1000)]


@pytest.mark.parametrize("is_polled", [True, False])
def test_the_disk_gets_the_blocks_of_segments_back_that_were_read(
    cluster: Cluster, tmp_path: Path, is_polled: bool
) -> None:
    """Retention deletes them while the consumer waits for records, or for its program to take those that are there."""
    fill(cluster, 1)
    by_log = open_files(tmp_path)
    consumer = reader(cluster)
    take(consumer, 1)
    if not is_polled:
        consumer.pause(EVENTS)
    for log in tmp_path.rglob("*.log"):
        log.unlink()
    wait_until(lambda: open_files(tmp_path) <= by_log, 60, "the consumer has closed the deleted file")
