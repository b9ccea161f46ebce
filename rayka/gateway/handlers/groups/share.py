"""ShareGroupHeartbeat 1 and ShareGroupDescribe 1 (KIP-932)."""

from __future__ import annotations

import datetime
from typing import Any

from rayka.coordinator.groups.share.requests import (
    DescribedShareGroup,
    DescribedShareMember,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.groups.find_coordinator import answers_by_group
from rayka.gateway.handlers.responses import (
    GROUP_OPERATIONS,
    NO_THROTTLE,
    OPERATIONS_NOT_ASKED,
    client_host,
    message_of,
)
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
    return _answer(call, answer)


def _answer(call: Call, answer: ShareGroupHeartbeatResponse) -> Any:
    types = call.types
    assignment = None
    if answer.assignment is not None:
        assignment = types.Assignment(
            topic_partitions=tuple(
                types.TopicPartitions(topic_id=topic.topic_id, partitions=topic.partitions)
                for topic in answer.assignment
            )
        )
    return types.ShareGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=answer.error,
        error_message=message_of(answer.error, answer.error_message),
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval=datetime.timedelta(milliseconds=answer.heartbeat_interval_ms),
        assignment=assignment,
    )


async def handle_describe(call: Call) -> Any:
    """Describe share groups: each member's topics and what it has."""
    asked = call.request.group_ids
    answers = await answers_by_group(call.broker.groups, ShareGroupDescribeRequest, filter(None, asked))
    unnamed = RaykaError(ErrorCode.INVALID_GROUP_ID, "a group's id must not be empty")
    return call.types.ShareGroupDescribeResponse(
        throttle_time=NO_THROTTLE,
        groups=tuple(_described(call, group_id, answers.get(group_id, unnamed)) for group_id in asked),
    )


def _described(call: Call, group_id: str, group: DescribedShareGroup | RaykaError) -> Any:
    if isinstance(group, RaykaError):
        group = DescribedShareGroup(group_id, group.code, group.message)
    asked = call.request.include_authorized_operations and group.error == ErrorCode.NONE
    return call.types.DescribedGroup(
        error_code=group.error,
        error_message=message_of(group.error, group.error_message),
        group_id=group_id,
        group_state=group.group_state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor_name,
        members=tuple(_member(call, member) for member in group.members),
        authorized_operations=GROUP_OPERATIONS if asked else OPERATIONS_NOT_ASKED,
    )


def _member(call: Call, member: DescribedShareMember) -> Any:
    types = call.types
    return types.Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topic_names,
        assignment=types.Assignment(
            topic_partitions=tuple(
                types.TopicPartitions(topic_id=topic.topic_id, topic_name=topic.topic_name, partitions=topic.partitions)
                for topic in member.assignment
            )
        ),
    )
