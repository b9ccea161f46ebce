"""InitProducerId 0-6, and requests to coordinators that may need a new producer id.

Without a transactional id a producer is idempotent only; it gets an id that nobody has had, with epoch 0. Version 6 can
keep a prepared transaction (KIP-939), which Kafka 4.4 answers with UNSUPPORTED_VERSION, and so do we.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rayka.coordinator.transactions.requests import EndTxnRequest, InitProducerIdRequest, ProducerIdResponse
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.responses import NO_THROTTLE, signed_milliseconds
from rayka.gateway.server.request import Call
from rayka.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

_FIRST_WITH_FENCED = 4


async def handle(call: Call) -> Any:
    """Give a producer its id and epoch."""
    answer = await _answer(call)
    return call.types.InitProducerIdResponse(
        throttle_time=NO_THROTTLE,
        error_code=known_error(call, answer.error, _FIRST_WITH_FENCED),
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
        ongoing_txn_producer_id=NO_PRODUCER_ID,
        ongoing_txn_producer_epoch=NO_PRODUCER_EPOCH,
    )


async def _answer(call: Call) -> ProducerIdResponse:
    transactional_id = call.request.transactional_id
    producer_id = call.field("producer_id", NO_PRODUCER_ID)
    producer_epoch = call.field("producer_epoch", NO_PRODUCER_EPOCH)
    if transactional_id == "" or (producer_id == NO_PRODUCER_ID) != (producer_epoch == NO_PRODUCER_EPOCH):
        return ProducerIdResponse(ErrorCode.INVALID_REQUEST)
    try:
        if transactional_id is None:
            return ProducerIdResponse(producer_id=await call.broker.controller.allocate_producer_id(), producer_epoch=0)
        request = InitProducerIdRequest(
            transactional_id,
            signed_milliseconds(call.request.transaction_timeout),
            producer_id,
            producer_epoch,
            is_two_phase=call.field("enable2_pc", False),
            keeps_prepared=call.field("keep_prepared_txn", False),
            max_wait_ms=longest_wait_ms(call),
        )
        return await with_producer_id(call, request)
    except RaykaError as error:
        return ProducerIdResponse(error.code)


async def with_producer_id(call: Call, request: InitProducerIdRequest | EndTxnRequest) -> ProducerIdResponse:
    """Carry out a request at its coordinator; if that needs a new producer id, once more with one."""
    response = await call.broker.transactions.execute(request)
    if response.needs_producer_id:
        new_producer_id = await call.broker.controller.allocate_producer_id()
        response = await call.broker.transactions.execute(dataclasses.replace(request, new_producer_id=new_producer_id))
    return response


def longest_wait_ms(call: Call) -> int:
    """How long a request waits for the markers of the transaction before."""
    wait_ms: int = call.broker.config["add.partitions.to.txn.retry.backoff.max.ms"]
    return wait_ms


def known_error(call: Call, error: ErrorCode, first_with_fenced: int) -> ErrorCode:
    """The error in this version: before PRODUCER_FENCED there was INVALID_PRODUCER_EPOCH (KIP-588)."""
    if error is ErrorCode.PRODUCER_FENCED and call.version < first_with_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
