"""FindCoordinator 0-6, and how a request about many groups is spread over their coordinators.

Version 0 knows groups only; from version 4 on one request asks for many keys, from version 6 on for share-partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rayka.coordinator.groups.requests import DeleteGroupsResponse
from rayka.coordinator.request import Request
from rayka.coordinator.shares.keys import parse_coordinator_key
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.responses import NO_THROTTLE
from rayka.gateway.ports import Groups
from rayka.gateway.server.request import Call
from rayka.metadata.image import BrokerImage

_FIRST_OF_MANY = 4
_GROUP = 0
_TRANSACTION = 1
_SHARE = 2
_FIRST_WITH_SHARE = 6
_NOBODY = BrokerImage(broker_id=-1, host="", port=-1, rack=None, fenced=True, node_id="", epoch=-1)


async def handle(call: Call) -> Any:
    """Name the nodes that have the coordinators."""
    if call.version < _FIRST_OF_MANY:
        return call.types.FindCoordinatorResponse(throttle_time=NO_THROTTLE, **await _find(call, call.request.key))
    found = [
        call.types.Coordinator(key=key, **await _find(call, key))
        for key in dict.fromkeys(call.request.coordinator_keys)
    ]
    return call.types.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=tuple(found))


async def _find(call: Call, key: str) -> dict[str, Any]:
    """The fields of a coordinator, or of the error that there is none."""
    node, error, message = _NOBODY, ErrorCode.NONE, None
    try:
        node = await _coordinator_of(call, call.field("key_type", _GROUP), key)
    except RaykaError as refusal:
        error, message = refusal.code, refusal.message
    return {
        "error_code": error,
        "error_message": message,
        "node_id": node.broker_id,
        "host": node.host,
        "port": node.port,
    }


async def _coordinator_of(call: Call, key_type: int, key: str) -> BrokerImage:
    if key_type == _GROUP:
        return await call.broker.groups.coordinator_of(key)
    if key_type == _TRANSACTION:
        return await call.broker.transactions.coordinator_of(key)
    if key_type != _SHARE or call.version < _FIRST_WITH_SHARE:
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"key type {key_type} is not valid in version {call.version}")
    parse_coordinator_key(key)
    return await call.broker.shares.coordinator_of(key)


async def answers_by_group(
    groups: Groups, request_type: Callable[[tuple[str, ...]], Request[Any]], group_ids: Iterable[str]
) -> Mapping[str, Any | RaykaError]:
    """Send a request that names many groups to each of their coordinators.

    Returns for every group its part of the response, or the error of its coordinator.
    """
    by_partition: dict[int, list[str]] = {}
    for group_id in dict.fromkeys(group_ids):
        by_partition.setdefault(groups.partition_of(group_id), []).append(group_id)
    parts = await asyncio.gather(*(_answers(groups, request_type(tuple(part)), part) for part in by_partition.values()))
    return {group_id: answer for part in parts for group_id, answer in part}


async def _answers(
    groups: Groups, request: Request[Any], group_ids: Sequence[str]
) -> list[tuple[str, Any | RaykaError]]:
    try:
        response = await groups.execute(request)
    except RaykaError as error:
        return [(group_id, error) for group_id in group_ids]
    answers = response.errors if isinstance(response, DeleteGroupsResponse) else response.groups
    return list(zip(group_ids, answers, strict=True))
