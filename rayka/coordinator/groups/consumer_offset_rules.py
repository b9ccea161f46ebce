"""What a consumer group allows to be done with its offsets."""

from __future__ import annotations

from rayka.coordinator.codec import ZERO_UUID
from rayka.coordinator.groups.consumer.group import ConsumerGroup
from rayka.coordinator.groups.consumer.member import ConsumerMember
from rayka.coordinator.groups.offset_rules import NONE, CommitCheck
from rayka.coordinator.groups.records import OffsetCommitValue
from rayka.coordinator.groups.requests import CommittedOffset, OffsetCommitRequest
from rayka.coordinator.topics import Topics
from rayka.errors import ErrorCode


class ConsumerOffsetRules:
    """A member commits with its epoch; with one that it had before, only for what it has held since then."""

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
        """Who names itself has to be a member of this epoch."""
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
        """Only an empty group goes."""
        return NONE if self._group.is_empty else ErrorCode.NON_EMPTY_GROUP

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member may be reading the topic."""
        return topic in self._group.subscribed_topics()

    def retained_since(self, offset: OffsetCommitValue) -> int | None:
        """Since the commit."""
        return offset.commit_timestamp


def _stale(member: ConsumerMember, is_transactional: bool) -> ErrorCode:
    """A classic member, and a transaction, know of generations only."""
    is_classic = member.classic is not None or is_transactional
    return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
