"""Parts of the next tables, which threads make ahead."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.client.consumer import fetch_collector, ready_partitions, tables
from rayka.client.consumer.stored import StoredBatches, StoredFetch
from rayka.client.consumer.table_maker import PartAhead, TableKind, TableMaker
from rayka.client.consumer.tables import table_of
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.server.segment_files import SegmentFiles
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import build_batch
from rayka.testing import wait_until
from tests.unit.client.test_stored_batches import (
    ALL_KINDS,
    EVENTS,
    ROOM_BEFORE,
    at_offset,
    fill,
    in_memory,
    records,
    stored,
    written,
)

ALL = TableKind(None, copy=True)


@pytest.fixture
def maker() -> Iterator[TableMaker]:
    maker = TableMaker(check_crcs=True)
    yield maker
    maker.close()


@contextlib.contextmanager
def busy_threads(maker: TableMaker) -> Iterator[None]:
    """Both threads have done what they were given before, and have something else to do."""
    have_begun, may_end = threading.Barrier(3), threading.Event()

    def wait() -> bool:
        have_begun.wait(60)
        return may_end.wait(60)

    running = [maker.threads.submit(wait) for _ in range(2)]
    have_begun.wait(60)
    try:
        yield
    finally:
        may_end.set()
        assert all(each.result(60) for each in running)


def begun(maker: TableMaker, found: StoredBatches, files: SegmentFiles, kind: TableKind = ALL) -> StoredBatches:
    for _ in range(2):
        maker.kind_of(kind.columns, kind.copy)
    part = maker.begin_part(kind, found, files)
    assert part is not None
    return found._replace(part=part)


def wait_for_threads(maker: TableMaker) -> None:
    """Parts that were begun have been made."""
    with busy_threads(maker):
        pass


def test_a_part_that_was_made_ahead_is_in_the_table(tmp_path: Path, files: SegmentFiles, maker: TableMaker) -> None:
    source = written(tmp_path, ALL_KINDS)
    expected = table_of({EVENTS: [in_memory(ALL_KINDS)]}, None, check_crcs=True)
    found = begun(maker, stored(files, source), files)
    wait_for_threads(maker)
    Path(source.path).write_bytes(bytes(ROOM_BEFORE + source.size))  # nobody needs it any more
    table, rest = maker.table_of({EVENTS: [found]}, ALL)
    assert table.equals(expected)
    assert rest == {}


def test_parts_that_were_made_ahead_keep_their_place_between_others(
    tmp_path: Path, files: SegmentFiles, maker: TableMaker
) -> None:
    found = stored(files, written(tmp_path, ALL_KINDS))
    others = [*found.split(2_000_000), in_memory(ALL_KINDS)]
    for place in range(4):
        table, _ = maker.table_of({EVENTS: [*others[:place], begun(maker, found, files), *others[place:]]}, ALL)
        expected = table_of({EVENTS: [*others[:place], found, *others[place:]]}, None, check_crcs=True)
        assert table.equals(expected)


@pytest.mark.parametrize("kind", [TableKind(("offset",), copy=True), TableKind(None, copy=False)])
def test_a_part_for_another_kind_of_table_is_not_used(
    tmp_path: Path, files: SegmentFiles, maker: TableMaker, kind: TableKind
) -> None:
    found = begun(maker, stored(files, written(tmp_path, ALL_KINDS)), files)
    table, _ = maker.table_of({EVENTS: [found]}, kind)
    assert table.equals(table_of({EVENTS: [in_memory(ALL_KINDS)]}, kind.columns, check_crcs=True, copy=kind.copy))


def test_a_part_that_begins_elsewhere_is_not_used(tmp_path: Path, files: SegmentFiles, maker: TableMaker) -> None:
    found = begun(maker, stored(files, written(tmp_path, ALL_KINDS)), files)
    table, _ = maker.table_of({EVENTS: [found._replace(position=133)]}, ALL)
    assert table.equals(table_of({EVENTS: [in_memory(ALL_KINDS, 133)]}, None, check_crcs=True))


def test_who_wants_a_table_makes_the_part_that_no_thread_has_begun(
    tmp_path: Path, files: SegmentFiles, maker: TableMaker
) -> None:
    found = stored(files, written(tmp_path, ALL_KINDS))
    with busy_threads(maker):
        table, _ = maker.table_of({EVENTS: [begun(maker, found, files)]}, ALL)
    assert table.equals(table_of({EVENTS: [in_memory(ALL_KINDS)]}, None, check_crcs=True))


def test_nothing_is_made_or_kept_open_for_a_part_that_nobody_wants_any_more(
    tmp_path: Path, files: SegmentFiles, maker: TableMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(tables, "part_of", lambda *how: made.append(how))
    found = stored(files, written(tmp_path, ALL_KINDS))
    assert found.file is not None
    file = weakref.ref(found.file)
    with busy_threads(maker):
        wanted = begun(maker, found, files)
        files.close()
        del wanted, found
        gc.collect()
        assert file() is None
    wait_for_threads(maker)
    assert not made


def test_views_are_not_made_ahead(tmp_path: Path, files: SegmentFiles, maker: TableMaker) -> None:
    """A program that takes its time would keep deleted files."""
    for _ in range(2):
        maker.kind_of(None, copy=False)
    assert maker.begin_part(TableKind(None, copy=False), stored(files, written(tmp_path, ALL_KINDS)), files) is None


def test_nothing_is_made_ahead_for_a_program_that_asks_for_other_columns_each_time(
    tmp_path: Path, files: SegmentFiles, maker: TableMaker
) -> None:
    found = stored(files, written(tmp_path, ALL_KINDS))
    for columns in (["offset"], ["value"], None, ["offset"]):
        assert maker.begin_part(maker.kind_of(columns, copy=True), found, files) is None
    assert maker.begin_part(maker.kind_of(["offset"], copy=True), found, files) is not None


def test_the_error_of_a_part_is_that_of_its_table(tmp_path: Path, files: SegmentFiles, maker: TableMaker) -> None:
    batch = bytearray(ALL_KINDS[5])
    batch[-1] ^= 1
    source = written(tmp_path, [*ALL_KINDS[:5], batch, *ALL_KINDS[6:]])
    found = begun(maker, stored(files, source), files)
    wait_for_threads(maker)
    with pytest.raises(RaykaError) as raised:
        maker.table_of({EVENTS: [found]}, ALL)
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
    assert maker.begin_part(ALL, stored(files, source), files) is None  # it would be read twice again


def test_a_part_that_could_not_be_made_keeps_no_file_open(
    tmp_path: Path, files: SegmentFiles, maker: TableMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor memory; and nobody waits for the collector."""
    monkeypatch.setattr(tables, "_MOST_AHEAD_BYTES", 1)
    gc.disable()
    try:
        found = begun(maker, stored(files, written(tmp_path, ALL_KINDS)), files)
        assert found.file is not None
        file = weakref.ref(found.file)
        found = found._replace(file=None)
        files.close()
        wait_for_threads(maker)
        assert file() is None
        assert found.part is not None
    finally:
        gc.enable()


def test_a_part_that_gets_too_large_is_made_by_who_wants_it(
    tmp_path: Path, files: SegmentFiles, maker: TableMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_MOST_AHEAD_BYTES", 2_000_000)
    batches = [at_offset(build_batch(records(100, 5000), codec=Codec.LZ4), 100 * number) for number in range(9)]
    found = begun(maker, stored(files, written(tmp_path, batches)), files)
    wait_for_threads(maker)
    table, rest = maker.table_of({EVENTS: [found]}, ALL)
    assert table.equals(table_of({EVENTS: [in_memory(batches)]}, None, check_crcs=True))
    assert rest == {}


def test_a_table_with_parts_that_were_made_ahead_has_no_more_than_others(
    tmp_path: Path, files: SegmentFiles, maker: TableMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is for the next table."""
    monkeypatch.setattr(tables, "_MOST_BYTES", 3_000_000)
    batches = [at_offset(build_batch(records(100, 5000), codec=Codec.LZ4), 100 * number) for number in range(9)]
    found = stored(files, written(tmp_path, batches))
    first, second = found.split(found.size // 2)
    polled = [begun(maker, first, files), second]
    wait_for_threads(maker)
    table, rest = maker.table_of({EVENTS: polled}, ALL)
    assert table["offset"].to_pylist() == [*range(rest[EVENTS])]
    assert 0 < rest[EVENTS] < 900


def test_parts_are_made_by_nobody_where_no_thread_can_be_started(
    tmp_path: Path, files: SegmentFiles, maker: TableMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    found = stored(files, written(tmp_path, ALL_KINDS))
    for _ in range(2):
        maker.kind_of(None, copy=True)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert maker.begin_part(ALL, found, files) is None


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of any size are made ahead, and each answer is a table."""
    monkeypatch.setattr(ready_partitions, "_LEAST_PART_BYTES", 1)
    monkeypatch.setattr(fetch_collector, "_TABLE_BYTES", 1)


def begun_by(consumer: Any) -> list[tuple[int, int]]:
    """The partitions and offsets of the parts that were begun ahead."""
    return [
        (state.topic_partition.partition, fetch.batches.position)
        for state in consumer._core._fetcher.partitions.values()
        for fetch in [*state.completed_fetches]
        if isinstance(fetch, StoredFetch) and fetch.batches.part is not None
    ]


def read_parts(cluster: Cluster, partitions: int) -> Iterator[tuple[Any, list[tuple[int, int]]]]:
    """Tables of answers of about 2.4 MB, and which parts were begun before each was asked for."""
    cluster.admin().create_topic("events", partitions=partitions)
    with cluster.producer() as producer:
        for partition in [*range(partitions)] * (600 // partitions):
            producer.send("events", bytes(100_000), partition=partition)
    with cluster.consumer(auto_offset_reset="earliest", max_partition_fetch_bytes=100_000) as consumer:
        consumer.assign([("events", partition) for partition in range(partitions)])
        rows = len(consumer.poll_table(0))
        states = consumer._core._fetcher.partitions.values()
        while not all(state.has_large_batches and not state.tables_before_ahead for state in states):
            rows += len(consumer.poll_table(30_000))
        for _ in range(5):
            wait_until(lambda: all(len(each.completed_fetches) == 2 for each in states), 30, "two answers of each")
            wait_until(lambda: len(begun_by(consumer)) >= 2, 30, "two parts")
            before = begun_by(consumer)
            table = consumer.poll_table(30_000, copy=True)
            rows += len(table)
            yield table, before
        while rows < 600:
            rows += len(consumer.poll_table(30_000))
        assert rows == 600


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_parts_are_made_in_the_order_in_which_tables_get_them(
    cluster: Cluster, small_parts: None, partitions: int
) -> None:
    for table, before in read_parts(cluster, partitions):
        assert len(before) <= 3  # the second one was that of a partition before another one was there
        assert (table["partition"][0].as_py(), table["offset"][0].as_py()) in before


@contextlib.contextmanager
def reading(cluster: Cluster, count: int = 200) -> Iterator[tuple[Any, list[int]]]:
    """A consumer that has begun to read so many records, and the offsets that it has read. The parts of the next table
    were begun.
    """
    fill(cluster, count)
    with cluster.consumer(auto_offset_reset="earliest", max_partition_fetch_bytes=100_000) as consumer:
        consumer.assign([EVENTS])
        (state,) = consumer._core._fetcher.partitions.values()
        seen: list[int] = []
        while not state.has_large_batches or not seen:
            seen += offsets(consumer, 30_000)
        wait_until(lambda: bool(begun_by(consumer)), 30, "a part of the next table")
        yield consumer, seen


def offsets(consumer: Any, timeout_ms: int) -> list[int]:
    found: list[int] = consumer.poll_table(timeout_ms)["offset"].to_pylist()
    return found


def read_rest(consumer: Any, seen: list[int], count: int = 200) -> None:
    while len(seen) < count:
        seen += offsets(consumer, 30_000)
    assert seen == [*range(count)]


def test_nothing_that_was_made_ahead_is_seen_after_a_seek(cluster: Cluster, small_parts: None) -> None:
    with reading(cluster) as (consumer, seen):
        for offset in (3, len(seen), 0):
            consumer.seek(EVENTS, offset)
            table = consumer.poll_table(30_000)
            assert table["offset"].to_pylist() == [*range(offset, offset + len(table))]
            assert [int(value[:4]) for value in table["value"].to_pylist()] == table["offset"].to_pylist()


@pytest.mark.parametrize("way", ["seek", "pause"])
def test_nothing_is_made_ahead_until_two_tables_were_taken_from_there(
    cluster: Cluster, small_parts: None, way: str
) -> None:
    """A program that seeks before each table would not need it."""
    with reading(cluster) as (consumer, seen):
        (state,) = consumer._core._fetcher.partitions.values()
        if way == "seek":
            consumer.seek(EVENTS, len(seen))
        else:
            consumer.pause(EVENTS)
            assert len(consumer.poll_table(0)) == 0
            consumer.resume(EVENTS)
        wait_until(lambda: len(state.completed_fetches) == 2, 30, "two answers")
        for _ in range(2):
            assert begun_by(consumer) == []
            seen += offsets(consumer, 30_000)
        wait_until(lambda: bool(begun_by(consumer)), 30, "a part of the next table")
        read_rest(consumer, seen)


def test_who_waits_for_records_makes_the_table_with_both_threads(
    cluster: Cluster, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part is made by one."""
    made: list[Any] = []
    with reading(cluster) as (consumer, seen):
        read_rest(consumer, seen)
        monkeypatch.setattr(tables, "part_of", lambda *how: made.append(how))
        fetcher = consumer._core._fetcher
        polling = threading.Thread(target=lambda: seen.extend(offsets(consumer, 60_000)))
        polling.start()
        wait_until(lambda: fetcher._polls_waiting == 1, 30, "a poll that waits")
        with cluster.producer(linger_ms=1000, batch_size=1_000_000) as producer:
            for _ in range(9):
                producer.send("events", bytes(100_000), partition=0)
        polling.join(60)
        read_rest(consumer, seen, 209)
    assert not made


def test_a_lack_of_memory_when_a_part_is_begun_loses_no_records(
    cluster: Cluster, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Any] = []

    def fail(*how: Any) -> None:
        failures.append(how)
        raise MemoryError

    with reading(cluster) as (consumer, seen):
        (state,) = consumer._core._fetcher.partitions.values()
        with monkeypatch.context() as failing:
            failing.setattr(PartAhead, "__init__", fail)
            for _ in range(3):
                wait_until(lambda: len(state.completed_fetches) == 2, 30, "two answers")
                seen += offsets(consumer, 30_000)
            assert failures
        read_rest(consumer, seen)


def test_a_consumer_is_closed_while_parts_are_made(
    cluster: Cluster, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, may_end, part_of = threading.Event(), threading.Event(), tables.part_of

    def make_late(*how: Any) -> Any:
        has_begun.set()
        assert may_end.wait(60)
        return part_of(*how)

    with reading(cluster) as (consumer, seen):
        wait_for_threads(consumer._core.table_maker)
        monkeypatch.setattr(tables, "part_of", make_late)
        seen += offsets(consumer, 30_000)
        assert has_begun.wait(30)
        threads = [*consumer._core.table_maker.threads._threads]
    may_end.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_an_interrupt_while_a_part_is_made_leaves_its_records_to_the_next_table(
    cluster: Cluster, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, is_wanted, part_of, taken = threading.Event(), threading.Event(), tables.part_of, PartAhead.take
    interrupts = iter([signal.SIGINT])  # one, though two threads make parts

    def take(part: PartAhead, *how: Any) -> Any:
        if part._called is not None and not part._called._functions and not part._called._has_ended:
            is_wanted.set()
        return taken(part, *how)

    def interrupt_and_make(*how: Any) -> Any:
        has_begun.set()
        assert is_wanted.wait(60)
        if (number := next(interrupts, None)) is not None:
            signal.pthread_kill(threading.main_thread().ident or 0, number)
        return part_of(*how)

    with reading(cluster) as (consumer, seen):
        wait_for_threads(consumer._core.table_maker)
        with monkeypatch.context() as interrupting:
            interrupting.setattr(tables, "part_of", interrupt_and_make)
            interrupting.setattr(PartAhead, "take", take)
            seen += offsets(consumer, 30_000)
            assert has_begun.wait(30)
            with pytest.raises(KeyboardInterrupt):
                read_rest(consumer, seen)
        read_rest(consumer, seen)
