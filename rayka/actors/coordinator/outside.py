"""What a coordinator needs done outside of its partition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

from rayka.coordinator.request import Request, TransactionalRequest
from rayka.errors import ErrorCode
from rayka.replica.partition import Partition
from rayka.storage.producers.verification import Verification

Verified: TypeAlias = tuple[ErrorCode, Verification | None]
"""Why a transaction is not open, or NONE and what its first append needs."""


class Outside(NamedTuple):
    """`verified` asks a transaction coordinator about a request's transaction and the partition that it writes to.

    `perform` does what a core asked for in this leader epoch, however long that takes, and returns the request that
    tells the core, or None if the core is to hear nothing. Neither raises.
    """

    verified: Callable[[Partition, TransactionalRequest[Any]], Awaitable[Verified]]
    perform: Callable[[Any, int], Awaitable[Request[Any] | None]]


async def _nobody_to_ask(partition: Partition, request: TransactionalRequest[Any]) -> Verified:
    return ErrorCode.COORDINATOR_NOT_AVAILABLE, None


async def _nobody_to_perform(effect: Any, leader_epoch: int) -> Request[Any]:
    raise NotImplementedError(f"nobody performs {type(effect).__name__}")


NO_OUTSIDE = Outside(_nobody_to_ask, _nobody_to_perform)
"""For coordinators that work on their own partition alone."""


class OnceOnly:
    """Passes on the first answer of several."""

    __slots__ = ("_respond",)

    def __init__(self, respond: Callable[[Any], None]) -> None:
        self._respond: Callable[[Any], None] | None = respond

    def __call__(self, response: Any) -> None:
        respond, self._respond = self._respond, None
        if respond is not None:
            respond(response)
