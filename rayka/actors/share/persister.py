"""The way of a partition leader to the share coordinators, which keep the state of its share-partitions."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, TypeVar

from rayka.coordinator.request import Request
from rayka.coordinator.shares.requests import (
    ReadShareGroupStateRequest,
    WriteShareGroupStateRequest,
)
from rayka.coordinator.shares.requests import (
    StateBatch as DurableBatch,
)
from rayka.errors import ErrorCode, RaykaError
from rayka.share.persister import SharePartitionKey, ShareState, StateBatch, StateUpdate

R = TypeVar("R")

_ATTEMPTS = 6
_FIRST_PAUSE_S = 0.05
_RETRIED = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)


class Coordinators(Protocol):
    """`CoordinatorRouter`, as far as it is needed here."""

    async def execute(self, request: Request[R]) -> R:
        """Carry out a request at its coordinator."""


class CoordinatorPersister:
    """Implements `Persister`. While a coordinator is away it tries again, about three seconds in all."""

    def __init__(self, coordinators: Coordinators) -> None:
        self._coordinators = coordinators

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """As `Persister.read`."""
        answer = await self._ask(ReadShareGroupStateRequest(*key, leader_epoch))
        batches = tuple(StateBatch(*batch) for batch in answer.state_batches)
        return ShareState(answer.state_epoch, answer.start_offset, batches)

    async def write(self, key: SharePartitionKey, leader_epoch: int, update: StateUpdate) -> None:
        """As `Persister.write`."""
        batches = tuple(DurableBatch(*batch) for batch in update.state_batches)
        await self._ask(
            WriteShareGroupStateRequest(
                *key,
                state_epoch=update.state_epoch,
                leader_epoch=leader_epoch,
                start_offset=update.start_offset,
                delivery_complete_count=update.delivery_complete_count,
                state_batches=batches,
            )
        )

    async def _ask(self, request: Request[Any]) -> Any:
        for attempt in range(_ATTEMPTS):
            try:
                answer = await self._coordinators.execute(request)
                if answer.error is ErrorCode.NONE:
                    return answer
                error = RaykaError(answer.error, answer.error_message or answer.error.name)
            except RaykaError as refusal:
                error = refusal
            if error.code not in _RETRIED or attempt == _ATTEMPTS - 1:
                raise error
            await asyncio.sleep(_FIRST_PAUSE_S * 2**attempt)
        raise AssertionError
