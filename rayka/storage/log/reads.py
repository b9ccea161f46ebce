"""Reading a log: by offset, by timestamp, and what a reader of committed records needs to know.

A reader gets a slice of a segment file. The place of the high watermark is kept with it, and the places
where readers at the end will come back are remembered, so a read at the tail looks nothing up.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, groupby, islice

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.files import storing
from rayka.storage.log.state import LogState
from rayka.storage.segments.search import offset_for_timestamp, offset_of_max_timestamp, offsets_of_segments
from rayka.storage.segments.transaction_index import AbortedTxn
from rayka.types import AbortedTransaction, FileSlice, OffsetAnswer, OffsetSpec


class LogReads(LogState):
    """The part of `Log` that reads."""

    def read(
        self, offset: int, max_bytes: int, upper_bound_offset: int, min_one_message: bool = True
    ) -> FileSlice | None:
        """The bytes from the batch that has `offset` on, below `upper_bound_offset`; None if there are none.

        At most `max_bytes`, cut at the end of a batch where the index knows one, but the whole first batch if
        `min_one_message`. A slice lies in one segment. Raises OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE,
        KAFKA_STORAGE_ERROR, and OFFSET_MOVED_TO_TIERED_STORAGE below the local log start offset.
        """
        if self._disk.error is not None:
            self._disk.check_readable()
        if not self.local_log_start_offset <= offset < upper_bound_offset:
            self._check_range(offset)
            if offset == self.high_watermark:
                self._local.remember(offset, self._high_watermark_place)
            return None
        try:
            at_high_watermark = upper_bound_offset == self.high_watermark
            end = self._high_watermark_place if at_high_watermark else self._local.place_of(upper_bound_offset)
            return self._local.read(offset, max_bytes, upper_bound_offset, end, min_one_message)
        except OSError as error:
            raise self.failed(error) from error

    def ends_before(self, records: FileSlice, upper_bound_offset: int) -> bool:
        """Whether `read` has just ended these records before `upper_bound_offset`: more can be read."""
        return self._local.ends_before(records, upper_bound_offset)

    def segment_end(self, fetch_offset: int, records: FileSlice) -> int:
        """The offset at which the segment of a slice ends that was read from `fetch_offset` on; of another file than
        one of this log, the log end offset.
        """
        return self._local.segment_end(fetch_offset, records)

    def _check_range(self, offset: int) -> None:
        if not self.log_start_offset <= offset <= self._local.log_end_offset:
            raise RaykaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} is out of range for {self.topic_partition}, which has offsets from"
                f" {self.log_start_offset} to {self.log_end_offset}",
            )
        if offset < self.local_log_start_offset:
            raise RaykaError(
                ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
                f"Offset {offset} of {self.topic_partition} is only in the remote store",
            )

    @storing
    def offset_for_timestamp(self, timestamp: int) -> OffsetAnswer | None:
        """The first record at or after `timestamp` (milliseconds), None if all are before."""
        return offset_for_timestamp(self._segments, timestamp, self.local_log_start_offset)

    @storing
    def offsets_of_segments(self, timestamp: int, max_offsets: int) -> tuple[int, ...]:
        """In descending order, where segments begin that were last written to by `timestamp`: the answer to
        ListOffsets 0. `OffsetSpec.LATEST` asks for the high watermark and all segments below it."""
        end = (self.high_watermark,) if timestamp == OffsetSpec.LATEST else ()
        found = chain(end, offsets_of_segments(self._segments, timestamp, self.log_start_offset))
        distinct = (offset for offset, _ in groupby(min(offset, self.high_watermark) for offset in found))
        return tuple(islice(distinct, max_offsets))

    @storing
    def max_timestamp(self) -> OffsetAnswer | None:
        """The record with the largest timestamp, None if no record has one (KIP-734)."""
        return offset_of_max_timestamp(self._segments, self.local_log_start_offset)

    def aborted_transactions(self, fetch_offset: int, records: FileSlice | None) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions that a reader of `records` may meet, by first offset (KIP-98)."""
        active = self._segments.active
        if records is None or (fetch_offset >= active.base_offset and active.transaction_index.is_known_empty):
            return ()
        return self._find_aborted(fetch_offset, records)

    @storing
    def _find_aborted(self, fetch_offset: int, records: FileSlice) -> tuple[AbortedTransaction, ...]:
        found = []
        upper_bound = -1
        for aborted in self._aborted_from(fetch_offset):
            if upper_bound < 0:
                upper_bound = min(self._local.end_of(fetch_offset, records), self.last_stable_offset)
            if aborted.first_offset < upper_bound:
                found.append(AbortedTransaction(aborted.producer_id, aborted.first_offset))
            if aborted.last_stable_offset >= upper_bound:
                break  # every later one begins above that
        return tuple(sorted(found, key=lambda aborted: aborted.first_offset))

    @storing
    def aborted_before(self, end_offset: int) -> tuple[AbortedTxn, ...]:
        """The transactions that were aborted in the local segments and began before `end_offset`."""
        found = []
        for aborted in self._aborted_from(self.local_log_start_offset):
            if aborted.first_offset < end_offset:
                found.append(aborted)
            if aborted.last_stable_offset >= end_offset:
                break
        return tuple(found)

    def _aborted_from(self, offset: int) -> Iterator[AbortedTxn]:
        for segment in self._segments.from_offset(offset):
            yield from segment.transaction_index.ending_from(offset)
