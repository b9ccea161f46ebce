"""Batches of records that a benchmark or a test makes up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from rayka.storage.columns.rows import write_rows
from rayka.storage.columns.write import rows_of_columns
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import Record, build_batch, encode_record

_LENGTH_BYTES = 5
"""The most bytes of the length that stands before a record."""


def build_batches(
    records: Iterable[Record], *, max_batch_size: int, base_offset: int = 0, codec: Codec = Codec.NONE
) -> Iterator[bytearray]:
    """Batches of at most `max_batch_size` bytes before compression (more if one record is larger alone).

    The records get the offsets from `base_offset` on.
    """
    batch: list[Record] = []
    size = RECORD_BATCH_OVERHEAD
    for record in records:
        _, timestamp, key, value, headers, _ = record
        delta = timestamp - batch[0].timestamp if batch else 0
        added = _LENGTH_BYTES + len(encode_record(len(batch), delta, key, value, headers))
        if batch and size + added > max_batch_size:
            yield build_batch(batch, base_offset=base_offset, codec=codec)
            base_offset += len(batch)
            batch, size = [], RECORD_BATCH_OVERHEAD
        batch.append(record)
        size += added
    if batch:
        yield build_batch(batch, base_offset=base_offset, codec=codec)


def write_columns(
    columns: pa.RecordBatch | pa.Table,
    *,
    now_ms: int,
    max_batch_size: int = 1_000_000,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
) -> Iterator[bytearray | memoryview]:
    """One record for each row, in batches of at most `max_batch_size` bytes before compression.

    Raises as `rows_of_columns`.
    """
    for part in columns.to_batches() if isinstance(columns, pa.Table) else [columns]:
        if part.num_rows:
            rows = rows_of_columns(part, now_ms)
            written = write_rows(rows, max_batch_size=max_batch_size, codec=codec, base_offset=base_offset)
            yield from (buffer for buffer, _ in written)
            base_offset += part.num_rows
