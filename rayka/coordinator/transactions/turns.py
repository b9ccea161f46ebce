"""Requests that take their turn after the markers of the transaction before.

The coordinator answers CONCURRENT_TRANSACTIONS as soon as they are written, or when the request has waited long enough;
either way the request comes again, a few times at most.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from rayka.coordinator.transactions.requests import (
    AddPartitionsRequest,
    AddPartitionsResponse,
    InitProducerIdRequest,
    ProducerIdResponse,
)
from rayka.errors import ErrorCode

_ATTEMPTS = 3


async def add_partitions_in_turn(
    execute: Callable[[Any], Awaitable[Any]], request: AddPartitionsRequest
) -> AddPartitionsResponse:
    """The response to a request that is carried out with `execute`. Raises what `execute` raises."""
    for _ in range(_ATTEMPTS):
        response: AddPartitionsResponse = await execute(request)
        if ErrorCode.CONCURRENT_TRANSACTIONS not in response.errors:
            break
    return response


async def init_producer_id_in_turn(
    execute: Callable[[Any], Awaitable[Any]], request: InitProducerIdRequest
) -> ProducerIdResponse:
    """The response to a request that is carried out with `execute`. Raises what `execute` raises."""
    for _ in range(_ATTEMPTS):
        response: ProducerIdResponse = await execute(request)
        if response.error is not ErrorCode.CONCURRENT_TRANSACTIONS:
            break
    return response
