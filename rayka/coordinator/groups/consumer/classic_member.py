"""Members of a consumer group that speak the classic protocol (KIP-848).

They are members like the others, but learn of their assignment differently. A heartbeat answers REBALANCE_IN_PROGRESS
when there is a step to take, the join takes it, and the sync fetches the member's assignment. There is no leader. A
member that does not join, or does not sync, within its rebalance timeout is removed.
"""

from __future__ import annotations

from dataclasses import replace

from rayka.coordinator.clock import Now
from rayka.coordinator.groups.classic.requests import (
    UNKNOWN_MEMBER_ID,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)
from rayka.coordinator.groups.consumer import protocol as consumer_protocol
from rayka.coordinator.groups.consumer.group import ConsumerGroup
from rayka.coordinator.groups.consumer.heartbeat import (
    ConsumerHeartbeat,
    check_instance,
    replace_static_member,
    unknown_member,
)
from rayka.coordinator.groups.consumer.member import Assignment, ConsumerMember, MemberState
from rayka.coordinator.groups.consumer.target_assignment import is_due
from rayka.coordinator.groups.consumer.update import ConsumerGroupUpdate
from rayka.coordinator.groups.deadlines import GroupTimer, GroupTimerKey
from rayka.coordinator.groups.migration import classic_assignment, classic_metadata, protocols_of
from rayka.coordinator.groups.settings import MigrationPolicy, ModernGroupSettings
from rayka.coordinator.timers import TimerQueue
from rayka.coordinator.topics import Topics
from rayka.errors import ErrorCode, RaykaError


class ClassicConsumer:
    """Serves classic members of consumer groups. Raises the error that a member gets if its request is refused."""

    def __init__(self, heartbeats: ConsumerHeartbeat, timers: TimerQueue[GroupTimerKey]) -> None:
        self._heartbeats = heartbeats
        self._timers = timers

    def check_join(self, group: ConsumerGroup, request: JoinGroupRequest, member_id: str) -> None:
        """Raises if the group does not accept this member."""
        if self._heartbeats.settings.migration_policy is MigrationPolicy.DISABLED:
            reason = (
                f"Cannot join the consumer group {group.group_id} with the classic protocol: migration is disabled."
            )
            raise RaykaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, reason)
        self._heartbeats.check_room(group, member_id, request.group_instance_id)
        is_supported = group.classic_members_support([protocol.name for protocol in request.protocols])
        if request.protocol_type != consumer_protocol.PROTOCOL_TYPE or not is_supported:
            raise RaykaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Member {member_id}'s protocols are not supported."
            )

    def join(
        self,
        changes: ConsumerGroupUpdate,
        request: JoinGroupRequest,
        member_id: str,
        group_settings: ModernGroupSettings,
    ) -> ConsumerMember:
        """Admit a member, or move it one step towards its target."""
        subscription = _subscription(request)
        member = replace(
            self._member(changes, request, member_id),
            instance_id=request.group_instance_id,
            rack_id=subscription.rack_id or None,
            client_id=request.client_id,
            client_host=request.client_host,
            subscribed_topic_names=frozenset(subscription.topics),
            subscribed_topic_regex="",
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            server_assignor=None,
            classic=classic_metadata(request.session_timeout_ms, request.protocols),
        )
        changes.follow_topics(changes.update(member))
        changes.assign(group_settings.assignment_interval_ms)
        return changes.reconcile(member_id, _owned(subscription, changes.topics))

    def _member(self, changes: ConsumerGroupUpdate, request: JoinGroupRequest, member_id: str) -> ConsumerMember:
        instance_id = request.group_instance_id
        current = changes.group.static_member(instance_id)
        if instance_id is None or (current is None and request.member_id == UNKNOWN_MEMBER_ID):
            return changes.group.members.get(member_id) or ConsumerMember(member_id)
        if current is None:
            raise RaykaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if request.member_id == UNKNOWN_MEMBER_ID:
            return replace_static_member(changes, current, member_id)
        check_instance(current, member_id)
        return current

    def joined(self, group_id: str, member: ConsumerMember, now: Now) -> None:
        """The join is in the log: wait for the sync."""
        self._timers.cancel(GroupTimerKey(GroupTimer.MEMBER_JOIN, group_id, member.member_id))
        self._timers.cancel(GroupTimerKey(GroupTimer.REBALANCE, group_id, member.member_id))
        self._heartbeats.renew_classic_session(group_id, member, now)
        key = GroupTimerKey(GroupTimer.MEMBER_SYNC, group_id, member.member_id)
        self._timers.schedule(key, now.ms + member.rebalance_timeout_ms)

    def answer(self, member: ConsumerMember) -> JoinGroupResponse:
        """The generation of a classic member is its member epoch."""
        return JoinGroupResponse(
            member_id=member.member_id,
            generation_id=member.member_epoch,
            protocol_type=consumer_protocol.PROTOCOL_TYPE,
            protocol_name=protocols_of(member)[0].name,
        )

    def sync(
        self,
        group: ConsumerGroup,
        request: SyncGroupRequest,
        topics: Topics,
        group_settings: ModernGroupSettings,
        now: Now,
    ) -> SyncGroupResponse:
        """The assignment of the member."""
        member = self._known(group, request.member_id, request.group_instance_id, request.generation_id)
        name = protocols_of(member)[0].name
        asked = (request.protocol_type or consumer_protocol.PROTOCOL_TYPE, request.protocol_name or name)
        if asked != (consumer_protocol.PROTOCOL_TYPE, name):
            reason = f"The protocol {asked} is not that of the join, {name}."
            raise RaykaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, reason)
        is_behind = member.member_epoch < _next_epoch(group, group_settings, now.wall_ms)
        if is_behind and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._call_to_join(group, member, now)
            reason = f"A new rebalance is triggered in group {group.group_id}."
            raise RaykaError(ErrorCode.REBALANCE_IN_PROGRESS, reason)
        self._timers.cancel(GroupTimerKey(GroupTimer.MEMBER_SYNC, group.group_id, member.member_id))
        self._heartbeats.renew_classic_session(group.group_id, member, now)
        return SyncGroupResponse(
            protocol_type=asked[0], protocol_name=asked[1], assignment=classic_assignment(member, topics)
        )

    def heartbeat(
        self, group: ConsumerGroup, request: HeartbeatRequest, group_settings: ModernGroupSettings, now: Now
    ) -> ErrorCode:
        """REBALANCE_IN_PROGRESS if the member can take a step."""
        member = self._known(group, request.member_id, request.group_instance_id, request.generation_id)
        self._heartbeats.renew_classic_session(group.group_id, member, now)
        if (
            member.member_epoch < _next_epoch(group, group_settings, now.wall_ms)
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and _can_get_more(group, member))
        ):
            self._call_to_join(group, member, now)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _known(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int
    ) -> ConsumerMember:
        member = _classic_member(group, member_id, instance_id)
        if generation_id != member.member_epoch:
            reason = f"The generation id {generation_id} is not the member epoch {member.member_epoch} of {member_id}."
            raise RaykaError(ErrorCode.ILLEGAL_GENERATION, reason)
        return member

    def leaving(self, group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
        """The classic member that leaves; an instance may go by its instance id alone. Raises as `_classic_member`."""
        member_id, instance_id = identity.member_id, identity.group_instance_id
        current = group.static_member(instance_id)
        if current is not None and member_id == UNKNOWN_MEMBER_ID:
            member_id = current.member_id
        return _classic_member(group, member_id, instance_id)

    def _call_to_join(self, group: ConsumerGroup, member: ConsumerMember, now: Now) -> None:
        key = GroupTimerKey(GroupTimer.MEMBER_JOIN, group.group_id, member.member_id)
        if key not in self._timers:
            self._timers.schedule(key, now.ms + member.rebalance_timeout_ms)


def _classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    """Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if the instance has another member id by now."""
    member = group.members.get(member_id) if instance_id is None else group.static_member(instance_id)
    if member is not None and instance_id is not None:
        check_instance(member, member_id)
    if member is None or member.classic is None:
        raise unknown_member(member_id, group.group_id)
    return member


def _next_epoch(group: ConsumerGroup, group_settings: ModernGroupSettings, now_ms: int) -> int:
    """The epoch that a join can reach now: not yet the group epoch while its target may not be computed."""
    return group.epoch if is_due(group, group_settings.assignment_interval_ms, now_ms) else group.assignment_epoch


def _can_get_more(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether all partitions that the member waits for have been released."""
    return not any(
        (topic_id, partition) in group.owners
        for topic_id, partitions in group.targets.get(member.member_id, {}).items()
        for partition in partitions - member.assigned.get(topic_id, {}).keys()
    )


def _subscription(request: JoinGroupRequest) -> consumer_protocol.ConsumerProtocolSubscription:
    try:
        return consumer_protocol.read_subscription(request.protocols[0].metadata)
    except ValueError as error:
        reason = f"The embedded consumer protocol is malformed: {error}."
        raise RaykaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, reason) from None


def _owned(subscription: consumer_protocol.ConsumerProtocolSubscription, topics: Topics) -> Assignment:
    return {
        topics.by_name[topic].topic_id: frozenset(partitions)
        for topic, partitions in subscription.owned_partitions
        if topic in topics.by_name
    }
