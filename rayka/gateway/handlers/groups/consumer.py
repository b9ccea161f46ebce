"""ConsumerGroupHeartbeat 0-1 and ConsumerGroupDescribe 0-1 (KIP-848).

A member makes its own id from version 1 of the heartbeat on; for version 0 it is made here.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable
from typing import Any

from rayka.coordinator.codec import ZERO_UUID
from rayka.coordinator.groups.records import TargetPartitions
from rayka.coordinator.groups.requests import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumer,
    DescribedConsumerGroup,
    NamedPartitions,
)
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.groups.find_coordinator import answers_by_group
from rayka.gateway.handlers.responses import (
    GROUP_OPERATIONS,
    NO_THROTTLE,
    OPERATIONS_NOT_ASKED,
    client_host,
    message_of,
    signed_milliseconds,
)
from rayka.gateway.server.request import Call

_JOINS = 0
_PROTOCOL = "consumer"


async def handle_heartbeat(call: Call) -> Any:
    """Join, stay, say what is owned, or leave; the answer has a new assignment if there is one."""
    request = _heartbeat(call)
    try:
        _check_enabled(call)
        answer = await call.broker.groups.execute(request)
    except RaykaError as error:
        answer = ConsumerGroupHeartbeatResponse(error.code, error.message)
    return _answer(call, answer)


def _check_enabled(call: Call) -> None:
    if _PROTOCOL not in call.broker.config["group.coordinator.rebalance.protocols"]:
        reason = "group.coordinator.rebalance.protocols leaves out the consumer protocol"
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


def _answer(call: Call, answer: ConsumerGroupHeartbeatResponse) -> Any:
    types = call.types
    assignment = None
    if answer.assignment is not None:
        assignment = types.Assignment(
            topic_partitions=tuple(
                types.TopicPartitions(topic_id=topic.topic_id, partitions=topic.partitions)
                for topic in answer.assignment
            )
        )
    return types.ConsumerGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=answer.error,
        error_message=message_of(answer.error, answer.error_message),
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval=datetime.timedelta(milliseconds=answer.heartbeat_interval_ms),
        assignment=assignment,
    )


async def handle_describe(call: Call) -> Any:
    """Describe consumer groups: each member's topics, what it has and what it is to have."""
    asked = call.request.group_ids
    answers = await answers_by_group(call.broker.groups, ConsumerGroupDescribeRequest, filter(None, asked))
    unnamed = RaykaError(ErrorCode.INVALID_GROUP_ID, "a group's id must not be empty")
    return call.types.ConsumerGroupDescribeResponse(
        throttle_time=NO_THROTTLE,
        groups=tuple(_described(call, group_id, answers.get(group_id, unnamed)) for group_id in asked),
    )


def _described(call: Call, group_id: str, group: DescribedConsumerGroup | RaykaError) -> Any:
    if isinstance(group, RaykaError):
        group = DescribedConsumerGroup(group_id, group.code, group.message)
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


def _member(call: Call, member: DescribedConsumer) -> Any:
    return call.types.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topic_names,
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=_assignment(call, member.assignment),
        target_assignment=_assignment(call, member.target_assignment),
        member_type=member.member_type,
    )


def _assignment(call: Call, topics: Iterable[NamedPartitions]) -> Any:
    return call.types.Assignment(
        topic_partitions=tuple(
            call.types.TopicPartitions(
                topic_id=topic.topic_id, topic_name=topic.topic_name, partitions=topic.partitions
            )
            for topic in topics
        )
    )
