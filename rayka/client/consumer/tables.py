"""Prefetched record batches as one Arrow table. Importing this module imports pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import pyarrow as pa

from rayka.client.consumer.records import RecordBatches
from rayka.storage.columns.build import Allocate
from rayka.storage.columns.read import COLUMNS, ColumnsReader
from rayka.types import TopicPartition

_PART_BYTES = 256 << 20
"""A part of the table that is as large as this gets no further records: to grow it costs a copy, and Arrow's arrays of
headers hold no more than 2 GiB."""


def table_of(
    polled: Mapping[TopicPartition, Iterable[RecordBatches]],
    columns: Sequence[str] | None,
    check_crcs: bool,
    allocate: Allocate = pa.allocate_buffer,
) -> pa.Table:
    """The records of what `poll_batches` gave, partition by partition, with these columns (None: all).

    Up to `_PART_BYTES` they are in one array for each column: arrays for each fetch would cost more than the decoding
    of its records. `allocate` gives their memory.
    Raises CORRUPT_MESSAGE, INVALID_REQUEST for an unknown or repeated column.
    """
    names = COLUMNS if columns is None else tuple(columns)
    found = [batches for of_partition in polled.values() for batches in of_partition]
    reader, parts = ColumnsReader(names, _part_bytes(found), allocate), []
    for number, (topic_partition, data, position, _, aborted_transactions, are_intact) in enumerate(found):
        if reader.size >= _PART_BYTES:
            parts.append(reader.finish())
            reader = ColumnsReader(names, _part_bytes(found[number:]), allocate)
        reader.read(
            data,
            topic=topic_partition.topic,
            partition=topic_partition.partition,
            start_offset=position,
            aborted_transactions=aborted_transactions,
            check_crcs=check_crcs and not are_intact,
        )
    parts.append(reader.finish())
    tables = [pa.Table.from_batches([part]) for part in parts]
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")


def _part_bytes(found: Sequence[RecordBatches]) -> int:
    """Bytes of the fetches that fill the next part, if their records take as much memory: what it reserves."""
    size = 0
    for size in accumulate(len(batches.data) for batches in found):
        if size >= _PART_BYTES:
            break
    return size
