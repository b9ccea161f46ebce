"""The state RPCs of share coordinators (KIP-932): InitializeShareGroupState 0, ReadShareGroupState 0,
WriteShareGroupState 0-1, DeleteShareGroupState 0 and ReadShareGroupStateSummary 0-1.

Brokers of rayka do not need them: partition leaders reach share coordinators by their own links. They serve tools.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
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

Handler = Callable[[Call], Awaitable[Any]]
Ask = Callable[[str, uuid.UUID, Any], StateRequest[Any]]
"""Makes the request about one partition, of the group, the topic and the partition's part of the message."""


def _handler(response: str, result: str, ask: Ask) -> Handler:
    """A handler that answers with one `result` for each topic of the request, which has one for each partition."""

    async def handle(call: Call) -> Any:
        results = []
        for topic in call.request.topics:
            topic_id = topic.topic_id or ZERO_UUID
            requests = [(one.partition, ask(call.request.group_id, topic_id, one)) for one in topic.partitions]
            partitions = await asyncio.gather(*(_result(call, number, request) for number, request in requests))
            results.append(getattr(call.types, result)(topic_id=topic.topic_id, partitions=tuple(partitions)))
        return getattr(call.types, response)(results=tuple(results))

    return handle


def _write(group_id: str, topic_id: uuid.UUID, one: Any) -> WriteShareGroupStateRequest:
    """Version 0 does not know the count of completed deliveries."""
    return WriteShareGroupStateRequest(
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
    )


handle_initialize = _handler(
    "InitializeShareGroupStateResponse",
    "InitializeStateResult",
    lambda group_id, topic_id, one: InitializeShareGroupStateRequest(
        group_id, topic_id, one.partition, one.state_epoch, one.start_offset
    ),
)
handle_read = _handler(
    "ReadShareGroupStateResponse",
    "ReadStateResult",
    lambda group_id, topic_id, one: ReadShareGroupStateRequest(group_id, topic_id, one.partition, one.leader_epoch),
)
handle_write = _handler("WriteShareGroupStateResponse", "WriteStateResult", _write)
handle_delete = _handler(
    "DeleteShareGroupStateResponse",
    "DeleteStateResult",
    lambda group_id, topic_id, one: DeleteShareGroupStateRequest(group_id, topic_id, one.partition),
)
handle_read_summary = _handler(
    "ReadShareGroupStateSummaryResponse",
    "ReadStateSummaryResult",
    lambda group_id, topic_id, one: ReadShareGroupStateSummaryRequest(
        group_id, topic_id, one.partition, one.leader_epoch
    ),
)


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
