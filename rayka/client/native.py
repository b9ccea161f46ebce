"""The C code of `native_*.c`, where it was compiled. Elsewhere plain Python and numba do the same work."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

_INTERFACE = 2
"""What this version of rayka calls. A checkout may have code that was compiled from an earlier source."""


def _load() -> ModuleType | None:
    try:
        module = importlib.import_module("rayka.client.native_records")
    except ImportError:
        return None
    return module if getattr(module, "INTERFACE", None) == _INTERFACE else None


native_records = _load()

if TYPE_CHECKING:

    class RecordsBuilder:
        """A batch that is being filled. As a buffer: 61 bytes for the batch's header, and the records.

        `size` is the bytes of these. `append` adds records up to the size `reserved`, and `put` up to the size `limit`;
        it reserves `step` bytes more than it needs. `is_dropped`: `drop` was called.
        """

        def __new__(cls, limit: int, step: int) -> RecordsBuilder: ...
        def __len__(self) -> int: ...
        def __buffer__(self, flags: int, /) -> memoryview: ...
        @property
        def size(self) -> int: ...
        @property
        def reserved(self) -> int: ...
        @property
        def max_timestamp(self) -> int: ...
        @property
        def is_dropped(self) -> bool: ...

        def append(self, value: object, key: object, /) -> int | None:
            """Encode a record with the present time and return its index; None if a field is neither bytes nor None."""

        def put(self, value: bytes | None, key: bytes | None, timestamp: int, headers: bytes, /) -> int | None:
            """Encode a record with its encoded headers and return its index. The first may be larger than `limit`."""

        def timestamp(self, index: int, /) -> int:
            """The timestamp of a record, in ms."""

        def close(self) -> None:
            """Take no more records."""

        def drop(self) -> None:
            """Take no more records, and free the memory of these when nobody looks at it any more."""

    def make_records(
        common: tuple[Any, ...], columns: tuple[Any, ...], start: int, end: int, max_bytes: int
    ) -> list[Any]:
        """The records from `start` up to `end`, or fewer: each begins within `max_bytes` of keys and values.

        They are tuples of a type, with a topic, a partition and a timestamp type: these four are `common`. The columns
        are arrays: data, offsets, timestamps, positions and lengths of keys, positions and lengths of values. Raises
        ValueError for what is not inside of them.
        """

    def encode_rows(columns: tuple[Any, ...], out: memoryview, first_row: int, /) -> tuple[int, int]:
        """Write the rows from this one on as one batch without CRC, as many as there is room for.

        The columns are those of `Rows`. Other threads run meanwhile. Returns the row after the last one, and the size
        of the batch. Without room for a single row there is no batch. Raises ValueError for a field that is not in its
        column.
        """

    def measure_rows(columns: tuple[Any, ...], /) -> tuple[int, int, bool]:
        """The bytes of the largest record's key and value, those of all fields, and whether there are keys."""

else:
    encode_rows = getattr(native_records, "encode_rows", None)
    measure_rows = getattr(native_records, "measure_rows", None)
    RecordsBuilder = getattr(native_records, "RecordsBuilder", object)
    make_records = getattr(native_records, "make_records", None)
