"""Fetches the next records of a share-partition when they are only in the remote store (KIP-405)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import NamedTuple

from rayka.actors.background import BackgroundTasks
from rayka.actors.replica.remote_tier import RemoteTier
from rayka.errors import RaykaError
from rayka.replica.partition import Partition
from rayka.types import FetchResult, FileSlice, IsolationLevel

logger = logging.getLogger(__name__)

_PAUSE_S = 0.5


class RemoteRead(NamedTuple):
    """Which records are read. Those of one isolation level don't say what is aborted for the other."""

    offset: int
    isolation: IsolationLevel


class RemoteRecords:
    """Members wait while records are fetched; `changed` is called when they have come."""

    def __init__(
        self, reads: RemoteTier, partition: Partition, background: BackgroundTasks, changed: Callable[[], None]
    ) -> None:
        self._reads = reads
        self._partition = partition
        self._background = background
        self._changed = changed
        self._under_way: RemoteRead | None = None
        self._cached: tuple[RemoteRead, FetchResult] | None = None

    def at(self, offset: int, max_bytes: int, isolation: IsolationLevel) -> FetchResult | None:
        """The records from `offset` on; None until they have been fetched."""
        read = RemoteRead(offset, isolation)
        if self._cached is not None and self._cached[0] == read and _is_there(self._cached[1]):
            return self._cached[1]
        if self._under_way != read:
            self._under_way = read
            self._background.start("remote records", self._fetch(read, max_bytes))
        return None

    async def _fetch(self, read: RemoteRead, max_bytes: int) -> None:
        try:
            records, aborted = await self._reads.read(self._partition, read.offset, max_bytes, read.isolation)
            self._cached = read, FetchResult(0, records=records, aborted_transactions=aborted)
        except RaykaError as error:
            logger.warning("cannot read %s at %d: %s", self._partition.topic_partition, read.offset, error)
            await asyncio.sleep(_PAUSE_S)
        finally:
            if self._under_way == read:
                self._under_way = None
        self._changed()


def _is_there(result: FetchResult) -> bool:
    """Whether the cache still has the file of these records."""
    return isinstance(result.records, FileSlice) and os.path.exists(result.records.path)
