"""The way of plain batches to columns: room for them, and calls of the compiled pass (`plain.py`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rayka.storage.columns.build import (
    BinaryBuilder,
    Column,
    ConstantColumn,
    GrowingArray,
    HeadersColumn,
    KeyColumn,
    NumberColumn,
    OffsetColumn,
    TimestampColumn,
    TimestampTypeColumn,
    ValueColumn,
)
from rayka.storage.columns.chunks import array_of
from rayka.storage.columns.crc import has_instruction
from rayka.storage.columns.plain import (
    CHECKS_CRC,
    COPIES_KEYS,
    COUNTS,
    DONE,
    HAS_KEY,
    NEXT_OFFSET,
    NO_ROOM,
    NOT_PLAIN,
    POSITION,
    WANTS_HEADERS,
    WANTS_KEYS,
    WANTS_OFFSETS,
    WANTS_TIMESTAMPS,
    WANTS_TYPES,
    WANTS_VALUES,
    PlainColumns,
    fill_plain,
)
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD, Buffer, read_header
from rayka.storage.format.records import MIN_RECORD_SIZE

_SPARE = 1.05
_LEAST_GROWTH = 20
_MOST_ROWS = 2**31
_NUMBERS = WANTS_OFFSETS, WANTS_TIMESTAMPS, WANTS_TYPES
_WANTS: dict[type[Column], int] = {
    ValueColumn: WANTS_VALUES,
    KeyColumn: WANTS_KEYS,
    OffsetColumn: WANTS_OFFSETS,
    TimestampColumn: WANTS_TIMESTAMPS,
    TimestampTypeColumn: WANTS_TYPES,
    HeadersColumn: WANTS_HEADERS,
}


class PlainReader:
    """Appends plain batches to the columns of a read."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.rows = 0
        """Those that every column has; who appends others adds them here."""
        self._wants = sum(_WANTS.get(type(column), 0) for column in columns)
        self._binaries = [_binary(columns, kind) for kind in (ValueColumn, KeyColumn)]
        self._values, self._keys = self._binaries
        self._numbers = [_numbers(columns, kind) for kind in (OffsetColumn, TimestampColumn, TimestampTypeColumn)]
        self._constant = [column for column in columns if isinstance(column, ConstantColumn)]
        self._headers = next((column for column in columns if isinstance(column, HeadersColumn)), None)
        self._counts = np.zeros(COUNTS, np.int64)

    def read(
        self, buffer: Buffer, start_offset: int, end_offset: int, check_crcs: bool, left_bytes: int
    ) -> tuple[int, int]:
        """Append the batches at the beginning of `buffer` that are plain: see `fill_plain`.

        `left_bytes`: the size of this buffer and of those that follow. Returns the position and the offset behind them.
        """
        if not self._wants or len(buffer) < RECORD_BATCH_OVERHEAD or (check_crcs and not has_instruction):
            return 0, start_offset
        data, wants, counts = array_of(buffer), self._wants | (CHECKS_CRC if check_crcs else 0), self._counts
        counts[:] = 0, start_offset, self.rows, self._values.copied.size, self._keys.copied.size
        self._values.write_nulls(1.0)
        if self._keys.is_valid.size:
            wants |= COPIES_KEYS
            self._keys.write_nulls(1.0)
        ended = NO_ROOM if self._max_rows(wants) == self.rows else DONE
        while True:
            if ended == HAS_KEY:
                wants |= COPIES_KEYS
                self._keys.write_nulls(1.0)
            if ended != DONE:
                self._reserve(buffer, wants, left_bytes)
            ended = fill_plain(data, start_offset, end_offset, wants, self._max_rows(wants), self._memory(), counts)
            self._count(wants)
            if ended in (DONE, NOT_PLAIN):
                return int(counts[POSITION]), int(counts[NEXT_OFFSET])

    def _memory(self) -> PlainColumns:
        values, keys = self._values, self._keys
        return PlainColumns(
            values.copied.array,
            values.ends.array,
            values.is_valid.array,
            keys.copied.array,
            keys.ends.array,
            keys.is_valid.array,
            *(numbers.array for numbers in self._numbers),
        )

    def _row_arrays(self, wants: int) -> list[GrowingArray]:
        """The arrays that get an item for each row."""
        arrays = [numbers for numbers, want in zip(self._numbers, _NUMBERS, strict=True) if wants & want]
        for binary, want in zip(self._binaries, (WANTS_VALUES, COPIES_KEYS), strict=True):
            if wants & want:
                arrays += binary.ends, binary.is_valid
        return arrays

    def _max_rows(self, wants: int) -> int:
        """How many rows there is room for, with those that are there."""
        return min((self.rows + array.room for array in self._row_arrays(wants)), default=_MOST_ROWS)

    def _reserve(self, buffer: Buffer, wants: int, left_bytes: int) -> None:
        """Make room for the next batch, and for as many records as are expected if all batches are like it.

        At least the memory grows by a twentieth: what is written is copied then.
        """
        position = int(self._counts[POSITION])
        header, left_bytes = read_header(buffer, position), left_bytes - position
        size = min(max(header.size_in_bytes, RECORD_BATCH_OVERHEAD), len(buffer) - position)
        rows = min(max(header.record_count, 0), size // MIN_RECORD_SIZE) + 1
        expected_rows = max(int(rows * left_bytes / size * _SPARE), self.rows // _LEAST_GROWTH)
        for array in self._row_arrays(wants):
            array.reserve(rows, expected_rows)
        if wants & WANTS_VALUES:
            self._values.copied.reserve(size, max(left_bytes, self._values.copied.size // _LEAST_GROWTH))
        if wants & COPIES_KEYS:
            self._keys.copied.reserve(size, self._keys.copied.size + size)

    def _count(self, wants: int) -> None:
        """Count what the compiled pass has appended."""
        _, _, rows, value_bytes, key_bytes = self._counts.tolist()
        new_rows, self.rows = rows - self.rows, rows
        for array in self._row_arrays(wants):
            array.size += new_rows
        self._values.copied.size, self._keys.copied.size = value_bytes, key_bytes
        if not wants & COPIES_KEYS:
            self._keys.nulls_ahead += new_rows
        for column in self._constant:
            column.extend(new_rows)
        if self._headers is not None:
            self._headers.extend(new_rows, 1.0)


def _binary(columns: Sequence[Column], kind: type[KeyColumn]) -> BinaryBuilder:
    """That of a column, or one that stays empty."""
    return next((column.binary for column in columns if type(column) is kind), BinaryBuilder(pa.allocate_buffer))


def _numbers(columns: Sequence[Column], kind: type[NumberColumn]) -> GrowingArray:
    """Those of a column, or an array that stays empty."""
    found = (column.numbers for column in columns if isinstance(column, kind))
    return next(found, GrowingArray(kind.dtype, pa.allocate_buffer))
