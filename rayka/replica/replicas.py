"""The replicas that one process holds: requests about many partitions, answered partition by partition."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from rayka.errors import ErrorCode, RaykaError
from rayka.replica.partition import Appended, Partition
from rayka.storage.format.record_checks import RecordValidationError
from rayka.storage.producers.verification import Verification
from rayka.types import (
    NO_LEADER_EPOCH,
    ActiveProducers,
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
    TopicPartition,
)

_WITH_OFFSETS = frozenset((ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE))
"""Errors of a fetch whose answer tells the offsets of the log."""

Answer = TypeVar("Answer")

logger = logging.getLogger(__name__)


class Replicas:
    """The replicas that one process holds, by partition.

    Each method answers for every partition that it was asked about; an error stays with its partition. They answer also
    after an error that nobody expects, as Kafka does: whoever has waited for records would wait on without an answer.
    """

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, Partition] = {}

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, topic_partition: object) -> bool:
        return topic_partition in self._partitions

    def holds(self, partition: Partition) -> bool:
        """Whether this is the replica itself, and not one of a deleted topic of the same name."""
        return self._partitions.get(partition.topic_partition) is partition

    def add(self, partition: Partition) -> None:
        """Hold one more replica."""
        self._partitions[partition.topic_partition] = partition

    def remove(self, topic_partition: TopicPartition) -> Partition:
        """Stop holding a replica, and return it."""
        return self._partitions.pop(topic_partition)

    def get(self, topic_partition: TopicPartition) -> Partition:
        """The replica. Raises UNKNOWN_TOPIC_OR_PARTITION if it is not held here."""
        partition = self._partitions.get(topic_partition)
        if partition is None:
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic_partition} is not held here")
        return partition

    def append_position(self, topic_partition: TopicPartition) -> int:
        """Where in its file the next append to a partition will most likely begin; 0 if it is not held here."""
        partition = self._partitions.get(topic_partition)
        return 0 if partition is None else partition.log.append_position

    def append(
        self, request: AppendRequest, params: AppendParams, now_ms: int, verification: Verification | None = None
    ) -> Appended:
        """Append to one partition; an error is in the result."""
        try:
            return self.get(request.topic_partition).append(request, params, now_ms, verification)
        except RecordValidationError as error:
            return Appended(self._rejected(request.topic_partition, error))
        except RaykaError as error:
            return Appended(AppendResult(int(error.code), error_message=error.message))

    def _rejected(self, topic_partition: TopicPartition, error: RecordValidationError) -> AppendResult:
        """As Kafka, with the log start offset."""
        return AppendResult(
            int(error.code),
            log_start_offset=self.get(topic_partition).log.log_start_offset,
            error_message=error.message,
            record_errors=error.record_errors,
        )

    def fetch(self, requests: Sequence[FetchPartition], max_bytes: int, isolation: IsolationLevel) -> list[FetchResult]:
        """Read from each partition, in order, until there are `max_bytes`.

        The first records found are returned even when they are larger, so that every reader makes progress.
        """
        results = []
        left = max_bytes
        empty = True
        for request in requests:
            try:
                partition = self.get(request.topic_partition)
                result = partition.fetch(request, max(0, min(left, request.max_bytes)), isolation, empty)
            except RaykaError as error:
                result = self._refused(request, error)
            except Exception:
                result = FetchResult(_unexpected(request.topic_partition))
            size = result.size
            left -= size
            empty = empty and not size
            results.append(result)
        return results

    def are_readable(self, requests: Sequence[FetchPartition], isolation: IsolationLevel) -> bool:
        """Whether a reader of this isolation would get records, or an error, from any of the partitions."""
        if isolation is IsolationLevel.READ_UNCOMMITTED:
            return True
        for request in requests:
            partition = self._partitions.get(request.topic_partition)
            if (
                partition is None
                or partition.leader_epoch == NO_LEADER_EPOCH
                or partition.log.last_stable_offset > request.fetch_offset
            ):
                return True
        return False

    def _refused(self, request: FetchPartition, error: RaykaError) -> FetchResult:
        partition = self._partitions.get(request.topic_partition)
        if partition is None or error.code not in _WITH_OFFSETS:
            return FetchResult(int(error.code))
        log = partition.log
        return FetchResult(int(error.code), log.high_watermark, log.last_stable_offset, log.log_start_offset)

    def list_offsets(self, queries: Sequence[OffsetQuery], isolation: IsolationLevel) -> list[OffsetAnswer]:
        """Find offsets by timestamp or `OffsetSpec`."""
        return self._each(queries, lambda partition, query: partition.find_offset(query, isolation), OffsetAnswer)

    def epoch_end_offsets(self, queries: Sequence[EpochQuery]) -> list[EpochEndOffset]:
        """Find where leader epochs ended."""
        return self._each(queries, Partition.epoch_end_offset, EpochEndOffset)

    def active_producers(self, topic_partitions: Sequence[TopicPartition]) -> list[ActiveProducers]:
        """What the partitions remember of their producers."""
        answers = []
        for topic_partition in topic_partitions:
            try:
                answers.append(ActiveProducers(0, self.get(topic_partition).active_producers()))
            except RaykaError as error:
                answers.append(ActiveProducers(int(error.code)))
        return answers

    def delete_records(self, queries: Sequence[tuple[TopicPartition, int]]) -> list[DeleteRecordsResult]:
        """Move log start offsets up."""
        return self._each(queries, lambda partition, query: partition.delete_records(query[1]), DeleteRecordsResult)

    def _each(
        self,
        queries: Sequence[Any],
        answer: Callable[[Partition, Any], Answer],
        answer_type: Callable[[int], Answer],
    ) -> list[Answer]:
        answers = []
        for query in queries:
            try:
                answers.append(answer(self.get(query[0]), query))
            except RaykaError as error:
                answers.append(answer_type(int(error.code)))
            except Exception:
                answers.append(answer_type(_unexpected(query[0])))
        return answers


def _unexpected(topic_partition: TopicPartition) -> int:
    logger.exception("a request for %s failed", topic_partition)
    return int(ErrorCode.UNKNOWN_SERVER_ERROR)
