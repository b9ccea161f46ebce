"""Fetches the next records of a share-partition when they are only in the remote store (KIP-405)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import NamedTuple

from rayka.actors.background import BackgroundTasks
from rayka.actors.replica.remote_tier import RemoteTier
from rayka.errors import ErrorCode, RaykaError, may_pass
from rayka.replica.partition import Partition
from rayka.types import FetchResult, FileSlice, IsolationLevel

logger = logging.getLogger(__name__)

_PAUSE_S = 0.5
_REFUSED_S = 1.0
"""How long members get the error of a read before the records are read again."""


class RemoteRead(NamedTuple):
    """Which records are read. Those of one isolation level don't say what is aborted for the other."""

    offset: int
    isolation: IsolationLevel


class Refusal(NamedTuple):
    """A read that failed for good, and until when that is not tried again, by the loop's clock."""

    read: RemoteRead
    error: RaykaError
    until_s: float


class RemoteRecords:
    """Members wait while records are fetched; `changed` is called when they have come, or can't be read."""

    def __init__(
        self, reads: RemoteTier, partition: Partition, background: BackgroundTasks, changed: Callable[[], None]
    ) -> None:
        self._reads = reads
        self._partition = partition
        self._background = background
        self._changed = changed
        self._under_way: RemoteRead | None = None
        self._cached: tuple[RemoteRead, FetchResult] | None = None
        self._refused: Refusal | None = None

    def at(self, offset: int, max_bytes: int, isolation: IsolationLevel) -> FetchResult | None:
        """The records from `offset` on; None until they have been fetched. Raises RaykaError if they can't be read."""
        read = RemoteRead(offset, isolation)
        if self._cached is not None and self._cached[0] == read and _is_there(self._cached[1]):
            return self._cached[1]
        refused = self._refused
        if refused is not None and refused.read == read and asyncio.get_running_loop().time() < refused.until_s:
            raise RaykaError(refused.error.code, refused.error.message)
        if self._under_way != read:
            self._under_way = read
            self._background.start("remote records", self._fetch(read, max_bytes))
        return None

    async def _fetch(self, read: RemoteRead, max_bytes: int) -> None:
        try:
            records, aborted = await self._reads.read(self._partition, read.offset, max_bytes, read.isolation)
            self._cached = read, FetchResult(0, records=records, aborted_transactions=aborted)
            if records is None:  # the store ends with a gap, and members may not see yet what follows
                await asyncio.sleep(_PAUSE_S)
        except RaykaError as error:
            logger.warning("cannot read %s at %d: %s", self._partition.topic_partition, read.offset, error)
            if may_pass(error.code) or error.code is ErrorCode.OFFSET_OUT_OF_RANGE:  # below a start that moves on
                await asyncio.sleep(_PAUSE_S)
            else:
                self._refused = Refusal(read, error, asyncio.get_running_loop().time() + _REFUSED_S)
        finally:
            if self._under_way == read:
                self._under_way = None
        self._changed()


def _is_there(result: FetchResult) -> bool:
    """Whether the cache still has the file of these records."""
    return isinstance(result.records, FileSlice) and os.path.exists(result.records.path)
