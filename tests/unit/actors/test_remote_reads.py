"""Fetches and searches that need the remote store: answered from it, in time or later, with its errors."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayka.actors.channel.requests import PublishRange
from rayka.actors.remote.slots import Slots
from rayka.actors.replica.published_ranges import PublishedRanges
from rayka.client.consumer.remote_ranges import RemoteRanges
from rayka.errors import ErrorCode, RaykaError
from rayka.replica.partition import Partition
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.storage.remote.remote_range import RemoteRange
from rayka.types import (
    AbortedTransaction,
    IsolationLevel,
    OffsetSpec,
)
from tests.support.logs import NOW_MS, ORDERS, batch
from tests.support.remote_reads import UNCOMMITTED, Reads, meanwhile, offsets_in, run
from tests.support.tiered import TieredLog


def fill_with_an_aborted_transaction(tiered: TieredLog) -> None:
    """Its record at offset 5 is in the store alone, its marker here alone."""
    log = tiered.log
    tiered.append(5)
    transactional = batch(b"5 x", producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append_as_leader(transactional, 0, NOW_MS, verification=log.begin_verification(9, 0, 0, NOW_MS))
    tiered.append(60)
    marker = build_end_transaction_marker(
        ControlType.ABORT, producer_id=9, producer_epoch=0, coordinator_epoch=0, now_ms=NOW_MS
    )
    log.append_as_leader(marker, 2, NOW_MS, origin_is_client=False)
    tiered.append(60)
    tiered.copy(2)
    log.delete_old_segments(NOW_MS)
    assert 5 < log.local_log_start_offset <= log.copied_offset + 1 < 66


def test_one_fetch_reads_from_the_store_and_from_the_local_log(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        old, new = await reads.fetch(0, 190)

        assert (old.error, new.error) == (0, 0)
        assert offsets_in(old)[0] == 0
        assert offsets_in(new)[0] == 190
        assert old.log_start_offset == 0
        assert old.high_watermark == 200

    run(tmp_path, check)


def test_a_store_that_takes_its_time_is_waited_for_by_the_next_fetch(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        may_go, get = threading.Event(), reads.tiered.store.get
        reads.tiered.store.get = lambda *where: get(*where) if may_go.wait(30) else b""  # type: ignore[method-assign]
        (first,) = await reads.fetch(0)
        may_go.set()

        assert (first.error, first.records) == (0, None)
        while not offsets_in((await reads.fetch(0))[0]):
            await asyncio.sleep(0)

    run(tmp_path, check, **{"remote.fetch.max.wait.ms": "50"})


def test_an_error_of_the_store_is_a_storage_error(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        def fail(*_: object) -> bytes:
            raise OSError("the store is away")

        get, reads.tiered.store.get = reads.tiered.store.get, fail  # type: ignore[method-assign]
        (refused,) = await reads.fetch(0)
        by_time = await reads.list_offsets(NOW_MS + 3)
        reads.tiered.store.get = get  # type: ignore[method-assign]

        assert refused.error == by_time.error == ErrorCode.KAFKA_STORAGE_ERROR
        assert offsets_in((await reads.fetch(0))[0])[0] == 0

    run(tmp_path, check)


def test_damaged_bytes_of_the_store_are_a_storage_error_and_are_not_kept(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        get = reads.tiered.store.get

        def flip(name: str, position: int, size: int) -> bytes:
            data = bytearray(get(name, position, size))
            data[-1] ^= 1
            return bytes(data)

        reads.tiered.store.get = flip  # type: ignore[method-assign]
        (refused,) = await reads.fetch(0)
        reads.tiered.store.get = get  # type: ignore[method-assign]

        assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
        assert offsets_in((await reads.fetch(0))[0])[0] == 0

    run(tmp_path, check)


@pytest.mark.parametrize("kind", [".log", ".index", ".timeindex"])
def test_an_object_that_is_cut_is_a_storage_error(tmp_path: Path, kind: str) -> None:
    async def check(reads: Reads) -> None:
        get = reads.tiered.store.get
        reads.tiered.store.get = lambda name, *where: get(name, *where)[: -1 if name.endswith(kind) else None]  # type: ignore[method-assign]

        assert (await reads.fetch(0))[0].error == ErrorCode.KAFKA_STORAGE_ERROR

    run(tmp_path, check)


def test_an_error_of_the_metadata_topic_does_not_look_like_one_of_the_partition(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        async def fail(_: Partition) -> Any:
            raise RaykaError(ErrorCode.OFFSET_OUT_OF_RANGE, "__remote_log_metadata-0 can't be read")

        reads.reads.known = fail

        assert (await reads.fetch(0))[0].error == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await reads.list_offsets(NOW_MS)).error == ErrorCode.KAFKA_STORAGE_ERROR

    run(tmp_path, check)


def test_a_read_that_fails_in_an_unexpected_way_is_answered(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        async def fail(_: Partition) -> Any:
            raise ValueError("unexpected")

        reads.reads.known = fail

        assert (await reads.fetch(0))[0].error == ErrorCode.UNKNOWN_SERVER_ERROR
        assert (await reads.list_offsets(NOW_MS)).error == ErrorCode.UNKNOWN_SERVER_ERROR

    run(tmp_path, check)


def test_an_abort_is_told_whose_marker_leaves_the_local_log_while_the_store_is_read(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        def move_on() -> None:
            reads.tiered.copy()
            reads.log.delete_old_segments(NOW_MS)
            assert reads.log.local_log_start_offset > 66

        meanwhile(reads, "read", move_on)

        _, aborted = await reads.reads.read(reads.partition, 0, 10_000, IsolationLevel.READ_COMMITTED)
        assert aborted == (AbortedTransaction(9, 5),)

    run(tmp_path, check, fill_with_an_aborted_transaction)


def test_a_record_is_found_by_time_that_leaves_the_local_log_while_the_store_is_searched(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        def move_on() -> None:
            reads.tiered.append(100)
            reads.tiered.copy()
            reads.log.delete_old_segments(NOW_MS)
            assert reads.log.local_log_start_offset > 195

        meanwhile(reads, "offset_for_timestamp", move_on)

        assert (await reads.list_offsets(NOW_MS + 195)).offset == 195

    run(tmp_path, check)


def test_a_slot_passes_to_the_next_one_if_the_first_gives_up_when_it_is_told() -> None:
    async def main() -> None:
        slots, order = Slots(lambda: 1), []

        async def take(name: str) -> None:
            async with slots:
                order.append(name)

        async with slots:
            first, second = asyncio.ensure_future(take("first")), asyncio.ensure_future(take("second"))
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait_for(second, 60)
        assert order == ["second"]

    asyncio.run(main())


def test_offsets_that_the_store_lacks_are_not_passed_over(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        reads.tiered.remote.mark_for_deletion(reads.tiered.remote.segments[:1])

        assert (await reads.fetch(0))[0].error == ErrorCode.KAFKA_STORAGE_ERROR
        reads.log.delete_records(5)
        with pytest.raises(RaykaError) as refused:
            await reads.reads.read(reads.partition, 0, 1_000, UNCOMMITTED)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    run(tmp_path, check)


def test_searches_that_time_out_leave_no_more_threads_hanging_than_may_read(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        may_go, get = threading.Event(), reads.tiered.store.get
        hanging: list[str] = []

        def hang(name: str, *where: int) -> bytes:
            hanging.append(name)
            assert may_go.wait(30)
            return get(name, *where)

        reads.tiered.store.get = hang  # type: ignore[method-assign]
        starts = [segment.max_timestamp for segment in reads.tiered.remote.lineage(reads.log.leader_epochs)]
        found = [await reads.list_offsets(timestamp) for timestamp in starts[:5]]

        assert {each.error for each in found} == {ErrorCode.REQUEST_TIMED_OUT}
        assert len(hanging) == 2
        may_go.set()
        while (await reads.list_offsets(starts[0])).error:
            await asyncio.sleep(0)

    run(tmp_path, check, **{"remote.log.reader.threads": "2", "remote.list.offsets.request.timeout.ms": "50"})


def test_offsets_by_time_come_from_the_store_or_the_local_log(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        found = [(await reads.list_offsets(NOW_MS + offset)).offset for offset in (0, 3, 195, 500)]

        assert found == [0, 3, 195, -1]

    run(tmp_path, check)


@pytest.mark.parametrize("is_last", [False, True])
def test_a_search_by_time_does_not_pass_over_offsets_that_the_store_lacks(tmp_path: Path, is_last: bool) -> None:
    """A reader that begins behind them would take them for older than it asked for."""

    async def check(reads: Reads) -> None:
        log, remote = reads.log, reads.tiered.remote
        in_store = [each for each in remote.segments if each.start_offset < log.local_log_start_offset]
        lost = in_store[2:] if is_last else in_store[2:3]
        remote.mark_for_deletion(lost)

        assert (await reads.list_offsets(NOW_MS + lost[0].start_offset - 1)).offset == lost[0].start_offset - 1
        for offset in (lost[0].start_offset, lost[-1].end_offset + 1):
            assert (await reads.list_offsets(NOW_MS + offset)).error == ErrorCode.KAFKA_STORAGE_ERROR
        reads.log.delete_records(lost[-1].end_offset + 1)
        assert (await reads.list_offsets(NOW_MS)).offset == lost[-1].end_offset + 1

    run(tmp_path, check)


def test_a_search_by_time_goes_on_while_records_that_are_not_copied_yet_are_deleted(tmp_path: Path) -> None:
    def fill(tiered: TieredLog) -> None:
        for _ in range(200):
            tiered.log.append_as_leader(batch(bytes(30)), 0, NOW_MS)
        tiered.log.update_high_watermark(200)
        tiered.copy()
        tiered.log.delete_old_segments(NOW_MS)

    async def check(reads: Reads) -> None:
        first, known = reads.log.copied_offset + 2, reads.reads.known

        async def known_after_deletion(partition: Partition) -> Any:
            partition.log.delete_records(first)
            return await known(partition)

        reads.reads.known = known_after_deletion
        assert not (await reads.list_offsets(NOW_MS + 10_000)).error

    run(tmp_path, check, fill)


def test_special_offsets_tell_what_is_where(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        log = reads.log
        found = {
            spec: (answer.offset, answer.leader_epoch)
            for spec in OffsetSpec
            if spec is not OffsetSpec.MAX_TIMESTAMP
            for answer in [await reads.list_offsets(spec)]
        }

        assert found == {
            OffsetSpec.EARLIEST: (0, 0),
            OffsetSpec.LATEST: (200, 9),
            OffsetSpec.EARLIEST_LOCAL: (log.local_log_start_offset, log.local_log_start_offset // 40),
            OffsetSpec.LATEST_TIERED: (log.copied_offset, log.copied_offset // 40),
            OffsetSpec.EARLIEST_PENDING_UPLOAD: (log.copied_offset + 1, (log.copied_offset + 1) // 40),
        }
        assert 0 < log.local_log_start_offset <= log.copied_offset < 199

    run(tmp_path, check)


def test_more_reads_than_may_wait_get_nothing_yet(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        may_go, get = threading.Event(), reads.tiered.store.get
        reads.tiered.store.get = lambda *where: get(*where) if may_go.wait(30) else b""  # type: ignore[method-assign]
        segments = reads.tiered.remote.lineage(reads.log.leader_epochs)
        starts = [segment.start_offset for segment in segments[:6]]
        waiting = asyncio.ensure_future(reads.fetch(*starts))
        results = await waiting
        may_go.set()

        assert [(result.error, result.records) for result in results] == [(0, None)] * 6

    run(tmp_path, check, **{"remote.log.reader.threads": "1", "remote.log.reader.max.pending.tasks": "1"})


async def read_straight(reads: Reads, start: int, end: int, isolation: IsolationLevel) -> list[int]:
    """The offsets of a range, and where the store has no more, none."""
    ranges = PublishedRanges(reads.replicas, lambda: 1, store=SimpleNamespace(), remote=reads.reads)  # type: ignore[arg-type]
    located = await ranges.publish(PublishRange(ORDERS, start, end, ("offset",), isolation, None, True))
    ranges.close()
    assert isinstance(located, RemoteRange)
    remote = RemoteRanges(reads.tiered.store, 300)
    try:
        found = await asyncio.to_thread(lambda: list(remote.read(located, ("offset",))))
        assert found[-1].end_offset == located.end_offset
        return [offset for records in found for offset in records.batch.column(0).to_pylist()]
    finally:
        remote.close()


def test_a_reader_of_ranges_fetches_what_is_in_the_store_alone_without_the_leader(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        local_start = reads.log.local_log_start_offset

        assert await read_straight(reads, 0, 200, UNCOMMITTED) == list(range(local_start))
        assert await read_straight(reads, 13, 57, UNCOMMITTED) == list(range(13, 57))

    run(tmp_path, check)


def test_a_reader_of_ranges_is_not_led_over_offsets_that_the_store_lacks(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        before, lost = reads.tiered.remote.segments[1:3]
        reads.tiered.remote.mark_for_deletion([lost])

        assert await read_straight(reads, 0, 200, UNCOMMITTED) == list(range(before.end_offset + 1))
        with pytest.raises(RaykaError) as refused:
            await read_straight(reads, lost.start_offset, 200, UNCOMMITTED)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR

    run(tmp_path, check)


def test_a_reader_of_ranges_meets_no_record_whose_abort_only_the_leader_knows(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        local_start = reads.log.local_log_start_offset

        committed = await read_straight(reads, 0, 60, IsolationLevel.READ_COMMITTED)
        assert committed == [offset for offset in range(min(60, local_start)) if offset != 5]
        assert 5 in await read_straight(reads, 0, 60, UNCOMMITTED)

    run(tmp_path, check, fill_with_an_aborted_transaction)


def test_ranges_for_ray_data_and_spark_come_from_the_store_too(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        store: Any = SimpleNamespace(put=lambda table: table, key=lambda table: str(id(table)), referenced=set)
        ranges = PublishedRanges(reads.replicas, lambda: 1 << 30, store=store, remote=reads.reads)
        found: list[int] = []
        while len(found) < 200:
            for each in await ranges.publish(PublishRange(ORDERS, len(found), 200, ("offset",), UNCOMMITTED)):
                found += each.ref.column("offset").to_pylist()
        ranges.close()

        assert found == list(range(200))
        with pytest.raises(RaykaError) as refused:
            await PublishedRanges(reads.replicas, lambda: 1, store=store).publish(
                PublishRange(ORDERS, 0, 9, ("offset",), UNCOMMITTED)
            )
        assert refused.value.code is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE

    run(tmp_path, check)
