"""The items of a fetch, out of the record batches that came with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from rayka.errors import ErrorCode, RaykaError
from rayka.queue.leases import ItemRun
from rayka.queue.stored_value import Value, stored_values
from rayka.share.acquire import AcquiredRecords
from rayka.storage.format.batch import CONTROL_FLAG, BatchHeader, ensure_intact, iter_headers
from rayka.storage.format.records import read_batch, read_values
from rayka.storage.segments.reader import SegmentReader
from rayka.types import FileSlice

Found: TypeAlias = tuple[int, list[Value]] | RaykaError


class AcquiredItems(NamedTuple):
    """Items, and what is wrong with a part of the records that is damaged, whose items are not among them."""

    runs: list[ItemRun]
    damage: RaykaError | None


def acquired_items(partition: int, records: bytes | FileSlice, acquired: Sequence[AcquiredRecords]) -> AcquiredItems:
    """The acquired items among the records of whole batches; an offset without a record has none.

    Raises KAFKA_STORAGE_ERROR if the slice can't be read.
    """
    runs: list[ItemRun] = []
    damage = None
    for found in _values(records):
        if isinstance(found, RaykaError):
            damage = damage or found
            continue
        first_offset, values = found
        last_offset = first_offset + len(values) - 1
        for acquired_first, acquired_last, delivery_count in acquired:
            begin, end = max(first_offset, acquired_first), min(last_offset, acquired_last) + 1
            if begin < end:
                part = values if len(values) == end - begin else values[begin - first_offset : end - first_offset]
                _add(runs, ItemRun(partition, begin, part, delivery_count))
    return AcquiredItems(runs, damage)


def _add(runs: list[ItemRun], run: ItemRun) -> None:
    """Add a run to the one before it, if it follows that at once."""
    last = runs[-1] if runs else None
    if last is not None and last.delivery_count == run.delivery_count and last.end_offset == run.first_offset:
        assert isinstance(last.values, list)
        last.values.extend(run.values)
    else:
        runs.append(run)


def _values(records: bytes | FileSlice) -> Iterator[Found]:
    """Values that follow each other, and the offset of the first; or an error. Large ones stay where they are."""
    if isinstance(records, FileSlice):
        large, records = stored_values(records)
        for offset, value in large:
            yield offset, [value]
        records = SegmentReader().read(records) if records.size else b""
    yield from _values_in(records)


def _values_in(data: bytes) -> Iterator[Found]:
    """As `_values`. Behind a damaged batch it goes on, if the length of the batch can be right."""
    end = 0
    try:
        for position, header in iter_headers(data):
            end = position + header.size_in_bytes
            yield from _values_of(data, position, header)
    except RaykaError as error:
        yield error
        return
    if end < len(data):
        yield RaykaError(ErrorCode.CORRUPT_MESSAGE, f"The record batch at position {end} ends too late")


def _values_of(data: bytes, position: int, header: BatchHeader) -> list[Found]:
    """Those of one batch. A record without a value is an empty item."""
    try:
        ensure_intact(data, position, header)
        if header.attributes & CONTROL_FLAG:
            return []
        if header.last_offset_delta + 1 == header.record_count:
            return [(header.base_offset, _present(read_values(data, position, header)))]
        # It has gaps, as compaction leaves them.
        return [(record.offset, _present([record.value])) for record in read_batch(data, position, header)]
    except RaykaError as error:
        return [error]


def _present(values: Sequence[bytes | None]) -> list[Value]:
    return [b"" if value is None else value for value in values]
