"""Requests to the coordinator of one group, retried while it is loading, moving or unavailable."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from rayka.client.calls import in_time
from rayka.coordinator.codec import ZERO_UUID
from rayka.coordinator.groups.consumer.requests import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from rayka.coordinator.groups.requests import CommittedOffset, OffsetCommitRequest, OffsetFetchRequest, OffsetPartition
from rayka.coordinator.request import Request
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.metadata.image import TopicImage
from rayka.types import NO_LEADER_EPOCH, TopicPartition

_MAX_COMMITS = 1_000
"""Commits of one consumer that may wait for each other."""


R = TypeVar("R")


class OffsetAndMetadata(NamedTuple):
    """An offset to continue at, with a text of the program's own."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_LEADER_EPOCH


class ConsumerGroupMetadata(NamedTuple):
    """The member that commits; none if there is no member id."""

    member_id: str = ""
    member_epoch: int = -1
    instance_id: str | None = None


class GroupMetadata(NamedTuple):
    """A consumer's identity in its group.

    Epoch 0: it is not a member now. -1, without a member id: the program assigns the partitions, so there is no member.
    """

    group_id: str
    member_id: str = ""
    member_epoch: int = -1
    group_instance_id: str | None = None


def with_topic_ids(
    offsets: Mapping[TopicPartition, OffsetAndMetadata], topics: Mapping[str, TopicImage]
) -> tuple[CommittedOffset, ...]:
    """The offsets as they are committed: each counts for the topic that has its name in `topics`, and for no other."""
    return tuple(
        CommittedOffset(
            *partition,
            offset=one.offset,
            leader_epoch=one.leader_epoch,
            metadata=one.metadata,
            topic_id=topics[partition.topic].topic_id if partition.topic in topics else ZERO_UUID,
        )
        for partition, one in offsets.items()
    )


class ReadOffsets(NamedTuple):
    """How far a consumer has read, and who it is in its group, both at the same moment."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    group: GroupMetadata


class GroupCalls:
    """The coordinator of one group, for one consumer. Lives in the event loop."""

    def __init__(self, broker: Broker, group_id: str, *, request_timeout_ms: float, retry_backoff_ms: float) -> None:
        self._broker = broker
        self.group_id = group_id
        self._request_timeout_s = request_timeout_ms / 1000
        self._retry_backoff_s = retry_backoff_ms / 1000
        self._is_known = False
        self._turn = asyncio.Lock()
        self._commits = 0

    async def heartbeat(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        """One heartbeat of the consumer protocol, tried once."""
        return await self._once(request)

    @property
    def topics(self) -> Mapping[str, TopicImage]:
        """The topics that there are now."""
        return self._broker.image.topics

    async def commit(
        self, offsets: tuple[CommittedOffset, ...], member: ConsumerGroupMetadata, timeout_ms: float
    ) -> None:
        """Commit these offsets as this member, after the commits before.

        It is tried again under the same epoch only: in a later one the partitions may have been others' meanwhile.
        Raises the error of the first that can't be committed.
        """
        if not offsets:
            return
        if self._commits >= _MAX_COMMITS:
            raise RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{_MAX_COMMITS} commits are waiting already")
        self._commits += 1
        deadline_s = time.monotonic() + timeout_ms / 1000
        try:
            async with self._turn:
                await self._commit(offsets, member, deadline_s)
        finally:
            self._commits -= 1

    async def commits_ended(self, timeout_ms: float) -> None:
        """Wait for the commits that were begun before, or until the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000), self._turn:
                pass

    async def committed(
        self, partitions: Sequence[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for these partitions; offsets in open transactions are waited for.

        It is asked again if a topic was created again meanwhile: the answer was for the one before.
        """
        deadline_s = time.monotonic() + timeout_ms / 1000
        while True:
            wanted = self._wanted(partitions)
            try:
                answer = await self._once(OffsetFetchRequest(self.group_id, wanted, require_stable=True))
                found = [(f"{one.topic}-{one.partition}", one.error) for one in answer.offsets]
                self._check("look up", [("any partition", answer.error), *found])
            except RaykaError as error:
                await self._patience(error, deadline_s)
            else:
                if self._wanted(partitions) == wanted:
                    break
        return {
            partition: None if one.offset < 0 else OffsetAndMetadata(one.offset, one.metadata, one.leader_epoch)
            for partition, one in zip(partitions, answer.offsets, strict=True)
        }

    def _wanted(self, partitions: Sequence[TopicPartition]) -> tuple[OffsetPartition, ...]:
        topics = self.topics
        return tuple(
            OffsetPartition(*one, topics[one.topic].topic_id if one.topic in topics else ZERO_UUID)
            for one in partitions
        )

    async def _commit(
        self, offsets: tuple[CommittedOffset, ...], member: ConsumerGroupMetadata, deadline_s: float
    ) -> None:
        request = OffsetCommitRequest(self.group_id, offsets, member.member_epoch, member.member_id, member.instance_id)
        while True:
            try:
                answer = await self._once(request)
                self._check("commit", [(f"{o[0]}-{o[1]}", e) for o, e in zip(offsets, answer.errors, strict=True)])
                return
            except RaykaError as error:
                await self._patience(error, deadline_s)

    async def _once(self, request: Request[R]) -> R:
        """Raises REQUEST_TIMED_OUT if there is no answer in time: it may be carried out all the same."""
        try:
            return await in_time(
                self._ask(request), self._request_timeout_s, f"the coordinator of group {self.group_id}"
            )
        except RaykaError:
            self._is_known = False
            raise

    async def _ask(self, request: Request[R]) -> R:
        if not self._is_known:
            await self._broker.groups.coordinator_of(self.group_id)
            self._is_known = True
        return await self._broker.groups.execute(request)

    async def _patience(self, error: RaykaError, deadline_s: float) -> None:
        if not error.code.retriable or time.monotonic() + self._retry_backoff_s > deadline_s:
            raise error
        await asyncio.sleep(self._retry_backoff_s)

    def _check(self, what: str, errors: Sequence[tuple[str, ErrorCode]]) -> None:
        for partition, error in errors:
            if error is not ErrorCode.NONE:
                raise RaykaError(error, f"can't {what} the offset of {partition} in group {self.group_id}")
