"""One replica of a partition, in its role: the log, and what only a leader knows.

A leader appends in its own epoch and refuses requests from any other. What it appends becomes visible when the
high watermark passes it: at once with a single replica, or, where the topic asks for a flush first
(`flush.messages`), when the flush is done.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import read_header
from rayka.storage.log.appends import AppendInfo
from rayka.storage.log.log import Log
from rayka.storage.producers.verification import Verification
from rayka.types import (
    ALL_ACKS,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    ActiveProducer,
    AppendParams,
    AppendRequest,
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

_DELETE = "delete"


class Appended(NamedTuple):
    """What became of one append. Respond with `result` when the high watermark is at `required_offset`.

    `is_visible` says that it is there already, which is also so where nothing was appended. `size` counts the bytes
    that readers get.
    """

    result: AppendResult
    required_offset: int = 0
    is_visible: bool = True
    size: int = 0


class Partition:
    """A replica that leads (`leader_epoch` >= 0) or does not serve yet (-1)."""

    def __init__(self, log: Log, topic_id: uuid.UUID, *, is_internal: bool = False) -> None:
        self.log = log
        self.topic_id = topic_id
        self._topic_id_bytes = topic_id.bytes
        self.is_internal = is_internal
        self.leader_epoch = NO_LEADER_EPOCH
        self._replica_count = 1
        self._in_sync_count = 1
        self._epoch_start_offset = 0

    @property
    def topic_partition(self) -> TopicPartition:
        """Which partition this is a replica of."""
        return self.log.topic_partition

    @property
    def has_one_replica(self) -> bool:
        """Whether no other broker has the partition too."""
        return self._replica_count == 1

    def become_leader(self, leader_epoch: int, *, replica_count: int = 1, in_sync_count: int = 1) -> None:
        """Lead in this epoch; both counts include this replica. An epoch older than the present is ignored."""
        if leader_epoch < self.leader_epoch:
            return
        self._replica_count = replica_count
        self._in_sync_count = in_sync_count
        if leader_epoch > self.leader_epoch:
            self.leader_epoch = leader_epoch
            self._epoch_start_offset = self.log.log_end_offset
            self.advance_high_watermark()

    def resign(self) -> None:
        """Stop leading: every later request is refused."""
        self.leader_epoch = NO_LEADER_EPOCH

    def append(
        self, request: AppendRequest, params: AppendParams, now_ms: int, verification: Verification | None = None
    ) -> Appended:
        """Append a client's batches; those that begin a transaction have a `verification`.

        Raises RaykaError as `Log.append_as_leader`, and NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_ID,
        INVALID_TOPIC_EXCEPTION, NOT_ENOUGH_REPLICAS.
        """
        leader_epoch = self.leader_epoch
        if leader_epoch == NO_LEADER_EPOCH or request.leader_epoch not in (leader_epoch, NO_LEADER_EPOCH):
            raise self._not_leader(request.leader_epoch)
        if request.topic_id is not None and request.topic_id != self._topic_id_bytes:
            raise self._other_topic(ErrorCode.UNKNOWN_TOPIC_ID)
        if self.is_internal and not params.internal_topics_allowed:
            topic = self.topic_partition.topic
            raise RaykaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic}")
        if params.acks == ALL_ACKS and self._in_sync_count < self._replica_count:
            self._check_in_sync_replicas()
        log = self.log
        info = log.append_as_leader(request.records, leader_epoch, now_ms, verification=verification)
        return self._appended(info, len(request.records))

    def append_as_coordinator(
        self,
        records: memoryview,
        now_ms: int,
        verification: Verification | None = None,
        transaction_version: int = 0,
    ) -> Appended:
        """Append batches of the broker's own making, markers of a `transaction_version` too.

        Raises RaykaError as `append`, and TRANSACTION_COORDINATOR_FENCED.
        """
        if self.leader_epoch == NO_LEADER_EPOCH:
            raise self._not_leader(NO_LEADER_EPOCH)
        info = self.log.append_as_leader(
            records,
            self.leader_epoch,
            now_ms,
            origin_is_client=False,
            verification=verification,
            transaction_version=transaction_version,
        )
        return self._appended(info, len(records))

    def begin_verification(self, request: AppendRequest, now_ms: int) -> Verification | None:
        """What appending this batch needs if it may begin a transaction here; None if the transaction is open.

        Raises NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_ID and, for what is not a batch, CORRUPT_MESSAGE.
        """
        if self.leader_epoch == NO_LEADER_EPOCH:
            raise self._not_leader(NO_LEADER_EPOCH)
        if request.topic_id is not None and request.topic_id != self._topic_id_bytes:
            raise self._other_topic(ErrorCode.UNKNOWN_TOPIC_ID)
        header = read_header(request.records)
        if not header.is_transactional:
            return None
        return self.log.begin_verification(header.producer_id, header.producer_epoch, header.base_sequence, now_ms)

    def active_producers(self) -> tuple[ActiveProducer, ...]:
        """What the log remembers of its producers (KIP-664). Raises NOT_LEADER_OR_FOLLOWER."""
        self._check_epoch(NO_LEADER_EPOCH)
        return tuple(
            ActiveProducer(
                entry.producer_id,
                entry.producer_epoch,
                entry.last_sequence,
                entry.last_seen_ms,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
            for entry in self.log.producers.values()
        )

    def _appended(self, info: AppendInfo, appended_bytes: int) -> Appended:
        log = self.log
        if not log.flush_due:
            log.update_high_watermark(log.log_end_offset)
        result = AppendResult(0, info.base_offset, info.log_append_time_ms, log.log_start_offset)
        required_offset = info.last_offset + 1
        size = 0 if info.is_duplicate else appended_bytes
        return Appended(result, required_offset, log.high_watermark >= required_offset, size)

    def _not_leader(self, leader_epoch: int) -> RaykaError:
        if self.leader_epoch == NO_LEADER_EPOCH:
            message = f"{self.topic_partition} is not led here"
        else:
            message = f"{self.topic_partition} is in leader epoch {self.leader_epoch}, not {leader_epoch}"
        return RaykaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)

    def _other_topic(self, code: ErrorCode) -> RaykaError:
        return RaykaError(code, f"the topic id of {self.topic_partition} is {self.topic_id}")

    def _check_in_sync_replicas(self) -> None:
        """Raise NOT_ENOUGH_REPLICAS if acks=all would promise too little.

        As in Kafka, `min.insync.replicas` asks for no more replicas than the partition has.
        """
        minimum = min(self.log.config.min_insync_replicas, self._replica_count)
        if self._in_sync_count < minimum:
            raise RaykaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic_partition} has {self._in_sync_count} in-sync replicas and needs {minimum}",
            )

    def advance_high_watermark(self) -> bool:
        """Make visible what is as safe as the topic asks for; returns whether the high watermark moved."""
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
        if request.topic_id is not None and request.topic_id != self._topic_id_bytes:
            raise self._other_topic(ErrorCode.INCONSISTENT_TOPIC_ID)
        log = self.log
        high_watermark, last_stable_offset = log.high_watermark, log.last_stable_offset
        committed = isolation is IsolationLevel.READ_COMMITTED
        bound = last_stable_offset if committed else high_watermark
        file_slice = log.read(request.fetch_offset, max_bytes, bound, min_one_message)
        aborted = log.aborted_transactions(request.fetch_offset, file_slice) if committed else None
        has_more = file_slice is not None and log.ends_before(file_slice, bound)
        return FetchResult(0, high_watermark, last_stable_offset, log.log_start_offset, aborted, file_slice, has_more)

    def find_offset(self, query: OffsetQuery, isolation: IsolationLevel, *, is_local: bool = False) -> OffsetAnswer:
        """Answer a ListOffsets query. Raises RaykaError.

        OFFSET_NOT_AVAILABLE says that the high watermark has yet to reach what was there when the leader was elected,
        so that an earlier leader may have answered with a later offset (KIP-207).
        OFFSET_MOVED_TO_TIERED_STORAGE says that the remote store is to be asked for a timestamp first; with `is_local`
        that was done.
        """
        self._check_epoch(query.current_leader_epoch)
        log = self.log
        if query.max_offsets is not None:
            return OffsetAnswer(0, offsets=log.offsets_of_segments(query.timestamp, query.max_offsets))
        end = log.last_stable_offset if isolation is IsolationLevel.READ_COMMITTED else log.high_watermark
        match query.timestamp:
            case OffsetSpec.EARLIEST:
                return self._offset_at(log.log_start_offset)
            case OffsetSpec.EARLIEST_LOCAL:
                return self._offset_at(log.local_log_start_offset)
            case OffsetSpec.LATEST:
                self._require_high_watermark()
                return OffsetAnswer(0, end, NO_TIMESTAMP, self.leader_epoch)
            case OffsetSpec.LATEST_TIERED:
                return self._offset_at(log.copied_offset) if log.config.remote_storage_enable else OffsetAnswer(0)
            case OffsetSpec.EARLIEST_PENDING_UPLOAD:
                return self._earliest_pending_upload()
            case OffsetSpec.MAX_TIMESTAMP:
                found = log.max_timestamp()
            case timestamp if timestamp >= 0:
                if log.log_start_offset < log.local_log_start_offset and not is_local:
                    raise RaykaError(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, f"{query} may be in the remote store")
                found = log.offset_for_timestamp(timestamp)
            case unknown:
                raise RaykaError(ErrorCode.UNSUPPORTED_VERSION, f"unsupported ListOffsets timestamp {unknown}")
        if found is None or found.offset >= end:
            self._require_high_watermark()
            return OffsetAnswer(0)
        return OffsetAnswer(0, found.offset, found.timestamp, log.epoch_of(found.offset))

    def _require_high_watermark(self) -> None:
        """Raise OFFSET_NOT_AVAILABLE while the end of the log, as readers see it, may be lower than it was before."""
        if self.log.high_watermark < self._epoch_start_offset:
            raise RaykaError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"The high watermark of {self.topic_partition} is {self.log.high_watermark}, and leader epoch "
                f"{self.leader_epoch} began at {self._epoch_start_offset}",
            )

    def _offset_at(self, offset: int) -> OffsetAnswer:
        return OffsetAnswer(0, offset, NO_TIMESTAMP, self.log.epoch_of(offset))

    def _earliest_pending_upload(self) -> OffsetAnswer:
        """The first offset that is not in the remote store; -1 while it is not known what is there (KIP-1023)."""
        log = self.log
        is_unknown = log.copied_offset < 0 and log.log_start_offset < log.local_log_start_offset
        if is_unknown or not log.config.remote_storage_enable:
            return OffsetAnswer(0)
        return self._offset_at(max(log.copied_offset + 1, log.log_start_offset))

    def epoch_end_offset(self, query: EpochQuery) -> EpochEndOffset:
        """Where an epoch ended (KIP-101). Raises RaykaError."""
        self._check_epoch(query.current_leader_epoch)
        epoch, end_offset = self.log.epoch_end_offset(query.leader_epoch)
        return EpochEndOffset(0, epoch, end_offset)

    def delete_records(self, offset: int) -> DeleteRecordsResult:
        """Move the log start offset up to `offset`, -1 for the high watermark.

        Raises OFFSET_OUT_OF_RANGE, INVALID_TOPIC_EXCEPTION for an internal topic, and POLICY_VIOLATION for one
        whose `cleanup.policy` does not have "delete".
        """
        self._check_epoch(NO_LEADER_EPOCH)
        log = self.log
        if self.is_internal:
            topic = self.topic_partition.topic
            raise RaykaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {topic}")
        if _DELETE not in log.config.cleanup_policy:
            raise RaykaError(
                ErrorCode.POLICY_VIOLATION, f"The cleanup.policy of {self.topic_partition} keeps records from deletion"
            )
        log.delete_records(log.high_watermark if offset == -1 else offset)
        return DeleteRecordsResult(0, log.log_start_offset)

    def _check_epoch(self, client_epoch: int) -> None:
        """Compare the leader epoch that a client knows with ours (KIP-320)."""
        if self.leader_epoch == NO_LEADER_EPOCH:
            raise self._not_leader(client_epoch)
        if client_epoch == NO_LEADER_EPOCH or client_epoch == self.leader_epoch:
            return
        code = ErrorCode.FENCED_LEADER_EPOCH if client_epoch < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        raise RaykaError(code, f"{self.topic_partition} is in leader epoch {self.leader_epoch}, not {client_epoch}")

    def validate_state(self) -> None:
        """Raise AssertionError if the offsets are out of order, or more replicas are in sync than there are."""
        log = self.log
        offsets = [log.log_start_offset, log.last_stable_offset, log.high_watermark, log.log_end_offset]
        assert offsets == sorted(offsets), f"{self.topic_partition}: {offsets}"
        assert self._in_sync_count <= self._replica_count, f"{self._in_sync_count} of {self._replica_count} in sync"
