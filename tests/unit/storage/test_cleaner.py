"""What the cleaner takes up, what it keeps, and for how long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.cleaner.cleaner import Cleaner
from rayka.storage.cleaner.dirtiness import Dirtiness, aborted_transactions, measure, plan_of
from rayka.storage.cleaner.plan import CleanerLimits
from rayka.storage.cleaner.throttle import Throttle
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD, read_header
from rayka.storage.format.compression import Codec
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.storage.format.records import Record, build_batch, read_records, seal_batch
from rayka.storage.log.log import Log
from rayka.storage.log.replacement import CleanedSegment
from rayka.storage.segments.reader import SegmentReader
from rayka.types import FileSlice
from tests.support.compaction import compact, rounds
from tests.support.faulty_files import BadSector
from tests.support.logs import NOW_MS, check_indexes, open_log, read_batches

DAY_MS = 86_400_000


def open_compacted(directory: Path, **how: object) -> Log:
    return open_log(directory, **{"cleanup_policy": ("compact",), "index_interval_bytes": 0, **how})


def write(log: Log, *records: tuple[bytes, bytes | None], timestamp: int = NOW_MS, **how: object) -> None:
    """One batch, visible and on the device."""
    batch = build_batch([Record(0, timestamp, key, value) for key, value in records], **how)
    log.append_as_leader(batch, 0, NOW_MS, origin_is_client=False)
    log.update_high_watermark(log.log_end_offset)
    log.flush()


def close_segment(log: Log) -> None:
    log.roll(NOW_MS)
    log.flush()


def read(log: Log) -> dict[int, tuple[bytes | None, bytes | None]]:
    return {record.offset: (record.key, record.value) for batch in read_batches(log) for record in read_records(batch)}


def test_the_last_record_of_each_key_stays_at_its_offset(tmp_path: Path) -> None:
    log = open_compacted(tmp_path)
    write(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    write(log, (b"c", b"1"), (b"b", b"2"))
    close_segment(log)
    write(log, (b"a", b"active"))
    compact(log, NOW_MS, RealFiles())
    assert read(log) == {2: (b"a", b"2"), 3: (b"c", b"1"), 4: (b"b", b"2"), 5: (b"a", b"active")}
    check_indexes(tmp_path)


def test_a_tombstone_stays_for_delete_retention_ms_after_it_was_first_met(tmp_path: Path) -> None:
    log = open_compacted(tmp_path, delete_retention_ms=DAY_MS)
    write(log, (b"a", b"1"), (b"b", b"1"))
    write(log, (b"a", None))
    close_segment(log)
    compact(log, NOW_MS, RealFiles())
    horizon = [read_header(batch) for batch in read_batches(log)][-1]
    assert (horizon.has_delete_horizon, horizon.base_timestamp) == (True, NOW_MS + DAY_MS)
    assert read(log) == {1: (b"b", b"1"), 2: (b"a", None)}
    for now_ms, is_there in ((NOW_MS + DAY_MS - 1, True), (NOW_MS + DAY_MS, False)):
        write(log, (b"c", b"1"))
        close_segment(log)
        compact(log, now_ms, RealFiles())
        assert (2 in read(log)) is is_there


def test_records_newer_than_min_compaction_lag_ms_stay(tmp_path: Path) -> None:
    log = open_compacted(tmp_path, min_compaction_lag_ms=1000)
    write(log, (b"a", b"1"), timestamp=NOW_MS - 5000)
    close_segment(log)
    write(log, (b"a", b"2"), timestamp=NOW_MS)
    close_segment(log)
    assert measure(log, None, NOW_MS).uncleanable_offset == 1
    assert measure(log, None, NOW_MS + 1001).uncleanable_offset == 2


def test_a_log_is_cleaned_when_dirty_enough_or_overdue(tmp_path: Path) -> None:
    log = open_compacted(tmp_path, min_cleanable_dirty_ratio=0.6, max_compaction_lag_ms=DAY_MS)
    write(log, (b"a", b"1"))
    close_segment(log)
    write(log, (b"a", b"2"))
    close_segment(log)
    assert measure(log, None, NOW_MS).should_be_cleaned
    half = measure(log, 1, NOW_MS)
    assert (half.ratio, half.should_be_cleaned) == (0.5, False)
    assert measure(log, 1, NOW_MS + DAY_MS + 1).should_be_cleaned, "overdue"
    assert not measure(log, 2, NOW_MS + DAY_MS + 1).should_be_cleaned, "nothing is dirty"


def test_max_compaction_lag_ms_closes_the_active_segment(tmp_path: Path) -> None:
    log = open_compacted(tmp_path, max_compaction_lag_ms=1000)
    write(log, (b"a", b"1"), timestamp=NOW_MS)
    write(log, (b"a", b"2"), timestamp=NOW_MS + 1001)
    assert len(log.segments) == 2


@pytest.mark.parametrize("cleaned_offset", [None, 0, 99], ids=["never", "before the start", "beyond the end"])
def test_a_cleaner_checkpoint_outside_of_the_log_is_ignored(tmp_path: Path, cleaned_offset: int | None) -> None:
    log = open_compacted(tmp_path, cleanup_policy=("compact", "delete"))
    write(log, (b"a", b"1"))
    write(log, (b"a", b"2"))
    close_segment(log)
    log.delete_records(1)
    assert measure(log, cleaned_offset, NOW_MS).first_dirty_offset == 1


def test_small_neighbours_become_one_segment(tmp_path: Path) -> None:
    log = open_compacted(tmp_path, internal_segment_bytes=1000)
    for number in range(10):
        write(log, (b"key %d" % number, b"value"))
        close_segment(log)
    compact(log, NOW_MS, RealFiles())
    assert [segment.base_offset for segment in log.segments][-1] == 10
    assert len(log.segments) == 2
    assert len(read(log)) == 10
    again = open_compacted(tmp_path, internal_segment_bytes=1000)
    assert (len(again.segments), again.log_end_offset) == (2, 10)


def test_a_map_that_is_too_small_cleans_in_several_rounds(tmp_path: Path) -> None:
    log = open_compacted(tmp_path)
    for number in range(40):
        write(log, (b"key %d" % (number % 20), b"%d" % number))
    close_segment(log)
    limits = CleanerLimits(dedupe_buffer_bytes=24 * 9, secret=(1, 2))
    cleaned, ends = None, []
    while measure(log, cleaned, NOW_MS).dirty_bytes and cleaned != 40:
        end = compact(log, NOW_MS, RealFiles(), cleaned_offset=cleaned, limits=limits)
        assert end is not None
        ends.append(cleaned := end.end_offset)
    assert len(ends) == 5
    assert [int(value or b"") for _, value in read(log).values()] == list(range(20, 40))


def test_the_last_batch_of_a_producer_stays_without_its_records(tmp_path: Path) -> None:
    log = open_compacted(tmp_path)
    for sequence in range(3):
        write(log, (b"a", b"%d" % sequence), producer_id=7, producer_epoch=0, base_sequence=sequence)
    write(log, (b"a", b"last"))
    close_segment(log)
    compact(log, NOW_MS, RealFiles())
    kept = [
        (header.base_offset, header.record_count, header.last_sequence)
        for header in map(read_header, read_batches(log))
    ]
    assert kept == [(2, 0, 2), (3, 1, -1)]
    log.release()
    for snapshot in tmp_path.glob("*.snapshot"):
        os.unlink(snapshot)
    again = open_compacted(tmp_path)
    retry = build_batch([Record(0, NOW_MS, b"a", b"2")], producer_id=7, producer_epoch=0, base_sequence=2)
    assert again.append_as_leader(retry, 0, NOW_MS).is_duplicate


def test_a_policy_that_changes_to_delete_loses_nothing_of_a_log_with_gaps(tmp_path: Path) -> None:
    log = open_compacted(tmp_path)
    for number in range(3):
        write(log, (b"a", b"%d" % number))
        write(log, (b"b%d" % number, b"1"))
        close_segment(log)
    compact(log, NOW_MS, RealFiles())
    before = read(log)
    log.release()
    again = open_log(tmp_path, was_cleaned=True, index_interval_bytes=0)
    again.update_high_watermark(again.log_end_offset)
    assert read(again) == before


def test_a_damaged_batch_ends_the_round_and_changes_nothing(tmp_path: Path) -> None:
    log = open_compacted(tmp_path)
    write(log, (b"a", b"1"))
    write(log, (b"a", b"2"))
    close_segment(log)
    with open(log.segments[0].path, "r+b") as file:
        file.seek(66)
        file.write(b"?")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(RaykaError) as raised:
        compact(log, NOW_MS, RealFiles())
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("position", [30, 200])
@pytest.mark.timeout(60)
def test_a_bad_sector_ends_the_round_with_the_disks_error(tmp_path: Path, position: int) -> None:
    log = open_compacted(tmp_path)
    for value in (b"1", b"2", b"3", b"4"):
        write(log, (b"a", value))
    close_segment(log)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(OSError, match="Input/output error"):
        compact(log, NOW_MS, BadSector(f"{0:020d}.log", position))
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.timeout(60)
def test_a_segment_that_is_shorter_than_it_was_ends_the_round(tmp_path: Path) -> None:
    log = open_compacted(tmp_path)
    write(log, (b"a", b"1"))
    write(log, (b"a", b"2"))
    close_segment(log)
    os.truncate(log.segments[0].path, log.segments[0].size - 1)
    with pytest.raises(RaykaError) as raised:
        compact(log, NOW_MS, RealFiles())
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE


def sealed(records: bytes, record_count: int, codec: Codec = Codec.NONE) -> bytearray:
    """A batch of one offset with these bytes as its records."""
    return seal_batch(
        bytearray(RECORD_BATCH_OVERHEAD) + records,
        record_count=record_count,
        base_timestamp=NOW_MS,
        max_timestamp=NOW_MS,
        last_offset_delta=0,
        codec=codec,
    )


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_record_with_a_wrong_offset_delta_hides_no_later_value(tmp_path: Path, codec: Codec) -> None:
    log = open_compacted(tmp_path)
    record = bytes((16, 0, 0, 0xD0, 0x0F, 2)) + b"a" + bytes((0, 0))  # the offset delta is 1000
    log.append_as_leader(sealed(record, 1, codec), 0, NOW_MS, origin_is_client=False)
    write(log, (b"a", b"1"))
    write(log, (b"a", b"2"))
    close_segment(log)
    compact(log, NOW_MS, RealFiles())
    assert read(log) == {2: (b"a", b"2")}


@pytest.mark.parametrize("record_count", [-1, 5, 2**31 - 1])
def test_a_compressed_batch_that_cannot_have_so_many_records_ends_the_round(tmp_path: Path, record_count: int) -> None:
    log = open_compacted(tmp_path)
    log.append_as_leader(sealed(b"", record_count, Codec.LZ4), 0, NOW_MS, origin_is_client=False)
    write(log, (b"a", b"1"))
    close_segment(log)
    with pytest.raises(RaykaError) as raised:
        compact(log, NOW_MS, RealFiles())
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(("number", "base_offset"), [(0, 1 << 16), (0, 1), (1, 0), (1, 2), (2, 1 << 40)])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_base_offset_that_a_disk_has_changed_ends_the_round(
    tmp_path: Path, number: int, base_offset: int, codec: Codec
) -> None:
    log = open_compacted(tmp_path)
    for value in (b"1", b"2", b"3"):
        write(log, (b"a", value), codec=codec)
    close_segment(log)
    with open(log.segments[0].path, "r+b") as file:
        file.seek(log.segments[0].size // 3 * number)
        file.write(base_offset.to_bytes(8))
    with pytest.raises(RaykaError) as raised:
        compact(log, NOW_MS, RealFiles())
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_segments_that_are_being_replaced_cannot_be_truncated(tmp_path: Path, offset: int) -> None:
    log = open_compacted(tmp_path)
    for _ in range(2):
        write(log, (b"a", b"1"))
        write(log, (b"b", b"1"))
        close_segment(log)
    write(log, (b"c", b"1"))
    size = log.segments[0].size
    replacement = log.begin_replacement(CleanedSegment(0, (0, 2), size))
    assert replacement is not None
    with pytest.raises(RaykaError) as raised:
        log.truncate_to(offset)
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    log.truncate_to(4)
    assert log.log_end_offset == 4
    log.end_replacement(replacement)
    log.truncate_to(offset)
    assert log.log_end_offset == offset


def test_segments_that_are_being_replaced_are_deleted_only_after_their_files_are_renamed(tmp_path: Path) -> None:
    """Else they would get those names after the deletion, and come back with the next start."""
    log = open_compacted(tmp_path, cleanup_policy=("compact", "delete"), retention_ms=1, file_delete_delay_ms=0)
    write(log, (b"a", b"1"))
    close_segment(log)
    write(log, (b"b", b"1"))
    close_segment(log)
    log.write_snapshots()
    for _ in rounds(log, NOW_MS, RealFiles()):
        later = NOW_MS + 2
        deletion = log.delete_segments(log.end_segments(log.deletable_segments(later), later), later)
        if deletion is not None:
            deletion.rename(RealFiles()).run(RealFiles())
    start_offset = log.log_start_offset
    assert start_offset == log.segments[0].base_offset > 0
    log.close(NOW_MS)
    assert {path.stem for path in tmp_path.glob("*.log")} == {f"{start_offset:020d}"}
    assert open_compacted(tmp_path).log_start_offset == start_offset


@pytest.mark.parametrize(("offset", "end_offset"), [(1, 1), (3, 1), (4, 4), (5, 4), (6, 6), (7, 7)])
def test_truncation_to_an_offset_in_a_gap_leaves_nothing_out(tmp_path: Path, offset: int, end_offset: int) -> None:
    """The log ends behind the last record that stays: whoever had others in the gap sends them again."""
    log = open_compacted(tmp_path, internal_segment_bytes=400)
    for keys in (b"xaaa", b"aac", b"d"):
        for key in keys:
            write(log, (bytes([key]), b"1"))
        close_segment(log)
    compact(log, NOW_MS, RealFiles())
    assert list(read(log)) == [0, 5, 6, 7]

    log.truncate_to(offset)

    log.validate_state()
    assert log.log_end_offset == end_offset
    write(log, (b"new", b"1"))
    assert list(read(log)) == [*(kept for kept in (0, 5, 6) if kept < offset), end_offset]


def test_truncation_into_a_gap_removes_producer_snapshots_beyond_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later start would take it for the producers' state at an offset that has other records by then."""
    for name, size in {"log.recovery.CHECKED_BYTES": 10, "segments.index.WRITE_BYTES": 1}.items():
        monkeypatch.setattr(f"rayka.storage.{name}", size)
    log = open_compacted(tmp_path)
    for sequence, key in enumerate(b"abbb"):
        producer = {"producer_id": 7, "producer_epoch": 0} if sequence else {}
        write(log, (bytes([key]), b"1"), **producer, base_sequence=sequence - 1)
    write(log, (b"b", b"last"), producer_id=7, producer_epoch=0, base_sequence=3)
    close_segment(log)
    compact(log, NOW_MS, RealFiles())
    assert list(read(log)) == [0, 4]
    log.close(NOW_MS)
    (snapshot,) = tmp_path.glob("*5.snapshot")
    snapshot.rename(tmp_path / f"{3:020d}.snapshot")
    again = open_compacted(tmp_path, clean_shutdown=True)

    again.truncate_to(4)
    for _ in range(3):
        write(again, (b"c", b"1"))
    again.release()

    again = open_compacted(tmp_path, same_boot=True)
    assert again.log_end_offset == 4
    assert not again.producers


def test_a_segment_that_gets_its_name_while_a_reader_looks_for_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, swap = tmp_path / "0.log", tmp_path / "0.log.swap"
    swap.write_bytes(b"records")
    file_slice, really_open = FileSlice(str(path), 0, 7, swap.stat().st_ino), os.open

    def open_late(name: str, flags: int) -> int:
        if name == str(swap):
            swap.rename(path)
        return really_open(name, flags)

    monkeypatch.setattr(os, "open", open_late)
    assert SegmentReader().read(file_slice) == b"records"


def test_an_empty_segment_that_a_crash_left_unnamed_brings_no_aborted_transaction_back(tmp_path: Path) -> None:
    log = open_compacted(tmp_path)
    write(log, (b"a", b"1"), producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    marker = build_end_transaction_marker(
        ControlType.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0, now_ms=NOW_MS
    )
    log.append_as_leader(marker, 0, NOW_MS, origin_is_client=False)
    log.roll(NOW_MS)
    write(log, (b"b", b"1"), producer_id=7, producer_epoch=0, base_sequence=1)
    end_offset = log.log_end_offset
    log.close(NOW_MS)
    for suffix in (".log", ".index", ".timeindex"):
        (tmp_path / f"{0:020d}{suffix}.swap").touch()
    again = open_compacted(tmp_path, recovery_point=end_offset)
    again.update_high_watermark(end_offset)
    assert read(again) == {2: (b"b", b"1")}
    assert again.aborted_transactions(0, again.read(0, 1 << 20, end_offset)) == ()


def test_reading_and_writing_keep_to_the_rate() -> None:
    now, slept = 100.0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal now, slept
        now, slept = now + seconds, slept + seconds

    throttle = Throttle(1000.0, lambda: now, sleep)
    for _ in range(100):
        throttle(50)
    assert slept == pytest.approx(5.0, abs=0.2)


def test_the_throttle_is_asked_for_every_byte(tmp_path: Path) -> None:
    log = open_compacted(tmp_path)
    for number in range(50):
        write(log, (b"a", b"%d" % number + bytes(100)))
    close_segment(log)
    seen: list[int] = []
    dirtiness: Dirtiness = measure(log, None, NOW_MS)
    plan = plan_of(dirtiness, aborted_transactions(dirtiness), NOW_MS)
    steps = list(Cleaner(RealFiles(), plan, CleanerLimits(), seen.append).clean())
    assert sum(seen) == 2 * dirtiness.dirty_bytes + steps[-1].bytes_written
