"""JoinGroup 0-9, SyncGroup 0-5, Heartbeat 0-4 and LeaveGroup 0-5: members of classic groups.

A new member gets its id from the coordinator; the unique part of it is generated here. From JoinGroup 4
on a new member has to come back with that id before it is admitted (KIP-394).
"""

from __future__ import annotations

import uuid
from typing import Any

from rayka.coordinator.groups.classic.requests import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    Protocol,
    SyncGroupRequest,
    SyncGroupResponse,
)
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.responses import NO_THROTTLE, client_host, signed_milliseconds
from rayka.gateway.server.request import Call

_FIRST_JOIN_WITH_KNOWN_ID = 4
_FIRST_JOIN_WITH_NULL_PROTOCOL = 7
_FIRST_JOIN_SKIPPING_ASSIGNMENT = 9
_FIRST_SYNC_WITH_PROTOCOL = 5
_FIRST_LEAVE_OF_MANY = 3


async def handle_join(call: Call) -> Any:
    """JoinGroup. The response comes at the end of the join phase."""
    try:
        joined = await call.broker.groups.execute(_join(call))
    except RaykaError as error:
        joined = JoinGroupResponse(error.code, call.request.member_id)
    return _joined(call, joined)


def _join(call: Call) -> JoinGroupRequest:
    request = call.request
    return JoinGroupRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        session_timeout_ms=signed_milliseconds(request.session_timeout),
        rebalance_timeout_ms=signed_milliseconds(call.field("rebalance_timeout", request.session_timeout)),
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(protocol.name, protocol.metadata) for protocol in request.protocols),
        new_id=str(uuid.uuid4()),
        group_instance_id=call.field("group_instance_id", None),
        client_id=call.client_id or "",
        client_host=client_host(call),
        require_known_member_id=call.version >= _FIRST_JOIN_WITH_KNOWN_ID,
        supports_skipping_assignment=call.version >= _FIRST_JOIN_SKIPPING_ASSIGNMENT,
    )


def _joined(call: Call, joined: JoinGroupResponse) -> Any:
    types = call.types
    without = None if call.version >= _FIRST_JOIN_WITH_NULL_PROTOCOL else ""
    return types.JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=joined.error,
        generation_id=joined.generation_id,
        protocol_type=joined.protocol_type,
        protocol_name=without if joined.protocol_name is None else joined.protocol_name,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=tuple(
            types.JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.group_instance_id, metadata=member.metadata
            )
            for member in joined.members
        ),
    )


async def handle_sync(call: Call) -> Any:
    """SyncGroup. The response comes when the leader has sent the assignments."""
    try:
        synced = await call.broker.groups.execute(_sync(call))
    except RaykaError as error:
        synced = SyncGroupResponse(error.code)
    # A coordinator that loads has lost the rebalance. Java's consumer ends at its error here, and joins again at this.
    is_loading = synced.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return call.types.SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.REBALANCE_IN_PROGRESS if is_loading else synced.error,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol_name,
        assignment=synced.assignment,
    )


def _sync(call: Call) -> SyncGroupRequest:
    """Raises INCONSISTENT_GROUP_PROTOCOL where this version must name the protocol and does not (KIP-559)."""
    request = call.request
    protocol = call.field("protocol_type", None), call.field("protocol_name", None)
    if call.version >= _FIRST_SYNC_WITH_PROTOCOL and None in protocol:
        raise RaykaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "protocol type and name must be given")
    return SyncGroupRequest(
        request.group_id,
        request.generation_id,
        request.member_id,
        call.field("group_instance_id", None),
        *protocol,
        assignments=tuple((entry.member_id, entry.assignment) for entry in request.assignments),
    )


async def handle_heartbeat(call: Call) -> Any:
    """Renew a member's session. A coordinator that loads starts all sessions anew: the member just goes on."""
    request = call.request
    heartbeat = HeartbeatRequest(
        request.group_id, request.generation_id, request.member_id, call.field("group_instance_id", None)
    )
    call.pending.connection.affinity.follow_group(heartbeat.group_id)
    try:
        answer = await call.broker.groups.execute(heartbeat)
    except RaykaError as error:
        is_loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        answer = HeartbeatResponse(ErrorCode.NONE if is_loading else error.code)
    return call.types.HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=answer.error)


async def handle_leave(call: Call) -> Any:
    """Remove members. Versions 0 to 2 name one member and answer with its error."""
    request = call.request
    identities = request.members if call.version >= _FIRST_LEAVE_OF_MANY else (request,)
    members = tuple(
        MemberIdentity(
            identity.member_id, getattr(identity, "group_instance_id", None), getattr(identity, "reason", None)
        )
        for identity in identities
    )
    leave = LeaveGroupRequest(request.group_id, members)
    try:
        left = await call.broker.groups.execute(leave)
    except RaykaError as error:
        left = LeaveGroupResponse(error.code)
    return _left(call, left)


def _left(call: Call, left: LeaveGroupResponse) -> Any:
    error = left.error
    if call.version < _FIRST_LEAVE_OF_MANY and error == ErrorCode.NONE and left.members:
        error = left.members[0].error
    types = call.types
    return types.LeaveGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=error,
        members=tuple(
            types.MemberResponse(
                member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=member.error
            )
            for member in left.members
        ),
    )
