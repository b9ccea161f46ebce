"""Record batches to Arrow columns; `write.py` converts back.

The columns are those of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
timestampType, headers (null for a record without any). Only those asked for are built.

The batches are read in chunks that stay in the processor's cache: decompressed, their fields located, and
each column's part copied out, before the next chunk takes the same memory. Plain batches take a shorter way
before that (`plain.py`). The work on every record is
compiled (`decode.py`); what is left here is work on batches. Importing this module imports numpy and
pyarrow: the extra `columns` of the package.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.columns.build import (
    HEADERS_TYPE,
    TIMESTAMP_TYPE,
    Allocate,
    Column,
    ConstantColumn,
    HeadersColumn,
    KeyColumn,
    OffsetColumn,
    PartitionColumn,
    TimestampColumn,
    TimestampTypeColumn,
    TopicColumn,
    ValueColumn,
)
from rayka.storage.columns.chunks import Room, chunks, locate_records
from rayka.storage.columns.decode import Longs
from rayka.storage.columns.plain import NOT_READ, PIECE_COLUMNS
from rayka.storage.columns.plain_reader import PiecesFill, PiecesRead, PlainReader
from rayka.storage.columns.views import ValueViewsColumn
from rayka.storage.format.batch import (
    CODEC_MASK,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    Buffer,
    ensure_intact,
    iter_headers,
)
from rayka.storage.format.isolation import iter_visible
from rayka.storage.format.order import PositionedHeader
from rayka.storage.format.records import MIN_RECORD_SIZE
from rayka.types import AbortedTransaction

SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP_TYPE),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""All columns. key and value are large_binary in a table in which they hold 2 GiB or more, and value is binary_view if
it was not to be copied."""
COLUMNS: tuple[str, ...] = tuple(SCHEMA.names)
END = 2**63 - 1
_LIKELY_RATIO = 64
"""Records that are compressed better are decoded where their number is all that is wanted: a header of a few bytes may
claim two billion of them.
"""


class ColumnsTooLarge(Exception):
    """The columns have more bytes than they may have."""


class Columns(NamedTuple):
    """The records that were read, the offset behind the last batch, and the bytes of the log up to there."""

    batch: pa.RecordBatch
    next_offset: int
    size_in_log: int


def read_columns(
    buffer: Buffer,
    *,
    topic: str,
    partition: int,
    columns: Sequence[str] = COLUMNS,
    start_offset: int = 0,
    end_offset: int = END,
    aborted_transactions: Sequence[AbortedTransaction] | None = None,
    check_crcs: bool = True,
    max_bytes: int = END,
    copy: bool = True,
) -> Columns:
    """The records of all complete batches in `buffer`, as `ColumnsReader.read` reads them."""
    reader = ColumnsReader(columns, len(buffer), copy=copy)
    next_offset, size_in_log = reader.read(
        buffer,
        topic=topic,
        partition=partition,
        start_offset=start_offset,
        end_offset=end_offset,
        aborted_transactions=aborted_transactions,
        check_crcs=check_crcs,
        max_bytes=max_bytes,
    )
    return Columns(reader.finish(), next_offset, size_in_log)


class ReadableFile(Protocol):
    """An open file."""

    @property
    def descriptor(self) -> int:
        """That of the system, as long as there is a reference to this object."""

    def read_into(self, target: memoryview, position: int) -> None:
        """Fill `target` with what is at `position`. Raises an error if the file can't be read, or ends before."""


class FileBatches(NamedTuple):
    """Whole batches of a partition in a file, in pieces of which one begins where the one before ends.

    A piece is some batches: their position in the file, their size, and how many records their headers count.
    """

    file: ReadableFile
    pieces: Sequence[tuple[int, int, int]]
    topic: str
    partition: int
    start_offset: int = 0


class FilesRead(NamedTuple):
    """A read of files that was begun: see `ColumnsReader.begin_files`."""

    found: Sequence[FileBatches]
    check_crcs: bool
    pieces: Longs
    fill: PiecesFill

    def run(self) -> None:
        """Do what compiled code can do of it."""
        self.fill.run()


class ColumnsReader:
    """Columns that are filled from one buffer after another, which costs less than columns for each buffer."""

    def __init__(
        self,
        columns: Sequence[str],
        total_bytes: int,
        allocate: Allocate = pa.allocate_buffer,
        most_bytes: int = END,
        copy: bool = True,
    ) -> None:
        """`total_bytes`: the size of all buffers. `allocate` gives the memory of the columns. If they get more than
        `most_bytes` of it, by batches that are not plain, `read` raises ColumnsTooLarge. Unless they are to be copied,
        values are views (see `views.py`), also into the buffers that are read, which must not change then.

        Raises INVALID_REQUEST for an unknown or repeated column.
        """
        self._most_bytes = most_bytes
        require_columns(columns)
        self._names, self._copy = columns, copy
        self._columns = [_new_column(name, allocate, copy) for name in columns]
        self._constant = [column for column in self._columns if isinstance(column, ConstantColumn)]
        self._plain = PlainReader(self._columns)
        self._total_bytes = max(total_bytes, 1)
        self._done_bytes = 0
        self._room = Room()
        self._allocate = allocate
        self._piece = memoryview(b"")

    @property
    def size(self) -> int:
        """Bytes of all columns so far, or nearly."""
        return sum(column.size for column in self._columns)

    def read(
        self,
        buffer: Buffer,
        *,
        topic: str,
        partition: int,
        start_offset: int = 0,
        end_offset: int = END,
        aborted_transactions: Sequence[AbortedTransaction] | None = None,
        check_crcs: bool = True,
        max_bytes: int = END,
    ) -> tuple[int, int]:
        """Append the records of all complete batches in `buffer` with offsets from `start_offset` up to `end_offset`.

        Control batches are left out, and under read_committed (`aborted_transactions` not None) aborted ones too.
        A read whose columns have `max_bytes` of memory, or a little more, ends there, with a whole batch; what only
        headers count is not limited. Returns the offset behind the last batch, and the bytes of the log up to there.
        Raises CORRUPT_MESSAGE where the bytes are not as the format says, and the errors of `decompress`; what was
        read can't be used then.
        """
        for column in self._constant:
            column.begin(topic, partition)
        position, next_offset = 0, start_offset
        if max_bytes == END and not aborted_transactions:
            left_bytes = self._total_bytes - self._done_bytes
            position, next_offset = self._plain.read(buffer, start_offset, end_offset, check_crcs, left_bytes)
        headers = list(iter_headers(buffer, position))
        batches = [
            (position, header)
            for position, header in iter_visible(buffer, headers, aborted_transactions)
            if header.next_offset > start_offset and header.base_offset < end_offset
        ]
        for position, header in headers if check_crcs else ():  # also of what is left out: its header may be damaged
            is_wanted = header.next_offset > start_offset and header.base_offset < end_offset
            if is_wanted or header.last_offset_delta < 0:
                ensure_intact(buffer, position, header)
        if len(self._constant) == len(self._columns):
            batches, max_bytes = _count_whole(batches, start_offset, end_offset, self._constant), END
        done = self._fill(buffer, batches, start_offset, end_offset, max_bytes)
        self._done_bytes += len(buffer)
        if not headers:
            return next_offset, position
        position, last = headers[-1] if done == len(batches) else batches[done - 1]
        return last.next_offset, position + last.size_in_bytes

    def begin_files(self, found: Sequence[FileBatches], check_crcs: bool = True) -> FilesRead:
        """As `read`, with batches in files, in three steps. Next comes `run`, which needs no Python, in any thread, and
        then `end_files`.
        """
        size, rows = (sum(piece[item] for batches in found for piece in batches.pieces) for item in (1, 2))
        self._plain.reserve(rows, size, self._total_bytes - self._done_bytes)
        rows_of = [
            (batches.file.descriptor, position, size, batches.start_offset, *NOT_READ)
            for batches in found
            for position, size, _ in batches.pieces
        ]
        pieces = np.array(rows_of, np.int64).reshape(-1, PIECE_COLUMNS)
        return FilesRead(found, check_crcs, pieces, self._plain.begin_pieces(pieces, check_crcs))

    def end_files(self, begun: FilesRead) -> None:
        """Read also what is not plain. Raises what `read` and `file.read_into` raise."""
        left, fill = list(begun.found), begun.fill
        while left:
            done = self._plain.end_pieces(fill, self._total_bytes - self._done_bytes)
            left = self._count_files(left, done)
            for batches in left[:1]:  # begins with a piece that has something that is not plain
                position, size, _ = batches.pieces[0]
                self._extend(batches, done.rows_before, done.position)
                self._read_piece(batches, position + done.position, size - done.position, begun.check_crcs)
                left[:1] = [batches._replace(pieces=batches.pieces[1:])] if batches.pieces[1:] else []
            if count := sum(len(batches.pieces) for batches in left):
                fill = self._plain.begin_pieces(begun.pieces[-count:], begun.check_crcs)
                fill.run()

    def _count_files(self, found: Sequence[FileBatches], done: PiecesRead) -> list[FileBatches]:
        """Count the rows of pieces that were read; what is left then."""
        rows = done.rows
        for number, batches in enumerate(found):
            pieces, left = batches.pieces[: len(rows)], batches.pieces[len(rows) :]
            self._extend(batches, sum(rows[: len(pieces)]), sum(size for _, size, _ in pieces))
            if left:
                return [batches._replace(pieces=left), *found[number + 1 :]]
            rows = rows[len(pieces) :]
        return []

    def _extend(self, batches: FileBatches, rows: int, size: int) -> None:
        """Count rows of a partition that the other columns have, and the bytes of the log that they were in."""
        for column in self._constant:
            column.begin(batches.topic, batches.partition)
            column.extend(rows)
        self._done_bytes += size

    def _read_piece(self, batches: FileBatches, position: int, size: int, check_crcs: bool) -> None:
        """Read a piece to memory, and its records from there. Raises CORRUPT_MESSAGE if it ends within a batch."""
        if size > len(self._piece):
            self._piece = memoryview(self._allocate(size))
        data = self._piece[:size]
        batches.file.read_into(data, position)
        _, size_in_log = self.read(
            data,
            topic=batches.topic,
            partition=batches.partition,
            start_offset=batches.start_offset,
            check_crcs=check_crcs,
        )
        if self._plain.has_views:
            self._piece = memoryview(b"")
        if size_in_log < size:  # records follow in the next piece, so that these would be skipped
            message = f"A batch at position {position + size_in_log} is longer than its header said before"
            raise RaykaError(ErrorCode.CORRUPT_MESSAGE, message)

    def finish(self) -> pa.RecordBatch:
        """All that was read."""
        arrays = [column.finish() for column in self._columns]
        schema = _schema(tuple(self._names), self._copy)
        if [array.type for array in arrays] != schema.types:
            fields = [field.with_type(array.type) for field, array in zip(schema, arrays, strict=True)]
            schema = pa.schema(fields)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _fill(
        self,
        buffer: Buffer,
        batches: Sequence[PositionedHeader],
        start_offset: int,
        end_offset: int,
        max_bytes: int,
    ) -> int:
        """Append the records of the batches to the columns, up to `max_bytes`; how many batches that were."""
        done = 0
        for chunk in chunks(buffer, batches):
            done += len(chunk.headers)
            progress = (self._done_bytes + len(buffer) * done / len(batches)) / self._total_bytes
            records = locate_records(chunk, start_offset, end_offset, self._room, min(progress, 1.0))
            for column in self._columns:
                column.append(records)
            self._plain.rows += len(records.offsets)
            if max_bytes != END and self.size >= max_bytes:
                break
            if self.size > self._most_bytes:
                raise ColumnsTooLarge
        return done


def require_columns(names: Sequence[str]) -> None:
    """Raises INVALID_REQUEST for a column that there is not, or that is there twice."""
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        message = f"Unknown column: {', '.join(unknown)} (there are {', '.join(COLUMNS)})"
        raise RaykaError(ErrorCode.INVALID_REQUEST, message)
    if len(set(names)) < len(names):
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"A column comes twice: {', '.join(names)}")


@functools.lru_cache
def _schema(names: tuple[str, ...], copy: bool) -> pa.Schema:
    """That of these columns, unless one holds 2 GiB or more."""
    fields = [SCHEMA.field(name) for name in names]
    return pa.schema([each if copy or each.name != "value" else each.with_type(pa.binary_view()) for each in fields])


_NEW_COLUMN: Mapping[str, Callable[[Allocate], Column]] = {
    "key": KeyColumn,
    "value": ValueColumn,
    "topic": TopicColumn,
    "partition": PartitionColumn,
    "offset": OffsetColumn,
    "timestamp": TimestampColumn,
    "timestampType": TimestampTypeColumn,
    "headers": HeadersColumn,
}


def _new_column(name: str, allocate: Allocate, copy: bool) -> Column:
    if name == "value" and not copy:
        return ValueViewsColumn(allocate)
    return _NEW_COLUMN[name](allocate)


def _count_whole(
    batches: Sequence[PositionedHeader], start_offset: int, end_offset: int, columns: Sequence[ConstantColumn]
) -> list[PositionedHeader]:
    """Where nothing of a record itself is wanted, headers count them; the batches in which only some count are left."""
    left = []
    for position, header in batches:
        is_whole = start_offset <= header.base_offset and header.next_offset <= end_offset
        if is_whole and 0 <= header.record_count <= header.last_offset_delta + 1 and _has_room_for_all(header):
            for column in columns:
                column.extend(header.record_count)
        else:
            left.append((position, header))
    return left


def _has_room_for_all(header: BatchHeader) -> bool:
    """Whether a batch of its size can have the records that the header counts."""
    ratio = _LIKELY_RATIO if header.attributes & CODEC_MASK else 1
    return header.record_count * MIN_RECORD_SIZE <= ratio * (header.size_in_bytes - RECORD_BATCH_OVERHEAD)
