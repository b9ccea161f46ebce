"""ConsumerGroupHeartbeat: join a consumer group, stay, move towards the target, and leave (KIP-848)."""

from __future__ import annotations

from dataclasses import replace

from rayka.coordinator.clock import Now
from rayka.coordinator.groups.consumer.group import ConsumerGroup
from rayka.coordinator.groups.consumer.member import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    Assignment,
    ConsumerMember,
    MemberState,
    assignment_of,
    topic_partitions,
)
from rayka.coordinator.groups.consumer.requests import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from rayka.coordinator.groups.consumer.target_assignment import has_passed
from rayka.coordinator.groups.consumer.update import ConsumerGroupUpdate
from rayka.coordinator.groups.deadlines import GroupTimer, GroupTimerKey, SessionWarning
from rayka.coordinator.groups.settings import GroupSettings, ModernGroupSettings
from rayka.coordinator.timers import TimerQueue
from rayka.coordinator.topics import Topics
from rayka.errors import ErrorCode, RaykaError

MEMBER_TIMERS = (GroupTimer.SESSION, GroupTimer.REBALANCE, GroupTimer.MEMBER_JOIN, GroupTimer.MEMBER_SYNC)


def check_request(request: ConsumerGroupHeartbeatRequest, settings: GroupSettings) -> None:
    """Raises INVALID_REQUEST or UNSUPPORTED_ASSIGNOR for a request that can't be right in any state."""
    for name in ("group_id", "member_id", "instance_id", "rack_id"):
        value = getattr(request, name)
        if value is not None and not value.strip():
            raise _invalid(f"{name} can't be empty")
    if request.member_epoch == JOIN_EPOCH:
        _check_join(request)
    elif request.member_epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise _invalid("instance_id can't be null")
    elif request.member_epoch < LEAVE_STATIC_EPOCH:
        raise _invalid("member_epoch is invalid")
    if request.server_assignor is not None and request.server_assignor not in settings.consumer_assignors:
        known = ", ".join(settings.consumer_assignors)
        reason = f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {known}."
        raise RaykaError(ErrorCode.UNSUPPORTED_ASSIGNOR, reason)


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise _invalid("rebalance_timeout_ms must be provided in the first request")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("topic_partitions must be empty when (re-)joining")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise _invalid("Either subscribed_topic_names or subscribed_topic_regex must be non-null when (re-)joining")


def _invalid(reason: str) -> RaykaError:
    return RaykaError(ErrorCode.INVALID_REQUEST, f"{reason}.")


class ConsumerHeartbeat:
    """Serves the members of consumer groups that speak the consumer protocol."""

    def __init__(self, settings: GroupSettings, timers: TimerQueue[GroupTimerKey]) -> None:
        self.settings = settings
        self._timers = timers
        self._overdue: dict[str, set[str]] = {}

    def unchanged_heartbeat(
        self,
        group: ConsumerGroup,
        request: ConsumerGroupHeartbeatRequest,
        topics: Topics,
        group_settings: ModernGroupSettings,
        now: Now,
    ) -> ConsumerGroupHeartbeatResponse | None:
        """The answer to a heartbeat that changes nothing, as nearly all do; None if it may change something."""
        member = group.members.get(request.member_id)
        if (
            member is None
            or request.member_epoch != member.member_epoch
            or request.rebalance_timeout_ms != -1
            or request.subscribed_topic_names is not None
            or request.subscribed_topic_regex is not None
            or request.server_assignor is not None
            or request.rack_id is not None
            or group.checked_version != topics.version
            or group.epoch != group.assignment_epoch
            or not member.is_reconciled_to(group.assignment_epoch)
            or (request.instance_id, request.client_id, request.client_host, None)
            != (member.instance_id, member.client_id, member.client_host, member.classic)
        ):
            return None
        self.renew_session(group.group_id, request.member_id, group_settings, now)
        return self.answer(group, member, group_settings, now)

    def heartbeat(
        self,
        changes: ConsumerGroupUpdate,
        request: ConsumerGroupHeartbeatRequest,
        group_settings: ModernGroupSettings,
        now: Now,
    ) -> ConsumerGroupHeartbeatResponse:
        """A member joins or moves on. Raises the error that a member gets that is not allowed to."""
        group = changes.group
        owned = None if request.topic_partitions is None else assignment_of(request.topic_partitions)
        before = self._member(changes, request, owned)
        member = _updated(before, request)
        changes.follow_topics(changes.update(member))
        changes.assign(group_settings.assignment_interval_ms)
        moved = changes.reconcile(member.member_id, owned)
        answer = self.answer(group, moved, group_settings, now)
        if _is_full(request) or _numbers(moved) != _numbers(before):
            return replace(answer, assignment=topic_partitions(moved.assigned))
        return answer

    def _member(
        self, changes: ConsumerGroupUpdate, request: ConsumerGroupHeartbeatRequest, owned: Assignment | None
    ) -> ConsumerMember:
        """The member that sent the request, new or known. Raises the error of one that is not allowed."""
        self.check_room(changes.group, request.member_id, request.instance_id)
        if request.instance_id is not None:
            return self._static_member(changes, request.instance_id, request, owned)
        member = changes.group.members.get(request.member_id)
        if member is None:
            if request.member_epoch != JOIN_EPOCH:
                raise unknown_member(request.member_id, changes.group.group_id)
            return ConsumerMember(request.member_id)
        _check_epoch(member, request.member_epoch, owned)
        return member

    def check_room(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
        """Raises GROUP_MAX_SIZE_REACHED for one member too many."""
        is_known = member_id in group.members or instance_id in group.static_members
        if not is_known and len(group.members) >= self.settings.consumer_max_size:
            limit = self.settings.consumer_max_size
            reason = f"The consumer group has reached its maximum capacity of {limit} members."
            raise RaykaError(ErrorCode.GROUP_MAX_SIZE_REACHED, reason)

    def _static_member(
        self,
        changes: ConsumerGroupUpdate,
        instance_id: str,
        request: ConsumerGroupHeartbeatRequest,
        owned: Assignment | None,
    ) -> ConsumerMember:
        current = changes.group.static_member(instance_id)
        if request.member_epoch != JOIN_EPOCH:
            if current is None:
                raise RaykaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
            check_instance(current, request.member_id)
            _check_epoch(current, request.member_epoch, owned)
            return current
        if current is None:
            return changes.group.members.get(request.member_id) or ConsumerMember(request.member_id)
        if current.member_epoch != LEAVE_STATIC_EPOCH and current.member_id == request.member_id:
            return current  # it was fenced, or missed the answer to its join
        if current.classic is None and current.member_epoch != LEAVE_STATIC_EPOCH:
            reason = (
                f"Static member {request.member_id} with instance id {instance_id} cannot join the group because the "
                f"instance id is owned by {current.member_id} member."
            )
            raise RaykaError(ErrorCode.UNRELEASED_INSTANCE_ID, reason)
        return replace_static_member(changes, current, request.member_id)

    def answer(
        self, group: ConsumerGroup, member: ConsumerMember, group_settings: ModernGroupSettings, now: Now
    ) -> ConsumerGroupHeartbeatResponse:
        """The member's epoch and when to come back: soon while the group changes or is about to change."""
        interval_ms = group_settings.heartbeat_interval_ms
        is_settled = (
            group.epoch == group.assignment_epoch
            and group.group_id not in self._overdue
            and member.is_reconciled_to(group.assignment_epoch)
            and has_passed(interval_ms, group.assignment_timestamp_ms, now.wall_ms)
        )
        if not is_settled:
            interval_ms = min(interval_ms, self.settings.unsettled_heartbeat_interval_ms)
        return ConsumerGroupHeartbeatResponse(
            member_id=member.member_id, member_epoch=member.member_epoch, heartbeat_interval_ms=interval_ms
        )

    def leave_static_member(self, changes: ConsumerGroupUpdate, member: ConsumerMember) -> None:
        """A static member that left keeps its partitions until its session is over."""
        gone = replace(member, member_epoch=LEAVE_STATIC_EPOCH, pending_revocation={})
        changes.add(gone.current_record(changes.group.group_id))

    def leaving(self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> ConsumerMember:
        """The member that leaves. Raises UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        if request.instance_id is None:
            member = group.members.get(request.member_id)
            if member is None:
                raise unknown_member(request.member_id, group.group_id)
            return member
        member = group.static_member(request.instance_id)
        if member is None:
            raise RaykaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {request.instance_id} is unknown.")
        check_instance(member, request.member_id)
        return member

    def renew_classic_session(self, group_id: str, member: ConsumerMember, now: Now) -> None:
        """Restart the session timer of a member that speaks the classic protocol."""
        assert member.classic is not None
        key = GroupTimerKey(GroupTimer.SESSION, group_id, member.member_id)
        self._timers.schedule(key, now.ms + member.classic.session_timeout_ms)

    def renew_session(self, group_id: str, member_id: str, group_settings: ModernGroupSettings, now: Now) -> None:
        """Restart the session timer. It fires twice: a warning, then the expiry `grace_ms` later.

        After the warning the other members use the short heartbeat interval, so that they rebalance at once on expiry.
        """
        self._clear_overdue(group_id, member_id)
        short_ms, interval_ms = self.settings.unsettled_heartbeat_interval_ms, group_settings.heartbeat_interval_ms
        longest_ms = max(group_settings.session_timeout_ms - interval_ms, interval_ms + 2 * short_ms) - short_ms
        warning_ms = min(longest_ms, group_settings.session_timeout_ms)
        grace_ms = group_settings.session_timeout_ms - warning_ms
        key = GroupTimerKey(GroupTimer.SESSION, group_id, member_id)
        self._timers.schedule(key, now.ms + warning_ms, SessionWarning(grace_ms) if grace_ms else None)

    def warn(self, key: GroupTimerKey, warning: SessionWarning, now: Now) -> None:
        """The session of a member is nearly over."""
        self._overdue.setdefault(key.group_id, set()).add(key.member_id)
        self._timers.schedule(key, now.ms + warning.grace_ms)

    def _clear_overdue(self, group_id: str, member_id: str) -> None:
        overdue = self._overdue.get(group_id)
        if overdue is not None:
            overdue.discard(member_id)
            if not overdue:
                del self._overdue[group_id]

    def watch_revocation(self, group_id: str, member: ConsumerMember, now: Now) -> None:
        """A member that has to revoke partitions has its rebalance timeout for it; then it is removed.

        The time begins again when others have to be revoked: while a group grows, that may happen with each heartbeat.
        """
        key = GroupTimerKey(GroupTimer.REBALANCE, group_id, member.member_id)
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._timers.cancel(key)
        elif self._timers.argument(key) != member.pending_revocation:
            self._timers.schedule(key, now.ms + member.rebalance_timeout_ms, member.pending_revocation)

    def forget(self, group_id: str, member_id: str) -> None:
        """Cancel all deadlines of a member."""
        self._clear_overdue(group_id, member_id)
        for timer in MEMBER_TIMERS:
            self._timers.cancel(GroupTimerKey(timer, group_id, member_id))


def replace_static_member(changes: ConsumerGroupUpdate, current: ConsumerMember, member_id: str) -> ConsumerMember:
    """A static member that comes back keeps its partitions, usually with a new member id."""
    member = replace(current, member_id=member_id, member_epoch=0, previous_member_epoch=0)
    changes.replace(current, member)
    return member


def unknown_member(member_id: str, group_id: str) -> RaykaError:
    """The error of a member that is not in the group."""
    return RaykaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}.")


def check_instance(member: ConsumerMember, member_id: str) -> None:
    """Raises FENCED_INSTANCE_ID if the instance has another member id by now."""
    if member.member_id != member_id:
        reason = f"Static member {member_id} with instance id {member.instance_id} was fenced by {member.member_id}."
        raise RaykaError(ErrorCode.FENCED_INSTANCE_ID, reason)


def _check_epoch(member: ConsumerMember, epoch: int, owned: Assignment | None) -> None:
    """A member that missed the answer with its new epoch comes with the one before, and owns nothing new yet."""
    if epoch in (JOIN_EPOCH, member.member_epoch):
        return
    if epoch < member.member_epoch and epoch == member.previous_member_epoch and _is_subset(owned, member):
        return
    reason = (
        f"The consumer group member has a member epoch ({epoch}) other than the one known by the group coordinator "
        f"({member.member_epoch}). The member must abandon all its partitions and rejoin."
    )
    raise RaykaError(ErrorCode.FENCED_MEMBER_EPOCH, reason)


def _is_subset(owned: Assignment | None, member: ConsumerMember) -> bool:
    if owned is None:
        return False
    return all(numbers <= member.assigned.get(topic_id, {}).keys() for topic_id, numbers in owned.items())


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the member may have lost its state, after a join or a lost answer; it then gets its whole assignment."""
    return request.member_epoch == JOIN_EPOCH or (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )


def _updated(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> ConsumerMember:
    """The member with what its request says; fields that the request leaves out stay as they were."""
    names, timeout_ms = request.subscribed_topic_names, request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=_or_before(request.instance_id, member.instance_id),
        rack_id=_or_before(request.rack_id, member.rack_id),
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        server_assignor=_or_before(request.server_assignor, member.server_assignor),
        subscribed_topic_names=member.subscribed_topic_names if names is None else frozenset(names),
        subscribed_topic_regex=_or_before(request.subscribed_topic_regex, member.subscribed_topic_regex),
        client_id=request.client_id,
        client_host=request.client_host,
        classic=None,
    )


def _or_before(text: str | None, before: str | None) -> str | None:
    return before if text is None else text


def _numbers(member: ConsumerMember) -> dict[object, frozenset[int]]:
    return {topic_id: frozenset(partitions) for topic_id, partitions in member.assigned.items()}
