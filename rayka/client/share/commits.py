"""The acknowledgements of a pool of actors, on their way to the leaders.

One commit is in progress at a time. Acknowledgements that come meanwhile go with the next one, so a busy pool sends few
requests. `counts` has those whose outcome is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rayka.client.share.consumer import AsyncShareConsumer, CommitResults
from rayka.client.share.records import RecordAcknowledgement, ShareRecord
from rayka.errors import ErrorCode
from rayka.share.record_state import AcknowledgeType


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
        self._waiting: list[tuple[ShareRecord, RecordAcknowledgement]] = []
        self._committing: list[tuple[ShareRecord, RecordAcknowledgement]] = []
        self._is_due = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether all acknowledgements are durable."""
        return not (self._waiting or self._committing)

    @property
    def waiting_records(self) -> Iterator[ShareRecord]:
        """The records whose acknowledgement was not sent yet."""
        return (record for record, _ in self._waiting)

    def add(self, record: ShareRecord, acknowledgement: RecordAcknowledgement) -> None:
        """Send this with the next commit; `commit_soon` starts it."""
        self._waiting.append((record, acknowledgement))

    def commit_soon(self) -> None:
        """Commit after the commit in progress: what was added, and offsets that the consumer has found empty."""
        self._is_due.set()

    async def run(self) -> None:
        """Send acknowledgements. Those that arrive during a commit go with the next one."""
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            self._waiting, gathered = [], self._waiting
            for record, acknowledgement in gathered:
                if self._consumer.holds(record):  # Not if it was leased, and processed, a second time.
                    self._consumer.acknowledge(record, acknowledgement)
                    self._committing.append((record, acknowledgement))
            await self._settle(await self._consumer.commit_new())
            if gathered:
                self._settled()

    async def _settle(self, results: CommitResults) -> None:
        """Count what was committed.

        If one lease was lost, the leader refuses all acknowledgements of its partition. Then each record is
        acknowledged by itself.
        """
        for record, acknowledgement in self._committing:
            error = results.get(record.topic_partition)
            if error is not None and error.code is ErrorCode.INVALID_RECORD_STATE:
                error = await self._consumer.acknowledge_alone(record, acknowledgement)
            self.counts.add(acknowledgement, is_durable=error is None)
        self._committing = []
