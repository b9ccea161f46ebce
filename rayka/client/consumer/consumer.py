"""The consumer: records of assigned partitions, in order, by polling or iterating."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, Unpack

from rayka.client.consumer.fetch_collector import FetchCollector
from rayka.client.consumer.fetcher import Fetcher
from rayka.client.consumer.needs_group import NeedsGroup
from rayka.client.consumer.offsets import OffsetAndTimestamp, absence, look_up, require_timestamps
from rayka.client.consumer.pending import Polled
from rayka.client.consumer.poll_guard import UNGUARDED, AnyPoll, Poll, PollGuard, TaskPoll
from rayka.client.consumer.positions import AssignedPartition, require_topic_partition
from rayka.client.consumer.records import ConsumerRecord, RecordBatches
from rayka.client.consumer.sequence import ConsumerRecords
from rayka.client.consumer.stored import FetchedBatches
from rayka.client.consumer.table_maker import TableKind, TableMaker
from rayka.client.forms import AsyncClosing, at_home
from rayka.client.settings import ConsumerConfig, ConsumerOptions, configure
from rayka.client.threads import in_thread
from rayka.client.unpicklable import Unpicklable
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.gateway.server.segment_files import SegmentGone
from rayka.types import NO_OFFSET, IsolationLevel, OffsetAnswer, OffsetSpec, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_CALL_TIMEOUT_MS = 30_000
UNREADABLE = (OSError, SegmentGone)
"""Errors of a file with records, which are fetched again then."""

T = TypeVar("T")
Fetched = TypeVar("Fetched", bound=Mapping[TopicPartition, Any] | bool | None)


class WakeupError(Exception):
    """`wakeup` was called."""


def seconds_of(timeout_ms: float) -> float:
    """Raises INVALID_REQUEST for what is not a number."""
    try:
        return timeout_ms / 1000
    except TypeError:
        message = f"timeout_ms must be a number of milliseconds, not {timeout_ms!r}"
        raise RaykaError(ErrorCode.INVALID_REQUEST, message) from None


class AsyncConsumer(NeedsGroup, Unpicklable, AsyncClosing):
    """Reads partitions that the program assigns; for asyncio, in any event loop.

    It lives in the loop that `broker` belongs to: `home`, or else the running one. One task at a time may poll, or
    several of one loop iterate, of which each gets records of its own; any other gets INVALID_REQUEST. Others may seek
    and commit meanwhile. Settings: see `ConsumerConfig`.
    Raises INVALID_CONFIG for an unknown setting or a bad value.
    """

    config: ConsumerConfig
    max_fill_records = 65_536
    """The most records that iteration takes at a time. While it has some, no other thread has to run for it."""
    collector_class: ClassVar[type[FetchCollector]] = FetchCollector

    def __init__(
        self, broker: Broker, home: asyncio.AbstractEventLoop | None = None, **config: Unpack[ConsumerOptions]
    ) -> None:
        self.config = self._configure(config)
        self.home = home or asyncio.get_running_loop()
        self._broker = broker
        self._fetcher = Fetcher(broker, self.config, self.home)
        self.collector = self.collector_class(self._fetcher, self.config.max_poll_records, self.max_fill_records)
        self.pending = self.collector.pending
        self.end_fetches = self._fetcher.close
        self._is_closed = self._is_woken = False
        self._poll_guard = PollGuard()
        self._missing: set[str] = set()
        """Topics that were reported as missing."""
        self.table_maker = TableMaker(self.config.check_crcs)

    @at_home
    async def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read these partitions from now on, instead of the earlier ones.

        A partition that was already assigned keeps its position. A new one starts where `auto_offset_reset` says, or
        where `seek` puts it. Raises UNKNOWN_TOPIC_OR_PARTITION for a partition that the topic does not have. If a topic
        does not exist yet, the consumer waits for it.
        """
        wanted = [self._require_valid(partition) for partition in partitions]
        self._require_open()
        self._warn_of_missing(partition.topic for partition in wanted)
        self._fetcher.assign(wanted)
        self.collector.forget_unassigned()

    @at_home
    async def assignment(self) -> set[TopicPartition]:
        """The assigned partitions."""
        return set(self._fetcher.partitions)

    async def poll(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, ConsumerRecords]:
        """Return at most `max_records` records by partition; an empty dict if none arrives within `timeout_ms`.

        Raises the error of a partition that can't be read: OFFSET_OUT_OF_RANGE without a reset, CORRUPT_MESSAGE, or
        INVALID_RECORD if a deserializer failed. The next call reads from the same position.
        """
        return await self._deliver(self.taking(max_records), timeout_ms) or {}

    async def poll_batches(self, timeout_ms: float = 0) -> dict[TopicPartition, list[RecordBatches]]:
        """Return all prefetched record batches, not decoded; errors as `poll`."""
        return await self._deliver(self.taking_batches, timeout_ms) or {}

    async def _deliver(self, take: Callable[[], Polled], timeout_ms: float) -> Polled | None:
        poll = self.begin_poll(TaskPoll())
        try:
            polled = await self.take(partial(poll.take, take), timeout_ms)
            self.pending.end_delivery(polled)
            return polled
        finally:
            poll.has_ended = True

    async def poll_table(
        self, timeout_ms: float = 0, columns: Sequence[str] | None = None, *, copy: bool = True
    ) -> pa.Table:
        """Return prefetched records as a table, without a Python object for each; the table may be empty.

        All records of a fetch come at once, and those of further fetches until these have about 16 MB in the log (32 MB
        with `copy=False`). When decompressed records need 256 MB, a table ends after the current batch, and the next
        one continues with the following one.
        The columns are key, value, topic, partition, offset, timestamp, timestampType and headers, or those named in
        `columns`. The rows of a partition are in the order of their offsets. Deserializers are not applied. Errors as
        `poll`; after CORRUPT_MESSAGE for a batch that can't be read the next tables have the records before it. What
        other tasks poll while a table is made comes again if the table can't have all its records. Needs pyarrow
        (`rayka[columns]`).

        With `copy=False` large values are not copied: their column is a `pyarrow.binary_view` that points into the
        leader's files, if the leader is on this node, or into the fetched bytes. The table and its slices keep all of
        these in use. Cast the column to `pyarrow.binary()` before you filter, sort, keep or pickle it. If a file is
        truncated, or a later read of the disk fails, SIGBUS ends the process: see docs/python.md.
        """
        kind = self.table_maker.kind_of(columns, copy)
        poll = self.begin_poll(TaskPoll())
        try:
            polled = await self.take(partial(poll.take, partial(self.taking_table, kind)), timeout_ms) or {}
        finally:
            poll.has_ended = True  # others may poll while this table is made, at the price that the docstring names
        begun = self.collector.begin_table(polled)
        try:
            self.pending.end_delivery(polled)
            table, rest = await in_thread(self.table_maker.table_of, polled, kind)
            if rest:
                await self.give_back(polled, begun, rest)
        except BaseException as error:
            await self.give_back(polled, begun, error=error)
            if not isinstance(error, UNREADABLE):
                raise
            return self.table_after(error, kind)
        finally:
            self.collector.tables_being_made.end(begun)
        return table

    @at_home
    async def give_back(
        self,
        polled: Mapping[TopicPartition, Sequence[FetchedBatches]],
        wanted: Container[TopicPartition],
        rest: Mapping[TopicPartition, int] | None = None,
        error: BaseException | None = None,
    ) -> None:
        """As `FetchCollector.give_back`."""
        self.collector.give_back(polled, wanted, rest, error)

    @at_home
    async def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Continue at this offset."""
        if not isinstance(offset, int) or offset < 0:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"offset must be an int, 0 or more, not {offset!r}")
        state = self._state(partition)
        self.collector.seek(state, partial(state.seek, offset))

    @at_home
    async def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Continue at the log start offset; in all partitions if none is named."""
        for state in self._states(partitions):
            self.collector.seek(state, partial(state.seek_by, OffsetSpec.EARLIEST))

    @at_home
    async def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Continue at the current end; in all partitions if none is named."""
        for state in self._states(partitions):
            self.collector.seek(state, partial(state.seek_by, OffsetSpec.LATEST))

    @at_home
    async def position(self, partition: tuple[str, int], timeout_ms: float = _CALL_TIMEOUT_MS) -> int:
        """The offset of the next record to return. Raises REQUEST_TIMED_OUT if it is not known in time."""
        state = self._state(partition)
        deadline_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        while (position := self.collector.position(state)) is None:
            if state.error is not None:
                raise state.error
            if not await self._fetcher.wait(deadline_s - asyncio.get_running_loop().time()):
                raise RaykaError(
                    ErrorCode.REQUEST_TIMED_OUT, f"the position in {state.topic_partition} is not known yet"
                )
        return position

    @at_home
    async def pause(self, *partitions: tuple[str, int]) -> None:
        """Return no records of these partitions until `resume`."""
        self.collector.pause(self._states(partitions))

    @at_home
    async def resume(self, *partitions: tuple[str, int]) -> None:
        """Return records of these partitions again."""
        for state in self._states(partitions):
            self._fetcher.resume(state)

    @at_home
    async def paused(self) -> set[TopicPartition]:
        """The paused partitions."""
        return {state.topic_partition for state in self._fetcher.partitions.values() if state.is_paused}

    @at_home
    async def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The offset of the first record of each partition."""
        return await self._offsets(partitions, OffsetSpec.EARLIEST)

    @at_home
    async def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The offset of the next record of each partition; under read_committed, the last stable offset."""
        return await self._offsets(partitions, OffsetSpec.LATEST)

    @at_home
    async def offsets_for_times(
        self, timestamps: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each timestamp (ms since the epoch); None where there is none."""
        wanted = {self._require_valid(partition): timestamp for partition, timestamp in timestamps.items()}
        require_timestamps(wanted)
        found = await self._look_up(wanted)
        return {topic_partition: OffsetAndTimestamp.of(answer) for topic_partition, answer in found.items()}

    @at_home
    async def lag(self, partition: tuple[str, int]) -> int:
        """The number of offsets between the position and the end."""
        state = self._state(partition)
        position = await self.position(partition)
        is_committed = self.config.isolation is IsolationLevel.READ_COMMITTED
        end = state.last_stable_offset if is_committed else state.high_watermark
        if end == NO_OFFSET:
            end = (await self.end_offsets([partition]))[state.topic_partition]
        return max(end - position, 0)

    @at_home
    async def partitions_for_topic(self, topic: str) -> set[int] | None:
        """The partitions of a topic; None if it does not exist."""
        found = self._broker.image.topics.get(topic)
        return None if found is None else set(range(len(found.partitions)))

    @at_home
    async def topics(self) -> set[str]:
        """The topics, without internal ones."""
        return {name for name, topic in self._broker.image.topics.items() if not topic.is_internal}

    @at_home
    async def highwater(self, partition: tuple[str, int]) -> int | None:
        """The high watermark in the last fetch response; None before the first one."""
        state = self._state(partition)
        return None if state.high_watermark == NO_OFFSET else state.high_watermark

    def wakeup(self) -> None:
        """Make the waiting poll or iteration, or else the next one, raise `WakeupError`. From any thread."""
        self._is_woken = True
        with contextlib.suppress(RuntimeError):  # the loop is closed, so that nothing waits
            self.home.call_soon_threadsafe(self._fetcher.wake)

    @at_home
    async def close(self) -> None:
        """Stop reading. Safe to repeat."""
        self._is_closed = True
        self._stop_fetching()

    def _stop_fetching(self) -> None:
        """Also release the memory of tables. The positions stay behind what the program has received."""
        self.collector.close()
        self.table_maker.close()

    @at_home
    async def fill(self, poll: Poll = UNGUARDED) -> bool:
        """Put the next records into `pending`, for iteration; False when `consumer_timeout_ms` is over."""
        while not self.pending:
            if not await self._wait(partial(poll.take, self.filling), self.config.consumer_timeout_ms):
                return False
        return True

    def filling(self) -> bool:
        """For a wait: what iteration has left, which another task may have fetched, or more."""
        return bool(self.pending) or bool(self.collector.fill())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        while True:
            try:
                return self.pending.popleft()
            except IndexError:
                poll = self.begin_poll(TaskPoll(is_iteration=True))
                try:
                    if not await self.fill(poll):
                        raise StopAsyncIteration from None
                finally:
                    poll.has_ended = True

    def table_after(self, error: BaseException, kind: TableKind) -> pa.Table:
        """An empty table: the records could not be read from their file, and are fetched again."""
        logger.info("%s; fetching again", error)
        return self.table_maker.table_of({}, kind)[0]

    def _configure(self, config: Mapping[str, Any]) -> ConsumerConfig:
        return configure(ConsumerConfig, config)

    def begin_poll(self, poll: AnyPoll) -> AnyPoll:
        """As `PollGuard.begin`: until the caller sets `has_ended`. One whose task was cancelled is passed over."""
        return self._poll_guard.begin(poll)

    @at_home
    async def take(self, take: Callable[[], Polled | None], timeout_ms: float) -> Polled | None:
        """What `take` returns, within `timeout_ms`. The caller has received it when it calls `pending.end_delivery`."""
        return await self._wait(take, timeout_ms)

    def take_now(self, take: Callable[[], Polled]) -> Polled:
        """As `take`, without waiting. In the thread of `home`."""
        self._require_open()
        self._raise_if_woken()
        return take()

    def taking(self, max_records: int | None) -> Callable[[], dict[TopicPartition, ConsumerRecords]]:
        """For `take`: what `poll` returns. Raises INVALID_REQUEST."""
        return partial(self.collector.collect, partial(self.collector.take, self._limit(max_records)))

    def taking_batches(self) -> dict[TopicPartition, list[RecordBatches]]:
        """For `take`: what `poll_batches` returns."""
        return self.collector.collect(self.collector.take_batches)

    def taking_table(self, kind: TableKind) -> dict[TopicPartition, list[FetchedBatches]]:
        """For `take`: what `poll_table` returns, not decoded."""
        return self.collector.collect_for_table(partial(self.table_maker.begin_part, kind), kind.copy)

    async def _wait(self, take: Callable[[], Fetched], timeout_ms: float | None) -> Fetched:
        """What `take` returns as soon as that is not empty, or at the deadline."""
        self._require_open()
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout_ms is None else loop.time() + seconds_of(timeout_ms)
        self._raise_if_woken()
        while not (taken := take()):
            left_s = None if deadline_s is None else deadline_s - loop.time()
            if left_s is not None and left_s <= 0:
                break
            await self._fetcher.wait(left_s, for_records=True)
            self._raise_if_woken()
            self._require_open()
        return taken

    def _limit(self, max_records: int | None) -> int:
        """The most records of one poll. Raises INVALID_REQUEST."""
        if max_records is None:
            return self.config.max_poll_records
        if not isinstance(max_records, int) or max_records < 1:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"max_records must be an int, 1 or more, not {max_records!r}")
        return max_records

    async def _offsets(self, partitions: Iterable[tuple[str, int]], spec: OffsetSpec) -> dict[TopicPartition, int]:
        found = await self._look_up({self._require_valid(partition): spec for partition in partitions})
        return {topic_partition: answer.offset for topic_partition, answer in found.items()}

    async def _look_up(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAnswer]:
        return await look_up(
            self._broker,
            timestamps,
            self.config.isolation,
            timeout_ms=_CALL_TIMEOUT_MS,
            retry_backoff_ms=self.config.retry_backoff_ms,
        )

    def _states(self, partitions: tuple[tuple[str, int], ...]) -> list[AssignedPartition]:
        if not partitions:
            return list(self._fetcher.partitions.values())
        return [self._state(partition) for partition in partitions]

    def _state(self, partition: tuple[str, int]) -> AssignedPartition:
        state = self._fetcher.partitions.get(require_topic_partition(partition))
        if state is None:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"partition {partition!r} is not assigned to this consumer")
        return state

    def _require_valid(self, partition: tuple[str, int]) -> TopicPartition:
        topic_partition = require_topic_partition(partition)
        reason = absence(self._broker.image, topic_partition)
        if reason is not None and topic_partition.topic in self._broker.image.topics:
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, reason)
        return topic_partition

    def _warn_of_missing(self, topics: Iterable[str]) -> None:
        """Log once that a topic does not exist: its consumer waits for it, and its polls return nothing."""
        missing = sorted({topic for topic in topics if topic not in self._broker.image.topics} - self._missing)
        self._missing.update(missing)
        for topic in missing:
            logger.warning("topic %s does not exist: the consumer waits until it is created", topic)

    def _raise_if_woken(self) -> None:
        if self._is_woken:
            self._is_woken = False
            raise WakeupError("wakeup was called")

    def _require_open(self) -> None:
        if self._is_closed:
            raise RaykaError(ErrorCode.INVALID_REQUEST, "The consumer is closed")
