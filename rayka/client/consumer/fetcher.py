"""Prefetches for a consumer: keeps fetches waiting at the partitions, and their responses ready.

One fetch asks for all partitions that want records and are not being fetched. When it is answered, its partitions are
asked for again. So every partition always has a request waiting at its leader, and none waits for another one's answer.
Prefetching is bounded: one or two answers for each partition (see `read_ahead`), and `fetch_max_bytes` of memory for
all partitions that are not paused. `FetchCollector` takes what is there.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NoReturn

from rayka.client.consumer.answer_reader import AnswerReader, Found
from rayka.client.consumer.completed_fetch import CompletedFetch
from rayka.client.consumer.offset_fetcher import OffsetFetcher
from rayka.client.consumer.positions import AssignedPartition
from rayka.client.consumer.read_ahead import FOR_RECORDS, ReadAhead
from rayka.client.consumer.ready_partitions import ReadyPartitions
from rayka.client.consumer.stored import BeginPart, FetchedBatches, StoredBatches, StoredFetch
from rayka.client.settings import ConsumerConfig
from rayka.errors import ErrorCode, RaykaError, may_pass
from rayka.gateway.ports import Broker
from rayka.gateway.server.segment_files import SegmentCut, SegmentGone
from rayka.metadata.image import MetadataImage
from rayka.types import (
    FetchPartition,
    FetchResult,
    FileSlice,
    TopicPartition,
)

logger = logging.getLogger(__name__)

_LARGE_ANSWER = 1 << 20
"""To read 4 MB and check their CRC takes 0.4 ms."""
_MOST_LOST_READS = 10
"""So many times in a row a leader may name records behind the end of its file: it may have been cut meanwhile, when the
leader started again.
"""
_LOST = FetchResult(ErrorCode.NETWORK_EXCEPTION)
_NO_OFFSETS: Mapping[TopicPartition, int] = {}


class Fetcher:
    """The fetches of one consumer. Lives in the event loop."""

    def __init__(self, broker: Broker, config: ConsumerConfig, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._config = config
        self._reader = AnswerReader(loop)
        self._ahead = FOR_RECORDS
        self._begin_part: BeginPart | None = None
        self._polls_waiting = 0
        """While the program waits no part is begun: two threads make its table sooner than the one that has begun."""
        self._table_bytes = 0.0
        self._loop = loop
        self._fetches: set[asyncio.Future[list[FetchResult]]] = set()
        self._offsets = OffsetFetcher(broker, config, loop, self._settle_position, self.pump)
        self.ready = ReadyPartitions()
        self._changed = asyncio.Event()
        self._is_closed = False
        self._seen_image: MetadataImage | None = None
        self.partitions: Mapping[TopicPartition, AssignedPartition] = {}
        """Replaced and never changed: a program may take the positions in its own thread."""
        self._turns: dict[AssignedPartition, None] = {}
        """The partitions; those from which records came last come last in the next fetch."""
        self.on_recreated: Callable[[TopicPartition], None] = lambda _: None
        """Called when positions in a partition mean nothing any more, as its topic is another one of the same name."""

    def assign(
        self, topic_partitions: Iterable[TopicPartition], offsets: Mapping[TopicPartition, int] = _NO_OFFSETS
    ) -> None:
        """Read these partitions from now on; those that were read before keep their positions.

        A new partition starts at its offset in `offsets`, or else where the settings say.
        """
        old = self.partitions
        self.partitions = {
            wanted: old.get(wanted) or _new(wanted, offsets.get(wanted)) for wanted in dict.fromkeys(topic_partitions)
        }
        self._turns = dict.fromkeys(self.partitions.values())
        for state in old.values():
            if state not in self._turns:
                state.forget()
        self._seen_image = None
        self.pump()

    def pump(self) -> None:
        """Send a fetch for all partitions that want records and have no request in flight.

        Positions are looked up also of paused partitions: the program may ask for them.
        """
        if self._is_closed:
            return
        self.check_topic_ids()
        idle = [state for state in self._turns if _is_idle(state)]
        lost = [state for state in idle if state.position is None]
        found = [state for state in idle if state.position is not None and self._ahead.wants_more(state)]
        if lost:
            self._offsets.find(lost)
        if found and (room := self._room()) > 0:
            self._fetch(found, room)
        if self._ahead.may_be_stored and self._begin_part is not None and not self._polls_waiting:
            self.ready.begin_parts(self._begin_part, self._reader.files, self._table_bytes)
        if not self._fetches:
            # The program may take its time, and the disk needs the blocks of deleted segments.
            self._reader.files.close()

    def will_take(self, ahead: ReadAhead) -> None:
        """What the program asks for is what is fetched ahead from now on."""
        if self._ahead.may_be_stored and not ahead.may_be_stored:
            for state in self.partitions.values():
                state.forget_stored()
        self._ahead = ahead

    def begin_parts_with(self, begin_part: BeginPart, table_bytes: float) -> None:
        """Begin parts of the next tables ahead, which get fetches of `table_bytes` each."""
        self._begin_part, self._table_bytes = begin_part, table_bytes

    def take_batches(self, state: AssignedPartition, enough_bytes: float) -> list[FetchedBatches]:
        """Take as many fetches of a partition as have `enough_bytes`. If a file has gone meanwhile, there are none, and
        they are fetched again.
        """
        position, taken = state.position, state.take_batches(enough_bytes)
        try:
            return [each.opened(self._reader.files) if isinstance(each, StoredBatches) else each for each in taken]
        except (OSError, SegmentGone) as error:
            assert position is not None
            state.seek(position)
            self._read_again(state, error)
            return []

    def raise_error(self, state: AssignedPartition) -> NoReturn:
        """Raise a partition's error, which it has, and read again from the same position after a moment."""
        error, state.error = state.error, None
        self._back_off(state)
        assert error is not None
        raise error

    async def wait(self, timeout_s: float | None, for_records: bool = False) -> bool:
        """Wait for records, an error or a position; False if there was nothing in that time."""
        self._changed.clear()
        self._polls_waiting += for_records
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        finally:
            self._polls_waiting -= for_records
        return True

    def wake(self) -> None:
        """End the `wait` in progress: something else has happened."""
        self._changed.set()

    def resume(self, state: AssignedPartition) -> None:
        """Return a partition's records again."""
        state.is_paused = False
        if state.completed_fetches or state.error is not None:
            self._is_ready(state)
        self.pump()

    def fetch_again(self, positions: Mapping[TopicPartition, int], last: AssignedPartition | None) -> None:
        """Have the next `pump` go on where these partitions were before something failed, if they have a position. The
        `last` from which was taken comes later: it may fail each time, and must not keep the others from being read.
        """
        for topic_partition, position in positions.items():
            state = self.partitions.get(topic_partition)
            if state is not None and state.position is not None:
                state.seek(position)
        if last is not None and last in self._turns:  # after all others: the back-off may fail too
            self._back_off(last)

    def seek_later(self, state: AssignedPartition, offset: int) -> None:
        """Continue at this offset after a moment: it could not be read."""
        state.seek(offset)
        self._back_off(state)

    def close(self) -> None:
        """End all fetches, and the `wait` that is going on, and drop what was read ahead."""
        self._is_closed = True
        for fetch in self._fetches:
            fetch.cancel()
        self._offsets.close()
        for state in self.partitions.values():
            state.forget()
        self._reader.close()
        self.wake()

    def check_topic_ids(self) -> None:
        """Notice topics that were deleted and created again since their positions were found."""
        if self._broker.image is self._seen_image:
            return
        self._seen_image = image = self._broker.image
        for state in self.partitions.values():
            topic = image.topics.get(state.topic_partition.topic)
            if topic is None or topic.topic_id == state.topic_id:
                continue
            old, state.topic_id = state.topic_id, topic.topic_id
            if old is not None:
                self._topic_recreated(state, old)

    def _topic_recreated(self, state: AssignedPartition, old: uuid.UUID) -> None:
        """An offset of the old topic is not valid in the new one: apply `auto_offset_reset`."""
        name = state.topic_partition.topic
        message = f"topic {name} was deleted and created again (topic id {old}, now {state.topic_id})"
        logger.warning("%s; auto_offset_reset is %s", message, self._config.auto_offset_reset)
        state.seek_by(None)
        self.on_recreated(state.topic_partition)
        if self._config.auto_offset_reset == "none":
            self._fail(state, RaykaError(ErrorCode.UNKNOWN_TOPIC_ID, message))

    def _room(self) -> int:
        """How many bytes may be prefetched, beside what stays in its file."""
        return self._config.fetch_max_bytes - self.ready.buffered_bytes - self._reader.waiting_bytes

    def _is_ready(self, state: AssignedPartition) -> None:
        self.ready.add(state)
        self._changed.set()

    def _fail(self, state: AssignedPartition, error: RaykaError) -> None:
        state.error = error
        self._is_ready(state)

    def _settle_position(self, state: AssignedPartition, error: RaykaError | None) -> None:
        """The look-up of a position has ended, with or without an error."""
        if error is None:
            self._changed.set()
        elif may_pass(error.code):
            self._back_off(state)
        else:
            self._fail(state, error)

    def _fetch(self, states: list[AssignedPartition], max_bytes: int) -> None:
        config = self._config
        requests = []
        for state in states:
            state.is_fetching = True
            topic_id = None if state.topic_id is None else state.topic_id.bytes
            size = config.max_partition_fetch_bytes * self._ahead.factor(state)
            requests.append(FetchPartition(state.topic_partition, state.fetch_offset, size, topic_id=topic_id))
        try:
            fetch = self._broker.partitions.fetch(
                requests,
                max_wait_ms=config.fetch_max_wait_ms,
                min_bytes=config.fetch_min_bytes,
                max_bytes=max_bytes,
                isolation=config.isolation,
            )
        except Exception as error:  # not raised: what the program takes now must not be lost
            for state in states:
                state.is_fetching = False
                self._read_again(state, error)
            return
        self._fetches.add(fetch)
        fetch.add_done_callback(partial(self._answered, [(state, state.round) for state in states]))

    def _answered(
        self, asked: Sequence[tuple[AssignedPartition, int]], fetch: asyncio.Future[list[FetchResult]]
    ) -> None:
        self._reader.files.drop_deleted()
        results = [_LOST] * len(asked) if fetch.cancelled() or fetch.exception() else fetch.result()
        self._accept_all(fetch, zip(asked, results, strict=True))

    def _accept_all(
        self,
        fetch: asyncio.Future[list[FetchResult]],
        answers: Iterator[tuple[tuple[AssignedPartition, int], FetchResult]],
    ) -> None:
        """Accept the answers that are left of a fetch. After a large one, other work of the loop comes first."""
        room = self._room()
        for (state, asked_in_round), result in answers if not self._is_closed else ():
            if state.round == asked_in_round:
                state.is_fetching = False
                held = state.buffered_bytes + self._reader.waiting_bytes
                try:
                    self._accept(state, result, room)
                except Exception as error:  # say for lack of memory
                    self._read_again(state, error)
                room -= state.buffered_bytes + self._reader.waiting_bytes - held
            if result.size >= _LARGE_ANSWER:
                self._loop.call_soon(self._accept_all, fetch, answers)
                return
        self._fetches.discard(fetch)
        self.pump()

    def _accept(self, state: AssignedPartition, result: FetchResult, room: int) -> None:
        """Accept an answer. Records for which there is no room are fetched again when there is: fetches of several
        partitions may wait at the same time, and each was sent for the room that there was then.
        """
        code = ErrorCode(result.error)
        if code is ErrorCode.NONE:
            state.high_watermark = result.high_watermark
            state.last_stable_offset = result.last_stable_offset
            state.log_start_offset = result.log_start_offset
            if result.size and not isinstance(result.records, FileSlice):
                state.has_large_batches = False
            if result.size and room > 0:
                self._read(state, result)
        elif code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._reset_position(state)
        elif may_pass(code):
            self._back_off(state)
        else:
            self._fail(state, RaykaError(code, f"{state.topic_partition} can't be read at {state.fetch_offset}"))

    def _read(self, state: AssignedPartition, result: FetchResult) -> None:
        """Get the bytes: those of a file at once if the page cache has them, else by a thread that may wait."""
        source = result.records
        if not isinstance(source, FileSlice):
            self._put(state, result, source or b"")
            return
        may_be_stored = self._ahead.may_be_stored and not (result.aborted_transactions or state.must_check)
        try:
            found = self._reader.read(
                state.topic_partition, state.fetch_offset, source, result.high_watermark, may_be_stored
            )
            if isinstance(found, asyncio.Future):
                state.is_fetching = True  # only now: there may be no thread
                found.add_done_callback(partial(self._have_read, state, state.round, result))
            else:
                self._have_found(state, result, found)
        except (OSError, SegmentGone) as error:
            self._read_again(state, error)

    def _have_read(
        self, state: AssignedPartition, asked_in_round: int, result: FetchResult, reading: asyncio.Future[Found]
    ) -> None:
        if self._is_closed or reading.cancelled():
            return
        if state.round == asked_in_round:
            state.is_fetching = False
            if error := reading.exception():  # of the disk; to raise it would make a cycle, which keeps the file open
                self._read_again(state, error)
            else:
                self._keep_found(state, result, reading.result())
        self.pump()

    def _keep_found(self, state: AssignedPartition, result: FetchResult, found: Found) -> None:
        try:
            self._have_found(state, result, found)
        except Exception as error:  # say for lack of memory
            self._read_again(state, error)

    def _have_found(self, state: AssignedPartition, result: FetchResult, found: Found) -> None:
        """Keep what was read. What stays in its file is fetched again if meanwhile no tables are wanted any more."""
        if not isinstance(found, StoredFetch):
            self._put(state, result, found)
        elif self._ahead.may_be_stored:
            self._add(state, found)

    def _read_again(self, state: AssignedPartition, error: BaseException) -> None:
        """Fetch again after a moment. A file that stays shorter than the leader says is an error for the program."""
        state.lost_reads += isinstance(error, SegmentCut)
        if state.lost_reads >= _MOST_LOST_READS:
            state.lost_reads = 0
            reason = f"{state.topic_partition} can't be read at {state.fetch_offset}: {error}"
            self._fail(state, RaykaError(ErrorCode.CORRUPT_MESSAGE, reason))
            return
        logger.info("%s: %s; fetching again", state.topic_partition, error)
        self._back_off(state)

    def _put(self, state: AssignedPartition, result: FetchResult, data: bytes | memoryview) -> None:
        try:
            completed_fetch = CompletedFetch(
                state.topic_partition,
                state.fetch_offset,
                data,
                result.aborted_transactions,
                self._config,
                self._ahead.is_for_batches,
                result.high_watermark,
                state.must_check,
            )
        except RaykaError as error:
            self._fail(state, error)
        else:
            self._add(state, completed_fetch)

    def _add(self, state: AssignedPartition, completed_fetch: CompletedFetch | StoredFetch) -> None:
        state.put(completed_fetch)
        state.has_large_batches = isinstance(completed_fetch, StoredFetch)
        self._turns[state] = self._turns.pop(state)
        self._is_ready(state)

    def _reset_position(self, state: AssignedPartition) -> None:
        if self._config.auto_offset_reset == "none":
            self._fail(
                state,
                RaykaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{state.topic_partition} has no offset {state.fetch_offset}, and auto_offset_reset is none",
                ),
            )
            return
        logger.info("%s has no offset %d", state.topic_partition, state.fetch_offset)
        if state.completed_fetches:
            self._back_off(state)
        else:
            state.seek_by(None)

    def _back_off(self, state: AssignedPartition) -> None:
        """Do not fetch a partition for a moment, and then as much as may have to be kept in memory: its leader may have
        changed.
        """
        self._loop.call_later(self._config.retry_backoff_ms / 1000, self._backed_off, state, state.round)
        state.backing_off, state.has_large_batches = True, False  # only now: for lack of memory nothing would end it

    def _backed_off(self, state: AssignedPartition, in_round: int) -> None:
        if state.round == in_round:
            state.backing_off = False
            self.pump()


def _new(topic_partition: TopicPartition, offset: int | None) -> AssignedPartition:
    state = AssignedPartition(topic_partition)
    if offset is not None:
        state.found(offset)
    return state


def _is_idle(state: AssignedPartition) -> bool:
    return not (state.is_fetching or state.backing_off) and state.error is None
