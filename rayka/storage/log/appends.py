"""Appending to a log as a leader: check all batches, write them with one call, note leader epochs and producers."""

from __future__ import annotations

from typing import NamedTuple

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.files import storing
from rayka.storage.format.batch import CONTROL_FLAG, LOG_OVERHEAD, stamp
from rayka.storage.format.control import read_coordinator_epoch
from rayka.storage.log.state import LogState
from rayka.storage.log.validator import ValidatedRecords
from rayka.storage.producers.verification import Verification
from rayka.types import NO_TIMESTAMP

SNAPSHOT_BYTES = 32 << 20
"""A producer snapshot is taken after this many bytes, so that a restart has little to read again,"""
SNAPSHOT_BYTES_FOR_EACH_PRODUCER = 4096
"""and this many more for each producer, so that it costs little even with many."""


class AppendInfo(NamedTuple):
    """Offsets of the first and last record that were appended, or of the earlier append of a duplicate.

    `log_append_time_ms` is -1 unless the log sets the timestamps.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int = NO_TIMESTAMP
    log_start_offset: int = 0
    is_duplicate: bool = False


class LogAppends(LogState):
    """The part of `Log` that puts batches at its end."""

    def append_as_leader(
        self,
        records: bytearray | memoryview,
        leader_epoch: int,
        now_ms: int,
        *,
        origin_is_client: bool = True,
        verification: Verification | None = None,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """Append batches, which get the next offsets. All of them or, with an error, none.

        `records` is stamped in place. A batch that an idempotent producer sent before is not appended again.
        Raises CORRUPT_MESSAGE, INVALID_RECORD, INVALID_TIMESTAMP, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE,
        UNSUPPORTED_COMPRESSION_TYPE, UNSUPPORTED_FOR_MESSAGE_FORMAT, OUT_OF_ORDER_SEQUENCE_NUMBER,
        INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, KAFKA_STORAGE_ERROR.
        """
        if not self._disk.takes_appends:
            self._disk.check_appendable()
        self._now_ms = now_ms
        records, headers = batches = self._validator.validate(records, now_ms, from_client=origin_is_client)
        duplicate = self._producers.check(headers, from_client=origin_is_client, verification=verification)
        if duplicate is not None:
            append_time_ms = self._validator.log_append_time(duplicate.timestamp)
            return AppendInfo(
                duplicate.first_offset, duplicate.last_offset, append_time_ms, self.log_start_offset, is_duplicate=True
            )
        if not origin_is_client:
            self._check_markers(batches, transaction_version)
        base_offset = self._local.log_end_offset
        try:
            last_offset = self._write(batches, base_offset, leader_epoch, now_ms, transaction_version)
        except OSError as error:
            raise self._disk.append_failed(error) from error
        return AppendInfo(base_offset, last_offset, self._validator.log_append_time(now_ms), self.log_start_offset)

    def _check_markers(self, batches: ValidatedRecords, transaction_version: int) -> None:
        records, headers = batches
        position = 0
        for header in headers:
            if header.attributes & CONTROL_FLAG and header.producer_id >= 0:
                coordinator_epoch = read_coordinator_epoch(records, position, header)
                self._producers.check_marker(header, coordinator_epoch, transaction_version)
            position += header.size_in_bytes

    def _write(
        self, batches: ValidatedRecords, base_offset: int, leader_epoch: int, now_ms: int, transaction_version: int
    ) -> int:
        """Stamp the batches, write them and take note of their producers; the last offset."""
        records, headers = batches
        position, next_offset = 0, base_offset
        for header in headers:
            stamp(records, position, next_offset, leader_epoch)
            next_offset += header.last_offset_delta + 1
            position += header.batch_length + LOG_OVERHEAD
        self._make_room(position, next_offset - 1, headers[-1].max_timestamp, now_ms)
        if leader_epoch != self._epochs.latest:
            self._epochs.assign(leader_epoch, base_offset)
        self._local.append(records, headers, next_offset, now_ms)
        for header in headers:
            if header.producer_id >= 0:
                self._remember_producers(batches, base_offset, now_ms, transaction_version)
                break
        return next_offset - 1

    def _remember_producers(
        self, batches: ValidatedRecords, base_offset: int, now_ms: int, transaction_version: int
    ) -> None:
        records, headers = batches
        position = 0
        for header in headers:
            aborted = self._producers.append(header, base_offset, records, position, now_ms, transaction_version)
            if aborted is not None:
                self._local.segments.active.add_aborted(aborted)
            position += header.batch_length + LOG_OVERHEAD
            base_offset += header.last_offset_delta + 1

    def _make_room(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> None:
        """Roll if it is time to."""
        if self._local.must_roll(size, last_offset, max_timestamp, now_ms):
            if size > self.config.segment_size:
                raise RaykaError(
                    ErrorCode.RECORD_LIST_TOO_LARGE,
                    f"{size} bytes in the append to {self.topic_partition} are more than segment.bytes,"
                    f" {self.config.segment_size}",
                )
            self._roll(now_ms)
        elif self._local.segments.active.size > self._next_snapshot_size:
            self._snapshot_producers()

    @storing
    def roll(self, now_ms: int) -> None:
        """Begin a new segment at the log end, unless the active one is empty, with a snapshot of the producers."""
        self._roll(now_ms)

    def _roll(self, now_ms: int) -> None:
        self._snapshot_producers()
        self._local.roll(now_ms)
        self._plan_snapshot()

    def _snapshot_producers(self) -> None:
        """Take a snapshot of the producers at the log end; the last one within a segment is not needed any more."""
        end_offset = self._local.log_end_offset
        self._local.segments.active.transaction_index.write()
        self._producers.take_snapshot(end_offset)
        self._producers.keep_snapshots({segment.base_offset for segment in self._local.segments} | {end_offset})
        self._plan_snapshot()

    def _plan_snapshot(self) -> None:
        """Set the size of the active segment at which the next snapshot is due."""
        distance = SNAPSHOT_BYTES + len(self._producers.entries) * SNAPSHOT_BYTES_FOR_EACH_PRODUCER
        self._next_snapshot_size = self._local.segments.active.size + distance
