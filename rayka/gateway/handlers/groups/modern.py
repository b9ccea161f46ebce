"""What the handlers of consumer groups and of share groups have in common; Kafka's broker calls both modern."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from typing import Any

from rayka.coordinator.groups.consumer.requests import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatResponse
from rayka.coordinator.groups.requests import DescribedModernGroup, DescribedModernMember, NamedPartitions
from rayka.coordinator.groups.share.requests import ShareGroupDescribeRequest, ShareGroupHeartbeatResponse
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.groups.find_coordinator import answers_by_group
from rayka.gateway.handlers.responses import (
    GROUP_OPERATIONS,
    NO_THROTTLE,
    OPERATIONS_NOT_ASKED,
    message_of,
)
from rayka.gateway.server.request import Call

DescribeRequest = type[ConsumerGroupDescribeRequest] | type[ShareGroupDescribeRequest]
MemberFields = Callable[[Call, DescribedModernMember], dict[str, Any]]


def heartbeat_fields(
    call: Call, answer: ConsumerGroupHeartbeatResponse | ShareGroupHeartbeatResponse
) -> dict[str, Any]:
    """The fields of the response to a heartbeat."""
    types, assignment = call.types, None
    if answer.assignment is not None:
        assignment = types.Assignment(
            topic_partitions=tuple(
                types.TopicPartitions(topic_id=topic.topic_id, partitions=topic.partitions)
                for topic in answer.assignment
            )
        )
    return {
        "throttle_time": NO_THROTTLE,
        "error_code": answer.error,
        "error_message": message_of(answer.error, answer.error_message),
        "member_id": answer.member_id,
        "member_epoch": answer.member_epoch,
        "heartbeat_interval": datetime.timedelta(milliseconds=answer.heartbeat_interval_ms),
        "assignment": assignment,
    }


async def describe_fields(call: Call, request: DescribeRequest, more: MemberFields) -> dict[str, Any]:
    """The fields of the response that describes groups; `more` gives those that members of one kind have besides."""
    asked = dict.fromkeys(call.request.group_ids)
    answers = await answers_by_group(call.broker.groups, request, filter(None, asked))
    unnamed = RaykaError(ErrorCode.INVALID_GROUP_ID, "a group's id must not be empty")
    groups = tuple(_group(call, group_id, answers.get(group_id, unnamed), more) for group_id in asked)
    return {"throttle_time": NO_THROTTLE, "groups": groups}


def _group(call: Call, group_id: str, group: DescribedModernGroup | RaykaError, more: MemberFields) -> Any:
    if isinstance(group, RaykaError):
        group = DescribedModernGroup(group_id, group.code, group.message)
    asked = call.request.include_authorized_operations and group.error == ErrorCode.NONE
    return call.types.DescribedGroup(
        error_code=group.error,
        error_message=message_of(group.error, group.error_message),
        group_id=group_id,
        group_state=group.group_state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor_name,
        members=tuple(_member(call, member, more) for member in group.members),
        authorized_operations=GROUP_OPERATIONS if asked else OPERATIONS_NOT_ASKED,
    )


def _member(call: Call, member: DescribedModernMember, more: MemberFields) -> Any:
    return call.types.Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topic_names,
        assignment=assignment_of(call, member.assignment),
        **more(call, member),
    )


def assignment_of(call: Call, topics: Iterable[NamedPartitions]) -> Any:
    """Partitions of topics by their names and ids."""
    types = call.types
    return types.Assignment(
        topic_partitions=tuple(
            types.TopicPartitions(topic_id=topic.topic_id, topic_name=topic.topic_name, partitions=topic.partitions)
            for topic in topics
        )
    )
