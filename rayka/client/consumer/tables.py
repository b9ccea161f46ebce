"""Prefetched record batches as one Arrow table. Importing this module imports pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from rayka.client.consumer.records import RecordBatches
from rayka.storage.columns.read import COLUMNS, ColumnsReader
from rayka.types import TopicPartition

_PART_BYTES = 256 << 20
"""A part of the table that is as large as this gets no further records: to grow it costs a copy, and Arrow's arrays of
headers hold no more than 2 GiB."""


def table_of(
    polled: Mapping[TopicPartition, Iterable[RecordBatches]], columns: Sequence[str] | None, check_crcs: bool
) -> pa.Table:
    """The records of what `poll_batches` gave, partition by partition, with these columns (None: all).

    Up to `_PART_BYTES` they are in one array for each column: arrays for each fetch would cost more than the decoding
    of its records. Raises CORRUPT_MESSAGE, INVALID_REQUEST for an unknown or repeated column.
    """
    names = COLUMNS if columns is None else tuple(columns)
    found = [batches for of_partition in polled.values() for batches in of_partition]
    left_bytes = sum(len(batches.data) for batches in found)
    reader, parts = ColumnsReader(names, left_bytes), []
    for topic_partition, data, position, _, aborted_transactions in found:
        if reader.size >= _PART_BYTES:
            parts.append(reader.finish())
            reader = ColumnsReader(names, left_bytes)
        reader.read(
            data,
            topic=topic_partition.topic,
            partition=topic_partition.partition,
            start_offset=position,
            aborted_transactions=aborted_transactions,
            check_crcs=check_crcs,
        )
        left_bytes -= len(data)
    parts.append(reader.finish())
    return pa.concat_tables([pa.Table.from_batches([part]) for part in parts], promote_options="permissive")
