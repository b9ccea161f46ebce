"""Records as columns of fields in memory, and the record batches that hold them; needs numpy.

A column comes from a list of bytes (`fields_of`) or from an Arrow array (`write.binary_fields`). Records are chosen and
put in another order by their positions, without copying their bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np

from rayka.storage.columns.compiled import CompiledFunction
from rayka.storage.columns.decode import Longs
from rayka.storage.columns.encode import Fields, encode
from rayka.storage.columns.lists import address_items
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD
from rayka.storage.format.builder import MAX_HEADER_OVERHEAD, MAX_RECORD_OVERHEAD
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import HEADER_KEY_ERRORS, seal_batch

NO_BYTES = np.empty(0, np.uint8)
NO_BYTES.flags.writeable = False
NO_FIELDS = Fields(NO_BYTES, np.empty(0, np.int64), np.empty(0, np.int64))
_NS = 1_000_000
_encode_briefly = cast(CompiledFunction, encode).run_briefly
_MAX_LONG = 2**63 - 1
_CONSTANT_ROWS = 1 << 17

TakeMemory = Callable[[int], memoryview | None]
"""Gives memory of a size to write a batch to, or None."""


class WrittenBatch(NamedTuple):
    """A record batch and the number of its records."""

    buffer: bytearray | memoryview
    record_count: int


class UnsealedBatch(NamedTuple):
    """The records of a batch, of which row `first_row` is the first, behind 61 bytes for its header."""

    buffer: memoryview
    first_row: int
    record_count: int
    max_timestamp: int


class Rows(NamedTuple):
    """Records. Record i has the headers from `header_rows[i]` up to `header_rows[i + 1]`; `timestamps` are in ms."""

    keys: Fields
    values: Fields
    header_rows: Longs
    header_keys: Fields
    header_values: Fields
    timestamps: Longs

    def take(self, chosen: Longs) -> Rows:
        """The records with these numbers, in this order."""
        starts, counts = self.header_rows[chosen], (self.header_rows[1:] - self.header_rows[:-1])[chosen]
        header_rows = np.zeros(len(chosen) + 1, np.int64)
        np.cumsum(counts, out=header_rows[1:])
        headers = np.arange(header_rows[-1]) + np.repeat(starts - header_rows[:-1], counts)
        return Rows(
            _take(self.keys, chosen),
            _take(self.values, chosen),
            header_rows,
            _take(self.header_keys, headers),
            _take(self.header_values, headers),
            self.timestamps[chosen],
        )

    def slice(self, start: int, end: int) -> Rows:
        """The records with the numbers from `start` up to `end`."""
        return Rows(
            _slice(self.keys, start, end),
            _slice(self.values, start, end),
            self.header_rows[start : end + 1],
            self.header_keys,
            self.header_values,
            self.timestamps[start:end],
        )

    def key(self, number: int) -> bytes | None:
        """The key of one record."""
        start, length = int(self.keys.positions[number]), int(self.keys.lengths[number])
        return None if length < 0 else self.keys.data[start : start + length].tobytes()

    def sizes(self) -> Longs:
        """The bytes of each record's key and value."""
        sizes: Longs = np.maximum(self.keys.lengths, 0) + np.maximum(self.values.lengths, 0)
        return sizes

    def max_bytes(self) -> int:
        """The most bytes that the records can take, without the headers of their batches."""
        first, last = int(self.header_rows[0]), int(self.header_rows[-1])
        of_headers = _slice(self.header_keys, first, last), _slice(self.header_values, first, last)
        content = sum(int(np.maximum(each.lengths, 0).sum()) for each in (self.keys, self.values, *of_headers))
        return self.most_bytes(content)

    def most_bytes(self, content: int) -> int:
        """As `max_bytes`, where the fields have so many bytes."""
        rows, headers = len(self.timestamps), int(self.header_rows[-1] - self.header_rows[0])
        return content + rows * MAX_RECORD_OVERHEAD + headers * MAX_HEADER_OVERHEAD


def fields_of(given: Sequence[bytes | None]) -> Fields:
    """A list of bytes, or None for null, as one column. Raises TypeError for a list of anything else."""
    addressed = address_items(given)
    return _joined(given) if addressed is None else Fields(*addressed)


def _joined(given: Sequence[bytes | None]) -> Fields:
    """As `fields_of`, for objects that are like bytes too, or lie in memory in another way: by a copy."""
    try:
        lengths = sizes = np.fromiter(map(len, given), np.int64, len(given))  # type: ignore[arg-type]
        data = b"".join(given)  # type: ignore[arg-type]
    except TypeError:  # there are nulls
        lengths = np.fromiter((-1 if each is None else len(each) for each in given), np.int64, len(given))
        data = b"".join([each for each in given if each is not None])
        sizes = np.maximum(lengths, 0)
    ends = np.cumsum(sizes)
    if len(data) != (int(ends[-1]) if len(ends) else 0):
        raise TypeError("the items must be bytes")
    return Fields(np.frombuffer(data, np.uint8) if data else NO_BYTES, ends - sizes, lengths)


def nulls(rows: int) -> Fields:
    """A column of nulls, which must not be changed."""
    return Fields(NO_BYTES, constant(0, rows), constant(-1, rows))


def constant(number: int, rows: int) -> Longs:
    """An array of the same number, which must not be changed; one that is not too long is made only once."""
    return _constants(number)[:rows] if rows <= _CONSTANT_ROWS else np.full(rows, number, np.int64)


@functools.cache
def _constants(number: int) -> Longs:
    made = np.full(_CONSTANT_ROWS, number, np.int64)
    made.flags.writeable = False
    return made


def rows_of(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Sequence[tuple[str, bytes | None]]] | None,
    timestamps: Longs,
) -> Rows:
    """Records of lists. Raises TypeError where values and keys are not bytes."""
    count = len(values)
    header_rows, header_keys, header_values = constant(0, count + 1), NO_FIELDS, NO_FIELDS
    if headers is not None and any(headers):
        header_rows = np.zeros(count + 1, np.int64)
        np.cumsum(np.fromiter(map(len, headers), np.int64, count), out=header_rows[1:])
        pairs = [pair for of_record in headers for pair in of_record]
        header_keys = fields_of([key.encode("utf-8", HEADER_KEY_ERRORS) for key, _ in pairs])
        header_values = fields_of([value for _, value in pairs])
    of_keys = nulls(count) if keys is None else fields_of(keys)
    return Rows(of_keys, fields_of(values), header_rows, header_keys, header_values, timestamps)


def write_rows(
    rows: Rows,
    *,
    max_batch_size: int,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    base_offset: int = 0,
    take_memory: TakeMemory | None = None,
) -> Iterator[WrittenBatch]:
    """The records in batches of at most `max_batch_size` bytes before compression.

    A record that is larger than a batch may be gets a batch of its own. Uncompressed batches share memory, which
    is from `take_memory`, if that has some.
    """
    for unsealed, first_row, record_count, max_timestamp in unsealed_batches(rows, max_batch_size, take_memory):
        buffer = seal_batch(
            unsealed,
            record_count=record_count,
            base_timestamp=int(rows.timestamps[first_row]),
            max_timestamp=max_timestamp,
            base_offset=base_offset + first_row,
            codec=codec,
            level=level,
        )
        yield WrittenBatch(buffer, record_count)


def unsealed_batches(
    rows: Rows, max_batch_size: int, take_memory: TakeMemory | None = None, *, is_brief: bool = False
) -> Iterator[UnsealedBatch]:
    """As `write_rows`, before headers and compression. `is_brief`: no other thread runs while these few are encoded."""
    size, count = rows.max_bytes(), len(rows.timestamps)
    max_batches = min(count, 2 * size // max(max_batch_size - RECORD_BATCH_OVERHEAD, 1) + 1)
    written = room_for(size + max_batches * RECORD_BATCH_OVERHEAD, take_memory)
    out, batches = np.frombuffer(written, np.uint8), np.empty((max_batches, 5), np.int64)
    run = _encode_briefly if is_brief else encode
    for start, end, first_row, record_count, max_timestamp in batches[
        : run(*rows, max_batch_size, out, batches, np.empty(count, np.int64))
    ].tolist():
        yield UnsealedBatch(written[start:end], first_row, record_count, max_timestamp)


def encode_lists(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None],
    headers: Sequence[Sequence[tuple[str, bytes | None]]],
    timestamps_ns: Sequence[int],
    take_memory: TakeMemory | None = None,
) -> memoryview | None:
    """As `builder.append_records`: the records of one batch behind 61 bytes for its header.

    They are in memory from `take_memory`, if that has some. None for a timestamp that is too large for this.
    """
    count = len(values)
    try:
        timestamps = np.fromiter(timestamps_ns, np.int64, count) // _NS
    except OverflowError:
        return None
    all_keys = [*keys, *[None] * (count - len(keys))] if keys else None
    all_headers = [*headers, *[()] * (count - len(headers))] if headers else None
    rows = rows_of(values, all_keys, all_headers, timestamps)
    written = room_for(rows.max_bytes() + RECORD_BATCH_OVERHEAD, take_memory)
    batches = np.empty((1, 5), np.int64)
    _encode_briefly(*rows, _MAX_LONG, np.frombuffer(written, np.uint8), batches, np.empty(count, np.int64))
    return written[: int(batches[0, 1])]


def room_for(size: int, take_memory: TakeMemory | None) -> memoryview:
    """Memory of `size` bytes, from `take_memory` if that has some."""
    taken = None if take_memory is None else take_memory(size)
    return memoryview(np.empty(size, np.uint8)) if taken is None else taken  # type: ignore[arg-type]


def _slice(fields: Fields, start: int, end: int) -> Fields:
    return Fields(fields.data, fields.positions[start:end], fields.lengths[start:end])


def _take(fields: Fields, chosen: Longs) -> Fields:
    return Fields(fields.data, fields.positions[chosen], fields.lengths[chosen])
