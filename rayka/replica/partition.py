"""One replica of a partition, in its role: the log, and what only a leader knows.

A leader appends in its own epoch and refuses requests from a later one: the sender knows of a newer
leader. What is appended becomes visible when the high watermark passes it: at once with a single
replica, or, where the topic asks for a flush first (`flush.messages`), when the flush is done.
"""

from __future__ import annotations

import uuid

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.log.log import Log
from rayka.types import (
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    AppendResult,
    DeleteRecordsResult,
    EpochEndOffset,
    EpochQuery,
    FetchPartition,
    FetchResult,
    IsolationLevel,
    OffsetAnswer,
    OffsetQuery,
    OffsetSpec,
    TopicPartition,
)


class Partition:
    """A replica that leads (`leader_epoch` >= 0) or does not serve yet (-1)."""

    def __init__(self, log: Log, topic_id: uuid.UUID) -> None:
        self.log = log
        self.topic_id = topic_id
        self.leader_epoch = NO_LEADER_EPOCH

    @property
    def topic_partition(self) -> TopicPartition:
        """Which partition this is a replica of."""
        return self.log.topic_partition

    def become_leader(self, leader_epoch: int) -> None:
        """Lead in this epoch; an older one than the present is ignored."""
        if leader_epoch <= self.leader_epoch:
            return
        self.leader_epoch = leader_epoch
        self.advance_high_watermark()

    def resign(self) -> None:
        """Stop leading: every later request is refused."""
        self.leader_epoch = NO_LEADER_EPOCH

    def append(
        self, records: memoryview, leader_epoch: int, now_ms: int, *, origin_is_client: bool = True
    ) -> tuple[AppendResult, int]:
        """Append batches; the answer may be given when the high watermark is at the offset that comes with it.

        Raises RaykaError as `Log.append_as_leader`, and NOT_LEADER_OR_FOLLOWER.
        """
        if leader_epoch > self.leader_epoch or self.leader_epoch == NO_LEADER_EPOCH:
            raise RaykaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic_partition} has another leader")
        log = self.log
        info = log.append_as_leader(records, self.leader_epoch, now_ms, origin_is_client=origin_is_client)
        if not log.flush_due:
            log.update_high_watermark(log.log_end_offset)
        result = AppendResult(0, info.base_offset, info.log_append_time_ms, log.log_start_offset)
        return result, info.last_offset + 1

    def advance_high_watermark(self) -> bool:
        """Make visible what is as safe as the topic asks for; tells whether the high watermark moved."""
        before = self.log.high_watermark
        safe = self.log.recovery_point if self.log.flush_before_visible else self.log.log_end_offset
        if safe > before:
            self.log.update_high_watermark(safe)
        return self.log.high_watermark > before

    def fetch(
        self, request: FetchPartition, max_bytes: int, isolation: IsolationLevel, min_one_message: bool
    ) -> FetchResult:
        """Read up to `max_bytes` of what a reader of this isolation may see. Raises RaykaError."""
        self._check_epoch(request.current_leader_epoch)
        log = self.log
        committed = isolation is IsolationLevel.READ_COMMITTED
        bound = log.last_stable_offset if committed else log.high_watermark
        file_slice = log.read(request.fetch_offset, max_bytes, bound, min_one_message)
        aborted = log.aborted_transactions(request.fetch_offset, file_slice) if committed else None
        return FetchResult(0, log.high_watermark, log.last_stable_offset, log.log_start_offset, aborted, file_slice)

    def find_offset(self, query: OffsetQuery, isolation: IsolationLevel) -> OffsetAnswer:
        """Answer a ListOffsets query. Raises RaykaError."""
        self._check_epoch(query.current_leader_epoch)
        log = self.log
        end = log.last_stable_offset if isolation is IsolationLevel.READ_COMMITTED else log.high_watermark
        match query.timestamp:
            case OffsetSpec.EARLIEST | OffsetSpec.EARLIEST_LOCAL:
                return OffsetAnswer(0, log.log_start_offset, NO_TIMESTAMP, log.epoch_of(log.log_start_offset))
            case OffsetSpec.LATEST:
                return OffsetAnswer(0, end, NO_TIMESTAMP, self.leader_epoch)
            case OffsetSpec.LATEST_TIERED | OffsetSpec.EARLIEST_PENDING_UPLOAD:
                return OffsetAnswer(0)
            case OffsetSpec.MAX_TIMESTAMP:
                found = log.max_timestamp()
            case timestamp if timestamp >= 0:
                found = log.offset_for_timestamp(timestamp)
            case unknown:
                raise RaykaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {unknown} has no meaning")
        if found is None or found.offset >= end:
            return OffsetAnswer(0)
        return OffsetAnswer(0, found.offset, found.timestamp, log.epoch_of(found.offset))

    def epoch_end_offset(self, query: EpochQuery) -> EpochEndOffset:
        """Where an epoch ended (KIP-101). Raises RaykaError."""
        self._check_epoch(query.current_leader_epoch)
        epoch, end_offset = self.log.epoch_end_offset(query.leader_epoch)
        return EpochEndOffset(0, epoch, end_offset)

    def delete_records(self, offset: int) -> DeleteRecordsResult:
        """Move the log start offset up to `offset`, -1 for the high watermark. Raises RaykaError."""
        self._check_epoch(NO_LEADER_EPOCH)
        log = self.log
        log.delete_records(log.high_watermark if offset == -1 else offset)
        return DeleteRecordsResult(0, log.log_start_offset)

    def _check_epoch(self, client_epoch: int) -> None:
        """Compare the leader epoch that a client knows with ours (KIP-320)."""
        if self.leader_epoch == NO_LEADER_EPOCH:
            raise RaykaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic_partition} is not led here")
        if client_epoch == NO_LEADER_EPOCH or client_epoch == self.leader_epoch:
            return
        code = ErrorCode.FENCED_LEADER_EPOCH if client_epoch < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        raise RaykaError(code, f"{self.topic_partition} is in leader epoch {self.leader_epoch}, not {client_epoch}")
