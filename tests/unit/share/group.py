"""A share-partition with short names, for tests: offsets and states as text."""

from __future__ import annotations

from collections.abc import Iterable

from rayka.errors import ErrorCode, RaykaError
from rayka.share.acknowledge import AcknowledgementBatch, acknowledgements_of
from rayka.share.acquire import AcquiredRecords, AcquireParams, LogBatch
from rayka.share.config import AcquireMode, ShareGroupConfig
from rayka.share.persister import PersistedBatch, PersistedState
from rayka.share.record_state import AcknowledgeType
from rayka.share.share_partition import SharePartition, Transition, Write

LOCK_MS = 1000
MODES = {"batches": AcquireMode.BATCH_OPTIMIZED, "records": AcquireMode.RECORD_LIMIT}


class Group:
    """One share group on one partition, whose log has `batches` of (first offset, last offset)."""

    def __init__(
        self,
        batches: Iterable[tuple[int, int]] = (),
        *,
        start: int = 0,
        persisted: Iterable[tuple[int, int, int, int]] = (),
        limit: int = 5,
        locks: int = 2000,
    ) -> None:
        config = ShareGroupConfig(LOCK_MS, limit, locks)
        state = PersistedState(7, start, tuple(PersistedBatch(*batch) for batch in persisted))
        self.partition = SharePartition(state, config)
        self.log = [LogBatch(*batch) for batch in batches]
        self.now_ms = 0

    def acquire(
        self, member: str = "m", max_records: int = 500, *, batch_size: int = 500, mode: str = "batches"
    ) -> list[AcquiredRecords]:
        offset = self.partition.next_fetch_offset()
        if offset is None:
            return []
        read = [batch for batch in self.log if batch.last_offset >= offset]
        params = AcquireParams(member, max_records, batch_size, MODES[mode])
        acquired = self.partition.acquire(offset, read, params, self.now_ms)
        self.partition.validate_state()
        return acquired

    def say(self, said: AcknowledgeType, first: int, last: int, member: str = "m") -> Transition:
        """Acknowledge, without persisting it."""
        return self.say_each([int(said)], first, last, member)

    def say_each(self, types: list[int], first: int, last: int, member: str = "m") -> Transition:
        batch = AcknowledgementBatch(first, last, tuple(types))
        transition = self.partition.acknowledge(member, acknowledgements_of([batch]), self.now_ms)
        self.partition.validate_state()
        return transition

    def persist(self, error: ErrorCode | None = None) -> Write | None:
        write = self.partition.begin_write()
        if write is not None:
            self.partition.end_write(None if error is None else RaykaError(error), self.now_ms)
            self.partition.validate_state()
        return write

    def accept(self, first: int, last: int, member: str = "m") -> None:
        self.say(AcknowledgeType.ACCEPT, first, last, member)
        self.persist()

    def release(self, first: int, last: int, member: str = "m") -> None:
        self.say(AcknowledgeType.RELEASE, first, last, member)
        self.persist()

    def wait(self, duration_ms: int) -> bool:
        self.now_ms += duration_ms
        expired = self.partition.expire(self.now_ms)
        self.partition.validate_state()
        return expired

    @property
    def states(self) -> str:
        """`0-4 ACQUIRED 1, 5-9 AVAILABLE 0`: offsets, state and delivery count; `->` a transition."""
        return ", ".join(
            f"{batch.first_offset}-{batch.last_offset} {batch.state.name} {batch.delivery_count}"
            + (f" -> {batch.next_state.name}" if batch.transition else "")
            for batch in self.partition._batches
        )
