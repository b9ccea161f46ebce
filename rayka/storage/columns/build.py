"""Arrow arrays that grow chunk by chunk, one class for each kind of column.

The memory of a column is allocated by the size that the first chunk predicts, and touched once: fresh pages cost about
as much as all other work on them. Where later chunks are larger than predicted, it is allocated again and copied.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rayka.config.definition import INT_MAX
from rayka.storage.columns.chunks import ChunkRecords, FieldPositions, locate_all_headers
from rayka.storage.columns.decode import Bytes, gather

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")

Allocate: TypeAlias = Callable[[int], pa.Buffer]
"""Gives memory of so many bytes, whatever they are. `pa.allocate_buffer` keeps the pages of tables that are gone for
the next ones, unlike NumPy."""

_NOTHING = pa.allocate_buffer(0)
_ZERO = np.zeros(1, np.int64)
"""Where the first field begins. No array has room for more in this memory, so nobody writes to it."""
_NO_ELEMENTS: dict[type[np.generic], npt.NDArray[Any]] = {
    dtype: np.frombuffer(_NOTHING, dtype) for dtype in (np.uint8, np.int32, np.int64)
}
_MAX_AHEAD_BYTES = 1 << 28
_SPARE = 1.05
_MICROSECONDS = 1000
_KEPT_VALUES = 256
_KEPT_ARRAYS = 16
_MOST_KEPT_BYTES = 2 << 20
_INT = struct.Struct("=i")


class Column(Protocol):
    """One column in the making."""

    @property
    def size(self) -> int:
        """Bytes of the column so far, or nearly."""

    def append(self, records: ChunkRecords) -> None:
        """Copy the column's part of a chunk, whose memory is reused afterwards."""

    def finish(self) -> pa.Array:
        """The whole column."""


class GrowingArray:
    """An array that gets longer. What is beyond `size` elements need not be memory yet, only addresses."""

    array: npt.NDArray[Any]
    """All that there is room for."""

    def __init__(self, dtype: type[np.generic], allocate: Allocate, width: int | None = None) -> None:
        """Each element is a number, or so many of them."""
        self._dtype = np.dtype(dtype)
        self._new_buffer = allocate
        self._element = () if width is None else (width,)
        self.itemsize = self._dtype.itemsize * (width or 1)
        self._buffer, self.array = _NOTHING, _NO_ELEMENTS[dtype].reshape(-1, *self._element)
        self.size = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    def extend(self, count: int, progress: float) -> npt.NDArray[Any]:
        """`count` more elements, to be written."""
        start, end = self.size, self.size + count
        if end > len(self.array):
            self.reserve(count, int(end / progress * _SPARE) - start)
        self.size = end
        return self.array[start:end]

    def start(self, first: npt.NDArray[Any]) -> None:
        """Begin with these elements, which are copied when others follow."""
        self._buffer, self.array, self.size = pa.py_buffer(first), first, len(first)

    @property
    def room(self) -> int:
        """How many more elements there is memory for."""
        return len(self.array) - self.size

    def reserve(self, count: int, expected: int) -> None:
        """Make room for `count` more elements, and if that needs other memory for as many as are expected."""
        least = self.size + count
        if least > len(self.array):
            written = self.array[: self.size]
            self._allocate(max(least, min(self.size + expected, least + _MAX_AHEAD_BYTES // self.itemsize)))
            self.array[: self.size] = written

    def finish(self) -> npt.NDArray[Any]:
        """All elements."""
        return self.array[: self.size]

    def buffer(self) -> pa.Buffer:
        """All elements, as Arrow has them."""
        return self._buffer.slice(0, self.nbytes)

    def _allocate(self, count: int) -> None:
        self._buffer = self._new_buffer(count * self.itemsize)
        self.array = np.frombuffer(self._buffer, self._dtype).reshape(-1, *self._element)


class BinaryBuilder:
    """Fields of bytes. Nulls are written once another field follows: in most columns of keys none does."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self.nulls_ahead = 0
        self.copied = GrowingArray(np.uint8, allocate)
        self.ends = GrowingArray(np.int64, allocate)
        self.ends.start(_ZERO)
        self.is_valid = GrowingArray(np.uint8, allocate)

    @property
    def nbytes(self) -> int:
        """Bytes of the fields and of the offsets to them."""
        return self.copied.nbytes + self.ends.nbytes + self.nulls_ahead * self.ends.itemsize

    def append(self, data: Bytes, fields: FieldPositions, size: int | None, progress: float) -> None:
        """Copy fields that have `size` bytes in all; None if all of them are null."""
        rows = len(fields.lengths)
        if size is None:
            self.nulls_ahead += rows
            return
        self.write_nulls(progress)
        start = self.copied.size
        copied = self.copied.extend(size, progress)
        gather(data, *fields, start, copied, self.ends.extend(rows, progress), self.is_valid.extend(rows, progress))

    def finish(self, small: pa.DataType, large: pa.DataType) -> pa.Array:
        """An array of type `small`, or `large` when its bytes are 2 GiB or more."""
        if not self.is_valid.size:
            return pa.nulls(self.nulls_ahead, small)
        self.write_nulls(1.0)
        is_valid = self.is_valid.finish()
        is_small = self.copied.size <= INT_MAX
        nulls = len(is_valid) - int(np.count_nonzero(is_valid))
        buffers = [
            pa.py_buffer(np.packbits(is_valid, bitorder="little")) if nulls else None,
            self._small_offsets() if is_small else self.ends.buffer(),
            self.copied.buffer(),
        ]
        return pa.Array.from_buffers(small if is_small else large, len(is_valid), buffers, nulls)

    def write_nulls(self, progress: float) -> None:
        """Write the nulls ahead: a field follows."""
        self.ends.extend(self.nulls_ahead, progress)[:] = self.copied.size
        self.is_valid.extend(self.nulls_ahead, progress)[:] = 0
        self.nulls_ahead = 0

    def _small_offsets(self) -> pa.Buffer:
        offsets = GrowingArray(np.int32, self._allocate)
        np.copyto(offsets.extend(self.ends.size, 1.0), self.ends.finish(), casting="unsafe")
        return offsets.buffer()


class KeyColumn:
    """The keys, as binary or large_binary."""

    def __init__(self, allocate: Allocate) -> None:
        self.binary = BinaryBuilder(allocate)

    @property
    def size(self) -> int:
        """See `Column`."""
        return self.binary.nbytes

    def append(self, records: ChunkRecords) -> None:
        """See `Column`."""
        self.binary.append(records.data, records.keys, records.key_bytes, records.progress)

    def finish(self) -> pa.Array:
        """See `Column`."""
        return self.binary.finish(pa.binary(), pa.large_binary())


class ValueColumn(KeyColumn):
    """The values, as binary or large_binary."""

    def append(self, records: ChunkRecords) -> None:
        """See `Column`."""
        self.binary.append(records.data, records.values, records.value_bytes, records.progress)


class NumberColumn:
    """A number of each record."""

    dtype: type[np.generic] = np.int64
    arrow_type: pa.DataType

    def __init__(self, allocate: Allocate) -> None:
        self.numbers = GrowingArray(self.dtype, allocate)

    @property
    def size(self) -> int:
        """See `Column`."""
        return self.numbers.nbytes

    def finish(self) -> pa.Array:
        """See `Column`."""
        numbers = self.numbers
        return pa.Array.from_buffers(self.arrow_type, numbers.size, [None, numbers.buffer()], 0)


class OffsetColumn(NumberColumn):
    """The offsets, as int64."""

    arrow_type = pa.int64()

    def append(self, records: ChunkRecords) -> None:
        """See `Column`."""
        self.numbers.extend(len(records.offsets), records.progress)[:] = records.offsets


class TimestampColumn(NumberColumn):
    """The timestamps in microseconds since the epoch, UTC."""

    arrow_type = TIMESTAMP_TYPE

    def append(self, records: ChunkRecords) -> None:
        """See `Column`."""
        timestamps = records.timestamps
        np.multiply(timestamps, _MICROSECONDS, out=self.numbers.extend(len(timestamps), records.progress))


class TimestampTypeColumn(NumberColumn):
    """0 for the producer's time, 1 for the log's, as int32."""

    dtype = np.int32
    arrow_type = pa.int32()

    def append(self, records: ChunkRecords) -> None:
        """See `Column`."""
        self.numbers.extend(len(records.timestamp_types), records.progress)[:] = records.timestamp_types


class ConstantColumn:
    """One value for all records of a partition: its subclasses have the topic and the number."""

    arrow_type: pa.DataType

    def __init__(self, allocate: Allocate) -> None:
        self._values: list[str | int] = []
        self._rows: list[int] = []
        self._value_size = 0
        self.size = 0

    def begin(self, topic: str, partition: int) -> None:
        """The records that follow are of this partition."""
        value = self._value(topic, partition)
        if self._values[-1:] != [value]:
            self._values.append(value)
            self._rows.append(0)
            self._value_size = _one(value).size

    def append(self, records: ChunkRecords) -> None:
        """See `Column`."""
        self.extend(len(records.offsets))

    def extend(self, rows: int) -> None:
        """Add `rows` rows."""
        self._rows[-1] += rows
        self.size += rows * self._value_size

    def finish(self) -> pa.Array:
        """See `Column`."""
        parts = [_repeated(value).rows(rows) for value, rows in zip(self._values, self._rows, strict=True) if rows]
        if len(parts) == 1:
            return parts[0]
        return pa.concat_arrays(parts) if parts else pa.nulls(0, self.arrow_type)

    def _value(self, topic: str, partition: int) -> str | int:
        raise NotImplementedError


class TopicColumn(ConstantColumn):
    """The topic, as a string."""

    arrow_type = pa.string()

    def _value(self, topic: str, partition: int) -> str:
        return topic


class PartitionColumn(ConstantColumn):
    """The number of the partition, as int32."""

    arrow_type = pa.int32()

    def _value(self, topic: str, partition: int) -> int:
        return partition


class _One(NamedTuple):
    """An array of one value, and its bytes: Arrow takes long to count them."""

    array: pa.Array
    size: int


class _Repeated:
    """A value in the rows of many tables, in memory that nobody can change."""

    def __init__(self, value: str | int) -> None:
        self._one = _one(value)
        self._array = self._one.array

    def rows(self, count: int) -> pa.Array:
        """The value in so many rows: a slice of what the next tables use too, unless it is large."""
        array, room = self._array, 1 << (count - 1).bit_length()
        if len(array) < count:
            if room * self._one.size > _MOST_KEPT_BYTES:
                return pa.repeat(self._one.array[0], count)
            self._array = array = _unchangeable(pa.repeat(self._one.array[0], room))
        return array.slice(0, count)


def _unchangeable(array: pa.Array) -> pa.Array:
    buffers = [None if buffer is None else pa.py_buffer(buffer.to_pybytes()) for buffer in array.buffers()]
    return pa.Array.from_buffers(array.type, len(array), buffers)


@functools.lru_cache(_KEPT_ARRAYS)
def _repeated(value: str | int) -> _Repeated:
    return _Repeated(value)


@functools.lru_cache(_KEPT_VALUES)
def _one(value: str | int) -> _One:
    """The value alone: pa.scalar imports pandas."""
    if isinstance(value, int):
        array = pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(_INT.pack(value))])
    else:
        text = value.encode()
        buffers = [None, pa.py_buffer(_INT.pack(0) + _INT.pack(len(text))), pa.py_buffer(text)]
        array = pa.Array.from_buffers(pa.string(), 1, buffers)
    return _One(array, array.nbytes)


class HeadersColumn:
    """The headers, as a list of key and value; null for a record that has none. In most topics none has any."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._rows = 0
        self._lists: _Lists | None = None

    @property
    def size(self) -> int:
        """See `Column`."""
        return self._rows * _INT.size if self._lists is None else self._lists.nbytes

    def append(self, records: ChunkRecords) -> None:
        """See `Column`; raises CORRUPT_MESSAGE."""
        if not records.has_headers:
            self.extend(len(records.offsets), records.progress)
            return
        if self._lists is None:
            self._lists = _Lists(self._allocate, self._rows, records.progress)
        self._lists.append(records)

    def extend(self, rows: int, progress: float) -> None:
        """Add `rows` records without headers."""
        if self._lists is None:
            self._rows += rows
        else:
            self._lists.extend(rows, progress)

    def finish(self) -> pa.Array:
        """See `Column`."""
        return pa.nulls(self._rows, HEADERS_TYPE) if self._lists is None else self._lists.finish()


class _Lists:
    """The headers of records of which some have any."""

    def __init__(self, allocate: Allocate, rows: int, progress: float) -> None:
        """`rows` without headers come first."""
        self._keys = BinaryBuilder(allocate)
        self._values = BinaryBuilder(allocate)
        self._ends = GrowingArray(np.int32, allocate)
        self._ends.extend(1 + rows, progress)[:] = 0
        self._count = 0

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._values.nbytes + self._ends.nbytes

    def append(self, records: ChunkRecords) -> None:
        rows, keys, values = locate_all_headers(records)
        count = len(keys.lengths)
        ends = self._ends.extend(len(rows) - 1, records.progress)
        np.add(rows[1:], self._count, out=ends, casting="unsafe")
        self._count += count
        if count:
            self._keys.append(records.data, keys, _size(keys), records.progress)
            self._values.append(records.data, values, _size(values), records.progress)

    def extend(self, rows: int, progress: float) -> None:
        self._ends.extend(rows, progress)[:] = self._count

    def finish(self) -> pa.Array:
        offsets = self._ends.finish()
        rows = len(offsets) - 1
        if not self._count:
            return pa.nulls(rows, HEADERS_TYPE)
        children = [_strings(self._keys), self._values.finish(pa.binary(), pa.large_binary())]
        struct = pa.Array.from_buffers(HEADERS_TYPE.value_type, self._count, [None], 0, children=children)
        has_headers = np.diff(offsets) > 0
        validity = pa.py_buffer(np.packbits(has_headers, bitorder="little"))
        nulls = rows - int(np.count_nonzero(has_headers))
        return pa.Array.from_buffers(HEADERS_TYPE, rows, [validity, self._ends.buffer()], nulls, children=[struct])


def _size(fields: FieldPositions) -> int | None:
    """The bytes of all fields, None if all are null."""
    if fields.lengths.max(initial=-1) < 0:
        return None
    return int(np.maximum(fields.lengths, 0).sum(dtype=np.int64))


def _strings(binary: BinaryBuilder) -> pa.Array:
    """Arrow strings are UTF-8: what is not comes out with replacement characters, as in Java."""
    array = binary.finish(pa.string(), pa.large_string())
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        names = array.view(pa.binary()).to_pylist()
        return pa.array([name.decode("utf-8", "replace") for name in names], pa.string())
    return array
