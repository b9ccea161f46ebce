"""ShareGroupHeartbeat 1 and ShareGroupDescribe 1 (KIP-932)."""

from __future__ import annotations

from typing import Any

from rayka.coordinator.groups.share.requests import (
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from rayka.errors import RaykaError
from rayka.gateway.handlers.groups.modern import describe_fields, heartbeat_fields
from rayka.gateway.handlers.responses import client_host
from rayka.gateway.server.request import Call
from rayka.gateway.share_groups import ShareGroups


async def handle_heartbeat(call: Call) -> Any:
    """Join, stay or leave; the answer has a new assignment if there is one."""
    request = ShareGroupHeartbeatRequest(
        group_id=call.request.group_id,
        member_id=call.request.member_id,
        member_epoch=call.request.member_epoch,
        rack_id=call.request.rack_id,
        subscribed_topic_names=call.request.subscribed_topic_names,
        client_id=call.client_id or "",
        client_host=client_host(call),
    )
    try:
        answer = await ShareGroups(call.broker).heartbeat(request)
    except RaykaError as error:
        answer = ShareGroupHeartbeatResponse(error.code, error.message)
    return call.types.ShareGroupHeartbeatResponse(**heartbeat_fields(call, answer))


async def handle_describe(call: Call) -> Any:
    """Describe share groups: each member's topics and what it has."""
    fields = await describe_fields(call, ShareGroupDescribeRequest, lambda _call, _member: {})
    return call.types.ShareGroupDescribeResponse(**fields)
