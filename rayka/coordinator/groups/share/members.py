"""The commands of members of share groups, and what follows their appends (KIP-932)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rayka.coordinator.clock import Now
from rayka.coordinator.groups.consumer.member import JOIN_EPOCH, LEAVE_EPOCH, assignment_of, topic_partitions
from rayka.coordinator.groups.consumer.target_assignment import has_passed
from rayka.coordinator.groups.deadlines import GroupTimer, GroupTimerKey
from rayka.coordinator.groups.settings import GroupSettings, ModernGroupSettings, SettingsByGroup
from rayka.coordinator.groups.share.group import ShareGroup
from rayka.coordinator.groups.share.member import ShareMember
from rayka.coordinator.groups.share.requests import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupStateInitializedRequest,
    ShareGroupStateInitializedResponse,
)
from rayka.coordinator.groups.share.update import ShareGroupUpdate
from rayka.coordinator.groups.state import NO_METADATA, GroupState
from rayka.coordinator.groups.steps import RemoveMembers, Respond
from rayka.coordinator.result import Result
from rayka.coordinator.timers import TimerQueue
from rayka.errors import ErrorCode, RaykaError


@dataclass(frozen=True, slots=True)
class AcceptShareHeartbeat:
    """A member of a share group joined or moved on, or share-partitions are about to get state."""

    group_id: str
    member_id: str
    begins_initialization: bool
    response_type: type[Any] = ShareGroupHeartbeatResponse


class ShareMembers:
    """Serves the members of share groups. A request that is refused raises the error that the member gets."""

    def __init__(
        self,
        settings: GroupSettings,
        group_settings: SettingsByGroup,
        state: GroupState,
        timers: TimerQueue[GroupTimerKey],
    ) -> None:
        self._settings = settings
        self._group_settings = group_settings
        self._state = state
        self._timers = timers

    def heartbeat(self, request: ShareGroupHeartbeatRequest, now: Now) -> Result[ShareGroupHeartbeatResponse]:
        """ShareGroupHeartbeat: join, stay or leave."""
        if self._state.topics.version == NO_METADATA:
            raise RaykaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the topics of the cluster are not known yet")
        _check_request(request)
        group = self._group(request.group_id, may_create=request.member_epoch == JOIN_EPOCH)
        if request.member_epoch == LEAVE_EPOCH:
            return self._leave(group, request, now)
        before = self._member(group, request)
        group_settings = self._group_settings.of(request.group_id)
        changes = ShareGroupUpdate(group.draft(), self._state.topics, now.wall_ms)
        changes.follow_topics(changes.update(_updated(before, request)))
        changes.assign(group_settings.assignment_interval_ms)
        moved = changes.reconcile(request.member_id)
        to_initialize = changes.initialize(
            self._is_over(group.initializing_since_ms, now), self._is_over(group.deleting_since_ms, now)
        )
        answer = replace(
            self._answer(changes.group, moved, group_settings, now),
            state_epoch=changes.group.epoch,
            to_initialize=to_initialize,
        )
        if (
            request.member_epoch == JOIN_EPOCH
            or request.subscribed_topic_names is not None
            or moved.assigned != before.assigned
        ):
            answer = replace(answer, assignment=topic_partitions(moved.assigned))
        step = AcceptShareHeartbeat(request.group_id, request.member_id, bool(to_initialize))
        return Result(answer, tuple(changes.records), step=step)

    def _group(self, group_id: str, may_create: bool) -> ShareGroup:
        """The group. Raises GROUP_ID_NOT_FOUND."""
        group = self._state.groups.get(group_id)
        if isinstance(group, ShareGroup):
            return group
        if group is None and may_create:
            return ShareGroup(group_id)
        reason = "Share group {} not found." if group is None else "Group {} is not a share group."
        raise RaykaError(ErrorCode.GROUP_ID_NOT_FOUND, reason.format(group_id))

    def _member(self, group: ShareGroup, request: ShareGroupHeartbeatRequest) -> ShareMember:
        """The member that sent the request, new or known. Raises the error of one that is not allowed."""
        member = group.members.get(request.member_id)
        if member is None and len(group.members) >= self._settings.share_max_size:
            reason = f"The share group has reached its maximum capacity of {self._settings.share_max_size} members."
            raise RaykaError(ErrorCode.GROUP_MAX_SIZE_REACHED, reason)
        if member is not None:
            _check_epoch(member, request.member_epoch)
        elif request.member_epoch != JOIN_EPOCH:
            raise _unknown(request)
        return member or ShareMember(request.member_id)

    def _leave(
        self, group: ShareGroup, request: ShareGroupHeartbeatRequest, now: Now
    ) -> Result[ShareGroupHeartbeatResponse]:
        if request.member_id not in group.members:
            raise _unknown(request)
        answer = ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE_EPOCH)
        step = RemoveMembers(group.group_id, (request.member_id,), ShareGroupHeartbeatResponse)
        return self._remove(group, answer, step, now)

    def _remove(self, group: ShareGroup, answer: Any, step: RemoveMembers, now: Now) -> Result[Any]:
        changes = ShareGroupUpdate(group.draft(), self._state.topics, now.wall_ms)
        changes.remove(step.member_ids[0])
        return Result(answer, tuple(changes.records), step=step)

    def _answer(
        self, group: ShareGroup, member: ShareMember, group_settings: ModernGroupSettings, now: Now
    ) -> ShareGroupHeartbeatResponse:
        """The member's epoch and when to come back: soon while the group changes, or has just changed."""
        interval_ms = group_settings.heartbeat_interval_ms
        is_settled = (
            group.epoch == group.assignment_epoch == member.member_epoch
            and not group.initializing
            and has_passed(interval_ms, group.assignment_timestamp_ms, now.wall_ms)
        )
        if not is_settled:
            interval_ms = min(interval_ms, self._settings.share_unsettled_heartbeat_interval_ms)
        return ShareGroupHeartbeatResponse(
            member_id=member.member_id, member_epoch=member.member_epoch, heartbeat_interval_ms=interval_ms
        )

    def accept_heartbeat(self, step: AcceptShareHeartbeat, now: Now) -> None:
        """A heartbeat's records are in the log."""
        group = self._state.groups[step.group_id]
        assert isinstance(group, ShareGroup)
        group.checked_version = self._state.topics.version
        if step.begins_initialization:
            group.initializing_since_ms = now.ms
        self._renew_session(group, step.member_id, now)

    def _renew_session(self, group: ShareGroup, member_id: str, now: Now) -> None:
        timeout_ms = self._group_settings.of(group.group_id).session_timeout_ms
        self._timers.schedule(GroupTimerKey(GroupTimer.SESSION, group.group_id, member_id), now.ms + timeout_ms)

    def _is_over(self, since_ms: int, now: Now) -> bool:
        """Whether what began then would have been reported by now; what another coordinator began counts as over."""
        return since_ms == 0 or now.ms >= since_ms + self._settings.share_initialize_retry_interval_ms

    def state_initialized(
        self, request: ShareGroupStateInitializedRequest, now: Now
    ) -> Result[ShareGroupStateInitializedResponse]:
        """Share-partitions have got state, and can be assigned from the next heartbeat on; or have not."""
        group = self._group(request.group_id, may_create=False)
        changes = ShareGroupUpdate(group.draft(), self._state.topics, now.wall_ms)
        changes.initialized(assignment_of(request.initialized))
        changes.not_initialized(assignment_of(request.failed))
        step = Respond(ShareGroupStateInitializedResponse)
        return Result(ShareGroupStateInitializedResponse(), tuple(changes.records), step=step)

    def expire(self, group: ShareGroup, key: GroupTimerKey, argument: Any, now: Now) -> Result[None] | None:
        """Remove a member whose session is over."""
        if key.timer is not GroupTimer.SESSION or key.member_id not in group.members:
            return None
        return self._remove(group, None, RemoveMembers(group.group_id, (key.member_id,), retry=(key, argument)), now)

    def on_loaded(self, group: ShareGroup, now: Now) -> None:
        """Start the sessions of a group's members."""
        for member_id in group.members:
            self._renew_session(group, member_id, now)


def _check_request(request: ShareGroupHeartbeatRequest) -> None:
    """Raises INVALID_REQUEST for a request that can't be right in any state."""
    for name in ("group_id", "member_id", "rack_id"):
        value = getattr(request, name)
        if value is not None and not value.strip():
            raise _invalid(f"{name} can't be empty")
    if request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        raise _invalid("subscribed_topic_names must be set in first request")
    if request.member_epoch < LEAVE_EPOCH:
        raise _invalid("member_epoch is invalid")


def _invalid(reason: str) -> RaykaError:
    return RaykaError(ErrorCode.INVALID_REQUEST, f"{reason}.")


def _unknown(request: ShareGroupHeartbeatRequest) -> RaykaError:
    reason = f"Member {request.member_id} is not a member of group {request.group_id}."
    return RaykaError(ErrorCode.UNKNOWN_MEMBER_ID, reason)


def _check_epoch(member: ShareMember, epoch: int) -> None:
    """A member that missed the answer with its new epoch comes with the one before. Raises FENCED_MEMBER_EPOCH."""
    if epoch not in (JOIN_EPOCH, member.member_epoch, member.previous_member_epoch):
        reason = (
            f"The share group member has a member epoch ({epoch}) other than the one known by the group coordinator "
            f"({member.member_epoch}). The member must abandon all its partitions and rejoin."
        )
        raise RaykaError(ErrorCode.FENCED_MEMBER_EPOCH, reason)


def _updated(member: ShareMember, request: ShareGroupHeartbeatRequest) -> ShareMember:
    """The member with what its request says; fields that the request leaves out stay as they were."""
    names = request.subscribed_topic_names
    return replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        subscribed_topic_names=member.subscribed_topic_names if names is None else frozenset(names),
        client_id=request.client_id,
        client_host=request.client_host,
    )
