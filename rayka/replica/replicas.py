"""The replicas that one process holds, all in one log directory, and the requests to them.

Errors stay with their partition: each method answers for every partition that it was asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from rayka.errors import ErrorCode, RaykaError
from rayka.replica.partition import Partition
from rayka.types import (
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

Answer = TypeVar("Answer")


class Replicas:
    """Partitions by name."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, Partition] = {}

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, topic_partition: object) -> bool:
        return topic_partition in self._partitions

    def add(self, partition: Partition) -> None:
        """Hold one more replica."""
        self._partitions[partition.topic_partition] = partition

    def remove(self, topic_partition: TopicPartition) -> Partition:
        """Let go of a replica."""
        return self._partitions.pop(topic_partition)

    def get(self, topic_partition: TopicPartition) -> Partition:
        """The replica. Raises UNKNOWN_TOPIC_OR_PARTITION if it is not held here."""
        partition = self._partitions.get(topic_partition)
        if partition is None:
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic_partition} is not held here")
        return partition

    def append(self, request: AppendRequest, now_ms: int) -> tuple[AppendResult, int]:
        """Append to one partition; the second value is the high watermark at which to answer, 0 for at once."""
        try:
            partition = self.get(request.topic_partition)
            result, required = partition.append(request.records, request.leader_epoch, now_ms)
        except RaykaError as error:
            return AppendResult(int(error.code), error_message=error.message), 0
        return result, 0 if partition.log.high_watermark >= required else required

    def fetch(self, requests: Sequence[FetchPartition], max_bytes: int, isolation: IsolationLevel) -> list[FetchResult]:
        """Read from each partition, in order, until `max_bytes` are together.

        The first records found are returned even when they are larger, so that every reader gets on.
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
            size = result.size
            left -= size
            empty = empty and not size
            results.append(result)
        return results

    def _refused(self, request: FetchPartition, error: RaykaError) -> FetchResult:
        partition = self._partitions.get(request.topic_partition)
        if partition is None or error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            return FetchResult(int(error.code))
        log = partition.log
        return FetchResult(int(error.code), log.high_watermark, log.last_stable_offset, log.log_start_offset)

    def list_offsets(self, queries: Sequence[OffsetQuery], isolation: IsolationLevel) -> list[OffsetAnswer]:
        """Find offsets by timestamp or `OffsetSpec`."""
        return self._each(queries, lambda partition, query: partition.find_offset(query, isolation), OffsetAnswer)

    def epoch_end_offsets(self, queries: Sequence[EpochQuery]) -> list[EpochEndOffset]:
        """Find where leader epochs ended."""
        return self._each(queries, Partition.epoch_end_offset, EpochEndOffset)

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
        return answers
