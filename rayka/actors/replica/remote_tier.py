"""What the replica server needs of tiered storage: reading records that are only in the remote store (KIP-405)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from rayka.actors.channel.link import Done
from rayka.actors.channel.requests import FetchParams
from rayka.errors import ErrorCode
from rayka.replica.partition import Partition
from rayka.replica.purgatory import DelayedFetch
from rayka.storage.remote.remote_range import RemoteRange
from rayka.types import (
    AbortedTransaction,
    FetchResult,
    FileSlice,
    IsolationLevel,
    OffsetAnswer,
    OffsetQuery,
)

R = TypeVar("R", FetchResult, OffsetAnswer)

IN_REMOTE_STORE: Final = ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
"""The error of an answer that the core leaves to the remote store; no client sees it."""


class RemoteTier(Protocol):
    """Reads what is only in the remote store (KIP-405)."""

    def fetch(
        self, fetch: FetchParams | DelayedFetch, results: list[FetchResult], done: Callable[[list[FetchResult]], None]
    ) -> None:
        """Complete the results of a fetch."""

    async def read(
        self, partition: Partition, offset: int, max_bytes: int, isolation: IsolationLevel
    ) -> tuple[FileSlice | None, tuple[AbortedTransaction, ...] | None]:
        """Read one partition. Raises RaykaError."""

    async def locate(
        self, partition: Partition, offset: int, end_offset: int, isolation: IsolationLevel
    ) -> RemoteRange | None:
        """Say where records are, for a reader that fetches them itself. Raises RaykaError."""

    async def find_offset(self, query: OffsetQuery, isolation: IsolationLevel) -> OffsetAnswer:
        """Search one partition by time. Raises RaykaError."""

    def list_offsets(
        self, queries: Sequence[OffsetQuery], isolation: IsolationLevel, answers: list[OffsetAnswer], done: Done
    ) -> None:
        """Complete the answers of a search by time."""


def unreachable(result: R) -> R:
    """For a broker that was started without its remote store: the records are there, so nobody may skip them."""
    return result._replace(error=int(ErrorCode.KAFKA_STORAGE_ERROR)) if result.error == IN_REMOTE_STORE else result
