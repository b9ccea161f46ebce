"""The batches in a slice of a segment, from their headers only."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from math import inf

from rayka.errors import ErrorCode, RaykaError
from rayka.share.acquire import AcquiredRecords
from rayka.share.isolation import BatchOutline
from rayka.storage.format.batch import (
    MAGIC,
    MAGIC_OFFSET,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    check_frame,
    ensure_intact,
    read_header,
)
from rayka.storage.format.order import PositionedHeader, in_order
from rayka.storage.format.records import corrupt_batch
from rayka.storage.segments.reader import open_segment
from rayka.types import AbortedTransaction, FileSlice


class SlicedBatches:
    """The batches of a slice, read one header at a time as far as they are asked for.

    They end before a damaged batch, as far as its header tells: nobody could read what is acquired behind it. The batch
    behind the slice shows whether the offsets of the last one in it are right.
    Whoever gets the records checks the CRCs. Those of batches that the group passes over are checked here: of control
    batches, and of transactional ones whose producer has `aborted` a transaction.
    """

    def __init__(
        self,
        records: FileSlice,
        fetch_offset: int,
        end_offset: float,
        aborted: Iterable[AbortedTransaction] = (),
        visible_offset: float = inf,
    ) -> None:
        """`fetch_offset` was read; the slice has no batch that ends behind `end_offset`. One that ends behind
        `visible_offset`, and those after it, are left out.
        """
        self._records = records
        self._fetch_offset = fetch_offset
        self._end_offset = end_offset
        self._visible_offset = visible_offset
        self._aborting = {each.producer_id for each in aborted}
        self._behind = -1
        self._positions: list[tuple[int, int, int]] = []  # last offset, begin, end

    def __iter__(self) -> Iterator[BatchOutline]:
        """Raises for the first batch, if it is damaged CORRUPT_MESSAGE, if it can't be read KAFKA_STORAGE_ERROR."""
        try:
            with open_segment(self._records) as descriptor:
                for position, header in in_order(self._headers(descriptor), self._fetch_offset, self._end_offset):
                    if position == self._behind or header.next_offset > self._visible_offset:
                        return
                    if self._may_be_left_out(header):
                        ensure_intact(os.pread(descriptor, header.size_in_bytes, position), 0, header)
                    self._positions.append((header.last_offset, position, position + header.size_in_bytes))
                    yield BatchOutline(
                        header.base_offset,
                        header.last_offset,
                        header.producer_id,
                        header.is_transactional,
                        header.is_control,
                    )
        except RaykaError:
            if not self._positions:
                raise

    def _may_be_left_out(self, header: BatchHeader) -> bool:
        return header.is_control or (header.is_transactional and header.producer_id in self._aborting)

    def _headers(self, descriptor: int) -> Iterator[PositionedHeader]:
        """Those of the batches in the slice, and of the one behind it if there is one before the end offset."""
        first = position = self._records.position
        end = min(position + self._records.size, os.fstat(descriptor).st_size)
        next_offset = self._fetch_offset
        while position == first or position + RECORD_BATCH_OVERHEAD <= end:
            header = read_header(os.pread(descriptor, RECORD_BATCH_OVERHEAD, position))
            check_frame(position, header)
            if position + header.size_in_bytes > end:
                if position == first:  # a slice has at least one batch
                    raise corrupt_batch(header, f"has {end - position} of its {header.size_in_bytes} bytes")
                break
            yield position, header
            position, next_offset = position + header.size_in_bytes, header.next_offset
        self._behind = position
        behind = os.pread(descriptor, RECORD_BATCH_OVERHEAD, position) if next_offset < self._end_offset else b""
        if len(behind) == RECORD_BATCH_OVERHEAD and behind[MAGIC_OFFSET] == MAGIC:
            yield position, read_header(behind)

    def of(self, acquired: Sequence[AcquiredRecords]) -> FileSlice:
        """The part of the slice from the first batch with acquired records to the last one."""
        first_offset, last_offset = acquired[0].first_offset, acquired[-1].last_offset
        begin = next(begin for last, begin, _ in self._positions if last >= first_offset)
        end = next((end for last, _, end in self._positions if last >= last_offset), None)
        if end is None:
            raise RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"offset {last_offset} was acquired and not read")
        return self._records._replace(position=begin, size=end - begin)
