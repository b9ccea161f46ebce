"""The way of plain batches to columns: room for them, and calls of the compiled pass (`plain.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

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
from rayka.storage.columns.decode import Longs
from rayka.storage.columns.plain import (
    BATCH_BYTES,
    BATCH_ROWS,
    BUFFER,
    CHECKS_CRC,
    COPIES_KEYS,
    COUNTS,
    DONE,
    HAS_KEY,
    KEY_BYTES,
    LAST_ROW,
    LINE_BYTES,
    NEXT_OFFSET,
    NOT_PLAIN,
    PIECE_BYTES,
    PIECES,
    POSITION,
    ROWS,
    VIEWED_BUFFER,
    WANTS_HEADERS,
    WANTS_KEYS,
    WANTS_OFFSETS,
    WANTS_TIMESTAMPS,
    WANTS_TYPES,
    WANTS_VALUES,
    WANTS_VIEWS,
    PlainColumns,
    fill_from_files,
    fill_plain,
)
from rayka.storage.columns.views import NO_VIEWS, ValueViewsColumn, can_be_viewed, map_pieces
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD, Buffer, read_header
from rayka.storage.format.records import MIN_RECORD_SIZE

_SPARE = 1.05
_LEAST_GROWTH = 20
_MOST_ROWS = 2**31
_NUMBERS = WANTS_OFFSETS, WANTS_TIMESTAMPS, WANTS_TYPES
_WANTS: dict[type[Column], int] = {
    ValueColumn: WANTS_VALUES,
    ValueViewsColumn: WANTS_VIEWS,
    KeyColumn: WANTS_KEYS,
    OffsetColumn: WANTS_OFFSETS,
    TimestampColumn: WANTS_TIMESTAMPS,
    TimestampTypeColumn: WANTS_TYPES,
    HeadersColumn: WANTS_HEADERS,
}


class PiecesRead(NamedTuple):
    """How many rows each piece has that was read, and, of the next one, the position behind batches that are plain, and
    their rows."""

    rows: list[int]
    position: int
    rows_before: int


class PiecesFill:
    """A call of `fill_from_files`, which any thread may do: see `PlainReader.begin_pieces`."""

    def __init__(self, pieces: Longs, wants: int, max_rows: int, columns: PlainColumns, counts: Longs) -> None:
        self.pieces = pieces
        self.wants = wants
        self.ended = NOT_PLAIN
        self._call = partial(fill_from_files, pieces, wants, max_rows, columns, counts)

    def run(self) -> None:
        """Fill the columns. The files must be open until then."""
        self.ended = self._call()


class PlainReader:
    """Appends plain batches to the columns of a read."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.rows = 0
        """Those that every column has; who appends others adds them here."""
        self.has_views = False
        """Whether there are views into the buffer that `read` had last: it must not change then."""
        self._wants = sum(_WANTS.get(type(column), 0) for column in columns)
        self._binaries = [_binary(columns, kind) for kind in (ValueColumn, KeyColumn)]
        self._values, self._keys = self._binaries
        self._views = next((column for column in columns if isinstance(column, ValueViewsColumn)), None)
        self._numbers = [_numbers(columns, kind) for kind in (OffsetColumn, TimestampColumn, TimestampTypeColumn)]
        self._constant = [column for column in columns if isinstance(column, ConstantColumn)]
        self._headers = next((column for column in columns if isinstance(column, HeadersColumn)), None)
        self._counts = np.zeros(COUNTS, np.int64)
        self._line = np.empty(LINE_BYTES, np.uint8)

    def read(
        self, buffer: Buffer, start_offset: int, end_offset: int, check_crcs: bool, left_bytes: int
    ) -> tuple[int, int]:
        """Append the batches at the beginning of `buffer` that are plain: see `fill_plain`.

        `left_bytes`: the size of this buffer and of those that follow. Returns the position and the offset behind them.
        """
        self.has_views = False
        if len(buffer) < RECORD_BATCH_OVERHEAD or not self._can_read(check_crcs):
            return 0, start_offset
        if self._views is not None and not can_be_viewed(len(buffer)):
            return 0, start_offset
        data, header = array_of(buffer), read_header(buffer)
        if self._max_rows(self._wants) == self.rows:
            self.reserve(header.record_count, header.size_in_bytes, left_bytes)
        rows, fill = self.rows, partial(fill_plain, data, start_offset, end_offset)
        wants = self._begin(check_crcs, start_offset)
        if self._views is not None:
            self._counts[VIEWED_BUFFER] = self._views.begin_bytes(buffer)
        self._end(fill, fill(wants, self._max_rows(wants), self._memory(), self._counts), wants, left_bytes)
        if self._views is not None:
            self.has_views = self.rows > rows
            self._views.end_bytes(self.has_views)
        for column in self._constant:
            column.extend(self.rows - rows)
        return int(self._counts[POSITION]), int(self._counts[NEXT_OFFSET])

    def begin_pieces(self, pieces: Longs, check_crcs: bool) -> PiecesFill:
        """As `read`, with pieces of files: see `fill_from_files`. When `run` is done, `end_pieces` comes next."""
        if not self._can_read(check_crcs):
            pieces = pieces[:0]
        if self._views is not None:
            map_pieces(pieces, self._views)
        wants = self._begin(check_crcs, 0)
        return PiecesFill(pieces, wants, self._max_rows(wants), self._memory(), self._counts)

    def end_pieces(self, fill: PiecesFill, left_bytes: int) -> PiecesRead:
        """What was read. Constant columns get no rows."""
        rows = self.rows
        self._end(partial(fill_from_files, fill.pieces), fill.ended, fill.wants, left_bytes)
        done, position = int(self._counts[PIECES]), int(self._counts[POSITION])
        last_rows = fill.pieces[:done, LAST_ROW].tolist()
        new_rows = [last - before for before, last in pairwise([rows, *last_rows])]
        rows_before = self.rows - rows - sum(new_rows)
        if self._views is not None:
            have_rows = [number for number, count in enumerate([*new_rows, rows_before]) if count]
            self._views.keep(fill.pieces[have_rows, BUFFER].tolist())
        return PiecesRead(new_rows, position, rows_before)

    def reserve(self, rows: int, size: int, left_bytes: int) -> None:
        """Make room for so many records in batches of this size, and for as many as are expected if all are like them.

        Where there is not enough, it is made for the next batch. So what headers say may be wrong.
        """
        size = max(min(size, left_bytes), RECORD_BATCH_OVERHEAD)  # what is left may be more than was said
        self._reserve(_most_rows(rows, size), size, self._wants, left_bytes)

    def _can_read(self, check_crcs: bool) -> bool:
        return bool(self._wants) and (has_instruction or not check_crcs)

    def _begin(self, check_crcs: bool, start_offset: int) -> int:
        """Prepare for compiled code that appends as much as it can; what it wants. Where it ends is in `_counts`."""
        wants, counts = self._wants | (CHECKS_CRC if check_crcs else 0), self._counts
        counts[:] = 0
        counts[NEXT_OFFSET] = start_offset
        counts[ROWS : KEY_BYTES + 1] = self.rows, self._values.copied.size, self._keys.copied.size
        self._values.write_nulls(1.0)
        if self._keys.is_valid.size:
            wants |= COPIES_KEYS
            self._keys.write_nulls(1.0)
        return wants

    def _end(self, fill: Callable[..., int], ended: int, wants: int, left_bytes: int) -> None:
        """Count what compiled code has appended, and let it go on where it ended for lack of room."""
        self._count(wants)
        while ended not in (DONE, NOT_PLAIN):
            if ended == HAS_KEY:
                wants |= COPIES_KEYS
                self._keys.write_nulls(1.0)
            self._reserve_for_batch(wants, left_bytes)
            ended = fill(wants, self._max_rows(wants), self._memory(), self._counts)
            self._count(wants)

    def _memory(self) -> PlainColumns:
        values, keys = self._values, self._keys
        offsets, timestamps, types = (numbers.array for numbers in self._numbers)
        return PlainColumns(
            values.copied.array,
            values.ends.array,
            values.is_valid.array if self._views is None else self._views.is_valid.array,
            keys.copied.array,
            keys.ends.array,
            keys.is_valid.array,
            offsets,
            timestamps,
            types,
            self._line,
            NO_VIEWS if self._views is None else self._views.views.array,
        )

    def _row_arrays(self, wants: int) -> list[GrowingArray]:
        """The arrays that get an item for each row."""
        arrays = [numbers for numbers, want in zip(self._numbers, _NUMBERS, strict=True) if wants & want]
        for binary, want in zip(self._binaries, (WANTS_VALUES, COPIES_KEYS), strict=True):
            if wants & want:
                arrays += binary.ends, binary.is_valid
        if self._views is not None:
            arrays += self._views.views, self._views.is_valid
        return arrays

    def _max_rows(self, wants: int) -> int:
        """How many rows there is room for, with those that are there."""
        return min((self.rows + array.room for array in self._row_arrays(wants)), default=_MOST_ROWS)

    def _reserve_for_batch(self, wants: int, left_bytes: int) -> None:
        rows, size, position, done_bytes = self._counts[[BATCH_ROWS, BATCH_BYTES, POSITION, PIECE_BYTES]].tolist()
        self._reserve(_most_rows(rows, size), size, wants, left_bytes - done_bytes - position)

    def _reserve(self, rows: int, size: int, wants: int, left_bytes: int) -> None:
        """At least the memory grows by a twentieth: what is written is copied then."""
        expected_rows = max(int(rows * left_bytes / size * _SPARE), self.rows // _LEAST_GROWTH)
        for array in self._row_arrays(wants):
            array.reserve(rows, expected_rows)
        if wants & WANTS_VALUES:
            self._values.copied.reserve(size, max(left_bytes, self._values.copied.size // _LEAST_GROWTH))
        if wants & COPIES_KEYS:
            self._keys.copied.reserve(size, self._keys.copied.size + size)

    def _count(self, wants: int) -> None:
        """Count what the compiled pass has appended."""
        rows, value_bytes, key_bytes = self._counts[ROWS : KEY_BYTES + 1].tolist()
        new_rows, self.rows = rows - self.rows, rows
        for array in self._row_arrays(wants):
            array.size += new_rows
        self._values.copied.size, self._keys.copied.size = value_bytes, key_bytes
        if not wants & COPIES_KEYS:
            self._keys.nulls_ahead += new_rows
        if self._headers is not None:
            self._headers.extend(new_rows, 1.0)


def _most_rows(record_count: int, size: int) -> int:
    """As many as headers count, if there can be so many in this size, and one more: the ends of fields need that."""
    return min(max(record_count, 0), size // MIN_RECORD_SIZE) + 1


def _binary(columns: Sequence[Column], kind: type[KeyColumn]) -> BinaryBuilder:
    """That of a column, or one that stays empty."""
    for column in columns:
        if type(column) is kind:
            return column.binary
    return BinaryBuilder(pa.allocate_buffer)


def _numbers(columns: Sequence[Column], kind: type[NumberColumn]) -> GrowingArray:
    """Those of a column, or an array that stays empty."""
    for column in columns:
        if isinstance(column, kind):
            return column.numbers
    return GrowingArray(kind.dtype, pa.allocate_buffer)
