"""The part of the admin client for consumer groups and their offsets. It also deletes groups of any kind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from rayka.client.admin.group_offsets import (
    INACTIVE,
    Bounds,
    GroupDescription,
    MemberDescription,
    OffsetReset,
    offsets_of,
)
from rayka.client.calls import in_time
from rayka.client.consumer.offsets import look_up
from rayka.client.forms import at_home
from rayka.coordinator.groups.classic.requests import DescribedMember, DescribeGroupsRequest
from rayka.coordinator.groups.consumer.protocol import PROTOCOL_TYPE, read_assignment
from rayka.coordinator.groups.consumer.requests import ConsumerGroupDescribeRequest
from rayka.coordinator.groups.requests import (
    CommittedOffset,
    DeleteGroupsRequest,
    DescribedModernMember,
    FetchedOffset,
    ListedGroup,
    ListGroupsRequest,
    NamedPartitions,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from rayka.coordinator.request import Request
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.gateway.share_groups import ShareGroups
from rayka.metadata.image import BrokerImage
from rayka.types import IsolationLevel, OffsetSpec, TopicPartition

_NONE = ErrorCode.NONE
_TIMEOUT_MS = 30_000
_RETRY_BACKOFF_MS = 100
_IN_ANOTHERS_HANDS = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH)

R = TypeVar("R")
T = TypeVar("T")


class GroupAdmin:
    """Sends requests to group coordinators. Waits at most `timeout_ms` for a coordinator that is loading or moving."""

    def __init__(self, broker: Broker, home: asyncio.AbstractEventLoop) -> None:
        self.home = home
        self._broker = broker

    @at_home
    async def list_groups(
        self, states: Iterable[str] = (), types: Iterable[str] = (), *, timeout_ms: int = _TIMEOUT_MS
    ) -> list[ListedGroup]:
        """The groups of the cluster, ordered by name; only those of these states and types, if any are given.

        Share groups are listed only if their type is given, because they have no committed offsets.
        """
        request = ListGroupsRequest(tuple(states), tuple(types))
        parts = await _patiently(lambda: self._broker.groups.execute_all(request), timeout_ms)
        groups = (group for part in parts for group in part.groups if request.types or group.group_type != "share")
        return sorted(map(_listed, groups))

    @at_home
    async def describe_group(self, group_id: str, *, timeout_ms: int = _TIMEOUT_MS) -> GroupDescription:
        """A group with its members, offsets and lag. Raises GROUP_ID_NOT_FOUND."""
        group = await self._group(group_id, timeout_ms)
        fetched = await self._fetch_offsets(group_id, timeout_ms)
        committed = {topic_partition: one.offset for topic_partition, one in fetched.items()}
        epochs = {
            topic_partition: one.leader_epoch for topic_partition, one in fetched.items() if one.leader_epoch >= 0
        }
        known = {*committed, *(assigned for member in group.members for assigned in member.assignment)}
        ends = await self._look_up(self._existing(known), OffsetSpec.LATEST, timeout_ms)
        return replace(group, offsets=offsets_of(group.members, committed, ends, epochs))

    @at_home
    async def reset_offsets(
        self,
        group_id: str,
        reset: OffsetReset,
        topics: Mapping[str, Iterable[int] | None] | None = None,
        *,
        validate_only: bool = False,
        timeout_ms: int = _TIMEOUT_MS,
    ) -> dict[TopicPartition, int]:
        """Reset a group's committed offsets, and return the new ones. Creates the group if it does not exist.

        `topics`: topic -> partitions, None for all of them. Without `topics`, all partitions for which the group has
        committed offsets. Raises NON_EMPTY_GROUP while the group has members, UNKNOWN_TOPIC_OR_PARTITION,
        GROUP_ID_NOT_FOUND if there are neither topics nor offsets, and INVALID_REQUEST for a shift from an offset that
        does not exist.
        """
        await self._require_inactive(group_id, timeout_ms)
        committed = await self._committed(group_id, timeout_ms)
        wanted = self._existing(committed) if topics is None else self._partitions(topics)
        if not wanted:
            raise RaykaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id} has no offsets to reset")
        targets = await self._targets(reset, wanted, committed, timeout_ms)
        if not validate_only:
            await self._commit(group_id, targets, timeout_ms)
        return targets

    @at_home
    async def set_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        *,
        validate_only: bool = False,
        timeout_ms: int = _TIMEOUT_MS,
    ) -> dict[TopicPartition, int]:
        """Set the committed offset of each partition, or the nearest one that exists, and return the new ones.

        Creates the group if it does not exist. Raises NON_EMPTY_GROUP while the group has members, and
        UNKNOWN_TOPIC_OR_PARTITION.
        """
        await self._require_inactive(group_id, timeout_ms)
        topics: dict[str, list[int]] = {}
        for topic, partition in offsets:
            topics.setdefault(topic, []).append(partition)
        bounds = await self._bounds(self._partitions(topics), timeout_ms)
        targets = {one: limits.clamp(offsets[one]) for one, limits in bounds.items()}
        if not validate_only:
            await self._commit(group_id, targets, timeout_ms)
        return targets

    @at_home
    async def delete_offsets(
        self, group_id: str, topics: Mapping[str, Iterable[int] | None], *, timeout_ms: int = _TIMEOUT_MS
    ) -> dict[TopicPartition, ErrorCode]:
        """Delete committed offsets of a group; `topics` as in `reset_offsets`. Returns the outcome of each partition:
        GROUP_SUBSCRIBED_TO_TOPIC where the group still reads the topic.

        Raises GROUP_ID_NOT_FOUND, UNKNOWN_TOPIC_OR_PARTITION, and NON_EMPTY_GROUP for a group of another kind of
        client that has members.
        """
        wanted = self._partitions(topics)
        request = OffsetDeleteRequest(group_id, tuple((one.topic, one.partition) for one in wanted))
        answer = await _patiently(lambda: self._broker.groups.execute(request), timeout_ms)
        if answer.error is not ErrorCode.NONE:
            raise RaykaError(answer.error, f"offsets of group {group_id} can't be deleted")
        return dict(zip(wanted, answer.errors, strict=True))

    @at_home
    async def delete_groups(
        self, group_ids: Iterable[str], *, timeout_ms: int = _TIMEOUT_MS, raise_errors: bool = True
    ) -> dict[str, ErrorCode]:
        """Delete groups with their offsets; share groups with the state of their records.

        If some can't be deleted (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND), the others still are. With `raise_errors=False`
        the call returns all results instead of raising an error.
        """
        if isinstance(group_ids, str):
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"group_ids must be a list, not the str {group_ids!r}")
        results: dict[str, ErrorCode] = {}
        for group_id in dict.fromkeys(group_ids):
            await self._coordinator(group_id, timeout_ms)
            results[group_id] = await self._delete(group_id, timeout_ms)
        failed = {group_id: error for group_id, error in results.items() if error is not ErrorCode.NONE}
        if failed and raise_errors:
            reasons = "; ".join(f"{group_id}: {error.name}" for group_id, error in failed.items())
            raise RaykaError(next(iter(failed.values())), f"can't delete {reasons}")
        return results

    async def _delete(self, group_id: str, timeout_ms: int) -> ErrorCode:
        """A share group is refused until its state is deleted."""
        request = DeleteGroupsRequest((group_id,))
        error = (await self._ask(request, timeout_ms)).errors[0]
        if error is not ErrorCode.NON_EMPTY_GROUP:
            return error
        try:
            state_error = await ShareGroups(self._broker).delete_state(group_id)
        except RaykaError as refused:
            return refused.code
        return (await self._ask(request, timeout_ms)).errors[0] if state_error is _NONE else state_error

    async def _coordinator(self, group_id: str, timeout_ms: int) -> BrokerImage:
        return await _patiently(lambda: self._broker.groups.coordinator_of(group_id), timeout_ms)

    async def _ask(self, request: Request[R], timeout_ms: int) -> R:
        return await _patiently(lambda: self._broker.groups.execute(request), timeout_ms)

    async def _committed(self, group_id: str, timeout_ms: int) -> dict[TopicPartition, int]:
        fetched = await self._fetch_offsets(group_id, timeout_ms)
        return {topic_partition: one.offset for topic_partition, one in fetched.items()}

    async def _fetch_offsets(self, group_id: str, timeout_ms: int) -> dict[TopicPartition, FetchedOffset]:
        request = OffsetFetchRequest(group_id)
        answer = await _patiently(lambda: self._broker.groups.execute(request), timeout_ms)
        if answer.error is not ErrorCode.NONE:
            raise RaykaError(answer.error, f"offsets of group {group_id} can't be read")
        return {TopicPartition(one.topic, one.partition): one for one in answer.offsets if one.offset >= 0}

    async def _group(self, group_id: str, timeout_ms: int) -> GroupDescription:
        """The group without its offsets. Raises GROUP_ID_NOT_FOUND."""
        coordinator = await self._coordinator(group_id, timeout_ms)
        new = (await self._ask(ConsumerGroupDescribeRequest((group_id,)), timeout_ms)).groups[0]
        if new.error is ErrorCode.NONE:
            members = tuple(map(_consumer, new.members))
            return GroupDescription(
                group_id, "Consumer", new.group_state, new.assignor_name, coordinator, members,
                group_epoch=new.group_epoch, assignment_epoch=new.assignment_epoch,
            )  # fmt: skip
        old = (await self._ask(DescribeGroupsRequest((group_id,)), timeout_ms)).groups[0]
        if old.error is not ErrorCode.NONE:
            raise RaykaError(old.error, old.error_message or f"group {group_id} can't be described")
        members = tuple(_member(member, old.protocol_type) for member in old.members)
        return GroupDescription(group_id, "Classic", old.group_state, old.protocol_data, coordinator, members)

    async def _require_inactive(self, group_id: str, timeout_ms: int) -> None:
        """A group that does not exist has no members."""
        try:
            state = (await self._group(group_id, timeout_ms)).state
        except RaykaError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            return
        if state not in INACTIVE:
            raise RaykaError(
                ErrorCode.NON_EMPTY_GROUP,
                f"offsets of group {group_id} can be reset only while it has no members; it is {state}",
            )

    async def _targets(
        self,
        reset: OffsetReset,
        wanted: Sequence[TopicPartition],
        committed: Mapping[TopicPartition, int],
        timeout_ms: int,
    ) -> dict[TopicPartition, int]:
        bounds = await self._bounds(wanted, timeout_ms)
        found = {} if reset.timestamp is None else await self._look_up(wanted, reset.timestamp, timeout_ms)
        targets = {}
        for one, limits in bounds.items():
            target = reset.target(limits, committed.get(one), found.get(one))
            if target is None:
                raise RaykaError(
                    ErrorCode.INVALID_REQUEST, f"{one} can't be shifted: nothing is committed for it in the group"
                )
            targets[one] = target
        return targets

    async def _bounds(self, wanted: Sequence[TopicPartition], timeout_ms: int) -> dict[TopicPartition, Bounds]:
        first = await self._look_up(wanted, OffsetSpec.EARLIEST, timeout_ms)
        last = await self._look_up(wanted, OffsetSpec.LATEST, timeout_ms)
        return {one: Bounds(first[one], last[one]) for one in wanted}

    async def _commit(self, group_id: str, targets: Mapping[TopicPartition, int], timeout_ms: int) -> None:
        topics = self._broker.image.topics
        offsets = tuple(
            CommittedOffset(*one, offset, topic_id=topics[one.topic].topic_id) for one, offset in targets.items()
        )
        request = OffsetCommitRequest(group_id, offsets)

        async def commit() -> None:
            answer = await self._broker.groups.execute(request)
            for one, error in zip(targets, answer.errors, strict=True):
                if error in _IN_ANOTHERS_HANDS:
                    raise RaykaError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members now")
                if error is not ErrorCode.NONE:
                    raise RaykaError(error, f"the offset of {one} in group {group_id} can't be reset")

        await _patiently(commit, timeout_ms)

    async def _look_up(
        self, partitions: Iterable[TopicPartition], timestamp: int, timeout_ms: int
    ) -> dict[TopicPartition, int]:
        found = await look_up(
            self._broker,
            dict.fromkeys(partitions, timestamp),
            IsolationLevel.READ_UNCOMMITTED,
            timeout_ms=timeout_ms,
            retry_backoff_ms=_RETRY_BACKOFF_MS,
        )
        return {one: answer.offset for one, answer in found.items()}

    def _existing(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        image = self._broker.image
        return sorted(one for one in partitions if image.partition(one) is not None)

    def _partitions(self, topics: Mapping[str, Iterable[int] | None]) -> list[TopicPartition]:
        image = self._broker.image
        wanted: list[TopicPartition] = []
        for name, numbers in topics.items():
            topic = image.topics.get(name)
            if topic is None:
                raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
            for number in range(len(topic.partitions)) if numbers is None else sorted(set(numbers)):
                if not 0 <= number < len(topic.partitions):
                    raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} has no partition {number}")
                wanted.append(TopicPartition(name, number))
        return wanted


def _listed(group: ListedGroup) -> ListedGroup:
    """With the type as Kafka's tools write it: Classic or Consumer."""
    return group._replace(group_type=group.group_type.capitalize())


def _consumer(member: DescribedModernMember) -> MemberDescription:
    return MemberDescription(
        member.member_id, member.instance_id, member.client_id, member.client_host, _flat(member.assignment),
        epoch=member.member_epoch, target=_flat(member.target_assignment), is_upgraded=bool(member.member_type),
    )  # fmt: skip


def _flat(parts: Iterable[NamedPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(part.topic_name, number) for part in parts for number in part.partitions))


def _member(member: DescribedMember, protocol_type: str) -> MemberDescription:
    """Assignments of other protocol types, and ones that cannot be read, are not known."""
    try:
        parts = read_assignment(member.assignment).assigned_partitions if protocol_type == PROTOCOL_TYPE else ()
    except ValueError:
        parts = ()
    assigned = (TopicPartition(part.topic, number) for part in parts for number in part.partitions)
    return MemberDescription(
        member.member_id, member.group_instance_id, member.client_id, member.client_host, tuple(sorted(assigned))
    )


async def _patiently(ask: Callable[[], Awaitable[T]], timeout_ms: int) -> T:
    """Retries while the coordinator is loading or moving. Raises its error or REQUEST_TIMED_OUT when the time is up."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_ms / 1000
    while True:
        try:
            return await in_time(ask(), max(deadline_s - loop.time(), 0), "the coordinator")
        except RaykaError as error:
            if not error.code.retriable or loop.time() + _RETRY_BACKOFF_MS / 1000 >= deadline_s:
                raise
        await asyncio.sleep(_RETRY_BACKOFF_MS / 1000)
