"""The records of a batch while it fills: encoded at once by compiled code, or columns of them in plain Python."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import time_ns
from typing import Protocol, TypeVar

from rayka.actors.channel.memory_file import take_memory
from rayka.client.compiled import Compiled
from rayka.client.native import RecordsBuilder, native_records
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD
from rayka.storage.format.builder import append_records
from rayka.storage.format.records import encode_headers

Headers = Sequence[tuple[str, bytes | None]]
T = TypeVar("T")

NS = 1_000_000
"""Nanoseconds in a millisecond."""
PLAIN_OVERHEAD = 3 + 1 + 6 + 3 + 1 + 3 + 1
"""The most bytes beside the value, if that is below 512 KB, of a record without key, headers and given timestamp."""
KEY_OVERHEAD = 4
"""The most bytes that a key takes beside itself, above what null takes."""
_RESERVE_BYTES = 16_384
_RESERVE_STEPS = 16
"""A batch grows to its limit in at most this many steps, or in steps of `_RESERVE_BYTES` if these are larger."""
_FEW_RECORDS = 16
"""Plain Python encodes this many records in less time than compiled code needs to begin."""
_compiled = Compiled(
    "rayka.storage.columns.rows", "encode_lists", lambda encode: encode([b"value"], [b"key"], [()], [0])
)


class FillingRecords(Protocol):
    """The records of one batch. `size` is the most that it takes, and `append` adds records up to `reserved`.

    All but `append` are called under the accumulator's lock, or while no other thread knows the batch. `is_dropped`:
    the memory of the records was given up, but not that of their timestamps.
    """

    @property
    def size(self) -> int: ...
    @property
    def reserved(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def is_dropped(self) -> bool: ...

    def __len__(self) -> int:
        """How many there are."""

    def append(self, value: object, key: bytes | None, /) -> int | None:
        """Append a record with the present time; from any thread. Returns its index.

        None if nothing was appended, since nothing is reserved for it, the batch is closed, or the value is not bytes.
        """

    def add(self, value: bytes | None, key: bytes | None, timestamp: int, headers: Headers, size: int) -> int | None:
        """Append a record of at most `size` bytes, and return its index; None if the batch is too full for it.

        An empty batch takes any record.
        """

    def fill(self, values: list[bytes], timestamp: int, size: int) -> None:
        """Append records of together at most `size` bytes."""

    def timestamp(self, index: int, /) -> int:
        """The timestamp of a record, in ms."""

    def close(self) -> None:
        """Take no more records."""

    def encoded(self, may_share: bool) -> memoryview:
        """The records behind 61 bytes for the header of the batch; `may_share`: in memory that leaders read."""

    def drop(self) -> None:
        """Release the memory of the records, once nobody looks at it."""


class EncodedRecords(RecordsBuilder):
    """Records that `native_records.c` encodes when they are appended. Nothing interrupts it, so it needs no lock."""

    __slots__ = ()

    def add(self, value: bytes | None, key: bytes | None, timestamp: int, headers: Headers, size: int) -> int | None:
        """See `FillingRecords`."""
        return self.put(value, key, timestamp, encode_headers(headers) if headers else b"")

    def fill(self, values: list[bytes], timestamp: int, size: int) -> None:
        """See `FillingRecords`."""
        put = self.put
        for value in values:
            put(value, None, timestamp, b"")

    def encoded(self, may_share: bool) -> memoryview:
        """See `FillingRecords`."""
        records = memoryview(self)
        shared = take_memory(len(records)) if may_share else None
        if shared is None:
            return records
        shared[:] = records
        return shared


class RecordColumns:
    """The columns of records, which are encoded when the batch is sent.

    `keys` and `headers` may be shorter than the other columns: the records behind their ends have none.
    """

    __slots__ = (
        "_headers", "_is_closed", "_keys", "_limit", "_lock", "_step", "_timestamps_ns", "_values", "is_dropped",
        "reserved", "size",
    )  # fmt: skip

    def __init__(self, limit: int, step: int, lock: threading.Lock) -> None:
        """`lock` is the accumulator's, which the caller of `append` does not hold."""
        self._limit, self._step, self._lock = limit, step, lock
        self.size, self.reserved = RECORD_BATCH_OVERHEAD, 0
        self._values: list[bytes | None] = []
        self._timestamps_ns: list[int] = []
        self._keys: list[bytes | None] = []
        self._headers: list[Headers] = []
        self._is_closed = self.is_dropped = False

    def __len__(self) -> int:
        return len(self._timestamps_ns)

    def append(self, value: object, key: bytes | None, /) -> int | None:
        """See `FillingRecords`."""
        if type(value) is not bytes:
            return None
        with self._lock:  # Ctrl-C between `acquire()` and `try` would leave it locked, and nothing sent any more
            size = self.size + len(value) + PLAIN_OVERHEAD
            if key is not None:
                size += len(key) + KEY_OVERHEAD
            if size > self.reserved or self._is_closed:
                return None
            values = self._values
            index = len(values)
            try:
                values.append(value)
                if key is not None:
                    put_at(self._keys, index, key, None)
                self._timestamps_ns.append(time_ns())
            except BaseException:
                self._cut(index)
                raise
            self.size = size
            return index

    def add(self, value: bytes | None, key: bytes | None, timestamp: int, headers: Headers, size: int) -> int | None:
        """See `FillingRecords`."""
        index, size = len(self._values), self.size + size
        if index and size > self._limit:
            return None
        try:
            self._values.append(value)
            self._timestamps_ns.append(timestamp * NS)
            if key is not None:
                put_at(self._keys, index, key, None)
            if headers:
                put_at(self._headers, index, headers, ())
        except BaseException:
            self._cut(index)
            raise
        self.size = size
        if size > self.reserved:
            self.reserved = max(size, min(size + self._step, self._limit))
        return index

    def fill(self, values: list[bytes], timestamp: int, size: int) -> None:
        """See `FillingRecords`."""
        self._values += values
        self._timestamps_ns += [timestamp * NS] * len(values)
        self.size += size

    def _cut(self, count: int) -> None:
        """Keep the first `count` records: Ctrl-C may come when only some columns have the next one."""
        for column in (self._values, self._timestamps_ns, self._keys, self._headers):
            del column[count:]

    def timestamp(self, index: int, /) -> int:
        """See `FillingRecords`."""
        return self._timestamps_ns[index] // NS

    @property
    def max_timestamp(self) -> int:
        """The latest of the timestamps."""
        return max(self._timestamps_ns) // NS

    def close(self) -> None:
        """See `FillingRecords`."""
        self._is_closed = True

    def encoded(self, may_share: bool) -> memoryview:
        """See `FillingRecords`."""
        if len(self) > _FEW_RECORDS and _compiled.function is not None:
            take = take_memory if may_share else None
            encoded: memoryview | None = _compiled.function(
                self._values, self._keys, self._headers, self._timestamps_ns, take
            )
            if encoded is not None:
                return encoded
        _compiled.count(len(self))
        timestamps = [timestamp // NS for timestamp in self._timestamps_ns]
        return memoryview(append_records(self._values, self._keys, self._headers, timestamps))

    def drop(self) -> None:
        """See `FillingRecords`."""
        self._is_closed = self.is_dropped = True
        self._values, self._keys, self._headers = [], [], []


is_native = native_records is not None


def new_records(limit: int, lock: threading.Lock) -> FillingRecords:
    """Room for the records of a batch that is closed before it takes more than `limit` bytes."""
    step = max(_RESERVE_BYTES, limit // _RESERVE_STEPS)
    return EncodedRecords(limit, step) if is_native else RecordColumns(limit, step, lock)


def put_at(column: list[T], index: int, value: T, missing: T) -> None:
    """Append a value that is to have this index, behind missing ones if the column is shorter."""
    if len(column) != index:
        column.extend([missing] * (index - len(column)))
    column.append(value)
