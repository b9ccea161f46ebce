"""ConsumerGroupHeartbeat 0-1 and ConsumerGroupDescribe 0-1 (KIP-848).

A member makes its own id from version 1 of the heartbeat on; for version 0 it is made here.
"""

from __future__ import annotations

import uuid
from typing import Any

from rayka.coordinator.codec import ZERO_UUID
from rayka.coordinator.groups.consumer.requests import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from rayka.coordinator.groups.records import TargetPartitions
from rayka.coordinator.groups.requests import DescribedModernMember
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.groups.modern import assignment_of, describe_fields, heartbeat_fields
from rayka.gateway.handlers.responses import client_host, signed_milliseconds
from rayka.gateway.server.request import Call

_JOINS = 0
_PROTOCOL = "consumer"


async def handle_heartbeat(call: Call) -> Any:
    """Join, stay, say what is owned, or leave; the answer has a new assignment if there is one."""
    request = _heartbeat(call)
    call.pending.connection.affinity.follow_group(request.group_id)
    try:
        _check_enabled(call)
        answer = await call.broker.groups.execute(request)
    except RaykaError as error:
        answer = ConsumerGroupHeartbeatResponse(error.code, error.message)
    return call.types.ConsumerGroupHeartbeatResponse(**heartbeat_fields(call, answer))


def _check_enabled(call: Call) -> None:
    if _PROTOCOL not in call.broker.config["group.coordinator.rebalance.protocols"]:
        reason = "group.coordinator.rebalance.protocols does not include the consumer protocol"
        raise RaykaError(ErrorCode.UNSUPPORTED_VERSION, reason)


def _heartbeat(call: Call) -> ConsumerGroupHeartbeatRequest:
    request = call.request
    is_new = call.version == 0 and not request.member_id and request.member_epoch == _JOINS
    owned = request.topic_partitions
    return ConsumerGroupHeartbeatRequest(
        group_id=request.group_id,
        member_id=str(uuid.uuid4()) if is_new else request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=signed_milliseconds(request.rebalance_timeout),
        subscribed_topic_names=request.subscribed_topic_names,
        subscribed_topic_regex=call.field("subscribed_topic_regex", None),
        server_assignor=request.server_assignor,
        topic_partitions=None
        if owned is None
        else tuple(TargetPartitions(topic.topic_id or ZERO_UUID, topic.partitions) for topic in owned),
        client_id=call.client_id or "",
        client_host=client_host(call),
    )


async def handle_describe(call: Call) -> Any:
    """Describe consumer groups: each member's topics, what it has and what it is to have."""
    fields = await describe_fields(call, ConsumerGroupDescribeRequest, _member)
    return call.types.ConsumerGroupDescribeResponse(**fields)


def _member(call: Call, member: DescribedModernMember) -> dict[str, Any]:
    return {
        "instance_id": member.instance_id,
        "subscribed_topic_regex": member.subscribed_topic_regex,
        "target_assignment": assignment_of(call, member.target_assignment),
        "member_type": member.member_type,
    }
