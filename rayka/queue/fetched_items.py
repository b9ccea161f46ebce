"""The items of a fetch, out of the record batches that came with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rayka.queue.leases import ItemRun
from rayka.queue.stored_value import Value, stored_values
from rayka.share.acquire import AcquiredRecords
from rayka.storage.format.batch import CONTROL_FLAG, BatchHeader, iter_headers
from rayka.storage.format.records import read_batch, read_values
from rayka.storage.segments.reader import SegmentReader
from rayka.types import FileSlice


def acquired_items(partition: int, records: bytes | FileSlice, acquired: Sequence[AcquiredRecords]) -> list[ItemRun]:
    """The acquired items among the records of whole batches; an offset without a record has none.

    Raises CORRUPT_MESSAGE, and KAFKA_STORAGE_ERROR if the slice can't be read.
    """
    runs: list[ItemRun] = []
    for first_offset, values in _values(records):
        last_offset = first_offset + len(values) - 1
        for acquired_first, acquired_last, delivery_count in acquired:
            begin, end = max(first_offset, acquired_first), min(last_offset, acquired_last) + 1
            if begin < end:
                part = values if len(values) == end - begin else values[begin - first_offset : end - first_offset]
                _add(runs, ItemRun(partition, begin, part, delivery_count))
    return runs


def _add(runs: list[ItemRun], run: ItemRun) -> None:
    """Add a run to the one before it, if it follows that at once."""
    last = runs[-1] if runs else None
    if last is not None and last.delivery_count == run.delivery_count and last.end_offset == run.first_offset:
        assert isinstance(last.values, list)
        last.values.extend(run.values)
    else:
        runs.append(run)


def _values(records: bytes | FileSlice) -> Iterator[tuple[int, list[Value]]]:
    """Values that follow each other, and the offset of the first. Large ones stay where they are."""
    if isinstance(records, FileSlice):
        large, records = stored_values(records)
        for offset, value in large:
            yield offset, [value]
        records = SegmentReader().read(records) if records.size else b""
    yield from _values_in(records)


def _values_in(data: bytes) -> Iterator[tuple[int, list[Value]]]:
    """As `_values`. A record without a value is an empty item."""
    for position, header in iter_headers(data):
        if header.attributes & CONTROL_FLAG:
            continue
        if header.last_offset_delta + 1 == header.record_count:
            yield header.base_offset, _present(read_values(data, position, header))
        else:
            yield from _scattered(data, position, header)


def _scattered(data: bytes, position: int, header: BatchHeader) -> Iterator[tuple[int, list[Value]]]:
    """As `_values_in`, for a batch with gaps, as compaction leaves them."""
    for record in read_batch(data, position, header):
        yield record.offset, _present([record.value])


def _present(values: Sequence[bytes | None]) -> list[Value]:
    return [b"" if value is None else value for value in values]
