"""Arrow arrays that grow chunk by chunk, one class for each kind of column.

The memory of a column is allocated by the size that the first chunk predicts, and touched once: fresh pages cost about
as much as all other work on them. Where later chunks are larger than predicted, it is allocated again and copied.
"""

from __future__ import annotations

import struct
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rayka.config.definition import INT_MAX
from rayka.storage.columns.chunks import ChunkRecords, FieldPositions, locate_all_headers
from rayka.storage.columns.decode import Bytes, gather

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")

_MAX_AHEAD_BYTES = 1 << 28
_SPARE = 1.05
_MICROSECONDS = 1000
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


class _Growing:
    """An array that gets longer. What is beyond `size` elements is not memory yet, only addresses.

    Arrow's allocator gives the memory: unlike NumPy's it keeps the pages of tables that are gone for the next ones.
    """

    def __init__(self, dtype: type[np.generic]) -> None:
        self._dtype = np.dtype(dtype)
        self.itemsize = self._dtype.itemsize
        self._allocate(0)
        self.size = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    def extend(self, count: int, progress: float) -> npt.NDArray[Any]:
        """`count` more elements, to be written."""
        start, self.size = self.size, self.size + count
        if self.size > len(self._array):
            expected = int(self.size / progress * _SPARE)
            written = self._array[:start]
            self._allocate(max(self.size, min(expected, self.size + _MAX_AHEAD_BYTES // self.itemsize)))
            self._array[:start] = written
        return self._array[start : self.size]

    def finish(self) -> npt.NDArray[Any]:
        """All elements."""
        return self._array[: self.size]

    def buffer(self) -> pa.Buffer:
        """All elements, as Arrow has them."""
        return self._buffer.slice(0, self.nbytes)

    def _allocate(self, count: int) -> None:
        self._buffer = pa.allocate_buffer(count * self.itemsize)
        self._array: npt.NDArray[Any] = np.frombuffer(self._buffer, self._dtype)


class _Binary:
    """Fields of bytes. Nulls are written once another field follows: in most columns of keys none does."""

    def __init__(self) -> None:
        self._nulls_ahead = 0
        self._copied = _Growing(np.uint8)
        self._offsets = _Growing(np.int64)
        self._is_valid = _Growing(np.uint8)
        self._offsets.extend(1, 1.0)[0] = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the fields and of the offsets to them."""
        return self._copied.nbytes + self._offsets.nbytes + self._nulls_ahead * self._offsets.itemsize

    def append(self, data: Bytes, fields: FieldPositions, size: int | None, progress: float) -> None:
        """Copy fields that have `size` bytes in all; None if all of them are null."""
        rows = len(fields.lengths)
        if size is None:
            self._nulls_ahead += rows
            return
        self._write_nulls(progress)
        start = self._copied.size
        copied = self._copied.extend(size, progress)
        gather(
            data, *fields, start, copied, self._offsets.extend(rows, progress), self._is_valid.extend(rows, progress)
        )

    def finish(self, small: pa.DataType, large: pa.DataType) -> pa.Array:
        """An array of type `small`, or `large` when its bytes are 2 GiB or more."""
        if not self._is_valid.size:
            return pa.nulls(self._nulls_ahead, small)
        self._write_nulls(1.0)
        is_valid = self._is_valid.finish()
        is_small = self._copied.size <= INT_MAX
        nulls = len(is_valid) - int(np.count_nonzero(is_valid))
        buffers = [
            pa.py_buffer(np.packbits(is_valid, bitorder="little")) if nulls else None,
            self._small_offsets() if is_small else self._offsets.buffer(),
            self._copied.buffer(),
        ]
        return pa.Array.from_buffers(small if is_small else large, len(is_valid), buffers, nulls)

    def _write_nulls(self, progress: float) -> None:
        self._offsets.extend(self._nulls_ahead, progress)[:] = self._copied.size
        self._is_valid.extend(self._nulls_ahead, progress)[:] = 0
        self._nulls_ahead = 0

    def _small_offsets(self) -> pa.Buffer:
        offsets = _Growing(np.int32)
        np.copyto(offsets.extend(self._offsets.size, 1.0), self._offsets.finish(), casting="unsafe")
        return offsets.buffer()


class KeyColumn:
    """The keys, as binary or large_binary."""

    def __init__(self) -> None:
        self._binary = _Binary()

    @property
    def size(self) -> int:
        """See `Column`."""
        return self._binary.nbytes

    def append(self, records: ChunkRecords) -> None:
        """See `Column`."""
        self._binary.append(records.data, records.keys, records.key_bytes, records.progress)

    def finish(self) -> pa.Array:
        """See `Column`."""
        return self._binary.finish(pa.binary(), pa.large_binary())


class ValueColumn(KeyColumn):
    """The values, as binary or large_binary."""

    def append(self, records: ChunkRecords) -> None:
        """See `Column`."""
        self._binary.append(records.data, records.values, records.value_bytes, records.progress)


class _NumberColumn:
    """A number of each record."""

    def __init__(self, dtype: type[np.generic], arrow_type: pa.DataType) -> None:
        self._numbers = _Growing(dtype)
        self._type = arrow_type

    @property
    def size(self) -> int:
        """See `Column`."""
        return self._numbers.nbytes

    def finish(self) -> pa.Array:
        """See `Column`."""
        numbers = self._numbers
        return pa.Array.from_buffers(self._type, numbers.size, [None, numbers.buffer()], 0)


class OffsetColumn(_NumberColumn):
    """The offsets, as int64."""

    def __init__(self) -> None:
        super().__init__(np.int64, pa.int64())

    def append(self, records: ChunkRecords) -> None:
        """See `Column`."""
        self._numbers.extend(len(records.offsets), records.progress)[:] = records.offsets


class TimestampColumn(_NumberColumn):
    """The timestamps in microseconds since the epoch, UTC."""

    def __init__(self) -> None:
        super().__init__(np.int64, TIMESTAMP_TYPE)

    def append(self, records: ChunkRecords) -> None:
        """See `Column`."""
        timestamps = records.timestamps
        np.multiply(timestamps, _MICROSECONDS, out=self._numbers.extend(len(timestamps), records.progress))


class TimestampTypeColumn(_NumberColumn):
    """0 for the producer's time, 1 for the log's, as int32."""

    def __init__(self) -> None:
        super().__init__(np.int32, pa.int32())

    def append(self, records: ChunkRecords) -> None:
        """See `Column`."""
        self._numbers.extend(len(records.timestamp_types), records.progress)[:] = records.timestamp_types


class ConstantColumn:
    """One value for all records of a partition: its subclasses have the topic and the number."""

    arrow_type: pa.DataType

    def __init__(self) -> None:
        self._partition: tuple[str, int] | None = None
        self._values: list[pa.Scalar] = []
        self._rows: list[int] = []
        self._value_size = 0
        self.size = 0

    def begin(self, topic: str, partition: int) -> None:
        """The records that follow are of this partition."""
        if self._partition == (topic, partition):
            return
        self._partition = topic, partition
        values = self._value(topic, partition)
        self._values.append(values[0])
        self._value_size = values.nbytes
        self._rows.append(0)

    def append(self, records: ChunkRecords) -> None:
        """See `Column`."""
        self.extend(len(records.offsets))

    def extend(self, rows: int) -> None:
        """Add `rows` rows."""
        self._rows[-1] += rows
        self.size += rows * self._value_size

    def finish(self) -> pa.Array:
        """See `Column`."""
        parts = [pa.repeat(value, rows) for value, rows in zip(self._values, self._rows, strict=True)]
        return pa.concat_arrays(parts) if parts else pa.nulls(0, self.arrow_type)

    def _value(self, topic: str, partition: int) -> pa.Array:
        """An array of the value alone: pa.scalar imports pandas."""
        raise NotImplementedError


class TopicColumn(ConstantColumn):
    """The topic, as a string."""

    arrow_type = pa.string()

    def _value(self, topic: str, partition: int) -> pa.Array:
        text = topic.encode()
        buffers = [None, pa.py_buffer(_INT.pack(0) + _INT.pack(len(text))), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), 1, buffers)


class PartitionColumn(ConstantColumn):
    """The number of the partition, as int32."""

    arrow_type = pa.int32()

    def _value(self, topic: str, partition: int) -> pa.Array:
        return pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(_INT.pack(partition))])


class HeadersColumn:
    """The headers, as a list of key and value; null for a record that has none."""

    def __init__(self) -> None:
        self._keys = _Binary()
        self._values = _Binary()
        self._ends = _Growing(np.int32)
        self._ends.extend(1, 1.0)[0] = 0
        self._count = 0

    @property
    def size(self) -> int:
        """See `Column`."""
        return self._keys.nbytes + self._values.nbytes + self._ends.nbytes

    def append(self, records: ChunkRecords) -> None:
        """See `Column`; raises CORRUPT_MESSAGE."""
        if not records.has_headers:
            self._ends.extend(len(records.offsets), records.progress)[:] = self._count
            return
        rows, keys, values = locate_all_headers(records)
        count = len(keys.lengths)
        ends = self._ends.extend(len(rows) - 1, records.progress)
        np.add(rows[1:], self._count, out=ends, casting="unsafe")
        self._count += count
        if count:
            self._keys.append(records.data, keys, _size(keys), records.progress)
            self._values.append(records.data, values, _size(values), records.progress)

    def finish(self) -> pa.Array:
        """See `Column`."""
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


def _strings(binary: _Binary) -> pa.Array:
    """Arrow strings are UTF-8: what is not comes out with replacement characters, as in Java."""
    array = binary.finish(pa.string(), pa.large_string())
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        names = array.view(pa.binary()).to_pylist()
        return pa.array([name.decode("utf-8", "replace") for name in names], pa.string())
    return array
