"""What a log's owner relies on: offsets, what is refused, what a reader gets."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.directory.disk_state import State
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import iter_headers, read_header, seal
from rayka.storage.format.compression import Codec
from rayka.storage.format.order import in_order
from rayka.storage.format.records import Record, build_batch, read_records
from rayka.storage.segments.reader import SegmentReader
from rayka.types import FileSlice, OffsetSpec, TimestampType
from tests.support.logs import NOW_MS, append, batch, open_log, read_values, records


def test_offsets_rise_by_one_for_each_record(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert [append(log, b"a"), append(log, b"b", b"c"), append(log, b"d")] == [0, 1, 3]
    assert read_values(log) == {0: b"a", 1: b"b", 2: b"c", 3: b"d"}
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (0, 4, 4)


def test_several_batches_are_one_append(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    info = log.append_as_leader(batch(b"a", b"b") + batch(b"c"), 5, NOW_MS)
    assert (info.base_offset, info.last_offset) == (0, 2)
    data = Path(tmp_path, "00000000000000000000.log").read_bytes()
    headers = [header for _, header in iter_headers(data)]
    assert [header.base_offset for header in headers] == [0, 2]
    assert {header.partition_leader_epoch for header in headers} == {5}


def test_one_bad_batch_refuses_them_all(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    broken = batch(b"b")
    broken[-1] ^= 1
    with pytest.raises(RaykaError) as refused:
        log.append_as_leader(batch(b"a") + broken, 0, NOW_MS)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert (log.log_end_offset, log.size) == (0, 0)


@pytest.mark.parametrize(
    ("data", "config", "code"),
    [
        (b"", {}, ErrorCode.INVALID_RECORD),
        (batch(b"x" * 2000), {"max_message_bytes": 1000}, ErrorCode.MESSAGE_TOO_LARGE),
        (batch(b"x" * 2000), {"segment_bytes": 1000}, ErrorCode.RECORD_LIST_TOO_LARGE),
        (batch(b"x", timestamp=NOW_MS + 3_600_001), {}, ErrorCode.INVALID_TIMESTAMP),
        (batch(b"x", timestamp_type=TimestampType.LOG_APPEND_TIME), {}, ErrorCode.INVALID_TIMESTAMP),
        (batch(b"x", timestamp=NOW_MS - 11), {"message_timestamp_before_max_ms": 10}, ErrorCode.INVALID_TIMESTAMP),
        (build_batch([Record(0, 0, None, b"x")]), {"cleanup_policy": ("compact",)}, ErrorCode.INVALID_RECORD),
        (batch(b"x", is_control=True), {}, ErrorCode.INVALID_RECORD),
        (batch(b"x")[:-1], {}, ErrorCode.CORRUPT_MESSAGE),
    ],
)  # fmt: skip
def test_a_refused_append_changes_nothing(
    tmp_path: Path, data: bytes, config: dict[str, object], code: ErrorCode
) -> None:
    log = open_log(tmp_path, **config)
    with pytest.raises(RaykaError) as refused:
        log.append_as_leader(bytearray(data), 0, NOW_MS)
    assert refused.value.code is code
    assert log.log_end_offset == 0
    assert Path(tmp_path, "00000000000000000000.log").read_bytes() == b""


def test_log_append_time_replaces_the_timestamps(tmp_path: Path) -> None:
    log = open_log(tmp_path, message_timestamp_type="LogAppendTime")
    info = log.append_as_leader(batch(b"a", b"b", timestamp=5), 0, NOW_MS)
    log.update_high_watermark(2)
    assert info.log_append_time_ms == NOW_MS
    file_slice = log.read(0, 1000, 2)
    assert file_slice is not None
    read = list(read_records(SegmentReader().read(file_slice)))
    assert [record.timestamp for record in read] == [NOW_MS, NOW_MS]
    assert read_header(SegmentReader().read(file_slice)).timestamp_type is TimestampType.LOG_APPEND_TIME


@pytest.mark.parametrize("name", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_the_topics_codec_replaces_the_producers(tmp_path: Path, name: str) -> None:
    log = open_log(tmp_path, compression_type=name)
    values = [b"value %d" % index for index in range(50)]
    append(log, *values, codec=Codec.LZ4)
    wanted = Codec.NONE if name == "uncompressed" else Codec[name.upper()]
    data = Path(tmp_path, "00000000000000000000.log").read_bytes()
    assert read_header(data).codec is wanted
    assert list(read_values(log).values()) == values


@pytest.mark.parametrize("length", [0, 0x7F000000])
def test_a_batch_with_a_damaged_length_hides_no_records_behind_it(tmp_path: Path, length: int) -> None:
    log = open_log(tmp_path)
    for _ in range(4):
        append(log, b"a", b"b")
    log.roll(NOW_MS)
    append(log, b"c")
    path = Path(tmp_path, "00000000000000000000.log")
    data = bytearray(path.read_bytes())
    place = [place for place, _ in iter_headers(data)][1]
    data[place + 8 : place + 12] = length.to_bytes(4)
    path.write_bytes(data)
    for offset in (4, 7):
        with pytest.raises(RaykaError, match="CORRUPT_MESSAGE"):
            log.read(offset, 1000, 9)
    first, last = log.read(0, place, 9), log.read(8, 1000, 9)
    assert first is not None
    assert last is not None
    assert [record.value for record in read_records(SegmentReader().read(first))] == [b"a", b"b"]
    assert [record.value for record in read_records(SegmentReader().read(last))] == [b"c"]


@pytest.mark.parametrize("index_interval_bytes", [1, 4096])
@pytest.mark.parametrize("damage", [(23, b"\x80"), (0, bytes(8)), (0, b"\xff"), (0, (6).to_bytes(8))])
def test_a_batch_whose_offset_went_down_hides_no_records(
    tmp_path: Path, damage: tuple[int, bytes], index_interval_bytes: int
) -> None:
    """For a look-up it is below the offset, and the batch behind it looks like the next one after a gap."""
    log = open_log(tmp_path, index_interval_bytes=index_interval_bytes)
    for _ in range(10):
        append(log, b"a")
    path = Path(tmp_path, "00000000000000000000.log")
    data = bytearray(path.read_bytes())
    place = [place for place, _ in iter_headers(data)][8] + damage[0]
    data[place : place + len(damage[1])] = damage[1]
    path.write_bytes(data)
    with pytest.raises(RaykaError, match=r"CORRUPT_MESSAGE: .*0\.log is damaged"):
        log.read(8, 1000, 10)
    for offset in (7, 9):
        found = log.read(offset, 1000, 10)
        assert found is not None
        assert found.position == log.size // 10 * offset, "what is sound can be read before it and behind it"


def test_an_offset_that_went_down_hides_no_records_at_the_end_of_a_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(4):
        append(log, b"a")
        if number == 2:
            log.roll(NOW_MS)
    path = Path(tmp_path, "00000000000000000000.log")
    data = bytearray(path.read_bytes())
    data[-len(data) // 3 : -len(data) // 3 + 8] = bytes(8)
    path.write_bytes(data)
    with pytest.raises(RaykaError, match="CORRUPT_MESSAGE"):
        log.read(2, 1000, 4)
    assert log.read(3, 1000, 4) is not None


def damage(directory: Path, number: int, place: int, damaged: bytes, segment: int = 0) -> None:
    """Overwrite a part of the batch of this number in a segment, from a place in it on."""
    path = sorted(directory.glob("*.log"))[segment]
    data = bytearray(path.read_bytes())
    begin = [position for position, _ in iter_headers(data)][number] + place
    data[begin : begin + len(damaged)] = damaged
    path.write_bytes(data)


@pytest.mark.parametrize("index_interval_bytes", [1, 4096])
def test_a_batch_whose_last_offset_went_down_hides_none_of_its_records(
    tmp_path: Path, index_interval_bytes: int
) -> None:
    """To a look-up its last records look like a gap, but its header counts them."""
    log = open_log(tmp_path, index_interval_bytes=index_interval_bytes)
    for _ in range(5):
        append(log, *[b"a"] * 8)
    damage(tmp_path, 2, 26, b"\x03")
    for offset in range(20, 24):
        with pytest.raises(RaykaError, match=r"CORRUPT_MESSAGE: .*0\.log is damaged"):
            log.read(offset, 1000, 40)
    for offset in (15, 16, 19, 24):
        found = log.read(offset, 1000, 40)
        assert found is not None
        assert found.position == log.size // 5 * (offset // 8)


def test_the_last_offsets_of_a_log_that_its_last_batch_lost_are_not_waited_for(tmp_path: Path) -> None:
    """As compaction leaves it, its header does not tell how many offsets it had; but the log ends behind them."""
    compacted(Path(tmp_path, "00000000000000000000.log"))
    log = open_log(tmp_path, was_cleaned=True, cleanup_policy=("compact",))
    log.update_high_watermark(log.log_end_offset)
    damage(tmp_path, -1, 26, b"\x00")
    with pytest.raises(RaykaError, match=r"CORRUPT_MESSAGE: .*0\.log is damaged"):
        log.read(55, 1000, 56)
    assert log.read(56, 1000, 56) is None


@pytest.mark.parametrize("index_interval_bytes", [1, 4096])
def test_a_batch_with_a_damaged_count_of_records_hides_none_behind_it(
    tmp_path: Path, index_interval_bytes: int
) -> None:
    log = open_log(tmp_path, index_interval_bytes=index_interval_bytes)
    for _ in range(5):
        append(log, *[b"a"] * 8)
    damage(tmp_path, 2, 57, b"\x01")
    for offset in range(40):
        found = log.read(offset, 1000, 40)
        assert found is not None
        assert found.position == log.size // 5 * (offset // 8)


@pytest.mark.parametrize("index_interval_bytes", [1, 4096])
def test_a_batch_whose_offset_went_up_is_not_given_out_for_another(tmp_path: Path, index_interval_bytes: int) -> None:
    """A reader that gets it alone would take its records for later ones, and leave out those behind it."""
    log = open_log(tmp_path, index_interval_bytes=index_interval_bytes)
    for _ in range(20):
        append(log, b"a")
    damage(tmp_path, 8, 7, b"\x0f")
    for offset in (8, *([15] if index_interval_bytes > 1 else [])):
        with pytest.raises(RaykaError, match=r"CORRUPT_MESSAGE: .*0\.log is damaged"):
            log.read(offset, 1, 20)
    for offset in (7, 16, *([9, 15] if index_interval_bytes == 1 else [])):
        found = log.read(offset, 1, 20)
        assert found is not None
        assert found.position == log.size // 20 * offset


def test_a_batch_whose_last_offset_is_above_that_in_the_index_is_damaged(tmp_path: Path) -> None:
    log = open_log(tmp_path, index_interval_bytes=1)
    for _ in range(20):
        append(log, b"a")
    damage(tmp_path, 8, 26, b"\x03")
    with pytest.raises(RaykaError, match=r"CORRUPT_MESSAGE: .*0\.log is damaged"):
        log.read(8, 1, 20)
    for offset in (7, 9):
        found = log.read(offset, 1, 20)
        assert found is not None
        assert found.position == log.size // 20 * offset


def test_the_last_batch_of_a_segment_does_not_reach_into_the_next_one(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(6):
        append(log, b"a")
        if number == 2:
            log.roll(NOW_MS)
    damage(tmp_path, 2, 7, b"\x04")
    with pytest.raises(RaykaError, match=r"CORRUPT_MESSAGE: .*0\.log is damaged"):
        log.read(2, 1000, 6)
    assert log.read(1, 1000, 6) is not None
    assert log.read(4, 1000, 6) is not None


def test_a_read_that_ends_before_a_batch_with_a_damaged_offset_is_not_continued_there(tmp_path: Path) -> None:
    log = open_log(tmp_path, index_interval_bytes=1)
    for _ in range(20):
        append(log, b"a")
    size = log.size // 20
    damage(tmp_path, 8, 7, b"\x0f")
    log.read(0, 8 * size + 10, 20)
    found = log.read(15, 1, 20)
    assert found is not None
    assert found.position == 15 * size


def test_wrong_entries_of_an_index_make_no_sound_batch_damaged(tmp_path: Path) -> None:
    log = open_log(tmp_path, index_interval_bytes=1)
    for _ in range(10):
        append(log, b"a", b"b", b"c")
    index, size = log._segments.active.offset_index, log.size // 10
    for shift in (-3, -2, -1, 1, 2, 3):
        index.reset()
        for number in range(1, 10):
            index.append(3 * number + 2 + shift, number * size)
        for offset in range(30):
            found = log.read(offset, 1, 30)
            assert found is not None
            assert found.position == offset // 3 * size, (shift, offset)


def compacted(path: Path) -> dict[int, int]:
    """Write a segment as compaction leaves it: gaps between batches and within, and batches without records. Returns
    the place of the batch that a reader gets at each offset.
    """
    data, places, next_offset = bytearray(), dict[int, int](), 0
    for base_offset, count, deltas in (
        (0, 0, 8),
        (8, 3, 8),
        (20, 0, 1),
        (21, 1, 1),
        (30, 8, 8),
        (50, 1, 4),
        (54, 2, 2),
    ):
        built = build_batch(records(*[b"a"] * count), base_offset=base_offset)
        built[23:27] = (deltas - 1).to_bytes(4)
        seal(built, 0, len(built))
        places |= dict.fromkeys(range(next_offset, base_offset + deltas), len(data))
        data += built
        next_offset = base_offset + deltas
    path.write_bytes(data)
    return places


@pytest.mark.parametrize("index_interval_bytes", [1, 4096])
def test_a_compacted_log_can_be_read_from_every_offset(tmp_path: Path, index_interval_bytes: int) -> None:
    places = compacted(Path(tmp_path, "00000000000000000000.log"))
    config = {"cleanup_policy": ("compact",), "index_interval_bytes": index_interval_bytes}
    log = open_log(tmp_path, was_cleaned=True, **config)
    log.update_high_watermark(log.log_end_offset)
    assert log.log_end_offset == 56
    for offset, place in places.items():
        found = log.read(offset, 1 << 20, 56)
        assert found is not None
        assert found.position == place, offset
        data = SegmentReader().read(found)
        assert len([*in_order(iter_headers(data), offset, 56)]) == len([*iter_headers(data)])


@pytest.mark.parametrize("left", [61, 8192, 9000, 19_000])
def test_a_large_batch_that_was_cut_off_is_an_error(tmp_path: Path, left: int) -> None:
    log = open_log(tmp_path)
    for _ in range(3):
        append(log, bytes(20_000))
    path = Path(tmp_path, "00000000000000000000.log")
    os.truncate(path, log.size * 2 // 3 + left)
    assert log.read(1, 1, 3) is not None
    with pytest.raises(RaykaError, match=r"CORRUPT_MESSAGE: .*0\.log is damaged: .* file"):
        log.read(2, 1000, 3)


@pytest.mark.parametrize("left", [0, 30, 65])
def test_a_file_that_was_cut_off_is_reported_with_its_path(tmp_path: Path, left: int) -> None:
    log = open_log(tmp_path)
    for _ in range(3):
        append(log, b"a")
    path = Path(tmp_path, "00000000000000000000.log")
    os.truncate(path, log.size * 2 // 3 + left)
    with pytest.raises(RaykaError, match=r"CORRUPT_MESSAGE: .*0\.log is damaged: .* file"):
        log.read(2, 1000, 3)


def test_an_index_entry_for_several_batches_leads_to_them(tmp_path: Path) -> None:
    """Kafka writes one for each append of a follower, with the last offset of its batches."""
    log = open_log(tmp_path, index_interval_bytes=1)
    for _ in range(10):
        append(log, b"a")
    index = log._segments.active.offset_index
    index.reset()
    size = log.size // 10
    for first in (1, 4, 7):
        index.append(first + 2, first * size)
    for offset in range(10):
        found = log.read(offset, 1000, 10)
        assert found is not None
        assert found.position == offset * size


@pytest.mark.parametrize("length", [0, 48, 0x7F000000, 0xFFFFFFFF])
def test_a_log_opens_whose_start_is_behind_a_batch_of_an_impossible_length(tmp_path: Path, length: int) -> None:
    log = open_log(tmp_path)
    for _ in range(4):
        append(log, b"a", b"b")
    log.roll(NOW_MS)
    append(log, b"c")
    log.close(NOW_MS)
    path = Path(tmp_path, "00000000000000000000.log")
    data = bytearray(path.read_bytes())
    data[8:12] = length.to_bytes(4)
    path.write_bytes(data)
    log = open_log(tmp_path, recovery_point=9, log_start_offset=4, clean_shutdown=True, same_boot=True)
    assert (log.log_start_offset, log.log_end_offset) == (4, 9)
    log.update_high_watermark(9)
    with pytest.raises(RaykaError, match="CORRUPT_MESSAGE"):
        log.read(4, 1000, 9)
    assert log.read(8, 1000, 9) is not None


def test_a_negative_length_under_a_doubtful_index_is_not_taken_for_a_broken_disk(tmp_path: Path) -> None:
    log = open_log(tmp_path, index_interval_bytes=1)
    for _ in range(10):
        append(log, b"a")
    damage(tmp_path, 5, 26, b"\x03")
    damage(tmp_path, 5, 8, b"\x80")
    with pytest.raises(RaykaError, match="CORRUPT_MESSAGE"):
        log.read(5, 1000, 10)
    assert log.read(6, 1000, 10) is not None
    assert log._disk.state is State.ONLINE


@pytest.mark.parametrize("offset", [22, 30, 37])
def test_a_negative_length_behind_a_gap_is_not_taken_for_a_broken_disk(tmp_path: Path, offset: int) -> None:
    compacted(tmp_path / "00000000000000000000.log")
    log = open_log(tmp_path, was_cleaned=True, cleanup_policy=("compact",))
    log.update_high_watermark(log.log_end_offset)
    damage(tmp_path, 4, 8, b"\x80")
    with pytest.raises(RaykaError, match="CORRUPT_MESSAGE"):
        log.read(offset, 1 << 20, log.log_end_offset)
    assert log._disk.state is State.ONLINE


IMPOSSIBLE_LENGTHS = [b"\0\0\0\0", b"\0\0\0\x30", b"\x80", b"\xff\xff\xff\xff"]


@pytest.mark.parametrize("index_interval_bytes", [1, 4096])
@pytest.mark.parametrize("length", IMPOSSIBLE_LENGTHS)
def test_a_read_up_to_an_open_transaction_tells_of_an_impossible_length(
    tmp_path: Path, length: bytes, index_interval_bytes: int
) -> None:
    """Nothing to read would mean that the reader waits, and learns of the damage only when the transaction ends."""
    log = open_log(tmp_path, index_interval_bytes=index_interval_bytes)
    for _ in range(10):
        append(log, b"a")
    damage(tmp_path, 5, 8, length)
    with pytest.raises(RaykaError, match=r"CORRUPT_MESSAGE: .*0\.log is damaged"):
        log.read(5, 1000, 8)


@pytest.mark.parametrize("index_interval_bytes", [1, 4096])
@pytest.mark.parametrize("length", IMPOSSIBLE_LENGTHS)
def test_a_search_by_time_does_not_go_on_behind_an_impossible_length(
    tmp_path: Path, length: bytes, index_interval_bytes: int
) -> None:
    """The next segment's first record would be the answer, and who seeks there would skip the others."""
    log = open_log(tmp_path, index_interval_bytes=index_interval_bytes)
    for number in range(20):
        if number == 10:
            log.roll(NOW_MS)
        log.append_as_leader(batch(b"a", timestamp=NOW_MS - 1000 + number), 0, NOW_MS)
    log.update_high_watermark(20)
    damage(tmp_path, 5, 8, length)
    assert log.offset_for_timestamp(NOW_MS - 1000 + 4).offset == 4
    with pytest.raises(RaykaError, match=r"CORRUPT_MESSAGE: .*0\.log is damaged"):
        log.offset_for_timestamp(NOW_MS - 1000 + 5)
    assert log.offset_for_timestamp(NOW_MS - 1000 + 12).offset == 12


def test_reading_below_above_and_at_the_bounds(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"a", b"b")
    log.append_as_leader(batch(b"c"), 0, NOW_MS)
    assert log.read(2, 1000, log.high_watermark) is None
    assert log.read(3, 1000, log.high_watermark) is None
    for offset in (-1, 4):
        with pytest.raises(RaykaError) as refused:
            log.read(offset, 1000, log.high_watermark)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert "from 0 to 3" in refused.value.message


def test_a_slice_begins_with_the_batch_that_has_the_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    size = len(batch(b"a", b"b"))
    append(log, b"a", b"b")
    append(log, b"c", b"d")
    path = tmp_path / "00000000000000000000.log"
    inode = path.stat().st_ino
    assert log.read(1, 1000, 4) == FileSlice(str(path), 0, 2 * size, inode)
    assert log.read(2, 1000, 4) == FileSlice(str(path), size, size, inode)
    assert log.read(3, 1000, 4) == FileSlice(str(path), size, size, inode)


def test_max_bytes_cuts_a_slice_but_not_the_first_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    size = len(batch(b"a"))
    for value in (b"a", b"b", b"c"):
        append(log, value)
    path = tmp_path / "00000000000000000000.log"
    inode = path.stat().st_ino
    assert log.read(0, size + 5, 3) == FileSlice(str(path), 0, size + 5, inode)
    assert log.read(0, 5, 3) == FileSlice(str(path), 0, size, inode)
    assert log.read(0, 5, 3, min_one_message=False) is None, "a part of the first batch is of no use to a reader"
    assert log.read(0, 0, 3, min_one_message=False) is None


def test_a_slice_ends_at_the_bound_wherever_that_is(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    size = len(batch(b"a"))
    for index in range(20):
        log.append_as_leader(batch(b"%c" % (65 + index)), 0, NOW_MS)
    for bound in range(1, 21):
        log.update_high_watermark(bound)
        assert log.high_watermark == bound
        assert list(read_values(log)) == list(range(bound))
        for offset in range(bound):
            file_slice = log.read(offset, 1 << 20, bound)
            assert file_slice is not None
            assert offset + file_slice.size // size <= bound


def test_a_read_ends_with_a_whole_batch_where_the_index_knows_one(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=200_000)
    for _ in range(30):
        append(log, b"x" * 5000)
    (size,) = {header.size_in_bytes for _, header in iter_headers(Path(log.segments[0].path).read_bytes())}
    for segments in (1, 2):
        offset = 0
        while (found := log.read(offset, 3 * size + 1000, log.log_end_offset)) is not None:
            whole, rest = divmod(found.size, size)
            assert rest == 0, "no part of a batch is read that the reader would have to read again"
            assert whole == 3 or found.position + found.size == Path(found.path).stat().st_size
            offset += whole
        assert offset == log.log_end_offset
        assert len(log.segments) == segments
        while len(log.segments) < 2:
            append(log, b"x" * 5000)


def test_readers_at_the_tail_follow_over_rolls(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=400)
    reader = SegmentReader()
    for index in range(30):
        assert log.read(index, 1 << 20, log.high_watermark) is None
        append(log, b"%d" % index)
        file_slice = log.read(index, 1 << 20, log.high_watermark)
        assert file_slice is not None
        assert [record.offset for record in read_records(reader.read(file_slice))] == [index]
    assert len(list(tmp_path.glob("*.log"))) > 3


def test_the_high_watermark_neither_goes_back_nor_passes_the_end(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(3):
        log.append_as_leader(batch(b"a"), 0, NOW_MS)
    log.update_high_watermark(2)
    log.update_high_watermark(1)
    assert log.high_watermark == 2
    log.update_high_watermark(100)
    assert log.high_watermark == 3


def test_rolls_by_size_time_and_full_index(tmp_path: Path) -> None:
    def segments(name: str, count: int, step_ms: int = 0, **config: object) -> int:
        log = open_log(tmp_path / name, **config)
        for index in range(count):
            append(log, b"x" * 100, timestamp=NOW_MS + index * step_ms, now_ms=NOW_MS + index * step_ms)
        assert len(read_values(log)) == count
        return len(list((tmp_path / name).glob("*.log")))

    size = len(batch(b"x" * 100))
    assert segments("size", 10, segment_bytes=2 * size) == 5
    assert segments("time", 10, step_ms=60, segment_ms=100) == 5
    assert segments("jitter", 10, step_ms=60, segment_ms=160, segment_jitter_ms=60, jitter=1.0) == 5
    assert segments("more jitter than time", 10, step_ms=60, segment_ms=200, segment_jitter_ms=800, jitter=0.5) == 5
    assert segments("index", 9, step_ms=1, index_interval_bytes=0, segment_index_bytes=36) == 3


def test_a_roll_when_relative_offsets_run_out(tmp_path: Path) -> None:
    log = open_log(tmp_path, log_start_offset=10)
    append(log, b"a")
    log._local.log_end_offset = 10 + (1 << 31)
    append(log, b"b")
    assert (tmp_path / f"{10 + (1 << 31):020d}.log").exists()


def test_finds_offsets_by_timestamp(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=1000, index_interval_bytes=100)
    stamps = [1000, 1010, 1005, 1020, 1020, 1500, 1100, 1600, 1599, 1601]
    for stamp in stamps:
        append(log, b"x" * 150, timestamp=stamp)
    for wanted in range(990, 1603):
        expected = next((offset for offset, stamp in enumerate(stamps) if stamp >= wanted), None)
        found = log.offset_for_timestamp(wanted)
        assert (None if found is None else found.offset) == expected
    found = log.max_timestamp()
    assert found is not None
    assert (found.offset, found.timestamp) == (9, 1601)
    assert open_log(tmp_path / "empty").max_timestamp() is None


def test_a_timestamp_inside_a_compressed_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"a", b"b", b"c", codec=Codec.ZSTD, timestamp=100)
    found = log.offset_for_timestamp(101)
    assert found is not None
    assert (found.offset, found.timestamp) == (1, 101)
    log.delete_records(2)
    found = log.offset_for_timestamp(100)
    assert found is not None
    assert found.offset == 2


def test_leader_epochs_say_where_they_ended(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for epoch, value in ((1, b"a"), (1, b"b"), (4, b"c"), (6, b"d")):
        log.append_as_leader(batch(value), epoch, NOW_MS)
    assert log.epoch_end_offset(0) == (0, 0)
    assert log.epoch_end_offset(1) == (1, 2)
    assert log.epoch_end_offset(3) == (1, 2)
    assert log.epoch_end_offset(5) == (4, 3)
    assert log.epoch_end_offset(6) == (6, 4)
    assert log.epoch_end_offset(7) == (-1, -1)
    assert [log.epoch_of(offset) for offset in range(4)] == [1, 1, 4, 6]
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n3\n1 0\n4 2\n6 3\n"


def test_an_epoch_that_is_written_late_leaves_newer_ones_as_they_are(tmp_path: Path) -> None:
    """The thread that writes epochs down may be overtaken by an append of the next epoch while it waits."""

    class Overtaken(RealFiles):
        late: threading.Thread | None = None

        def sync(self, descriptor: int) -> None:
            if self.late is not None and self.late.ident is None:
                self.late.start()
                self.late.join(timeout=0.2)  # until it waits for the lock that this thread holds
            super().sync(descriptor)

    files = Overtaken()
    log = open_log(tmp_path, files=files)
    log.append_as_leader(batch(b"a"), 3, NOW_MS)
    files.late = threading.Thread(target=log.assign_epoch, args=(4,))
    log.append_as_leader(batch(b"b"), 5, NOW_MS)
    files.late.join()
    log.append_as_leader(batch(b"c"), 5, NOW_MS)
    assert [log.epoch_of(offset) for offset in range(3)] == [3, 5, 5]
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n3 0\n5 1\n"


def test_delete_records_moves_the_start_and_frees_whole_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=300, file_delete_delay_ms=1000, retention_ms=-1)
    for index in range(12):
        append(log, b"%02d" % index)
    assert log.delete_records(7) == 7
    assert log.delete_records(3) == 7
    assert list(read_values(log)) == list(range(7, 12))
    with pytest.raises(RaykaError) as refused:
        log.delete_records(13)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    removal = log.delete_old_segments(NOW_MS)
    assert removal is not None
    assert removal.due_ms == NOW_MS + 1000
    assert all(Path(path).exists() and path.endswith(".deleted") for path in removal.paths)
    removal.run(RealFiles())
    assert not any(Path(path).exists() for path in removal.paths)
    assert list(read_values(log)) == list(range(7, 12))


def test_a_slice_of_a_deleted_segment_stays_readable(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=200)
    for index in range(6):
        append(log, b"%02d" % index)
    file_slice = log.read(0, 100, 6)
    assert file_slice is not None
    before = SegmentReader().read(file_slice)
    log.delete_records(5)
    log.delete_old_segments(NOW_MS)
    assert SegmentReader().read(file_slice) == before


def test_retention_by_size_and_by_time(tmp_path: Path) -> None:
    size = len(batch(b"00"))
    log = open_log(tmp_path, segment_bytes=size, retention_bytes=3 * size, retention_ms=1000)
    for index in range(6):
        append(log, b"%02d" % index, timestamp=NOW_MS + index)
    log.delete_old_segments(NOW_MS)
    assert list(read_values(log)) == [3, 4, 5]
    log.delete_old_segments(NOW_MS + 1005)
    assert list(read_values(log)) == [5]
    log.delete_old_segments(NOW_MS + 1006)
    assert list(read_values(log)) == []
    assert (log.log_start_offset, log.log_end_offset) == (6, 6)
    assert append(log, b"06") == 6


def test_retention_keeps_records_above_the_high_watermark(tmp_path: Path) -> None:
    size = len(batch(b"00"))
    log = open_log(tmp_path, segment_bytes=size, retention_ms=0)
    for _ in range(4):
        log.append_as_leader(batch(b"00"), 0, NOW_MS)
    log.update_high_watermark(2)
    log.delete_old_segments(NOW_MS + 10_000)
    assert (log.log_start_offset, log.log_end_offset) == (2, 4)


def test_a_compacted_topic_is_not_emptied_by_time(tmp_path: Path) -> None:
    log = open_log(tmp_path, cleanup_policy=("compact",), retention_ms=0, segment_bytes=200)
    for index in range(6):
        append(log, b"%02d" % index)
    assert log.delete_old_segments(NOW_MS + 10_000) is None


def test_changed_configs_hold_for_the_next_append(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"x" * 500)
    log.configure(replace(log.config, max_message_bytes=100))
    with pytest.raises(RaykaError) as refused:
        append(log, b"x" * 500)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_changed_jitter_holds_for_the_active_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_ms=200, jitter=0.5)
    append(log, b"a", timestamp=NOW_MS)
    append(log, b"b", timestamp=NOW_MS + 150)
    assert len(log.segments) == 1
    log.configure(replace(log.config, segment_jitter_ms=200))
    append(log, b"c", timestamp=NOW_MS + 151)
    assert len(log.segments) == 2


def test_truncation_drops_whole_batches_and_appends_continue(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    for index in range(12):
        append(log, b"%02d" % index)
    log.truncate_to(20)
    assert log.log_end_offset == 12
    log.truncate_to(5)
    assert (log.high_watermark, log.log_end_offset) == (5, 5)
    assert append(log, b"new") == 5
    assert list(read_values(log)) == list(range(6))
    log.truncate_to(0)
    assert (log.log_start_offset, log.log_end_offset, log.size) == (0, 0, 0)
    assert append(log, b"again") == 0


def test_records_of_every_shape_come_back(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    sent = [Record(0, NOW_MS, None, None), Record(0, NOW_MS, b"", b"", (("h", None), ("h", b"x"))), *records(b"v")]
    log.append_as_leader(build_batch(sent), 0, NOW_MS)
    file_slice = log.read(0, 1 << 20, 3)
    assert file_slice is not None
    read = list(read_records(SegmentReader().read(file_slice)))
    assert [(r.key, r.value, r.headers) for r in read] == [(r.key, r.value, r.headers) for r in sent]


def test_offsets_of_segments_by_their_last_write(tmp_path: Path) -> None:
    """The answer to ListOffsets 0, as Kafka 0.10 gives it."""
    log = open_log(tmp_path, segment_bytes=300)
    assert log.offsets_of_segments(OffsetSpec.LATEST, 10) == log.offsets_of_segments(OffsetSpec.EARLIEST, 10) == (0,)
    bases = [append(log, b"x" * 200) for _ in range(4)]
    for number, segment in enumerate(log._segments):
        os.utime(segment.path, (1_000 + number, 1_000 + number))
    assert bases == [0, 1, 2, 3]
    assert log.offsets_of_segments(OffsetSpec.LATEST, 10) == (4, 3, 2, 1, 0)
    assert log.offsets_of_segments(OffsetSpec.LATEST, 2) == (4, 3)
    assert log.offsets_of_segments(OffsetSpec.EARLIEST, 10) == (0,)
    assert log.offsets_of_segments(1_002_000, 10) == (2, 1, 0)
    assert log.offsets_of_segments(1_002_999, 1) == (2,)
    assert log.offsets_of_segments(999_999, 10) == ()
    log.delete_records(1)
    assert log.offsets_of_segments(1_002_000, 10) == (2, 1)


def test_a_log_without_leader_epochs_knows_no_end(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert [log.epoch_end_offset(epoch) for epoch in (-(2**31), -2, -1, 0)] == [(-1, -1)] * 4
