"""Records of a fetch, located by compiled code: each becomes an object when it is accessed.

Importing this module imports numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np

from rayka.client.consumer.records import ConsumerRecord
from rayka.client.native import make_records, native_records
from rayka.storage.columns.chunks import (
    FieldPositions,
    LocatedHeaders,
    Room,
    joined,
    locate_all_headers,
    locate_records,
    sliced,
)
from rayka.storage.format.batch import CODEC_MASK, BatchHeader, ensure_intact
from rayka.storage.format.order import PositionedHeader
from rayka.storage.format.records import HEADER_KEY_ERRORS, Headers, record_bytes
from rayka.types import TimestampType, TopicPartition

MAX_BYTES = 64 << 20
"""What the batches that are located together may decompress to. All of it stays in memory, at positions of 4 bytes."""
_BLOCK_BYTES = 1 << 17
"""The most bytes of records that are made together, so that they are in the processor's cache when they are used."""
_FIRST, _END = -(2**63), 2**63 - 1
_new = tuple.__new__
is_native = native_records is not None


def locate_batches(
    buffer: memoryview,
    batches: Sequence[PositionedHeader],
    position: int,
    topic_partition: TopicPartition,
    check_crcs: bool,
) -> LocatedRecords:
    """The records of these batches from offset `position` on.

    Raises CORRUPT_MESSAGE for any of them, and MESSAGE_TOO_LARGE where they can't be in memory together.
    """
    if check_crcs:
        for place, header in batches:
            ensure_intact(buffer, place, header)
    if any(header.attributes & CODEC_MASK for _, header in batches):
        chunk = joined(list(_decompressed(buffer, batches)))
    else:
        chunk = sliced(buffer, batches)
    first_offset = position if batches[0][1].base_offset < position else _FIRST
    records = locate_records(chunk, first_offset, _END, Room(), 1.0)
    return LocatedRecords(topic_partition, records, locate_all_headers(records) if records.has_headers else None)


def _decompressed(buffer: memoryview, batches: Sequence[PositionedHeader]) -> Iterator[tuple[BatchHeader, bytes]]:
    """The batches with their records. Raises MESSAGE_TOO_LARGE for more than `MAX_BYTES` in all."""
    left = MAX_BYTES
    for place, header in batches:
        records = record_bytes(buffer, place, header, left)
        left -= len(records)
        yield header, records


class LocatedRecords:
    """Records whose fields are known by their places in memory, which stays as long as this does."""

    __slots__ = (
        "_begins",
        "_data",
        "_ends",
        "_has_keys",
        "_headers",
        "_keys",
        "_offsets",
        "_partition",
        "_timestamp_type",
        "_timestamp_types",
        "_timestamps",
        "_topic",
        "_values",
    )

    def __init__(self, topic_partition: TopicPartition, records: Any, headers: LocatedHeaders | None) -> None:
        self._topic, self._partition = topic_partition
        self._data: Any = records.data
        self._begins, self._ends = records.keys.positions, records.record_ends
        self._offsets, self._timestamps = records.offsets, records.timestamps
        types = records.timestamp_types
        is_uniform = not len(types) or bool((types == types[0]).all())
        self._timestamp_type = TimestampType(int(types[0]) if len(types) and is_uniform else 0)
        self._timestamp_types = None if is_uniform else types
        self._keys, self._has_keys = records.keys, bool((records.keys.lengths >= 0).any())
        self._values = records.values
        self._headers = headers if headers is not None and len(headers.keys.lengths) else None

    def __len__(self) -> int:
        return len(self._offsets)

    def offset(self, number: int) -> int:
        """The offset of one record."""
        return int(self._offsets[number])

    def records(self, start: int, end: int) -> list[ConsumerRecord]:
        """The records with the numbers from `start` up to `end`, or as many of them as `_BLOCK_BYTES` hold."""
        if start == end:
            return []
        if not is_native or self._headers is not None or self._timestamp_types is not None:
            return self._records(start, end)
        columns = self._data, self._offsets, self._timestamps, *self._keys, *self._values
        common = ConsumerRecord, self._topic, self._partition, self._timestamp_type
        return make_records(common, columns, start, end, _BLOCK_BYTES)

    def _records(self, start: int, end: int) -> list[ConsumerRecord]:
        """As `records`, by plain Python."""
        first = int(self._begins[start])
        end = start + max(int(self._ends[start:end].searchsorted(first + _BLOCK_BYTES, "right")), 1)
        block = _Block(self._data[first : int(self._ends[end - 1])].tobytes(), first)
        types = self._timestamp_types
        fields = zip(
            repeat(self._topic, end - start),
            repeat(self._partition),
            self._offsets[start:end].tolist(),
            self._timestamps[start:end].tolist(),
            repeat(self._timestamp_type) if types is None else map(TimestampType, types[start:end].tolist()),
            repeat(None) if not self._has_keys else block.fields(self._keys, start, end),
            block.fields(self._values, start, end),
            repeat(()) if self._headers is None else block.headers(self._headers, start, end),
            strict=False,
        )
        return list(map(_new, repeat(ConsumerRecord), fields))


class _Block(NamedTuple):
    """The bytes of some records: slices of bytes are bytes. A copy of few records stays in the processor's cache."""

    data: bytes
    position: int

    def fields(self, fields: FieldPositions, start: int, end: int) -> list[bytes | None]:
        """The fields with the numbers from `start` up to `end`."""
        data, lengths = self.data, fields.lengths[start:end]
        begins = fields.positions[start:end] - self.position
        ends = begins + np.maximum(lengths, 0)
        found: list[bytes | None] = [data[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
        for number in (lengths < 0).nonzero()[0].tolist():
            found[number] = None
        return found

    def headers(self, headers: LocatedHeaders, start: int, end: int) -> list[Headers]:
        """The headers of the records with the numbers from `start` up to `end`."""
        rows = headers.rows[start : end + 1].tolist()
        first, last = rows[0], rows[-1]
        names = [
            name.decode("utf-8", HEADER_KEY_ERRORS)
            for name in self.fields(headers.keys, first, last)
            if name is not None
        ]
        pairs = list(zip(names, self.fields(headers.values, first, last), strict=True))
        return [tuple(pairs[a - first : b - first]) for a, b in pairwise(rows)]
