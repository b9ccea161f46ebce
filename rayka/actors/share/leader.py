"""One share-partition on its leader: the shell of `SharePartition`, over the partition's log and the persister."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from rayka.actors.background import BackgroundTasks
from rayka.actors.replica.remote_tier import IN_REMOTE_STORE, RemoteTier
from rayka.actors.share.batches import SlicedBatches
from rayka.actors.share.dead_letters import DeadLetterQueue
from rayka.actors.share.remote_records import RemoteRecords
from rayka.actors.share.waiters import GroupPartition
from rayka.errors import ErrorCode, RaykaError
from rayka.replica.partition import Partition
from rayka.share.acknowledge import AcknowledgementBatch, acknowledgements_of
from rayka.share.acquire import AcquiredRecords, AcquireParams
from rayka.share.config import ShareGroupConfig
from rayka.share.isolation import visible_batches
from rayka.share.persister import PersistedState, Persister, StateUpdate, persister_error
from rayka.share.requests import InFlightRecords, ShareDepth
from rayka.share.share_partition import DeadLetters, SharePartition, Transition, Write
from rayka.share.wake_pace import WakePace
from rayka.types import (
    NO_OFFSET,
    FetchPartition,
    FetchResult,
    FileSlice,
    IsolationLevel,
    OffsetAnswer,
    OffsetQuery,
    OffsetSpec,
    SharePartitionKey,
)

logger = logging.getLogger(__name__)

_WRITE_PAUSE_S = 0.5
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0
_FENCED = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
    }
)
"""Errors of a write after which the state here is not that of the group any more."""


class ReadableRecords(NamedTuple):
    """What can be read at the next fetch offset."""

    fetch_offset: int
    result: FetchResult
    is_remote: bool

    @property
    def size(self) -> int:
        """Bytes of records."""
        return self.result.size


class LeadSharePartition:
    """Calls `changed` when records or room for more may be available, and `lost` when this object must be dropped.

    `group_config` returns the newest settings of the group.
    """

    def __init__(
        self,
        group_id: str,
        partition: Partition,
        persister: Persister,
        group_config: Callable[[], ShareGroupConfig],
        changed: Callable[[], None],
        lost: Callable[[], None],
        dead_letters: DeadLetterQueue,
        remote_reads: RemoteTier | None = None,
    ) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.group_partition = GroupPartition(group_id, partition.topic_partition)
        self.pace = WakePace()
        self._key = SharePartitionKey(group_id, partition.topic_id, partition.topic_partition.partition)
        self._persister = persister
        self._group_config = group_config
        self._changed = changed
        self._lost = lost
        self._dead_letters = dead_letters
        self._loop = asyncio.get_running_loop()
        self._background = BackgroundTasks(str(self._key))
        self._remote_reads = remote_reads
        self._remote_records = (
            None if remote_reads is None else RemoteRecords(remote_reads, partition, self._background, changed)
        )
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._core: SharePartition | None = None
        self._waiting: dict[Transition, asyncio.Future[None]] = {}
        self._is_closed = False
        self._burials = 0
        self._loading = asyncio.ensure_future(self._load())

    # Loading.

    async def loaded(self) -> None:
        """Wait until the state is loaded or loading has failed."""
        await asyncio.wait([self._loading])

    def when_loaded(self, call: Callable[[], object]) -> None:
        """Call back when the state is loaded or loading has failed."""
        self._loading.add_done_callback(lambda _: call())

    @property
    def is_loaded(self) -> bool:
        """Whether the state is loaded."""
        return self._core is not None

    @property
    def load_error(self) -> RaykaError | None:
        """The error that ended loading; None while the state is being loaded."""
        if not self._loading.done() or self._loading.cancelled():
            return None
        error = self._loading.exception()
        if error is None or isinstance(error, RaykaError):
            return error
        return RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error))

    async def _load(self) -> None:
        state = await self._persister.read(self._key, self.leader_epoch)
        config = self._group_config()
        if state.start_offset == NO_OFFSET:
            state = await self._begin(state, config)
        try:
            core = SharePartition(state, config)
        except ValueError as error:
            reason = f"the persisted state of {self._key} is damaged: {error}"
            raise RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR, reason) from error
        core.log_start_offset_moved(self.partition.log.log_start_offset)
        self._core = core
        self._schedule()
        self._write_dead_letters()

    async def _begin(self, state: PersistedState, config: ShareGroupConfig) -> PersistedState:
        """Choose where the group starts to read, and persist that before anything is delivered."""
        start_offset = await self._first_offset(config)
        await self._persister.write(self._key, self.leader_epoch, StateUpdate(state.state_epoch, start_offset, 0, ()))
        return PersistedState(state.state_epoch, start_offset)

    async def _first_offset(self, config: ShareGroupConfig) -> int:
        """The offset that `share.auto.offset.reset` stands for now."""
        timestamp = config.reset_timestamp(time.time_ns() // 1_000_000)
        query = OffsetQuery(self.partition.topic_partition, timestamp)
        found = await self._find_offset(query, config.isolation_level)
        if found.offset == NO_OFFSET:
            found = self.partition.find_offset(query._replace(timestamp=OffsetSpec.LATEST), config.isolation_level)
        return found.offset

    async def _find_offset(self, query: OffsetQuery, isolation_level: IsolationLevel) -> OffsetAnswer:
        try:
            return self.partition.find_offset(query, isolation_level)
        except RaykaError as error:
            if error.code is not IN_REMOTE_STORE or self._remote_reads is None:
                raise
            return await self._remote_reads.find_offset(query, isolation_level)

    @property
    def core(self) -> SharePartition:
        """The state, with the group's newest settings. Raises NOT_LEADER_OR_FOLLOWER unless it is loaded and valid."""
        is_led = self.partition.leader_epoch == self.leader_epoch
        if self._core is None or self._is_closed or not is_led:
            name = self.partition.topic_partition
            raise RaykaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{name} is not led here in epoch {self.leader_epoch}")
        self._core.config = self._group_config()
        if self._core.log_start_offset_moved(self.partition.log.log_start_offset):
            self._loop.call_soon(self._changed)
        return self._core

    # Fetching.

    @property
    def has_more(self) -> bool:
        """Whether a fetch would return something: records, or an error."""
        try:
            core = self.core
        except RaykaError:
            return True
        fetch_offset = core.next_fetch_offset()
        return fetch_offset is not None and fetch_offset < self._end_offset(core.config.isolation_level)

    def readable(self, max_bytes: int) -> ReadableRecords | None:
        """What can be acquired now, without acquiring it. Raises RaykaError."""
        core = self.core
        fetch_offset = core.next_fetch_offset()
        if fetch_offset is None or fetch_offset >= self._end_offset(core.config.isolation_level):
            return None
        readable = self._read(fetch_offset, max_bytes, core.config.isolation_level)
        return readable if readable is not None and isinstance(readable.result.records, FileSlice) else None

    def _read(self, offset: int, max_bytes: int, isolation_level: IsolationLevel) -> ReadableRecords | None:
        """The records from `offset` on; None while they are being fetched from the remote store."""
        request = FetchPartition(self.partition.topic_partition, offset, max_bytes)
        try:
            return ReadableRecords(offset, self.partition.fetch(request, max_bytes, isolation_level, True), False)
        except RaykaError as error:
            if error.code is not IN_REMOTE_STORE or self._remote_records is None:
                raise _with_offset(error, offset) from None
        try:
            found = self._remote_records.at(offset, max_bytes, isolation_level)
        except RaykaError as error:
            raise _with_offset(error, offset) from None
        return None if found is None else ReadableRecords(offset, found, True)

    def _end_offset(self, isolation_level: IsolationLevel) -> int:
        log = self.partition.log
        return log.last_stable_offset if isolation_level is IsolationLevel.READ_COMMITTED else log.high_watermark

    def acquire(self, params: AcquireParams, max_bytes: int) -> tuple[tuple[AcquiredRecords, ...], FileSlice | None]:
        """Acquire records, and return their location. Raises RaykaError.

        Batches without records for the group are skipped, and the log is read again after them.
        """
        core = self.core
        while (readable := self.readable(max_bytes)) is not None:
            assert isinstance(readable.result.records, FileSlice)
            aborted = readable.result.aborted_transactions or ()
            end_offset = self._end_offset(core.config.isolation_level)
            slice_end = self._slice_end(readable, end_offset)
            batches = SlicedBatches(
                readable.result.records, readable.fetch_offset, slice_end, aborted, visible_offset=end_offset
            )
            outlines = visible_batches(batches, aborted)
            try:
                acquired = core.acquire(readable.fetch_offset, outlines, params, _now_ms())
            except RaykaError as error:
                raise _with_offset(error, readable.fetch_offset) from None
            finally:
                self._schedule()
            if acquired:
                return tuple(acquired), batches.of(acquired)
            if core.next_fetch_offset() == readable.fetch_offset:
                break
        return (), None

    def _slice_end(self, readable: ReadableRecords, end_offset: int) -> float:
        """No batch ends behind this offset. A chunk of the remote store may end behind what members may see for now."""
        records = readable.result.records
        if readable.is_remote or not isinstance(records, FileSlice):
            return inf
        return min(end_offset, self.partition.log.segment_end(readable.fetch_offset, records))

    # Acknowledging.

    def acknowledge(
        self, member_id: str, batches: Sequence[AcknowledgementBatch], *, renew_allowed: bool
    ) -> asyncio.Future[None]:
        """Acknowledge records; the future is done when that is durable. Raises RaykaError, and so does the future."""
        acknowledgements = acknowledgements_of(batches, renew_allowed=renew_allowed)
        transition = self.core.acknowledge(member_id, acknowledgements, _now_ms())
        return self._persist_transition(transition)

    def release(
        self, member_id: str, *, were_delivered: bool, offsets: Sequence[tuple[int, int]] | None = None
    ) -> asyncio.Future[None]:
        """Give back the records that the member holds, or only these offsets, as `acknowledge`."""
        transition = self.core.release(member_id, were_delivered=were_delivered, offsets=offsets)
        return self._persist_transition(transition)

    def depth(self) -> ShareDepth:
        """How many records the group could acquire now, and the start offset. Raises RaykaError."""
        core = self.core
        return core.depth(self._end_offset(core.config.isolation_level))

    def acquirable_count(self) -> int:
        """How many records one fetch could acquire now. Raises RaykaError."""
        core = self.core
        return core.acquirable_count(self._end_offset(core.config.isolation_level))

    def describe(self) -> tuple[InFlightRecords, ...]:
        """The records in flight. Raises RaykaError."""
        return self.core.describe(_now_ms())

    def _persist_transition(self, transition: Transition) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        self._schedule()
        if transition.state_batches:
            self._waiting[transition] = future
            self._persist()
        else:
            future.set_result(None)
        return future

    def _persist(self) -> None:
        """Write the pending changes. If a write is in progress, it writes them when it ends."""
        write = self._core.begin_write() if self._core is not None and not self._is_closed else None
        if write is not None:
            self._background.start("write", self._write(write))

    async def _write(self, write: Write) -> None:
        error: RaykaError | None = None
        try:
            await self._persister.write(self._key, self.leader_epoch, write.update)
        except RaykaError as refusal:
            error = refusal
        except Exception as failure:
            logger.exception("%s: cannot write the state", self._key)
            error = RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(failure))
        self._written(write, error)

    def _written(self, write: Write, error: RaykaError | None) -> None:
        if self._core is None or self._is_closed:
            return
        self._core.end_write(error, _now_ms())
        for transition in write.transitions:
            _settle(self._waiting.pop(transition, None), None if error is None else persister_error(error))
        if error is not None:
            logger.warning("%s: cannot write the state: %s", self._key, error)
            if error.code in _FENCED:
                self._lost()
                return
        self._schedule()
        self._write_dead_letters()  # first: a share-partition that is idle may be dropped by `_changed`
        self._changed()
        if error is None:
            self._persist()
        else:
            self._loop.call_later(_WRITE_PAUSE_S, self._persist)

    # Dead letters.

    def _write_dead_letters(self) -> None:
        letters = self._core.take_dead_letters() if self._core is not None and not self._is_closed else []
        if letters:
            self._burials += 1
            self._background.start("dead letters", self._bury(letters))

    async def _bury(self, letters: Sequence[DeadLetters]) -> None:
        """Write dead letters, and retry until it succeeds: a record is archived only after that."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._dead_letters.write(self._key.group_id, self.partition, self._group_config(), letters)
                break
            except RaykaError as error:
                logger.warning("%s: cannot write dead letters: %s", self._key, error)
            except Exception:
                logger.exception("%s: cannot write dead letters", self._key)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._burials -= 1
        if self._core is not None and not self._is_closed:
            for one in letters:
                self._core.dead_lettered(one)
            self._persist()

    # Locks.

    def _schedule(self) -> None:
        """Keep one timer for the next lock that expires; one that comes too early does no harm."""
        deadline_ms = self._core.next_deadline() if self._core is not None and not self._is_closed else None
        if deadline_ms is None or (self._timer is not None and self._timer_at_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = deadline_ms
        self._timer = self._loop.call_later(max(0.001, (deadline_ms - _now_ms()) / 1000), self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self._core is None or self._is_closed:
            return
        if self._core.expire(_now_ms()):
            self._persist()
            self._write_dead_letters()
            self._changed()
        self._schedule()

    # Ending.

    @property
    def is_idle(self) -> bool:
        """Whether no record is locked, and no write and no dead letters are in progress."""
        is_at_rest = self._core is None or (self._core.is_persisted and not self._core.has_locks)
        return self._loading.done() and is_at_rest and not self._burials

    @property
    def has_locks(self) -> bool:
        """Whether a member holds records."""
        return self._core is not None and self._core.has_locks

    def close(self) -> None:
        """Drop the state in memory; acknowledgements in progress fail. The persisted state stays."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._loading.cancel()
        self._background.cancel()
        error = RaykaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.partition.topic_partition} is not led here")
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            _settle(future, error)


def _settle(future: asyncio.Future[None] | None, error: RaykaError | None) -> None:
    if future is None or future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _with_offset(error: RaykaError, offset: int) -> RaykaError:
    """The error; it names the offset that was to be read where the log is damaged."""
    if error.code not in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT):
        return error
    return RaykaError(error.code, f"offset {offset} can't be read: {error.message}")
