"""A partition leader's client of the share coordinators, which store the state of its share-partitions."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol, TypeVar

from rayka.config.shares import MAX_RETRY_DELAY_MS
from rayka.coordinator.request import Request
from rayka.coordinator.shares.requests import ReadShareGroupStateRequest, StateBatch, WriteShareGroupStateRequest
from rayka.errors import ErrorCode, RaykaError
from rayka.share.persister import PersistedBatch, PersistedState, StateUpdate
from rayka.types import SharePartitionKey

R = TypeVar("R")

_ATTEMPTS = 6
_FIRST_PAUSE_S = 0.05
_RETRIED = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)


class Coordinators(Protocol):
    """The part of `CoordinatorRouter` that is used here."""

    async def execute(self, request: Request[R]) -> R:
        """Carry out a request at its coordinator."""


class CoordinatorPersister:
    """Implements `Persister`. While a coordinator is away it tries again, about three seconds in all.

    Delays are kept by the time of day, since the next leader may be another process with another monotonic clock.
    """

    def __init__(self, coordinators: Coordinators) -> None:
        self._coordinators = coordinators

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> PersistedState:
        """As `Persister.read`."""
        answer = await self._ask(ReadShareGroupStateRequest(*key, leader_epoch))
        ahead_ms = _ahead_ms()
        batches = tuple(
            PersistedBatch(*batch)._replace(available_ms=_local_ms(batch.available_at, ahead_ms))
            for batch in answer.state_batches
        )
        return PersistedState(answer.state_epoch, answer.start_offset, batches)

    async def write(self, key: SharePartitionKey, leader_epoch: int, update: StateUpdate) -> None:
        """As `Persister.write`."""
        ahead_ms = _ahead_ms()
        batches = tuple(
            StateBatch(*batch)._replace(available_at=batch.available_ms + ahead_ms if batch.available_ms else 0)
            for batch in update.state_batches
        )
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


def _ahead_ms() -> int:
    """By how much the time of day is ahead of the monotonic clock."""
    return (time.time_ns() - time.monotonic_ns()) // 1_000_000


def _local_ms(available_at: int, ahead_ms: int) -> int:
    """A durable time by the monotonic clock, which may have passed; 0 if there was no delay.

    A clock that was put back adds no more than a day.
    """
    if not available_at:
        return 0
    now_ms = time.monotonic_ns() // 1_000_000
    return max(1, min(available_at - ahead_ms, now_ms + MAX_RETRY_DELAY_MS))
