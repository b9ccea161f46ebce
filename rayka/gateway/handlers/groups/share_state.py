"""The state RPCs of share coordinators (KIP-932): InitializeShareGroupState 0, ReadShareGroupState 0,
WriteShareGroupState 0-1, DeleteShareGroupState 0 and ReadShareGroupStateSummary 0-1.

Brokers of rayka do not need them: partition leaders reach share coordinators by their own links. They serve tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rayka.coordinator.codec import ZERO_UUID
from rayka.coordinator.shares.requests import (
    UNINITIALIZED_COUNT,
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    StateBatch,
    StateRequest,
    WriteShareGroupStateRequest,
)
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.responses import message_of
from rayka.gateway.server.request import Call

Ask = Callable[[Any, Any], StateRequest[Any]]


async def handle_initialize(call: Call) -> Any:
    """Begin share-partitions."""
    group_id = call.request.group_id
    results = await _results(
        call,
        "InitializeStateResult",
        lambda topic_id, one: InitializeShareGroupStateRequest(
            group_id, topic_id, one.partition, one.state_epoch, one.start_offset
        ),
    )
    return call.types.InitializeShareGroupStateResponse(results=results)


async def handle_read(call: Call) -> Any:
    """Read whole states."""
    group_id = call.request.group_id
    results = await _results(
        call,
        "ReadStateResult",
        lambda topic_id, one: ReadShareGroupStateRequest(group_id, topic_id, one.partition, one.leader_epoch),
    )
    return call.types.ReadShareGroupStateResponse(results=results)


async def handle_write(call: Call) -> Any:
    """Write changes of states. Version 0 does not know the count of completed deliveries."""
    group_id = call.request.group_id
    results = await _results(
        call,
        "WriteStateResult",
        lambda topic_id, one: WriteShareGroupStateRequest(
            group_id,
            topic_id,
            one.partition,
            one.state_epoch,
            one.leader_epoch,
            one.start_offset,
            getattr(one, "delivery_complete_count", UNINITIALIZED_COUNT),
            tuple(
                StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
                for batch in one.state_batches
            ),
        ),
    )
    return call.types.WriteShareGroupStateResponse(results=results)


async def handle_delete(call: Call) -> Any:
    """Delete states."""
    group_id = call.request.group_id
    results = await _results(
        call,
        "DeleteStateResult",
        lambda topic_id, one: DeleteShareGroupStateRequest(group_id, topic_id, one.partition),
    )
    return call.types.DeleteShareGroupStateResponse(results=results)


async def handle_read_summary(call: Call) -> Any:
    """Read states without their batches."""
    group_id = call.request.group_id
    results = await _results(
        call,
        "ReadStateSummaryResult",
        lambda topic_id, one: ReadShareGroupStateSummaryRequest(group_id, topic_id, one.partition, one.leader_epoch),
    )
    return call.types.ReadShareGroupStateSummaryResponse(results=results)


async def _results(call: Call, name: str, ask: Ask) -> tuple[Any, ...]:
    """One result for each topic of the request, with one for each partition."""
    build = getattr(call.types, name)
    results = []
    for topic in call.request.topics:
        requests = [(one.partition, ask(topic.topic_id or ZERO_UUID, one)) for one in topic.partitions]
        partitions = await asyncio.gather(*(_result(call, number, request) for number, request in requests))
        results.append(build(topic_id=topic.topic_id, partitions=tuple(partitions)))
    return tuple(results)


async def _result(call: Call, partition: int, request: StateRequest[Any]) -> Any:
    """The fields of the response that this version has; with an error, the rest is empty."""
    types = call.types
    values: dict[str, Any] = {"state_epoch": 0, "leader_epoch": 0, "start_offset": 0, "state_batches": ()}
    values["delivery_complete_count"] = UNINITIALIZED_COUNT
    try:
        response = await call.broker.shares.execute(request)
        error, message = response.error, response.error_message
        values |= {name: getattr(response, name) for name in values if hasattr(response, name)}
    except RaykaError as refused:
        error, message = refused.code, refused.message
    if error != ErrorCode.NONE:
        values["state_batches"] = ()
    values["state_batches"] = tuple(
        types.StateBatch(
            first_offset=batch.first_offset,
            last_offset=batch.last_offset,
            delivery_state=batch.delivery_state,
            delivery_count=batch.delivery_count,
        )
        for batch in values["state_batches"]
    )
    return types.PartitionResult(
        partition=partition, error_code=error, error_message=message_of(error, message), **values
    )
