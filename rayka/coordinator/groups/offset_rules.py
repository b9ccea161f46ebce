"""Which requests about offsets the state of a group allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from rayka.coordinator.codec import ZERO_UUID
from rayka.coordinator.groups.classic.group import COMPLETING_REBALANCE, STABLE, ClassicGroup
from rayka.coordinator.groups.consumer.group import ConsumerGroup
from rayka.coordinator.groups.consumer.member import ConsumerMember
from rayka.coordinator.groups.records import OffsetCommitValue
from rayka.coordinator.groups.requests import CommittedOffset, OffsetCommitRequest
from rayka.coordinator.groups.share.group import ShareGroup
from rayka.coordinator.topics import Topics
from rayka.errors import ErrorCode

NONE = ErrorCode.NONE
PartitionCheck: TypeAlias = Callable[[CommittedOffset], ErrorCode]


class CommitCheck(NamedTuple):
    """Whether a commit is allowed; where that depends on the partition, `partition` says for which."""

    error: ErrorCode = NONE
    partition: PartitionCheck | None = None


class OffsetRules(Protocol):
    """The rules of one kind of group."""

    def commit(self, request: OffsetCommitRequest, is_transactional: bool) -> CommitCheck:
        """Whether the sender may commit these offsets."""

    def fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether a member of this epoch may fetch; None and -1 if the request names no member."""

    def delete(self) -> ErrorCode:
        """Whether offsets may be deleted now, of topics that nobody subscribes to."""

    def delete_group(self) -> ErrorCode:
        """Whether the group may be deleted, with all its offsets."""

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member may be reading the topic."""

    def retained_since(self, offset: OffsetCommitValue) -> int | None:
        """When the retention of an offset began, in milliseconds; None: it does not expire now."""


class ClassicOffsetRules:
    """A member commits with its generation; anybody commits while the group is empty."""

    def __init__(self, group: ClassicGroup) -> None:
        self._group = group

    def commit(self, request: OffsetCommitRequest, is_transactional: bool) -> CommitCheck:
        """A transactional commit may also come from outside the group, and in the middle of a rebalance (KIP-447)."""
        group, generation_id = self._group, request.generation_id_or_member_epoch
        if generation_id < 0 and group.is_empty:
            return CommitCheck()
        if generation_id >= 0 or request.member_id or request.group_instance_id is not None:
            error = group.check_member(request.member_id, request.group_instance_id)
            if error is not NONE:
                return CommitCheck(error)
            if generation_id != group.generation_id:
                return CommitCheck(ErrorCode.ILLEGAL_GENERATION)
        elif not is_transactional:
            return CommitCheck(ErrorCode.UNKNOWN_MEMBER_ID)
        if not is_transactional and group.state is COMPLETING_REBALANCE:
            return CommitCheck(ErrorCode.REBALANCE_IN_PROGRESS)
        return CommitCheck()

    def fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Anybody may fetch."""
        return NONE

    def delete(self) -> ErrorCode:
        """Not while there are members whose subscriptions are unknown."""
        if self._group.is_empty or self._group.uses_consumer_protocol:
            return NONE
        return ErrorCode.NON_EMPTY_GROUP

    def delete_group(self) -> ErrorCode:
        """Only an empty group can be deleted."""
        return NONE if self._group.is_empty else ErrorCode.NON_EMPTY_GROUP

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member may be reading the topic."""
        return self._group.is_subscribed_to(topic)

    def retained_since(self, offset: OffsetCommitValue) -> int | None:
        """Since the group is empty; in a stable group of consumers, and without members at all, since the commit."""
        group = self._group
        if group.protocol_type is None:
            return offset.commit_timestamp
        if group.is_empty:
            return group.state_timestamp_ms if group.state_timestamp_ms >= 0 else offset.commit_timestamp
        if group.uses_consumer_protocol and group.subscribed_topics is not None and group.state is STABLE:
            return offset.commit_timestamp
        return None


class ConsumerOffsetRules:
    """A member commits with its epoch; with an earlier one only for partitions that it has had since then."""

    def __init__(self, group: ConsumerGroup, topics: Topics) -> None:
        self._group = group
        self._topics = topics

    def commit(self, request: OffsetCommitRequest, is_transactional: bool) -> CommitCheck:
        """Anybody commits while the group is empty, and in a transaction without naming a member."""
        epoch = request.generation_id_or_member_epoch
        if epoch < 0 and self._group.is_empty:
            return CommitCheck()
        if is_transactional and epoch == -1 and not request.member_id and request.group_instance_id is None:
            return CommitCheck()
        member = self._group.members.get(request.member_id)
        if member is None:
            return CommitCheck(ErrorCode.UNKNOWN_MEMBER_ID)
        if member.classic is None and not request.knows_member_epochs and not is_transactional:
            return CommitCheck(ErrorCode.UNSUPPORTED_VERSION)
        if epoch == member.member_epoch:
            return CommitCheck()
        stale = _stale(member, is_transactional)
        if epoch > member.member_epoch:
            return CommitCheck(stale)
        return CommitCheck(partition=lambda offset: NONE if self._held_since(member, offset, epoch) else stale)

    def _held_since(self, member: ConsumerMember, offset: CommittedOffset, epoch: int) -> bool:
        topic_id = offset.topic_id
        if topic_id == ZERO_UUID:
            topic = self._topics.by_name.get(offset.topic)
            topic_id = ZERO_UUID if topic is None else topic.topic_id
        since = member.epoch_of(topic_id, offset.partition)
        return since is not None and since <= epoch

    def fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """A request that names a member has to come from that member, in its epoch."""
        if member_id is None and member_epoch < 0:
            return NONE
        member = self._group.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return NONE if member_epoch == member.member_epoch else _stale(member, False)

    def delete(self) -> ErrorCode:
        """Topics that nobody subscribes to can always be deleted."""
        return NONE

    def delete_group(self) -> ErrorCode:
        """Only an empty group can be deleted."""
        return NONE if self._group.is_empty else ErrorCode.NON_EMPTY_GROUP

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member may be reading the topic."""
        return self._group.is_subscribed_to(topic)

    def retained_since(self, offset: OffsetCommitValue) -> int | None:
        """Since the commit."""
        return offset.commit_timestamp


class ShareOffsetRules:
    """A share group commits no offsets: what it delivers is kept by the share coordinators."""

    def __init__(self, group: ShareGroup) -> None:
        self._group = group

    def commit(self, request: OffsetCommitRequest, is_transactional: bool) -> CommitCheck:
        """Nobody commits."""
        return CommitCheck(ErrorCode.GROUP_ID_NOT_FOUND)

    def fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """There is nothing to fetch."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def delete(self) -> ErrorCode:
        """There is nothing to delete."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def delete_group(self) -> ErrorCode:
        """Only an empty group can be deleted, and only when its share-partitions have no state any more."""
        group = self._group
        has_state = group.initialized or group.initializing or group.deleting
        return ErrorCode.NON_EMPTY_GROUP if group.members or has_state else NONE

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member may be reading the topic."""
        return topic in self._group.subscribed_topics()

    def retained_since(self, offset: OffsetCommitValue) -> int | None:
        """Nothing expires."""
        return None


def _stale(member: ConsumerMember, is_transactional: bool) -> ErrorCode:
    """A classic member, and a transaction, know of generations only."""
    is_classic = member.classic is not None or is_transactional
    return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
