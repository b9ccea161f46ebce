"""InitProducerId 0-5, for idempotent producers.

A transactional id needs a transaction coordinator. There is none, and the error says so instead of
letting a producer believe that its transactions are atomic.
"""

from __future__ import annotations

from typing import Any

from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.responses import NO_THROTTLE
from rayka.gateway.server.request import Call
from rayka.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


async def handle(call: Call) -> Any:
    """Give a producer an id that nobody has had, with epoch 0."""
    producer_id, epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    error = _fault(call)
    if error == ErrorCode.NONE:
        try:
            producer_id, epoch = await call.broker.controller.allocate_producer_id(), 0
        except RaykaError as refusal:
            error = refusal.code
    return call.types.InitProducerIdResponse(
        throttle_time=NO_THROTTLE, error_code=error, producer_id=producer_id, producer_epoch=epoch
    )


def _fault(call: Call) -> ErrorCode:
    transactional_id = call.request.transactional_id
    if transactional_id == "":
        return ErrorCode.INVALID_REQUEST
    if transactional_id is not None:
        return ErrorCode.UNSUPPORTED_VERSION
    has_id = call.field("producer_id", NO_PRODUCER_ID) != NO_PRODUCER_ID
    has_epoch = call.field("producer_epoch", NO_PRODUCER_EPOCH) != NO_PRODUCER_EPOCH
    return ErrorCode.NONE if has_id == has_epoch else ErrorCode.INVALID_REQUEST
