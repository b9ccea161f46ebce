"""Reads of a log that was compacted before it got tiered storage: the store ends before the local log begins."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayka.actors.channel.requests import PublishRange
from rayka.actors.replica.published_ranges import PublishedRanges
from rayka.config import LogConfig
from rayka.errors import ErrorCode
from rayka.storage.files import RealFiles
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.storage.format.records import Record, build_batch
from rayka.storage.remote.reader import RemoteRead
from rayka.types import AbortedTransaction, IsolationLevel
from tests.support.compaction import compact
from tests.support.logs import NOW_MS, ORDERS, batch
from tests.support.remote_reads import UNCOMMITTED, Reads, meanwhile, offsets_in, run
from tests.support.tiered import TieredLog

COMMITTED = IsolationLevel.READ_COMMITTED
LOCAL_START = 14
IN_THE_GAP = LOCAL_START - 1


def fill(tiered: TieredLog) -> None:
    """Segments of seven offsets, each without its last record; the first two are in the store alone."""
    log, config = tiered.log, tiered.log.config
    log.configure(LogConfig(cleanup_policy=("compact",), internal_segment_bytes=1_000, index_interval_bytes=100))
    for number in range(4):
        for key in [*(b"%d-%d" % (number, each) for each in range(6)), b"again"]:
            log.append_as_leader(build_batch([Record(0, NOW_MS, key, b"v" * 60)]), 0, NOW_MS)
        log.update_high_watermark(log.log_end_offset)
        log.roll(NOW_MS)
    log.flush()
    log.write_snapshots()
    compact(log, NOW_MS, RealFiles())
    log.configure(config)
    tiered.copy(2)
    log.delete_old_segments(NOW_MS)
    assert (log.local_log_start_offset, log.copied_offset, log.high_watermark) == (LOCAL_START, IN_THE_GAP, 28)


def leave_nothing_here(tiered: TieredLog) -> None:
    """Every record is in the store alone."""
    tiered.copy()
    tiered.log.configure(replace(tiered.log.config, local_retention_bytes=0))
    tiered.log.delete_old_segments(NOW_MS)
    assert tiered.log.local_log_start_offset == tiered.log.high_watermark == 28


@pytest.mark.parametrize("isolation", IsolationLevel)
def test_a_read_from_the_gap_goes_on_in_the_local_log(tmp_path: Path, isolation: IsolationLevel) -> None:
    async def check(reads: Reads) -> None:
        (found,) = await reads.fetch(IN_THE_GAP, isolation=isolation)

        assert (found.error, found.has_more) == (0, True)
        assert offsets_in(found)[0] == LOCAL_START
        assert found.aborted_transactions == (() if isolation is COMMITTED else None)

    run(tmp_path, check, fill)


def test_a_reader_of_committed_records_is_not_led_past_an_open_transaction(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        leave_nothing_here(reads.tiered)
        log = reads.log
        reads.reads._reader.read = lambda *_: RemoteRead()  # type: ignore[method-assign]
        transactional = batch(b"x", producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
        log.append_as_leader(transactional, 9, NOW_MS, verification=log.begin_verification(9, 0, 0, NOW_MS))
        log.update_high_watermark(29)

        (committed,) = await reads.fetch(27, isolation=COMMITTED)
        assert (committed.error, committed.records, committed.aborted_transactions) == (0, None, ())
        assert offsets_in((await reads.fetch(27))[0]) == [28]

        marker = build_end_transaction_marker(
            ControlType.ABORT, producer_id=9, producer_epoch=0, coordinator_epoch=0, now_ms=NOW_MS
        )
        log.append_as_leader(marker, 9, NOW_MS, origin_is_client=False)
        log.update_high_watermark(30)
        (committed,) = await reads.fetch(27, isolation=COMMITTED)
        assert committed.aborted_transactions == (AbortedTransaction(9, 28),)

    run(tmp_path, check, fill)


def test_a_reader_waits_where_nothing_is_visible_behind_the_store(tmp_path: Path) -> None:
    """It would ask again at once, for as long as a transaction is open."""

    async def check(reads: Reads) -> None:
        leave_nothing_here(reads.tiered)
        reads.reads._reader.read = lambda *_: RemoteRead()  # type: ignore[method-assign]
        clock = asyncio.get_running_loop().time
        began = clock()

        (found,) = await reads.fetch(27)
        assert (found.error, found.records) == (0, None)
        assert clock() - began >= 0.05

    run(tmp_path, check, fill, **{"remote.fetch.max.wait.ms": "50"})


def test_records_are_found_in_the_store_that_leave_the_local_log_meanwhile(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        meanwhile(reads, "read", lambda: leave_nothing_here(reads.tiered))

        assert offsets_in((await reads.fetch(IN_THE_GAP))[0])[0] == LOCAL_START

    run(tmp_path, check, fill)


def test_records_that_are_lost_behind_the_gap_are_not_passed_over(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        leave_nothing_here(reads.tiered)
        reads.tiered.remote.mark_for_deletion(reads.tiered.remote.segments[2:])

        assert (await reads.fetch(IN_THE_GAP))[0].error == ErrorCode.KAFKA_STORAGE_ERROR

    run(tmp_path, check, fill)


def test_a_segment_that_the_store_lacks_is_not_passed_over_from_the_gap_before_it(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        leave_nothing_here(reads.tiered)
        reads.tiered.remote.mark_for_deletion(reads.tiered.remote.segments[1:2])

        assert offsets_in((await reads.fetch(0))[0])[0] == 0
        assert (await reads.fetch(6))[0].error == ErrorCode.KAFKA_STORAGE_ERROR
        assert offsets_in((await reads.fetch(LOCAL_START))[0])[0] == LOCAL_START

    run(tmp_path, check, fill)


def test_ranges_for_ray_data_and_spark_go_on_in_the_local_log(tmp_path: Path) -> None:
    async def check(reads: Reads) -> None:
        tables: Any = SimpleNamespace(put=lambda table: table, key=lambda table: str(id(table)), referenced=set)
        ranges = PublishedRanges(reads.replicas, lambda: 1 << 30, store=tables, remote=reads.reads)
        found: list[int] = []
        position = 0
        while position < 28:
            published = await ranges.publish(PublishRange(ORDERS, position, 28, ("offset",), UNCOMMITTED))
            assert isinstance(published, list)
            assert published, f"nothing at {position}"
            position = published[-1].end_offset
            for each in published:
                found += each.ref.column("offset").to_pylist()
        ranges.close()

        assert found == [offset for offset in range(28) if offset % 7 != 6 or offset == 27]

    run(tmp_path, check, fill)
