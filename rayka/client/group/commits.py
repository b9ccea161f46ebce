"""The commits of a consumer, automatic or by the program, and the offsets known to be committed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from rayka.client.group.coordinator import ConsumerGroupMetadata, GroupCalls, OffsetAndMetadata, with_topic_ids
from rayka.client.group.settings import GroupConsumerConfig
from rayka.coordinator.groups.requests import CommittedOffset
from rayka.errors import ErrorCode, RaykaError
from rayka.types import TopicPartition

logger = logging.getLogger(__name__)

Offsets: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata]


class PreparedCommit(NamedTuple):
    """What is to be committed, in which topics and as whom: all as they were when the commit was asked for."""

    offsets: Offsets
    member: ConsumerGroupMetadata
    with_topic_ids: tuple[CommittedOffset, ...]


class Commits:
    """The commits of one consumer. `positions` tells where it is now; `next_save_s` is on the monotonic clock."""

    def __init__(
        self,
        calls: GroupCalls,
        config: GroupConsumerConfig,
        member: Callable[[], ConsumerGroupMetadata],
        positions: Callable[[], Offsets],
    ) -> None:
        self._calls = calls
        self._config = config
        self._member = member
        self._positions = positions
        self._saved: dict[TopicPartition, int] = {}
        self._saving: asyncio.Task[None] | None = None
        self.next_save_s = time.monotonic() + config.auto_commit_interval_ms / 1000

    async def begin(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offsets of these partitions, where there are any."""
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

    def prepare(self, offsets: Offsets | None = None) -> PreparedCommit:
        """A commit of these offsets, or else of the positions, as this member is now. From any thread.

        Meanwhile the group may rebalance, and a topic may be created again. So member and topics come first: positions
        that are not the member's any more are refused under its old epoch, and those of a new topic under the old id.
        """
        member, topics = self._member(), self._calls.topics
        found = self._positions() if offsets is None else offsets
        return PreparedCommit(found, member, with_topic_ids(found, topics))

    async def commit(self, prepared: PreparedCommit, timeout_ms: float | None = None) -> None:
        """Commit, after the commits before. Raises RaykaError if that fails."""
        patience_ms = self._config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        await self._calls.commit(prepared.with_topic_ids, prepared.member, patience_ms)
        self._saved.update({partition: one.offset for partition, one in prepared.offsets.items()})

    async def commit_positions(self, timeout_ms: float | None = None) -> Offsets:
        """Commit the positions, and return them.

        If the member's epoch changes meanwhile, the positions are taken again under the new one: those of partitions
        that it still has.
        """
        patience_ms = self._config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline_s = time.monotonic() + patience_ms / 1000
        while True:
            prepared = self.prepare()
            try:
                await self.commit(prepared, timeout_ms)
                return prepared.offsets
            except RaykaError as error:
                is_stale = error.code is ErrorCode.STALE_MEMBER_EPOCH and self._member() != prepared.member
                if not is_stale or time.monotonic() > deadline_s:
                    raise

    async def save(self) -> None:
        """Commit the positions before partitions are given up, if commits are automatic; an error is logged."""
        if self._config.enable_auto_commit and self._unsaved():
            try:
                await self.commit_positions()
            except RaykaError as error:
                logger.warning("automatic commit failed: %s", error)

    def save_if_due(self) -> None:
        """Start an automatic commit if the last one is long enough ago."""
        now_s = time.monotonic()
        if now_s < self.next_save_s or (self._saving is not None and not self._saving.done()):
            return
        self.next_save_s = now_s + self._config.auto_commit_interval_ms / 1000
        if self._config.enable_auto_commit and (unsaved := self._unsaved()):
            self._saving = asyncio.get_running_loop().create_task(self._save(self.prepare(unsaved)))

    async def _save(self, prepared: PreparedCommit) -> None:
        try:
            await self.commit(prepared)
        except RaykaError as error:
            logger.warning("automatic commit failed: %s", error)

    def close(self) -> None:
        """Commit nothing more automatically."""
        if self._saving is not None:
            self._saving.cancel()

    def _unsaved(self) -> Offsets:
        return {
            partition: one for partition, one in self._positions().items() if self._saved.get(partition) != one.offset
        }
