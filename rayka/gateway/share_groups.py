"""What needs both coordinators of a share group.

The group coordinator knows the members of the group, and which of its share-partitions have state. The share
coordinators keep that state (KIP-932). The group coordinator decides what has to be done, records that it is in
progress, and waits for the report. If no report comes, because the process that did the work ended, the next request
finds the record and does the work again.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

from rayka.coordinator.groups.records import TargetPartitions
from rayka.coordinator.groups.requests import NamedPartitions
from rayka.coordinator.groups.share.requests import (
    AlteredTopic,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupPartitionsRequest,
    ShareGroupStateDeletedRequest,
    ShareGroupStateInitializedRequest,
    SharePartitionToInitialize,
)
from rayka.coordinator.shares.requests import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    StateRequest,
)
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker, Shares
from rayka.types import IsolationLevel, OffsetQuery, OffsetSpec, TopicPartition

logger = logging.getLogger(__name__)

NONE = ErrorCode.NONE
UNKNOWN_LAG = -1
_AT_ONCE = 50
_TIMEOUT_S = 5.0
_BACKOFF_S = 0.05
# After an initialization the member gets its assignment at once, unless topics keep changing.
_ROUNDS = 3

R = TypeVar("R")
Partition: TypeAlias = tuple[uuid.UUID, int]


class SharePartitionOffset(NamedTuple):
    """Where a share-partition is. `lag` counts the records whose delivery is not complete; -1: not known."""

    partition: int
    start_offset: int = -1
    leader_epoch: int = 0
    lag: int = UNKNOWN_LAG
    error: ErrorCode = NONE
    error_message: str | None = None


class ShareTopicOffsets(NamedTuple):
    """The share-partitions of one topic."""

    topic_id: uuid.UUID
    topic_name: str
    partitions: tuple[SharePartitionOffset, ...]


async def ask_share_coordinator(shares: Shares, request: StateRequest[R], timeout_s: float = _TIMEOUT_S) -> R:
    """The response of a share coordinator. What may pass (it moves, or does not know a new topic yet) is waited for.

    Creates the state topic when it is first needed. Errors are in the response, or are raised once the time is over.
    """
    end = time.monotonic() + timeout_s
    while True:
        try:
            await shares.coordinator_of(request.coordinator_key)
            response: Any = await asyncio.wait_for(shares.execute(request), max(0.001, end - time.monotonic()))
            if not response.error.retriable or time.monotonic() >= end:
                found: R = response
                return found
        except TimeoutError:
            raise RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the share coordinator does not answer") from None
        except RaykaError as error:
            if not error.code.retriable or time.monotonic() >= end:
                raise
        await asyncio.sleep(_BACKOFF_S)


class ShareGroups:
    """Requests about share groups, carried out at whichever coordinators they need."""

    def __init__(self, broker: Broker) -> None:
        self._groups = broker.groups
        self._shares = broker.shares
        self._partitions = broker.partitions
        self._leaders = broker.share_leaders
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def heartbeat(self, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
        """A heartbeat. New share-partitions are initialized before the answer, so that it can have them already.

        If the second heartbeat for that fails, so does this one. It may count all the same: then the group has given
        the member its partitions, and tells them only to a member that says everything again, as after an error.
        """
        answer = await self._groups.execute(request)
        for _ in range(_ROUNDS):
            if not answer.to_initialize:
                return answer
            errors = await self._initialize(request.group_id, answer.state_epoch, answer.to_initialize)
            again = replace(request, member_epoch=answer.member_epoch, subscribed_topic_names=None)
            if any(errors.values()):
                return answer
            after = await self._groups.execute(again)
            if after.error is not NONE:
                return after
            answer = after if after.assignment is not None else replace(after, assignment=answer.assignment)
        await self._report(request.group_id, (), [(one.topic_id, one.partition) for one in answer.to_initialize])
        return answer

    async def _initialize(
        self, group_id: str, state_epoch: int, partitions: Sequence[SharePartitionToInitialize]
    ) -> dict[Partition, ErrorCode]:
        """Initialize share-partitions and report it. Of a topic either all count or none."""
        requests = [
            InitializeShareGroupStateRequest(group_id, one[0], one[1], state_epoch, one[2]) for one in partitions
        ]
        results = await asyncio.gather(*map(self._error_of, requests))
        errors = {(one.topic_id, one.partition): error for one, error in zip(partitions, results, strict=True)}
        failed = {topic_id for (topic_id, _), error in errors.items() if error is not NONE}
        if failed:
            names = ", ".join(sorted({error.name for error in errors.values() if error is not NONE}))
            logger.warning(
                "share group %s: partitions of %d topics have no state yet: %s", group_id, len(failed), names
            )
        good = [partition for partition in errors if partition[0] not in failed]
        await self._report(group_id, good, [partition for partition in errors if partition[0] in failed])
        return errors

    async def _report(self, group_id: str, good: Iterable[Partition], failed: Iterable[Partition]) -> None:
        """Tell the group coordinator which share-partitions have got state, and which have not."""
        await self._groups.execute(ShareGroupStateInitializedRequest(group_id, _by_topic(good), _by_topic(failed)))

    async def _error_of(self, request: StateRequest[Any]) -> ErrorCode:
        async with self._room:
            try:
                error: ErrorCode = (await ask_share_coordinator(self._shares, request)).error
            except RaykaError as refused:
                error = refused.code
        return error

    async def alter_offsets(self, request: AlterShareGroupOffsetsRequest) -> AlterShareGroupOffsetsResponse:
        """New start offsets; the response has what became of each partition."""
        if await self._is_read(request.group_id):
            return AlterShareGroupOffsetsResponse(ErrorCode.NON_EMPTY_GROUP, _reads(request.group_id))
        answer = await self._groups.execute(request)
        if answer.error is not NONE or not answer.to_initialize:
            return answer
        errors = await self._initialize(request.group_id, answer.state_epoch, answer.to_initialize)
        return replace(
            answer,
            topics=tuple(
                AlteredTopic(
                    altered.topic_id,
                    altered.topic_name,
                    tuple(
                        errors.get((altered.topic_id, number), error)
                        for (number, _), error in zip(topic.partitions, altered.errors, strict=True)
                    ),
                )
                for topic, altered in zip(request.topics, answer.topics, strict=True)
            ),
        )

    async def delete_offsets(self, request: DeleteShareGroupOffsetsRequest) -> DeleteShareGroupOffsetsResponse:
        """Delete the state of topics, or of all of them; a topic whose state could not be deleted has the error."""
        if await self._is_read(request.group_id):
            return DeleteShareGroupOffsetsResponse(ErrorCode.NON_EMPTY_GROUP, _reads(request.group_id))
        answer = await self._groups.execute(request)
        if answer.error is not NONE:
            return answer
        deletions = [
            DeleteShareGroupStateRequest(request.group_id, topic_id, number)
            for topic_id, numbers in answer.to_delete
            for number in numbers
        ]
        errors = await asyncio.gather(*map(self._error_of, deletions))
        failed = {one.topic_id: error for one, error in zip(deletions, errors, strict=True) if error is not NONE}
        asked = {topic.topic_id for topic in answer.topics if topic.error is NONE}
        gone = tuple(sorted(asked.union(topic_id for topic_id, _ in answer.to_delete) - failed.keys()))
        await self._groups.execute(ShareGroupStateDeletedRequest(request.group_id, gone))
        topics = tuple(topic._replace(error=failed.get(topic.topic_id, topic.error)) for topic in answer.topics)
        return replace(answer, topics=topics)

    async def _is_read(self, group_id: str) -> bool:
        """Whether a leader has somebody who reads the group. Raises RaykaError if that is not known.

        The group coordinator does not know of queues, which do not join. Without its state a queue would get nothing.
        """
        answer = await self._groups.execute(ShareGroupPartitionsRequest(group_id))
        partitions = [TopicPartition(topic.topic_name, one) for topic in answer.topics for one in topic.partitions]
        return await self._leaders.is_read(group_id, partitions)

    async def delete_state(self, group_id: str) -> ErrorCode:
        """Delete the state of a whole group that was refused as NON_EMPTY_GROUP, so that it can be deleted.

        NON_EMPTY_GROUP: it has members, or programs read it, or it is another kind of group. Raises RaykaError.
        """
        answer = await self.delete_offsets(DeleteShareGroupOffsetsRequest(group_id, None))
        errors = (answer.error, *(topic.error for topic in answer.topics))
        error = next((error for error in errors if error is not NONE), NONE)
        return ErrorCode.NON_EMPTY_GROUP if error is ErrorCode.GROUP_ID_NOT_FOUND else error

    async def describe_offsets(
        self, group_id: str, topics: Sequence[NamedPartitions] | None = None
    ) -> list[ShareTopicOffsets]:
        """Where share-partitions are; of all that have state if no topics are given. Raises the group's error."""
        answer = await self._groups.execute(ShareGroupPartitionsRequest(group_id))
        if answer.error is not NONE:
            raise RaykaError(answer.error, answer.error_message or "")
        return list(await asyncio.gather(*(self._topic(group_id, one) for one in topics or answer.topics)))

    async def _topic(self, group_id: str, topic: NamedPartitions) -> ShareTopicOffsets:
        latest = OffsetSpec.LATEST
        queries = [OffsetQuery(TopicPartition(topic.topic_name, number), latest) for number in topic.partitions]
        ends = await self._partitions.list_offsets(queries, IsolationLevel.READ_UNCOMMITTED)
        offsets = await asyncio.gather(
            *(
                self._offset(group_id, topic.topic_id, number, end.offset if end.error == NONE else -1)
                for number, end in zip(topic.partitions, ends, strict=True)
            )
        )
        return ShareTopicOffsets(topic.topic_id, topic.topic_name, tuple(offsets))

    async def _offset(self, group_id: str, topic_id: uuid.UUID, number: int, end_offset: int) -> SharePartitionOffset:
        """Lag: the records from the start offset to the end, without those that are terminal already (KIP-1226)."""
        async with self._room:
            try:
                request = ReadShareGroupStateSummaryRequest(group_id, topic_id, number)
                state = await ask_share_coordinator(self._shares, request)
            except RaykaError as refused:
                return SharePartitionOffset(number, error=refused.code, error_message=refused.message)
        if state.error is not NONE:
            return SharePartitionOffset(number, error=state.error, error_message=state.error_message)
        is_known = min(state.start_offset, state.delivery_complete_count, end_offset) >= 0
        lag = max(end_offset - state.start_offset - state.delivery_complete_count, 0) if is_known else UNKNOWN_LAG
        return SharePartitionOffset(number, state.start_offset, state.leader_epoch, lag)


def _reads(group_id: str) -> str:
    return (
        f"programs read share group {group_id}, as members or with a rayka.Queue: stop them first; "
        f"`rayka share-groups describe {group_id} --in-flight` shows who has records"
    )


def _by_topic(partitions: Iterable[Partition]) -> tuple[TargetPartitions, ...]:
    found: dict[uuid.UUID, list[int]] = {}
    for topic_id, number in partitions:
        found.setdefault(topic_id, []).append(number)
    return tuple(TargetPartitions(topic_id, tuple(numbers)) for topic_id, numbers in found.items())
