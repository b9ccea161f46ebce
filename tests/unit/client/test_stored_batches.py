"""Tables of batches that are still in their segment."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from rayka.client.cluster import Cluster
from rayka.client.compiled import LOAD_AFTER_RECORDS, Compiled
from rayka.client.consumer import fetch_collector, tables
from rayka.client.consumer import stored as stored_module
from rayka.client.consumer.records import RecordBatches
from rayka.client.consumer.stored import LEAST_BYTES, NotCached, Piece, StoredBatches, StoredFetch, find_stored
from rayka.client.consumer.tables import first_part_of, table_of
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.server.segment_files import SegmentFile, SegmentFiles, SegmentGone
from rayka.storage.columns.read import ColumnsTooLarge
from rayka.storage.format.batch import iter_headers
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import Record, build_batch
from rayka.testing import wait_until
from rayka.types import FileSlice, TimestampType, TopicPartition

EVENTS = TopicPartition("events", 0)
COMPILED = "rayka.storage.columns.file_headers", "batches_in_file", stored_module._load
NOT_COMPILED = Compiled("no such module", "", lambda _: None)
NOW = 1_700_000_000_000


def records(
    count: int, size: int, *, key: bytes | None = None, headers: Sequence[tuple[str, bytes]] = ()
) -> list[Record]:
    data = random.Random(count).randbytes(size)
    return [
        Record(number, NOW + number, key, None if number % 7 == 3 else data[number % size :], tuple(headers))
        for number in range(count)
    ]


def batches_of_all_kinds() -> list[bytes]:
    """Large ones, whose base offsets are 100 apart."""
    made = [
        build_batch(records(60, 1000)),
        build_batch(records(90, 2000, key=b"key")),
        build_batch(records(100, 5000), codec=Codec.LZ4),
        build_batch(records(3, 300_000)),
        build_batch(records(40, 900), is_control=True),
        build_batch(records(50, 1100, headers=[("name", b"header")])),
        build_batch(records(70, 700), timestamp_type=TimestampType.LOG_APPEND_TIME),
        build_batch(records(1, 1_500_000)),
        build_batch(records(80, 1500)),
    ]
    return [at_offset(batch, 100 * number) for number, batch in enumerate(made * 3)]


def at_offset(batch: bytes | bytearray, offset: int) -> bytes:
    return offset.to_bytes(8, "big") + bytes(batch[8:])


ALL_KINDS = batches_of_all_kinds()
ROOM_BEFORE = 4321


@pytest.fixture(params=["plain Python", "compiled code"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How batches are found."""
    compiled = NOT_COMPILED
    if request.param == "compiled code":
        compiled = Compiled(*COMPILED)
        compiled.load()
    monkeypatch.setattr(stored_module, "_compiled", compiled)


def written(directory: Path, batches: Sequence[bytes]) -> FileSlice:
    """A segment with these batches, behind some others."""
    path = directory / "0.log"
    path.write_bytes(bytes(ROOM_BEFORE) + b"".join(batches))
    return FileSlice(str(path), ROOM_BEFORE, path.stat().st_size - ROOM_BEFORE, path.stat().st_ino)


def stored(files: SegmentFiles, source: FileSlice, fetch_offset: int = 0) -> StoredBatches:
    found = find_stored(EVENTS, fetch_offset, source, files.open(source))
    assert found is not None
    return found.batches.opened(files)


def in_memory(batches: Sequence[bytes], fetch_offset: int = 0) -> RecordBatches:
    return RecordBatches(EVENTS, memoryview(b"".join(batches)), fetch_offset, 10_000, None)


@pytest.mark.parametrize("check_crcs", [True, False])
@pytest.mark.parametrize("columns", [None, ["value"], ["key", "offset"], ["topic", "partition"], ["headers"]])
@pytest.mark.parametrize("fetch_offset", [0, 133])
def test_a_table_of_a_file_is_that_of_the_same_batches_in_memory(
    way: None, tmp_path: Path, files: SegmentFiles, columns: list[str] | None, check_crcs: bool, fetch_offset: int
) -> None:
    batches = ALL_KINDS[fetch_offset // 100 :]
    found = stored(files, written(tmp_path, batches), fetch_offset)
    assert found.size == sum(map(len, batches))
    assert found.next_offset == 100 * (len(ALL_KINDS) - 1) + 80
    table = table_of({EVENTS: [found]}, columns, check_crcs)
    table.validate(full=True)
    assert table.equals(table_of({EVENTS: [in_memory(batches, fetch_offset)]}, columns, check_crcs))
    assert {column.num_chunks for column in table.columns} == {1}


def test_a_helper_makes_the_second_part_of_a_large_table(tmp_path: Path, files: SegmentFiles) -> None:
    found = stored(files, written(tmp_path, ALL_KINDS))
    expected = table_of({EVENTS: [in_memory(ALL_KINDS)]}, None, check_crcs=True)
    with ThreadPoolExecutor(1) as helper:
        for polled in ([found], [*found.split(2_000_000)]):
            table = table_of({EVENTS: polled}, None, check_crcs=True, helper=helper)
            table.validate(full=True)
            assert table["value"].num_chunks == 2
            assert table.equals(expected)
        mixed = table_of({EVENTS: [found, in_memory(ALL_KINDS)]}, None, check_crcs=True, helper=helper)
        assert mixed.equals(pa.concat_tables([expected, expected]))


def test_a_helper_makes_the_second_part_wherever_the_first_one_ends(
    tmp_path: Path, files: SegmentFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = stored(files, written(tmp_path, ALL_KINDS))
    expected = table_of({EVENTS: [found]}, None, check_crcs=True)
    sizes = [piece.size for piece in found.pieces]
    with ThreadPoolExecutor(1) as helper:
        for size in (0, 1, sizes[0] // 2, sizes[0], *accumulate(sizes[:5]), found.size - 1):
            monkeypatch.setattr(tables, "_FIRST_PART", size / found.size)
            for polled in ([found], [*found.split(found.size // 3)], [in_memory(ALL_KINDS[:1]), found]):
                table = table_of({EVENTS: polled}, None, check_crcs=True, helper=helper)
                assert table.slice(table.num_rows - expected.num_rows).equals(expected)


@pytest.mark.parametrize("columns", [["offset"], ["topic"], ["value"], None])
def test_a_table_with_more_of_the_log_than_a_part_has_the_columns_asked_for(
    tmp_path: Path, files: SegmentFiles, monkeypatch: pytest.MonkeyPatch, columns: list[str] | None
) -> None:
    """Some of the columns need less memory than the log: then a part of the table goes on."""
    monkeypatch.setattr(tables, "_PART_BYTES", 10_000)
    found = stored(files, written(tmp_path, ALL_KINDS))
    in_three = in_memory(ALL_KINDS), *found.split(3_000_000)
    table = table_of({EVENTS: in_three}, columns, check_crcs=True)
    expected = table_of({EVENTS: [in_memory(ALL_KINDS)]}, columns, check_crcs=True)
    assert table.equals(pa.concat_tables([expected, expected]))


def test_a_table_is_made_without_a_helper_that_has_ended(tmp_path: Path, files: SegmentFiles) -> None:
    """Another thread may close the consumer; and at a limit of threads none can be started."""
    found = stored(files, written(tmp_path, ALL_KINDS))
    helper = ThreadPoolExecutor(1)
    helper.shutdown()
    table = table_of({EVENTS: [found]}, None, check_crcs=True, helper=helper)
    assert table.equals(table_of({EVENTS: [in_memory(ALL_KINDS)]}, None, check_crcs=True))


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_table_that_gets_too_large_begins_again_where_the_one_before_ended(
    tmp_path: Path, files: SegmentFiles, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    found = stored(files, written(tmp_path, ALL_KINDS)) if is_stored else in_memory(ALL_KINDS)
    expected = table_of({EVENTS: [found]}, None, check_crcs=True)
    monkeypatch.setattr(tables, "_MOST_BYTES", 1_000_000)
    with pytest.raises(ColumnsTooLarge):
        table_of({EVENTS: [found]}, None, check_crcs=True)
    parts, position = [], found.position
    while position < found.next_offset:
        table, rest = first_part_of({EVENTS: [found._replace(position=position)]}, None, check_crcs=True)
        parts.append(table)
        position = rest.get(EVENTS, found.next_offset)
        assert table.nbytes < 3_000_000
    assert pa.concat_tables(parts).equals(expected)


def test_parts_of_stored_batches_have_each_piece_once(tmp_path: Path, files: SegmentFiles) -> None:
    found = stored(files, written(tmp_path, ALL_KINDS))
    assert len(found.pieces) > 3
    assert [piece.position for piece in found.pieces[1:]] == [sum(piece[:2]) for piece in found.pieces[:-1]]
    for size in range(0, found.size, 100_000):
        first, second = found.split(size)
        assert [*first.pieces, *second.pieces] == found.pieces
        assert abs(first.size - size) <= max(piece.size for piece in found.pieces)


@pytest.mark.parametrize("place", [0, 9, len(ALL_KINDS) - 1])
@pytest.mark.parametrize("has_helper", [True, False])
def test_a_damaged_batch_of_a_file_is_found(tmp_path: Path, files: SegmentFiles, place: int, has_helper: bool) -> None:
    batch = bytearray(ALL_KINDS[place])
    batch[-1] ^= 1
    found = stored(files, written(tmp_path, [*ALL_KINDS[:place], batch, *ALL_KINDS[place + 1 :]]))
    with ThreadPoolExecutor(1) as helper, pytest.raises(RaykaError) as raised:
        table_of({EVENTS: [found]}, None, check_crcs=True, helper=helper if has_helper else None)
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("check_crcs", [True, False])
@pytest.mark.parametrize("has_helper", [True, False])
@pytest.mark.parametrize("place", [0, 9, len(ALL_KINDS) - 1])
def test_a_batch_whose_length_was_damaged_meanwhile_hides_no_records(
    tmp_path: Path, files: SegmentFiles, place: int, has_helper: bool, check_crcs: bool
) -> None:
    """No CRC covers the length. Nothing behind the piece is read, nor are the batches up to there skipped."""
    source = written(tmp_path, ALL_KINDS)
    found = stored(files, source)
    with Path(source.path).open("r+b") as file:
        file.seek(ROOM_BEFORE + sum(map(len, ALL_KINDS[:place])) + 8)
        file.write((2**31 - 1).to_bytes(4, "big"))
    with ThreadPoolExecutor(1) as helper, pytest.raises(RaykaError) as raised:
        table_of({EVENTS: [found]}, None, check_crcs, helper=helper if has_helper else None)
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("piece", [0, 1])
def test_a_first_part_has_no_piece_whose_first_length_was_damaged(
    tmp_path: Path, files: SegmentFiles, piece: int
) -> None:
    """The next table would begin with the same records, and so on without end."""
    source = written(tmp_path, ALL_KINDS)
    found = stored(files, source)
    with Path(source.path).open("r+b") as file:
        file.seek(found.pieces[piece].position + 8)
        file.write((2**31 - 1).to_bytes(4, "big"))
    with pytest.raises(RaykaError, match="CORRUPT_MESSAGE"):
        first_part_of({EVENTS: [found]}, None, check_crcs=True)


@pytest.mark.parametrize("left", [0.0, 0.3, 0.9])
def test_a_file_that_became_shorter_is_found(tmp_path: Path, files: SegmentFiles, left: float) -> None:
    source = written(tmp_path, ALL_KINDS)
    found = stored(files, source)
    os.truncate(source.path, ROOM_BEFORE + int(source.size * left))
    with pytest.raises(SegmentGone, match="ends before"):
        table_of({EVENTS: [found]}, None, check_crcs=True)


@pytest.mark.parametrize("kept", [[*range(5, 25)], [0, *range(6, 25)]], ids=["not the first", "the first"])
@pytest.mark.parametrize("make", [table_of, first_part_of])
def test_a_file_with_the_name_and_number_of_the_one_before_is_found(
    tmp_path: Path, files: SegmentFiles, kept: list[int], make: Callable[..., object]
) -> None:
    """Compaction puts another file in the place of one, and a file system gives a number again. Their batches may also
    begin at the same positions: then records would be skipped, and others would come twice.
    """
    batches = [at_offset(build_batch(records(60, 1000)), 100 * number) for number in range(25)]
    found = stored(files, written(tmp_path, batches[:10]))
    files.close()
    source = written(tmp_path, [batches[number] for number in kept])
    assert source.inode == found.source.inode
    with pytest.raises(SegmentGone, match="another file"):
        make({EVENTS: [found]}, None, check_crcs=True)


def test_headers_that_count_too_many_records_reserve_no_memory(tmp_path: Path, files: SegmentFiles) -> None:
    batch = at_offset(build_batch(records(300, 2000)), 0)
    found = stored(files, written(tmp_path, [batch]))
    lying = [Piece(position, size, 2**31 - 1) for position, size, _ in found.pieces]
    before = pa.total_allocated_bytes()
    table = table_of({EVENTS: [found._replace(pieces=lying)]}, None, check_crcs=True)
    assert table.num_rows == 300
    assert pa.total_allocated_bytes() - before < 10_000_000


LARGE = at_offset(build_batch(records(300, 1500)), 0)
NEXT = at_offset(LARGE, 300)


def test_an_unfinished_last_batch_is_left_for_the_next_fetch(tmp_path: Path, files: SegmentFiles) -> None:
    for cut in (1, len(NEXT) - 30, len(NEXT) - 1):
        found = stored(files, written(tmp_path, [LARGE, NEXT[:-cut]]))
        assert (found.size, found.next_offset) == (len(LARGE), 300)


@pytest.mark.parametrize(
    "batches",
    [
        [LARGE[: LEAST_BYTES - 1]],
        [LARGE[:-1]],
        [at_offset(build_batch(records(3, 500)), 3 * number) for number in range(300)],
        [LARGE, LARGE],
        [NEXT, LARGE],
        [LARGE, NEXT[:16] + b"\x01" + NEXT[17:]],
        [LARGE, NEXT[:8] + bytes(4) + NEXT[12:]],
        [LARGE, NEXT[:23] + b"\xff" + NEXT[24:]],
    ],
    ids=["little", "too large", "small", "twice", "backwards", "another magic", "no size", "negative delta"],
)
def test_what_is_small_or_broken_is_read_at_once(
    way: None, tmp_path: Path, files: SegmentFiles, batches: list[bytes]
) -> None:
    source = written(tmp_path, batches)
    assert find_stored(EVENTS, 0, source, files.open(source)) is None


def test_what_is_behind_the_end_of_the_partition_is_read_at_once(
    way: None, tmp_path: Path, files: SegmentFiles
) -> None:
    source = written(tmp_path, [LARGE, NEXT])
    file = files.open(source)
    assert find_stored(EVENTS, 0, source, file, end_offset=600) is not None
    assert find_stored(EVENTS, 0, source, file, end_offset=599) is None


def test_a_file_that_has_become_shorter_is_gone(way: None, tmp_path: Path, files: SegmentFiles) -> None:
    source = written(tmp_path, [LARGE, NEXT])
    file = files.open(source)
    os.truncate(source.path, ROOM_BEFORE + len(LARGE) + 1)
    with pytest.raises(NotCached):
        find_stored(EVENTS, 0, source, file)
    with pytest.raises(SegmentGone):
        find_stored(EVENTS, 0, source, file, may_wait=True)


def test_batches_of_16_kb_stay_in_their_file_once_the_compiled_code_is_loaded(
    tmp_path: Path, files: SegmentFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = Compiled(*COMPILED)
    monkeypatch.setattr(stored_module, "_compiled", compiled)
    batches = [at_offset(build_batch(records(16, 1000)), 16 * number) for number in range(40)]
    source = written(tmp_path, batches)
    assert find_stored(EVENTS, 0, source, files.open(source)) is None
    wait_until(lambda: compiled.function is not None, 60, "the code is loaded")
    if not tells_what_is_cached(source.path):
        assert find_stored(EVENTS, 0, source, files.open(source)) is None  # plain Python reads there
        return
    expected = stored(files, source)
    assert expected.size == source.size
    file = files.open(source)
    os.fsync(file.descriptor)
    os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    found = find_stored(EVENTS, 0, source, file, may_wait=True)
    assert found is not None
    assert found.batches.opened(files) == expected


def test_compiled_code_for_large_batches_is_loaded_only_for_many(
    tmp_path: Path, files: SegmentFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is quicker in plain Python for 2,500 headers than to load it."""
    loaded: list[Any] = []
    monkeypatch.setattr(Compiled, "load", lambda compiled: loaded.append(compiled))
    monkeypatch.setattr(stored_module, "_compiled", Compiled(*COMPILED))
    source = written(tmp_path, [at_offset(LARGE, 1000 * number) for number in range(50)])
    for _ in range(49):
        stored(files, source)
    assert not loaded
    for _ in range(10):
        stored(files, source)
    wait_until(lambda: bool(loaded), 60, "the code is loaded")


@pytest.mark.parametrize(("kilobytes", "is_loaded"), [(4, False), (16, True)])
def test_compiled_code_is_loaded_at_once_for_batches_that_it_takes(
    tmp_path: Path, files: SegmentFiles, monkeypatch: pytest.MonkeyPatch, kilobytes: int, is_loaded: bool
) -> None:
    counted: list[int] = []
    monkeypatch.setattr(Compiled, "count", lambda _, records: counted.append(records))
    monkeypatch.setattr(stored_module, "_compiled", Compiled(*COMPILED))
    batches = [at_offset(build_batch(records(kilobytes, 1000)), kilobytes * number) for number in range(120)]
    source = written(tmp_path, batches)
    assert find_stored(EVENTS, 0, source, files.open(source)) is None
    assert (LOAD_AFTER_RECORDS in counted) == is_loaded


def tells_what_is_cached(path: str) -> bool:
    """Whether the file system does. One in memory may not."""
    with open(path, "rb") as file:
        try:
            return os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except OSError:
            return False


def assert_found_by_who_may_wait(source: FileSlice, files: SegmentFiles, expected: StoredBatches) -> None:
    file = files.open(source)
    with pytest.raises(NotCached):
        find_stored(EVENTS, 0, source, file)
    found = find_stored(EVENTS, 0, source, file, may_wait=True)
    assert found is not None
    assert found.batches.opened(files) == expected


def test_headers_that_the_page_cache_has_lost_are_not_waited_for(
    way: None, tmp_path: Path, files: SegmentFiles, request: pytest.FixtureRequest
) -> None:
    source = written(tmp_path, [LARGE, NEXT])
    file = files.open(source)
    expected = stored(files, source)
    os.fsync(file.descriptor)
    os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    if file.is_cached(source.position, source.size):  # a file system in memory
        request.getfixturevalue("only_on_disk")
    assert_found_by_who_may_wait(source, files, expected)


def test_large_batches_that_only_the_disk_has_are_found_by_who_may_wait(
    tmp_path: Path, files: SegmentFiles, request: pytest.FixtureRequest
) -> None:
    source = written(tmp_path, [LARGE, NEXT])
    expected = stored(files, source)
    request.getfixturevalue("only_on_disk")
    assert_found_by_who_may_wait(source, files, expected)


@pytest.fixture
def only_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page cache has nothing of any segment."""
    monkeypatch.setattr(SegmentFile, "read_cached", lambda *arguments: 0)
    monkeypatch.setattr(stored_module, "_compiled", NOT_COMPILED)


def fill(cluster: Cluster, count: int, **config: object) -> None:
    """Records of 100 kB, each with its number first."""
    with cluster.producer(**config) as producer:
        for number in range(count):
            producer.send("events", b"%04d" % number + bytes(99_996), partition=0)


def test_records_are_not_lost_between_tables_and_other_polls(cluster: Cluster) -> None:
    fill(cluster, 400)
    with cluster.consumer(auto_offset_reset="earliest", max_partition_fetch_bytes=300_000) as consumer:
        consumer.assign([EVENTS])
        (state,) = consumer._core._fetcher.partitions.values()
        seen: list[int] = []
        for call in ("table", "records", "table", "batches", "table", "table", "seek", "table", "records"):
            wait_until(lambda: state.completed_fetches, 30, "a fetch")
            was_stored = isinstance(state.completed_fetches[0], StoredFetch)
            if call == "table":
                seen += consumer.poll_table(30_000)["offset"].to_pylist()
            elif call == "records":
                seen += [record.offset for record in consumer.poll(30_000, max_records=9)[EVENTS]]
            elif call == "batches":
                for batches in consumer.poll_batches(30_000)[EVENTS]:
                    found = [header for _, header in iter_headers(batches.data)]
                    seen += range(max(batches.position, found[0].base_offset), batches.next_offset)
            else:
                assert was_stored
                consumer.seek(EVENTS, len(seen) - 5)
                del seen[-5:]
            assert seen == [*range(len(seen))]
            assert consumer.position(EVENTS) == len(seen)
        while len(seen) < 400:
            table = consumer.poll_table(30_000, columns=["offset", "value"])
            seen += table["offset"].to_pylist()
            assert [int(value[:4]) for value in table["value"].to_pylist()] == table["offset"].to_pylist()
    assert seen == [*range(400)]


def test_large_batches_that_only_the_disk_has_stay_in_their_file_for_tables(
    cluster: Cluster, only_on_disk: None
) -> None:
    """Some pages of a file leave the page cache at any time."""
    fill(cluster, 40)
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.poll_table(0)  # says that tables are wanted
        consumer.assign([EVENTS])
        (state,) = consumer._core._fetcher.partitions.values()
        wait_until(lambda: state.completed_fetches, 30, "a fetch")
        assert isinstance(state.completed_fetches[0], StoredFetch)
        seen: list[int] = []
        while len(seen) < 40:
            seen += consumer.poll_table(30_000)["offset"].to_pylist()
        assert seen == [*range(40)]


def test_records_that_are_found_on_the_disk_after_the_last_table_are_fetched_again(
    cluster: Cluster, only_on_disk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, 40)
    is_reading, may_end = threading.Event(), threading.Event()
    read_into = SegmentFile.read_into

    def read_late(*arguments: Any) -> None:
        is_reading.set()
        assert may_end.wait(60)
        read_into(*arguments)

    monkeypatch.setattr(SegmentFile, "read_into", read_late)
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.poll_table(0)
        consumer.assign([EVENTS])
        assert is_reading.wait(60)
        assert consumer.poll(0) == {}  # no table any more
        may_end.set()
        seen: list[int] = []
        while len(seen) < 40:
            seen += [record.offset for record in consumer.poll(30_000)[EVENTS]]
        assert seen == [*range(40)]


def test_a_table_has_no_more_fetches_than_make_it_large_enough(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_collector, "_TABLE_BYTES", 500_000)
    fill(cluster, 200)
    with cluster.consumer(auto_offset_reset="earliest", max_partition_fetch_bytes=100_000) as consumer:
        consumer.assign([EVENTS])
        (state,) = consumer._core._fetcher.partitions.values()
        seen: list[int] = []
        while not state.has_large_batches:  # the first fetch does not know that tables are wanted
            seen += consumer.poll_table(1000)["offset"].to_pylist()
        while len(seen) < 140:
            wait_until(lambda: len(state.completed_fetches) == 2, 30, "two fetches")
            first, second = state.completed_fetches
            seen += consumer.poll_table(30_000)["offset"].to_pylist()
            last = first if first.size >= 500_000 else second
            assert seen == [*range(last.next_offset)]
            assert consumer.position(EVENTS) == len(seen)


def test_what_stays_in_its_file_is_read_ahead_without_regard_to_memory(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_collector, "_TABLE_BYTES", 1)
    cluster.admin().create_topic("events", partitions=3)
    with cluster.producer() as producer:
        for partition in [*range(3)] * 160:
            producer.send("events", bytes(100_000), partition=partition)
    limits = {"max_partition_fetch_bytes": 100_000, "fetch_max_bytes": 5_000_000}
    with cluster.consumer(auto_offset_reset="earliest", **limits) as consumer:
        consumer.assign([("events", partition) for partition in range(3)])
        states, rows = consumer._core._fetcher.partitions.values(), list[int]()

        def are_large() -> bool:
            rows.append(len(consumer.poll_table(1000)))
            return all(state.has_large_batches for state in states)

        def read_ahead() -> list[int]:
            return [sum(fetch.size for fetch in state.completed_fetches) for state in states]

        wait_until(are_large, 30, "large batches in all partitions")
        wait_until(lambda: sum(read_ahead()) > 7_500_000, 30, lambda: f"{read_ahead()} bytes are read ahead")
        assert sum(state.buffered_bytes for state in states) <= 500_000
        while sum(rows) < 480:
            rows.append(sum(map(len, consumer.poll(30_000).values())))
            assert sum(state.buffered_bytes for state in states) <= 5_500_000
    assert sum(rows) == 480


def test_a_file_that_becomes_shorter_while_a_table_is_made_is_fetched_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, 30)
    (segment,) = (tmp_path / "events-0").glob("*.log")
    data, make, is_short = segment.read_bytes(), tables.table_of, [True]

    def shorten_and_make(polled: Any, *arguments: Any) -> pa.Table:
        if not polled or not is_short.pop():
            return make(polled, *arguments)
        os.truncate(segment, 1000)
        try:
            return make(polled, *arguments)
        finally:
            segment.write_bytes(data)

    with table_reader(cluster) as consumer:
        monkeypatch.setattr(tables, "table_of", shorten_and_make)
        assert consumer.poll_table(30_000).num_rows == 0
        assert consumer.position(EVENTS) == 0
        is_short.append(False)
        assert consumer.poll_table(30_000)["offset"].to_pylist() == [*range(30)]


def test_a_disk_that_can_not_be_read_is_asked_again_after_a_moment(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, 30)
    make, errors = tables.table_of, iter([OSError(errno.EIO, "I/O error")])

    def fail_once(polled: Any, *arguments: Any) -> pa.Table:
        for error in errors if polled else ():
            raise error
        return make(polled, *arguments)

    with table_reader(cluster) as consumer:
        fetcher, waiting = consumer._core._fetcher, list[TopicPartition]()
        back_off = fetcher._back_off
        monkeypatch.setattr(
            fetcher, "_back_off", lambda state: [waiting.append(state.topic_partition), back_off(state)]
        )
        monkeypatch.setattr(tables, "table_of", fail_once)
        assert consumer.poll_table(30_000).num_rows == 0
        assert waiting == [EVENTS]
        assert consumer.poll_table(30_000)["offset"].to_pylist() == [*range(30)]


def test_a_file_that_gave_way_to_another_before_a_table_is_made_is_fetched_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    fill(cluster, 30)
    (segment,) = (tmp_path / "events-0").glob("*.log")
    kept = segment.with_suffix(".kept")
    with table_reader(cluster) as consumer:
        os.link(segment, kept)
        shutil.copy(segment, tmp_path / "other")
        os.replace(tmp_path / "other", segment)
        consumer._core._fetcher._reader.files.close()
        assert consumer.poll_table(20).num_rows == 0
        assert consumer.position(EVENTS) == 0
        os.replace(kept, segment)
        assert consumer.poll_table(30_000)["offset"].to_pylist() == [*range(30)]


def test_a_file_that_is_gone_keeps_no_other_partition_from_the_same_table(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_collector, "_TABLE_BYTES", 1)
    cluster.admin().create_topic("others", partitions=1)
    other = TopicPartition("others", 0)
    fill(cluster, 30)
    with cluster.producer() as producer:
        for _ in range(30):
            producer.send("others", bytes(100_000), partition=0)
    with cluster.consumer(auto_offset_reset="earliest", retry_backoff_ms=60_000) as consumer:
        consumer.assign([EVENTS, other])
        consumer.poll_table(0)  # says that tables are wanted
        for partition in (EVENTS, other):
            consumer.seek(partition, 0)
        fetcher = consumer._core._fetcher
        wait_until(lambda: all(s.completed_fetches for s in fetcher.partitions.values()), 30, "both fetches")
        monkeypatch.setattr(StoredBatches, "opened", gone_for_first(fetcher))
        assert consumer.poll_table(0).num_rows > 0


def gone_for_first(fetcher: Any) -> Any:
    """The files of the partition whose turn it is are gone."""
    first, opened = next(iter(fetcher.ready._states)).topic_partition, StoredBatches.opened

    def opening(batches: StoredBatches, files: SegmentFiles) -> StoredBatches:
        if batches.topic_partition == first:
            raise SegmentGone("gone")
        return opened(batches, files)

    return opening


@contextlib.contextmanager
def table_reader(cluster: Cluster) -> Iterator[Any]:
    """A consumer at offset 0 that has prefetched large batches for a table."""
    with cluster.consumer(auto_offset_reset="earliest", retry_backoff_ms=1) as consumer:
        consumer.assign([EVENTS])
        consumer.poll_table(0)  # says that tables are wanted
        consumer.seek(EVENTS, 0)
        (state,) = consumer._core._fetcher.partitions.values()
        wait_until(lambda: any(isinstance(each, StoredFetch) for each in state.completed_fetches), 30, "a fetch")
        yield consumer


def test_aborted_transactions_are_left_out_of_tables_of_large_batches(cluster: Cluster) -> None:
    with cluster.producer(transactional_id="t") as producer:
        for ends in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            for number in range(30):
                producer.send("events", b"%04d" % number + bytes(99_996), partition=0)
            producer.flush()
            ends()
    with cluster.consumer(auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        consumer.assign([EVENTS])
        offsets: list[int] = []
        while len(offsets) < 60:
            offsets += consumer.poll_table(30_000)["offset"].to_pylist()
    assert offsets == [*range(30), *range(62, 92)]


def test_no_more_is_read_ahead_into_memory_than_of_batches_that_were_never_in_a_file(cluster: Cluster) -> None:
    """Such as those of fetches in which transactions were aborted."""
    with cluster.producer(transactional_id="t") as producer:
        for count, ends in ((90, producer.commit_transaction), *[(20, producer.abort_transaction)] * 12):
            producer.begin_transaction()
            for _ in range(count):
                producer.send("events", bytes(100_000), partition=0)
            producer.flush()
            ends()
    settings = {"isolation_level": "read_committed", "max_partition_fetch_bytes": 100_000, "fetch_max_bytes": 10**9}
    with cluster.consumer(auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign([EVENTS])
        consumer.poll_table(0)  # says that tables are wanted
        fetcher = consumer._core._fetcher
        (state,) = fetcher.partitions.values()

        async def kinds() -> tuple[bool, bool]:
            """Of the last fetch, and of the next one."""
            return isinstance(state.completed_fetches[-1], StoredFetch), fetcher._ahead.stays_stored(state)

        seen: list[tuple[bool, bool]] = []
        while state.position is None or state.position < 300:
            wait_until(lambda: state.completed_fetches, 30, "a fetch")
            seen.append(consumer._loop.run(kinds()))
            consumer.poll_table(30_000)
        assert set(seen) == {(True, True), (False, False)}


@pytest.mark.parametrize(
    "others", [[], [None, b"", b"x", bytes(63), bytes(64), bytes(65)]], ids=["large", "and others"]
)
def test_large_values_are_copied_whole_to_any_place(
    tmp_path: Path, files: SegmentFiles, others: list[bytes | None]
) -> None:
    """Those of a large column go past the caches, in lines of 64 bytes."""
    generator = random.Random(3)
    data = generator.randbytes(20_000)
    sizes = [*range(500, 700), *(generator.randrange(9000) for _ in range(1000))]
    values: list[bytes | None] = [data[number : number + size] for number, size in enumerate(sizes)]
    values += [generator.choice(others) for _ in range(500 if others else 0)]  # at the end whole batches without
    for place in range(0, 900 if others else 0, 2):
        values.insert(place, generator.choice(others))
    made = [Record(number, NOW, None, value) for number, value in enumerate(values)]
    batches = [at_offset(build_batch(made[start : start + 100]), start) for start in range(0, len(made), 100)]
    found = stored(files, written(tmp_path, batches))
    for columns in (["value"], None):
        table = table_of({EVENTS: [found]}, columns, check_crcs=True)
        assert table["value"].to_pylist() == values
        assert table.nbytes > 4 << 20


def test_batches_that_are_not_side_by_side_in_a_file_are_read_in_the_order_given(
    tmp_path: Path, files: SegmentFiles
) -> None:
    found = stored(files, written(tmp_path, ALL_KINDS))
    expected = table_of({EVENTS: [found]}, None, check_crcs=True)
    first, second = found.split(3_000_000)
    assert first.pieces
    assert second.pieces
    swapped = table_of({EVENTS: [second, first, second]}, None, check_crcs=True)
    rows = table_of({EVENTS: [first]}, ["offset"], check_crcs=True).num_rows
    assert swapped.equals(pa.concat_tables([expected[rows:], expected]).combine_chunks())


class UnmappableFile:
    """A file that can be read, but not mapped."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_WRONLY)
        self._readable = SegmentFile(path)

    def read_into(self, target: memoryview, position: int) -> None:
        self._readable.read_into(target, position)


def test_a_file_that_can_not_be_mapped_is_read(tmp_path: Path, files: SegmentFiles) -> None:
    """As on a file system without that, or where the system does not say whether the disk gives a page."""
    source = written(tmp_path, ALL_KINDS)
    found = stored(files, source)
    file = UnmappableFile(source.path)
    try:
        table = table_of({EVENTS: [found._replace(file=cast(SegmentFile, file))]}, None, check_crcs=True)
    finally:
        os.close(file.descriptor)
    assert table.equals(table_of({EVENTS: [in_memory(ALL_KINDS)]}, None, check_crcs=True))


def test_no_file_stays_mapped(tmp_path: Path, files: SegmentFiles) -> None:
    damaged = bytearray(ALL_KINDS[9])
    damaged[-1] ^= 1
    for batches in (ALL_KINDS, [*ALL_KINDS[:9], damaged, *ALL_KINDS[10:]]):
        source = written(tmp_path, batches)
        with contextlib.suppress(RaykaError):
            table_of({EVENTS: [stored(files, source)]}, None, check_crcs=True)
        assert source.path not in Path("/proc/self/maps").read_text()
