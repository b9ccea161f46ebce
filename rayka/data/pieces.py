"""Cuts the records of a read task into pieces that are the same however often the task runs.

If the worker of a task dies, Ray runs the task again and keeps the blocks that it already has, by their number. So
block i must have the same records in every run, though the partition actor cuts its tables elsewhere. A piece ends
where the bytes of the records, counted from the start of the split, pass a multiple of the size. Ray Data joins and
cuts pieces by their size in memory, which therefore depends on nothing but their records either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_Numbers: TypeAlias = npt.NDArray[np.int64]

PIECE_BYTES = 1024 * 1024
_OFFSET_BYTES = 4
"""What each row of a column of variable length has besides its bytes."""


def even_pieces(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, piece_bytes: int = PIECE_BYTES
) -> Iterator[pa.Table]:
    """The rows in tables of `piece_bytes` or less, or of one record that is larger and what follows up to the next cut.

    The tables are copies, so that they keep no larger one alive. Without rows there is one empty table: Ray Data would
    make a block without columns.
    """
    read_bytes = 0
    piece: list[pa.RecordBatch] = []
    for batch in batches:
        row_bytes = sum(map(_row_bytes, batch.columns), np.zeros(batch.num_rows, np.int64))
        ends = read_bytes + np.cumsum(row_bytes)
        begin = 0
        for cut in np.flatnonzero(ends // piece_bytes != (ends - row_bytes) // piece_bytes).tolist():
            piece.append(batch.slice(begin, cut - begin))
            table, piece, begin = _joined(piece, schema), [], cut
            if table.num_rows:
                yield table
        piece.append(batch.slice(begin))
        read_bytes += int(row_bytes.sum())
    yield _joined(piece, schema)  # has the last row, if there are any: cuts are before rows


def _row_bytes(column: pa.Array) -> _Numbers:
    """How many bytes each row has."""
    if pa.types.is_list(column.type):
        lengths = _no_nulls(pc.list_value_length(column))
        ends = np.cumsum(lengths)
        item_bytes = np.concatenate([np.zeros(1, np.int64), np.cumsum(_row_bytes(column.flatten()))])
        row_bytes: _Numbers = item_bytes[ends] - item_bytes[ends - lengths] + _OFFSET_BYTES
        return row_bytes
    if pa.types.is_struct(column.type):
        return sum(map(_row_bytes, column.flatten()), np.zeros(len(column), np.int64))
    if pa.types.is_primitive(column.type):
        return np.full(len(column), column.type.bit_width // 8, np.int64)
    return _no_nulls(pc.binary_length(column)) + _OFFSET_BYTES


def _no_nulls(numbers: pa.Array) -> _Numbers:
    filled: _Numbers = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return filled


def _joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """One table, whose size in memory is that of its rows, not of the tables that they come from.

    Arrow's format for streams leaves out bitmaps of columns without nulls, and bytes beyond a slice.
    """
    parts = [each if each.schema.equals(schema) else _repacked(each).cast(schema) for each in batches if each.num_rows]
    if not parts:
        return schema.empty_table()
    (whole,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
    return pa.Table.from_batches([_repacked(whole)])


def _repacked(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)
