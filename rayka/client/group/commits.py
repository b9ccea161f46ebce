"""What a consumer commits, by itself or because the program says so, and what it knows to be committed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from rayka.client.group.coordinator import ConsumerGroupMetadata, GroupCalls, OffsetAndMetadata
from rayka.client.group.settings import GroupConsumerConfig
from rayka.errors import RaykaError
from rayka.types import TopicPartition

logger = logging.getLogger(__name__)

Offsets: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata]


class Commits:
    """The commits of one consumer. `positions` tells where it is now; `next_save_s` is on the monotonic clock."""

    def __init__(
        self,
        calls: GroupCalls,
        config: GroupConsumerConfig,
        committer: Callable[[], ConsumerGroupMetadata],
        positions: Callable[[], Offsets],
    ) -> None:
        self._calls = calls
        self._config = config
        self._committer = committer
        self._positions = positions
        self._saved: dict[TopicPartition, int] = {}
        self._saving: asyncio.Task[None] | None = None
        self.next_save_s = time.monotonic() + config.auto_commit_interval_ms / 1000

    async def begin(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the group is in these partitions, of those where it has been."""
        found = await self.committed(partitions)
        offsets = {partition: one.offset for partition, one in found.items() if one is not None}
        self._saved.update(offsets)
        return offsets

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Others will commit these."""
        for partition in partitions:
            self._saved.pop(partition, None)

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed."""
        return await self._calls.committed(partitions, self._config.default_api_timeout_ms) if partitions else {}

    async def commit(self, offsets: Offsets, timeout_ms: float | None = None) -> None:
        """Commit, after the commits before. Raises why that can't be."""
        patience_ms = self._config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        await self._calls.commit(offsets, self._committer, patience_ms)
        self._saved.update({partition: one.offset for partition, one in offsets.items()})

    async def save(self) -> None:
        """Commit automatically, if that is wanted; an error is logged."""
        if self._config.enable_auto_commit:
            await self._save(self._unsaved())

    def save_if_due(self) -> None:
        """Begin to commit automatically if the last time is long enough ago."""
        now_s = time.monotonic()
        if now_s < self.next_save_s or (self._saving is not None and not self._saving.done()):
            return
        self.next_save_s = now_s + self._config.auto_commit_interval_ms / 1000
        if self._config.enable_auto_commit and self._unsaved():
            self._saving = asyncio.get_running_loop().create_task(self._save(self._unsaved()))

    async def _save(self, offsets: Offsets) -> None:
        try:
            await self.commit(offsets)
        except RaykaError as error:
            logger.warning("automatic commit: %s", error)

    def close(self) -> None:
        """Commit nothing more by itself."""
        if self._saving is not None:
            self._saving.cancel()

    def _unsaved(self) -> Offsets:
        return {
            partition: one for partition, one in self._positions().items() if self._saved.get(partition) != one.offset
        }
