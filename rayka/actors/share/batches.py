"""The batches in a slice of a segment, from their headers only."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rayka.errors import ErrorCode, RaykaError
from rayka.share.acquire import AcquiredRecords
from rayka.share.isolation import BatchOutline
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD, read_header
from rayka.storage.segments.reader import open_segment
from rayka.types import FileSlice


class SlicedBatches:
    """The batches of a slice, read one header at a time as far as they are asked for.

    A batch that the slice cuts off is left out.
    """

    def __init__(self, records: FileSlice) -> None:
        self._records = records
        self._positions: list[tuple[int, int, int]] = []  # last offset, begin, end

    def __iter__(self) -> Iterator[BatchOutline]:
        """Raises KAFKA_STORAGE_ERROR if the segment can't be read."""
        position = self._records.position
        end = position + self._records.size
        with open_segment(self._records) as descriptor:
            while position + RECORD_BATCH_OVERHEAD <= end:
                header = read_header(os.pread(descriptor, RECORD_BATCH_OVERHEAD, position))
                batch_end = position + header.size_in_bytes
                if batch_end > end or header.size_in_bytes < RECORD_BATCH_OVERHEAD:
                    return
                self._positions.append((header.last_offset, position, batch_end))
                position = batch_end
                yield BatchOutline(
                    header.base_offset,
                    header.last_offset,
                    header.producer_id,
                    header.is_transactional,
                    header.is_control,
                )

    def of(self, acquired: Sequence[AcquiredRecords]) -> FileSlice:
        """The part of the slice from the first batch with acquired records to the last one."""
        first_offset, last_offset = acquired[0].first_offset, acquired[-1].last_offset
        begin = next(begin for last, begin, _ in self._positions if last >= first_offset)
        end = next((end for last, _, end in self._positions if last >= last_offset), None)
        if end is None:
            raise RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"offset {last_offset} was acquired and not read")
        return self._records._replace(position=begin, size=end - begin)
