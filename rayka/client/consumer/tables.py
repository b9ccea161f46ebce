"""Prefetched record batches as one Arrow table. Importing this module imports pyarrow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from itertools import accumulate
from typing import TypeVar

import numpy as np
import pyarrow as pa

from rayka.client.consumer.stored import FetchedBatches, StoredBatches
from rayka.storage.columns.build import Allocate
from rayka.storage.columns.decode import Bytes
from rayka.storage.columns.read import COLUMNS, ColumnsReader
from rayka.types import TopicPartition

T = TypeVar("T")

_PART_BYTES = 256 << 20
"""A part of the table that is as large as this gets no further records: to grow it costs a copy, and Arrow's arrays of
headers hold no more than 2 GiB."""
_MOST_BYTES = 256 << 20
"""With so many a table gets no more compressed records: a few bytes of the log may be gigabytes of them."""

_FIRST_PART = 0.54
"""The helper begins later, by the time that it takes to wake it up."""
_LEAST_STORED_BYTES = 2 << 20
"""For less, waking a thread costs more than it saves."""


def table_of(
    polled: Mapping[TopicPartition, Iterable[FetchedBatches]],
    columns: Sequence[str] | None,
    check_crcs: bool,
    allocate: Allocate = pa.allocate_buffer,
    helper: Executor | None = None,
) -> pa.Table:
    """The records of what a poll took, partition by partition, with these columns (None: all).

    Up to `_PART_BYTES` they are in one array for each column: arrays for each fetch would cost more than the decoding
    of its records. If much of it is still in files, `helper` makes a second part of the table meanwhile. `allocate`
    gives their memory.
    Raises CORRUPT_MESSAGE, INVALID_REQUEST for an unknown or repeated column; SegmentGone and OSError if a file can't
    be read; ColumnsTooLarge if it gets more than `_MOST_BYTES` by records that are compressed, or are found in another
    general way.
    """
    names = COLUMNS if columns is None else tuple(columns)
    found = [batches for of_partition in polled.values() for batches in of_partition]
    first, second = (found, []) if helper is None else _split(found)
    most_bytes = _MOST_BYTES // 2 if second else _MOST_BYTES
    decode = partial(_decode, names=names, check_crcs=check_crcs, allocate=allocate, most_bytes=most_bytes)
    decoding = _submitted(helper, partial(decode, second)) if second else None
    parts = decode(first)
    if second:
        parts += decode(second) if decoding is None else decoding.result()
    if all(part.schema.equals(parts[0].schema) for part in parts):
        return pa.Table.from_batches(parts)
    return pa.concat_tables([pa.Table.from_batches([part]) for part in parts], promote_options="permissive")


def _submitted(helper: Executor | None, call: Callable[[], T]) -> Future[T] | None:
    """None without a thread: the consumer may be closed meanwhile, and the process may have as many as it may have."""
    with contextlib.suppress(RuntimeError):
        return None if helper is None else helper.submit(call)
    return None


def first_part_of(
    polled: Mapping[TopicPartition, Iterable[FetchedBatches]],
    columns: Sequence[str] | None,
    check_crcs: bool,
    allocate: Allocate = pa.allocate_buffer,
) -> tuple[pa.Table, dict[TopicPartition, int]]:
    """As `table_of`, of the first batches only: up to the one with which the table has `_MOST_BYTES`. Also returns
    where the records begin of which it has none.
    """
    names = COLUMNS if columns is None else tuple(columns)
    reader, rest = ColumnsReader(names, _MOST_BYTES, allocate), dict[TopicPartition, int]()
    for batches in (batches for of_partition in polled.values() for batches in of_partition):
        if rest:
            rest.setdefault(batches.topic_partition, batches.position)
            continue
        topic, partition = batches.topic_partition
        for data in _loaded(batches):
            next_offset, size = reader.read(
                data,
                topic=topic,
                partition=partition,
                start_offset=batches.position,
                aborted_transactions=None if isinstance(batches, StoredBatches) else batches.aborted_transactions,
                check_crcs=check_crcs,
                max_bytes=_MOST_BYTES,
            )
            if size < len(data) or reader.size >= _MOST_BYTES:
                rest[batches.topic_partition] = next_offset
                break
    return pa.Table.from_batches([reader.finish()]), rest


def _loaded(batches: FetchedBatches) -> Iterator[memoryview]:
    """The batches in memory; those of a file are read piece by piece."""
    if not isinstance(batches, StoredBatches):
        yield batches.data
        return
    assert batches.file is not None
    for position, size, _ in batches.pieces:
        data = memoryview(bytearray(size))
        batches.file.read_into(data, position)
        yield data


def _decode(
    found: Sequence[FetchedBatches], names: Sequence[str], check_crcs: bool, allocate: Allocate, most_bytes: int
) -> list[pa.RecordBatch]:
    reader, parts, done = ColumnsReader(names, _part_bytes(found), allocate, most_bytes), [], 0
    room = _room(found, allocate)
    for number, batches in enumerate(found):
        if reader.size >= _PART_BYTES:
            done += reader.size
            parts.append(reader.finish())
            reader = ColumnsReader(names, _part_bytes(found[number:]), allocate, most_bytes - done)
        topic, partition = batches.topic_partition
        if isinstance(batches, StoredBatches):
            assert batches.file is not None
            reader.read_file(
                batches.file,
                batches.pieces,
                room,
                topic=topic,
                partition=partition,
                start_offset=batches.position,
                check_crcs=check_crcs,
            )
        else:
            reader.read(
                batches.data,
                topic=topic,
                partition=partition,
                start_offset=batches.position,
                aborted_transactions=batches.aborted_transactions,
                check_crcs=check_crcs and not batches.are_intact,
            )
    parts.append(reader.finish())
    return parts


def _split(found: Sequence[FetchedBatches]) -> tuple[Sequence[FetchedBatches], Sequence[FetchedBatches]]:
    """Two parts, of which the first takes as long as waking the helper and the second; one if little is in files."""
    left = int(sum(map(_size, found)) * _FIRST_PART)
    if sum(each.size for each in found if isinstance(each, StoredBatches)) < _LEAST_STORED_BYTES:
        return found, ()
    for number, batches in enumerate(found):
        if _size(batches) > left:
            first, second = batches.split(left) if isinstance(batches, StoredBatches) else (None, batches)
            return [*found[:number], *([first] if first else [])], [second, *found[number + 1 :]]
        left -= _size(batches)
    return found, ()


def _room(found: Sequence[FetchedBatches], allocate: Allocate) -> Bytes:
    """Memory for the largest piece of a file."""
    size = max((piece.size for each in found if isinstance(each, StoredBatches) for piece in each.pieces), default=0)
    return np.frombuffer(allocate(size), np.uint8)


def _part_bytes(found: Sequence[FetchedBatches]) -> int:
    """Bytes of the fetches that fill the next part, if their records take as much memory: what it reserves."""
    size = 0
    for size in accumulate(map(_size, found)):
        if size >= _PART_BYTES:
            break
    return size


def _size(batches: FetchedBatches) -> int:
    return batches.size if isinstance(batches, StoredBatches) else len(batches.data)
