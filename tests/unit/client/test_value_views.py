"""Tables whose values are not copied: they stay in the leader's files, or in the bytes that were fetched."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from rayka.client.cluster import Cluster
from rayka.client.consumer import tables
from rayka.client.consumer.tables import first_part_of, table_of
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.server.segment_files import SegmentFile, SegmentFiles, SegmentGone
from rayka.storage.columns.read import ColumnsTooLarge
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import Record, build_batch
from tests.unit.client.test_stored_batches import (
    ALL_KINDS,
    EVENTS,
    ROOM_BEFORE,
    UnmappableFile,
    at_offset,
    in_memory,
    records,
    stored,
    written,
)

SIZES = [None, b"", b"x", bytes(range(4)), bytes(range(5)), bytes(range(12)), bytes(range(13)), bytes(range(256)) * 99]


def copied(table: pa.Table) -> pa.Table:
    """The table with its values as binary, each column in one array."""
    table.validate(full=True)
    place = table.schema.get_field_index("value")
    assert table.schema.field("value").type == pa.binary_view()
    return table.set_column(place, "value", table["value"].cast(pa.binary())).combine_chunks()


def mapped_bytes(path: str) -> int:
    """How much of a file is mapped."""
    lines = [line.split(maxsplit=1)[0] for line in Path("/proc/self/maps").read_text().splitlines() if path in line]
    return sum(int(end, 16) - int(start, 16) for start, end in (line.split("-") for line in lines))


@pytest.mark.parametrize("check_crcs", [True, False])
@pytest.mark.parametrize("columns", [None, ["value"], ["value", "offset"]])
@pytest.mark.parametrize("fetch_offset", [0, 133])
def test_a_table_of_views_has_the_rows_of_a_copied_one(
    tmp_path: Path, files: SegmentFiles, columns: list[str] | None, check_crcs: bool, fetch_offset: int
) -> None:
    batches = ALL_KINDS[fetch_offset // 100 :]
    found = stored(files, written(tmp_path, batches), fetch_offset)
    of_memory = in_memory(batches, fetch_offset)
    expected = table_of({EVENTS: [of_memory]}, columns, check_crcs).combine_chunks()
    with ThreadPoolExecutor(1) as helper:
        for polled in ([found], [*found.split(2_000_000)], [of_memory]):
            table = table_of({EVENTS: polled}, columns, check_crcs, helper=helper, copy=False)
            assert copied(table).equals(expected)
        mixed = table_of({EVENTS: [found, of_memory]}, columns, check_crcs, helper=helper, copy=False)
    assert copied(mixed).equals(pa.concat_tables([expected, expected]).combine_chunks())


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_values_of_all_sizes(codec: Codec) -> None:
    """Arrow's views have up to twelve bytes in themselves, and the first four of a longer value."""
    made = [record._replace(value=SIZES[number % len(SIZES)]) for number, record in enumerate(records(100, 10))]
    table = table_of({EVENTS: [in_memory([build_batch(made, codec=codec)])]}, None, check_crcs=True, copy=False)
    assert [*copied(table)["value"].to_pylist()] == [record.value for record in made]
    assert table["value"].null_count == sum(record.value is None for record in made)


def test_small_tables_of_compressed_records_take_little_memory() -> None:
    before = pa.total_allocated_bytes()
    small = in_memory([build_batch(records(3, 100), codec=Codec.LZ4)])
    kept = [table_of({EVENTS: [small]}, None, check_crcs=True, copy=False) for _ in range(100)]
    assert {copied(table)["value"].to_pylist()[0] for table in kept} == {records(3, 100)[0].value}
    assert pa.total_allocated_bytes() - before < 1_000_000


def test_compressed_batches_of_files_do_not_stay_in_memory_beside_their_values(
    tmp_path: Path, files: SegmentFiles
) -> None:
    """These values can't be compressed, so that both have about the same size."""
    batches = [at_offset(build_batch(noise(100, 10_000), codec=Codec.LZ4), 100 * number) for number in range(20)]
    found, sizes = stored(files, written(tmp_path, batches)), list[int]()

    def allocate(size: int) -> pa.Buffer:
        sizes.append(size)
        return pa.allocate_buffer(size)

    table = table_of({EVENTS: [found]}, ["value"], check_crcs=True, allocate=allocate, copy=False)
    assert table.num_rows == 2000
    assert sum(sizes) < 1.2 * found.size


def noise(count: int, size: int) -> list[Record]:
    generator = random.Random(count)
    return [record._replace(value=generator.randbytes(size)) for record in records(count, 1)]


def test_large_values_of_files_take_no_memory(tmp_path: Path, files: SegmentFiles) -> None:
    batches = [at_offset(build_batch(records(100, 10_000)), 100 * number) for number in range(20)]
    found = stored(files, written(tmp_path, batches))
    before = pa.total_allocated_bytes()
    table = table_of({EVENTS: [found]}, None, check_crcs=True, copy=False)
    assert table.num_rows == 2000
    assert pa.total_allocated_bytes() - before < found.size / 20
    assert sum(map(len, filter(None, table["value"].to_pylist()))) > found.size * 0.4


def test_a_file_is_mapped_as_long_as_anything_looks_into_it(tmp_path: Path, files: SegmentFiles) -> None:
    source = written(tmp_path, ALL_KINDS)
    expected = table_of({EVENTS: [in_memory(ALL_KINDS)]}, None, check_crcs=True)
    table = table_of({EVENTS: [stored(files, source)]}, None, check_crcs=True, copy=False)
    files.close()
    os.unlink(source.path)  # as retention does
    gc.collect()
    assert source.size <= mapped_bytes(source.path) < source.size + 100_000
    assert not [link for link in os.listdir("/proc/self/fd") if source.path in _target(link)]
    assert copied(table).equals(expected)
    part = table["value"].slice(20, 1)
    del table
    assert mapped_bytes(source.path)
    assert part.to_pylist() == [expected["value"][20].as_py()]
    del part
    assert not mapped_bytes(source.path)


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return ""


def test_a_file_of_which_all_values_had_to_be_copied_is_not_kept(tmp_path: Path, files: SegmentFiles) -> None:
    batches = [at_offset(build_batch(records(100, 10_000), codec=Codec.LZ4), 100 * number) for number in range(20)]
    source = written(tmp_path, batches)
    table = table_of({EVENTS: [stored(files, source)]}, None, check_crcs=True, copy=False)
    assert table.num_rows == 2000
    assert not mapped_bytes(source.path)


@pytest.mark.parametrize("place", [0, 9, len(ALL_KINDS) - 1])
def test_no_file_stays_mapped_after_an_error(tmp_path: Path, files: SegmentFiles, place: int) -> None:
    damaged = bytearray(ALL_KINDS[place])
    damaged[-1] ^= 1
    source = written(tmp_path, [*ALL_KINDS[:place], damaged, *ALL_KINDS[place + 1 :]])
    with pytest.raises(RaykaError) as raised:
        table_of({EVENTS: [stored(files, source)]}, None, check_crcs=True, copy=False)
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
    del raised
    gc.collect()
    assert not mapped_bytes(source.path)


def test_a_file_that_became_shorter_is_found(tmp_path: Path, files: SegmentFiles) -> None:
    source = written(tmp_path, ALL_KINDS)
    found = stored(files, source)
    os.truncate(source.path, ROOM_BEFORE + source.size // 3)
    with pytest.raises(SegmentGone, match="ends before"):
        table_of({EVENTS: [found]}, None, check_crcs=True, copy=False)


def test_a_file_that_can_not_be_mapped_is_read(tmp_path: Path, files: SegmentFiles) -> None:
    """Also when a process has as many mappings as it may have."""
    source = written(tmp_path, ALL_KINDS)
    file = UnmappableFile(source.path)
    found = stored(files, source)._replace(file=cast(SegmentFile, file))
    try:
        table = table_of({EVENTS: [found]}, None, check_crcs=True, copy=False)
    finally:
        os.close(file.descriptor)
    assert not mapped_bytes(source.path)
    assert copied(table).equals(table_of({EVENTS: [in_memory(ALL_KINDS)]}, None, check_crcs=True))


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_table_that_gets_too_large_begins_again_where_the_one_before_ended(
    tmp_path: Path, files: SegmentFiles, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    found = stored(files, written(tmp_path, ALL_KINDS)) if is_stored else in_memory(ALL_KINDS)
    expected = table_of({EVENTS: [found]}, None, check_crcs=True)
    monkeypatch.setattr(tables, "_MOST_BYTES", 500_000)
    with pytest.raises(ColumnsTooLarge):
        table_of({EVENTS: [found]}, None, check_crcs=True, copy=False)
    parts, position = [], found.position
    while position < found.next_offset:
        polled = {EVENTS: [found._replace(position=position)]}
        table, rest = first_part_of(polled, None, check_crcs=True, copy=False)
        parts.append(table)
        position = rest.get(EVENTS, found.next_offset)
    assert copied(pa.concat_tables(parts)).equals(expected)


def test_an_empty_table_has_the_type_of_the_others() -> None:
    assert table_of({}, None, check_crcs=True, copy=False)["value"].type == pa.binary_view()


def test_a_consumer_reads_views_and_a_producer_sends_them(cluster: Cluster) -> None:
    cluster.admin().create_topic("copies", partitions=1)
    cluster.admin().create_topic("views", partitions=1)
    values = [bytes([number % 251]) * (number % 4000) for number in range(3000)]
    with cluster.producer(batch_size=200_000) as producer:
        producer.send_many("views", values)
    with cluster.consumer(auto_offset_reset="earliest") as consumer, cluster.producer() as producer:
        for topic in ("views", "copies"):
            consumer.assign([(topic, 0)])
            found: list[bytes] = []
            while len(found) < len(values):
                table = consumer.poll_table(30_000, copy=False)
                found += table["value"].to_pylist()
                if topic == "views":
                    producer.send_table("copies", table.select(["value"]))
            producer.flush()
            assert found == values


def test_the_end_of_the_interpreter_leaves_tables_in_peace(tmp_path: Path) -> None:
    batch = build_batch(records(300, 2000))
    path = written(tmp_path, [batch]).path
    program = f"""
import atexit
from rayka.client.consumer.stored import find_stored
from rayka.client.consumer.tables import table_of
from rayka.gateway.server.segment_files import SegmentFiles
from rayka.types import FileSlice, TopicPartition
files = SegmentFiles()
source = FileSlice({path!r}, {ROOM_BEFORE}, {len(batch)})
found = find_stored(TopicPartition("events", 0), 0, source, files.open(source)).batches.opened(files)
table = table_of({{found.topic_partition: [found]}}, None, True, copy=False)
atexit.register(lambda: print(table["value"].to_pylist()[0][:4]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == repr(records(300, 2000)[0].value[:4])  # type: ignore[index]
