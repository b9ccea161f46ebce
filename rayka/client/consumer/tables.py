"""Prefetched record batches as one Arrow table. Importing this module imports pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from rayka.client.consumer.records import RecordBatches
from rayka.storage.columns.read import COLUMNS, SCHEMA, read_columns
from rayka.types import TopicPartition


def table_of(
    polled: Mapping[TopicPartition, Iterable[RecordBatches]], columns: Sequence[str] | None, check_crcs: bool
) -> pa.Table:
    """The records of what `poll_batches` gave, partition by partition, with these columns (None: all).

    Raises CORRUPT_MESSAGE, INVALID_REQUEST for an unknown column.
    """
    wanted = COLUMNS if columns is None else tuple(columns)
    parts = [
        read_columns(
            batches.data,
            topic=topic_partition.topic,
            partition=topic_partition.partition,
            columns=wanted,
            start_offset=batches.position,
            aborted_transactions=batches.aborted_transactions,
            check_crcs=check_crcs,
        ).batch
        for topic_partition, of_partition in polled.items()
        for batches in of_partition
    ]
    if not parts:
        read_columns(b"", topic="", partition=0, columns=wanted)
        return SCHEMA.empty_table().select(list(wanted))
    return pa.concat_tables([pa.Table.from_batches([part]) for part in parts], promote_options="permissive")
