"""What the state of a group allows to be done with its offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from rayka.coordinator.groups.classic.group import COMPLETING_REBALANCE, STABLE, ClassicGroup
from rayka.coordinator.groups.records import OffsetCommitValue
from rayka.coordinator.groups.requests import CommittedOffset, OffsetCommitRequest
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
        """Whether these offsets may be committed by who asks."""

    def fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether who asks may see the offsets; None and -1 if it does not say who it is."""

    def delete(self) -> ErrorCode:
        """Whether offsets may be deleted now, of topics that nobody subscribes to."""

    def delete_group(self) -> ErrorCode:
        """Whether the group may go, with all its offsets."""

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
        """Anybody may look."""
        return NONE

    def delete(self) -> ErrorCode:
        """Only where it can be known that nobody reads the topic."""
        if self._group.is_empty or self._group.uses_consumer_protocol:
            return NONE
        return ErrorCode.NON_EMPTY_GROUP

    def delete_group(self) -> ErrorCode:
        """Only an empty group goes."""
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
