"""The acknowledgements of a pool of actors, on their way to the leaders.

Each partition has one commit in progress at a time, so that a leader that does not answer delays no others.
Acknowledgements that come meanwhile go with the next one, so a busy pool sends few requests. `counts` has those whose
outcome is known.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeAlias

from rayka.client.share.consumer import AsyncShareConsumer
from rayka.client.share.records import RecordAcknowledgement, ShareRecord
from rayka.errors import ErrorCode, RaykaError
from rayka.share.record_state import AcknowledgeType
from rayka.types import TopicIdPartition

ONE_IS_LOST: Final = frozenset({ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST})
"""A leader refuses all acknowledgements of a partition with these, although perhaps only one record is not leased.
INVALID_REQUEST: a new leader has not acquired any record at this offset yet.
"""
_RETRY_S: Final = 0.2
_TOGETHER: Final = 16
"""How many requests a commit that was refused as a whole sends at once, each with a part of it."""
Acknowledged: TypeAlias = tuple[ShareRecord, RecordAcknowledgement]


@dataclass(slots=True)
class ProcessingCounts:
    """How many records had each outcome. `lost`: their acknowledgement was refused, so they are delivered again."""

    accepted: int = 0
    released: int = 0
    rejected: int = 0
    lost: int = 0

    def add(self, acknowledgement: RecordAcknowledgement, *, is_durable: bool) -> None:
        """Count one record."""
        if not is_durable:
            self.lost += 1
        elif acknowledgement.type == AcknowledgeType.ACCEPT:
            self.accepted += 1
        elif acknowledgement.type == AcknowledgeType.REJECT:
            self.rejected += 1
        else:
            self.released += 1


class PoolCommits:
    """Calls `settled` after each commit of records. `run` never returns."""

    def __init__(self, consumer: AsyncShareConsumer, settled: Callable[[], None]) -> None:
        self.counts = ProcessingCounts()
        self._consumer = consumer
        self._settled = settled
        self._waiting: dict[TopicIdPartition, list[Acknowledged]] = defaultdict(list)
        self._committing: dict[TopicIdPartition, list[Acknowledged]] = {}
        self._is_due = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def is_empty(self) -> bool:
        """Whether all acknowledgements are durable."""
        return not (self._waiting or any(self._committing.values()))

    @property
    def waiting_records(self) -> Iterator[ShareRecord]:
        """The records whose acknowledgement was not sent yet."""
        return (record for acknowledged in self._waiting.values() for record, _ in acknowledged)

    def add(self, record: ShareRecord, acknowledgement: RecordAcknowledgement) -> None:
        """Send this with the next commit; `commit_soon` starts it."""
        self._waiting[record.topic_id_partition].append((record, acknowledgement))

    def commit_soon(self) -> None:
        """Commit after the commit in progress: what was added, and offsets that the consumer has found empty."""
        self._is_due.set()

    async def run(self) -> None:
        """Send acknowledgements. Those that arrive during a commit of their partition go with the next one.

        Raises the error that ended a commit.
        """
        try:
            async with asyncio.TaskGroup() as commits:
                while True:
                    await self._is_due.wait()
                    self._is_due.clear()
                    for partition, acknowledged in self._take_waiting().items():
                        self._committing[partition] = acknowledged
                        commits.create_task(self._commit(partition))
        except BaseExceptionGroup as failed:
            errors = failed.exceptions
        raise errors[0]  # only here: the group would be its context

    def _take_waiting(self) -> dict[TopicIdPartition, list[Acknowledged]]:
        """What is to be sent for the partitions without a commit in progress."""
        partitions = {*self._waiting, *self._consumer.acknowledged_partitions}
        return {one: self._waiting.pop(one, []) for one in partitions if one not in self._committing}

    async def _commit(self, partition: TopicIdPartition) -> None:
        gathered, acknowledged = self._committing[partition], []
        for record, acknowledgement in gathered:
            if self._consumer.holds(record):  # Not if it was leased, and processed, a second time.
                self._consumer.acknowledge(record, acknowledgement)
                acknowledged.append((record, acknowledgement))
        until = self._loop.time() + self._consumer.lock_duration_ms / 1000
        await self._settle(acknowledged, await self._consumer.commit_partition(partition), until)
        del self._committing[partition]
        if gathered:
            self._settled()
        if self._waiting:
            self._is_due.set()

    async def _settle(self, acknowledged: Sequence[Acknowledged], error: RaykaError | None, until: float) -> None:
        """Count what was committed, and send again what was not while its locks last.

        If one lease was lost, the leader refuses all acknowledgements of its partition. Then they are sent in halves,
        several at once, until that record is found. Those that are not sent before the locks end are lost.
        """
        parts = await self._sort(acknowledged, error, until, is_alone=False)
        while parts and self._loop.time() < until:
            sent, parts = parts[:_TOGETHER], parts[_TOGETHER:]
            refused = await asyncio.gather(*(self._send_again(part, until) for part in sent))
            parts += chain.from_iterable(refused)
        for _, acknowledgement in chain.from_iterable(parts):
            self.counts.add(acknowledgement, is_durable=False)

    async def _send_again(self, part: Sequence[Acknowledged], until: float) -> list[Sequence[Acknowledged]]:
        """Send a part by itself; returns the halves that are still to be sent."""
        part = self._without_delivered_again(part)
        error = await self._consumer.acknowledge_records(part) if part else None
        return await self._sort(part, error, until, is_alone=len(part) == 1)

    async def _sort(
        self, acknowledged: Sequence[Acknowledged], error: RaykaError | None, until: float, *, is_alone: bool
    ) -> list[Sequence[Acknowledged]]:
        """Count acknowledgements whose outcome is known, or return halves of those that are still to be sent.

        Those that a leader refuses for now are sent again first. `is_alone`: nothing else can be why it refused them.
        """
        while acknowledged and error is not None and error.code.retriable and self._loop.time() < until:
            await asyncio.sleep(_RETRY_S)
            acknowledged = self._without_delivered_again(acknowledged)
            if acknowledged:
                error = await self._consumer.acknowledge_records(acknowledged)
        if error is not None and error.code in ONE_IS_LOST and not is_alone and self._loop.time() < until:
            middle = len(acknowledged) // 2
            return [half for half in (acknowledged[:middle], acknowledged[middle:]) if half]
        for _, acknowledgement in acknowledged:
            self.counts.add(acknowledgement, is_durable=error is None)
        return []

    def _without_delivered_again(self, acknowledged: Sequence[Acknowledged]) -> list[Acknowledged]:
        """Leave out, and count as lost, the records that the pool has leased again: that lease is another one."""
        left = []
        for record, acknowledgement in acknowledged:
            if self._consumer.holds(record):
                self.counts.add(acknowledgement, is_durable=False)
            else:
                left.append((record, acknowledgement))
        return left
