"""DescribeGroups 0-6, ListGroups 0-5 and DeleteGroups 0-3: groups seen from outside."""

from __future__ import annotations

import asyncio
from typing import Any

from rayka.coordinator.groups.classic.requests import DescribedGroup, DescribeGroupsRequest
from rayka.coordinator.groups.requests import DeleteGroupsRequest, ListedGroup, ListGroupsRequest
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.groups.find_coordinator import answers_by_group
from rayka.gateway.handlers.responses import GROUP_OPERATIONS, NO_THROTTLE, OPERATIONS_NOT_ASKED, message_of
from rayka.gateway.server.request import Call
from rayka.gateway.share_groups import ShareGroups

_FIRST_DESCRIBE_WITH_NOT_FOUND = 6
_GROUPS_AT_ONCE = 50
"""How many groups of one request delete their share state at a time."""


async def handle_describe(call: Call) -> Any:
    """Describe classic groups, each once. Before version 6 one that is not there is Dead, without an error."""
    asked = dict.fromkeys(call.request.groups)
    answers = await answers_by_group(call.broker.groups, DescribeGroupsRequest, asked)
    return call.types.DescribeGroupsResponse(
        throttle_time=NO_THROTTLE, groups=tuple(_described(call, group_id, answers[group_id]) for group_id in asked)
    )


def _described(call: Call, group_id: str, group: DescribedGroup | RaykaError) -> Any:
    if isinstance(group, RaykaError):
        group = DescribedGroup(group_id, group.code, group.message)
    is_told = group.error != ErrorCode.GROUP_ID_NOT_FOUND or call.version >= _FIRST_DESCRIBE_WITH_NOT_FOUND
    error = group.error if is_told else ErrorCode.NONE
    asked = call.field("include_authorized_operations", False) and error == ErrorCode.NONE
    types = call.types
    return types.DescribedGroup(
        error_code=error,
        error_message=message_of(error, group.error_message),
        group_id=group_id,
        group_state=group.group_state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_data,
        members=tuple(types.DescribedGroupMember(**_member(member)) for member in group.members),
        authorized_operations=GROUP_OPERATIONS if asked else OPERATIONS_NOT_ASKED,
    )


def _member(member: Any) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": member.metadata,
        "member_assignment": member.assignment,
    }


async def handle_list(call: Call) -> Any:
    """The groups of this node's coordinators, of some states (KIP-518) and types (KIP-848): clients ask every node."""
    states, kinds = call.field("states_filter", ()), call.field("types_filter", ())
    error = ErrorCode.NONE
    listed: list[ListedGroup] = []
    try:
        request = ListGroupsRequest(tuple(states), tuple(kinds))
        for answer in await call.broker.groups.execute_all(request, call.broker.node_id):
            listed += answer.groups
    except RaykaError as refusal:
        error = refusal.code
    types = call.types
    return types.ListGroupsResponse(
        throttle_time=NO_THROTTLE,
        error_code=error,
        groups=tuple(
            types.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.group_state,
                group_type=group.group_type,
            )
            for group in listed
        ),
    )


async def handle_delete(call: Call) -> Any:
    """Delete empty groups with their offsets. Share groups are refused until their state is deleted."""
    groups, names = call.broker.groups, call.request.groups_names
    answers = dict(await answers_by_group(groups, DeleteGroupsRequest, names))
    refused = [group_id for group_id, answer in answers.items() if answer is ErrorCode.NON_EMPTY_GROUP]
    room = asyncio.Semaphore(_GROUPS_AT_ONCE)
    errors = await asyncio.gather(*(_delete_share_state(call, group_id, room) for group_id in refused))
    answers |= zip(refused, errors, strict=True)
    deleted = [group_id for group_id in refused if answers[group_id] is ErrorCode.NONE]
    answers |= await answers_by_group(groups, DeleteGroupsRequest, deleted)
    return call.types.DeleteGroupsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(_deleted(call, group_id, answer) for group_id, answer in answers.items()),
    )


async def _delete_share_state(call: Call, group_id: str, room: asyncio.Semaphore) -> ErrorCode | RaykaError:
    """NONE if it was a share group without members, whose state is now deleted."""
    async with room:
        try:
            return await ShareGroups(call.broker).delete_state(group_id)
        except RaykaError as refused:
            return refused


def _deleted(call: Call, group_id: str, answer: ErrorCode | RaykaError) -> Any:
    error, message = (answer.code, answer.message) if isinstance(answer, RaykaError) else (answer, None)
    return call.types.DeletableGroupResult(group_id=group_id, error_code=error, error_message=message)
