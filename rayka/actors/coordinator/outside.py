"""What a coordinator needs done outside of its partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from rayka.coordinator.request import Request, TransactionalRequest
from rayka.errors import ErrorCode
from rayka.replica.partition import Partition
from rayka.storage.producers.verification import Verification

Verified: TypeAlias = tuple[ErrorCode, Verification | None]
"""Why a transaction is not open, or NONE and what its first append needs."""


class Outside(Protocol):
    """What a coordinator asks of other partitions. Neither method raises."""

    async def verified(self, partition: Partition, request: TransactionalRequest[Any]) -> Verified:
        """Ask a transaction coordinator about a request's transaction and the partition that it writes to."""

    async def perform(self, effect: Any, leader_epoch: int) -> Request[Any] | None:
        """Do what a core asked for in this leader epoch, however long that takes.

        Returns the request that reports it to the core, or None if there is nothing to report.
        """


class OnceOnly:
    """Passes on the first answer of several."""

    __slots__ = ("_respond",)

    def __init__(self, respond: Callable[[Any], None]) -> None:
        self._respond: Callable[[Any], None] | None = respond

    def __call__(self, response: Any) -> None:
        respond, self._respond = self._respond, None
        if respond is not None:
            respond(response)
