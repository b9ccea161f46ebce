"""Gets the items of a queue for the threads and tasks of one program.

Threads take fetched items under a lock. The pump, in the loop of the broker's ports, fetches. While a thread waits, the
pump waits at the leaders for the next items; otherwise it prefetches. Acknowledgements are sent with the next fetch, or
with the next tick of the `LeaseKeeper`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Hashable, Mapping, Sequence
from typing import Final, NamedTuple

from rayka.client.loop import LoopThread
from rayka.client.share.records import RecordAcknowledgement
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.queue.holders import is_alive
from rayka.queue.item_waiters import ItemWaiters
from rayka.queue.lease_keeper import RETRY_S, LeaseKeeper, now_ms
from rayka.queue.leases import Item, ItemRun
from rayka.queue.member import MAX_BYTES, FetchedItems
from rayka.queue.partition_errors import PartitionErrors
from rayka.queue.settings import QueueSettings
from rayka.queue.topic import GONE, QueueTopic
from rayka.share.requests import ShareFetchResult
from rayka.types import TopicPartition

logger = logging.getLogger(__name__)

LONGEST_WAIT_S: Final = 2.0
"""The longest wait of a fetch at the leaders. Meanwhile nothing goes back to the queue."""
_ARRIVAL_S: Final = 0.2
"""How long what a leader has found takes at most to be here, on a machine that is not overloaded."""
_GATHER_S: Final = 0.005
"""How long items may gather for a program that takes them quickly; as Kafka's producers gather records (linger.ms)."""
_ANSWER_S: Final = 30.0
"""How long the end of a handle waits for the answer to its last acknowledgements, as Kafka's consumers do (`close`)."""
_LAST_S: Final = 3.0
"""How long it then sends again what is refused for now: its other items stay leased until it leaves, and a lease that
ends counts as a delivery. At the exit of a program this is for the first answer too.
"""
_TRIM_ITEMS: Final = 1024
_TRIM_BYTES: Final = 64 << 20
"""Finished items are deleted whenever this many offsets are passed, or this many bytes were fetched here."""


class FetchOutcome(NamedTuple):
    """The result of a fetch. `is_refused`: a leader was unavailable or refused it."""

    item_count: int
    is_refused: bool = False


class QueueReader(LeaseKeeper):
    """One member of the queue's share group, for any number of threads and event loops."""

    def __init__(self, broker: Broker, loop: LoopThread, topic: QueueTopic, settings: QueueSettings) -> None:
        super().__init__(broker, loop, topic, settings)
        self._waiters = ItemWaiters()
        self._errors = PartitionErrors()
        self._epochs: dict[int, int] = {}
        self._image: object = None
        self._fetched_bytes = 0
        self._pumping: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()  # A batch that is looked for is not taken apart by what is fetched ahead.
        self._error: RaykaError | None = None
        self._has_ended = asyncio.Event()

    # For threads and tasks.

    @property
    def ready_count(self) -> int:
        """The number of items that are fetched and not delivered."""
        return self._leases.ready_count

    def begin(self, holder: Hashable) -> None:
        """The holder asks for an item, which may end its leases."""
        if self._error is not None:
            raise self._error
        with self._lock:
            self._leases.next_get(holder)

    def take(self, holder: Hashable, taken: list[Item] | None = None) -> Item | None:
        """Return the next item, if one has been fetched. `taken` is as for `Leases.take`."""
        with self._lock:
            self._forget_old()
            item = self._leases.take(holder, now_ms(), taken)
            wants_more = self._pumping is None and self._leases.wanted(0) > 0
        if item is not None and not self._ticking:
            self._loop.call_soon(self._start_ticking)
        if wants_more and item is not None:
            self._loop.call_soon(self._start_pumping)
        return item

    def take_many(self, holder: Hashable, count: int, taken: list[ItemRun]) -> Sequence[ItemRun] | None:
        """Return `count` items, if that many have been fetched. `taken` is as for `Leases.take`."""
        with self._lock:
            self._forget_old()
            items = self._leases.take_many(holder, count, now_ms(), taken)
        if items is not None and not self._ticking:  # to wake the loop's thread takes the GIL from this one
            self._loop.call_soon(self._start_ticking)
        return items

    def arrival(self) -> concurrent.futures.Future[None]:
        """Return a future that is done when there may be an item. Raises the error that ended the queue."""
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._leases.ready_count:
                return ItemWaiters.woken()
            waiter = self._waiters.add()
        self._loop.call_soon(self._start_pumping)
        return waiter

    def take_lasting_error(self) -> RaykaError | None:
        """The error of a partition for a get that has no more time: KAFKA_STORAGE_ERROR or CORRUPT_MESSAGE if items
        can't be read, or what its leader has long answered. None if the queue is empty, as far as anybody knows."""
        with self._lock:
            return self._errors.take_lasting()

    def forget(self, waiter: concurrent.futures.Future[None]) -> None:
        """A thread or task has stopped waiting."""
        with self._lock:
            self._waiters.remove(waiter)

    def settle(self, holder: Hashable, acknowledgement: RecordAcknowledgement) -> bool:
        """Acknowledge the oldest item of the holder, or of one that has ended; False if there is none."""
        with self._lock:
            self._leases.end_holders(is_alive)
            settled = self._leases.settle(holder, acknowledgement)
        self._loop.call_soon(self._start_ticking)
        return settled

    def settle_item(self, holder: Hashable, item: Item, acknowledgement: RecordAcknowledgement) -> None:
        """Acknowledge this item of the holder."""
        with self._lock:
            self._leases.settle_item(holder, item, acknowledgement)
        self._loop.call_soon(self._start_ticking)

    def _forget_old(self) -> None:
        """Drop undelivered leases that are not reliable: a leader was replaced, or this process was paused."""
        self._leases.forget_older(now_ms() - int(self._member.lease_s * 1000 / 2))  # a pause: else they went back
        if self._broker.image is not self._image:
            self._forget_lost()

    def _forget_lost(self) -> None:
        image = self._image = self._broker.image
        topic = image.topics.get(self._topic.name)
        partitions = topic.partitions if topic is not None else ()
        lost = [
            number
            for number, epoch in self._epochs.items()
            if number >= len(partitions) or partitions[number].leader_epoch != epoch
        ]
        if lost:
            self._leases.forget_ready(lost)

    # In the loop.

    def _start_pumping(self) -> None:
        if self._pumping is None and not self._is_closed:
            self._pumping = self._loop.loop.create_task(self._pump())
        elif self._leases.has_acknowledgements:  # The pump may wait long before its next fetch.
            self._start_ticking()

    async def _pump(self) -> None:
        """Fetch while a thread waits, or while items are taken quickly."""
        try:
            while not self._is_closed:
                with self._lock:
                    is_awaited = bool(self._waiters)
                    wanted = self._leases.wanted(len(self._waiters))
                if wanted <= 0:
                    break
                wait_s = min(LONGEST_WAIT_S, self._member.lease_s / 4)
                fetched = await (self.fetch(wanted, wait_s) if is_awaited else self._fetch_ahead())
                if not fetched.item_count and not is_awaited:
                    break
                if not fetched.item_count:
                    self._raise_due()
        except RaykaError as error:
            self._error = error if error.code in GONE else None
            self._fail(error)
        except Exception as error:
            logger.exception("cannot read the queue %s", self._topic.name)
            self._fail(RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error)))
        finally:
            self._pumping = None
            with self._lock:
                is_awaited = bool(self._waiters) and self._error is None
            if is_awaited:
                self._start_pumping()

    async def look(self, count: int) -> FetchOutcome:
        """Fetch, without waiting, the items that are missing to `count`, or none if there are too few.

        If there are several leaders, each one only needs to have an item. Raises UNKNOWN_TOPIC_OR_PARTITION, and if
        there are too few the error of `take_lasting_error`.
        """
        async with self._looking:
            waiting = list(self._fetches)
            outcome = await self._fetch_missing(count)
            if waiting and self.ready_count < count:  # A leader may have given it some of them just before.
                await asyncio.wait(waiting, timeout=_ARRIVAL_S)
                outcome = await self._fetch_missing(count)
            if self.ready_count < count and (error := self.take_lasting_error()) is not None:
                raise error
            return outcome

    async def _fetch_missing(self, count: int) -> FetchOutcome:
        with self._lock:
            missing = count - self._leases.ready_count
            ahead = self._leases.wanted(1)
        if missing <= 0:
            return FetchOutcome(0)
        at_least = missing if len(self._topic.partitions()) == 1 else 1
        return await self.fetch(max(missing, ahead), 0.0, at_least)

    async def _fetch_ahead(self) -> FetchOutcome:
        """Prefetch, without waiting, the items that will be needed soon, unless they were fetched in the meantime."""
        async with self._looking:
            with self._lock:
                wanted = self._leases.wanted(0)
            return await self.fetch(wanted, 0.0) if wanted > 0 else FetchOutcome(0)

    async def fetch(self, count: int, wait_s: float, at_least: int = 0) -> FetchOutcome:
        """Fetch at most `count` items; none from a leader that has fewer than `at_least`.

        Raises UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST when the handle is closed, and CORRUPT_MESSAGE for fetched
        records that are damaged. Notes the errors of single partitions.
        """
        await self._topic.wait_until_known()
        ended: asyncio.Future[None] = self._loop.loop.create_future()
        async with self._giving_back:  # Else later items would come before those that go back.
            if self._error is not None:
                raise self._error
            is_alone = not self._is_fetching
            self._fetches[ended] = wait_s
        try:
            with self._lock:
                acknowledgements = self._leases.take_acknowledgements(also_again=is_alone)
            self._note_epochs()
            gather_s, since_ms = _GATHER_S if self._leases.is_quick else 0.0, now_ms()
            results = await self._member.fetch(count, wait_s, at_least, acknowledgements, gather_s)
        finally:
            del self._fetches[ended]
            ended.set_result(None)
            self._start_ticking()  # also for acknowledgements that were not sent
            self._start_settling()
        if self._error is not None:
            await self._give_back_late(results, self._error)
        fetched = self._member.read(results)
        found = self._add(fetched.runs, count, since_ms)
        self._trim_after(fetched.runs)
        if fetched.unread:
            await self._give_back(lambda: fetched.unread)
        self._note(fetched)
        if fetched.is_refused:
            await asyncio.sleep(RETRY_S)
        return FetchOutcome(found, fetched.is_refused)

    def _raise_due(self) -> None:
        """Raise the error of a partition that is due for those who wait."""
        with self._lock:
            error = self._errors.take_due()
        if error is not None:
            raise error

    async def _give_back_late(self, results: Mapping[TopicPartition, ShareFetchResult], error: RaykaError) -> None:
        """The handle was closed during the fetch, and others may have its items. Raises the error."""
        await self._member.give_back({number: result.acquired_offsets for (_, number), result in results.items()})
        raise error

    def _note(self, fetched: FetchedItems) -> None:
        """Keep the errors of partitions. Raises that of damaged records, if there are some."""
        with self._lock:
            self._errors.note(fetched.refused, fetched.unreadable)
        if fetched.damage is not None:
            raise fetched.damage

    def _add(self, runs: Sequence[ItemRun], wanted: int, since_ms: int) -> int:
        """Add fetched items; return how many. If they are fewer than wanted, and not very large, there are no more."""
        found = sum(len(run.values) for run in runs)
        size = sum(run.size for run in runs)
        self._fetched_bytes += size
        with self._lock:
            self._leases.add(runs, now_ms(), since_ms=since_ms, is_dry=found < wanted and size < MAX_BYTES // 2)
            self._waiters.wake(found)
        return found

    async def size(self) -> int:
        """The number of items that can be got: those at the leaders, and those that are fetched.

        An item on its way between them is in neither count. So no items go back and no fetch begins during the count.
        It waits for a fetch in progress: until its end or, if the fetch waits at a leader and may have found something,
        for a moment.
        """
        return await self._topic.until_answered(self._size)

    async def _size(self) -> int:
        async with self._giving_back:
            if short := [ended for ended, wait_s in self._fetches.items() if wait_s == 0]:
                await asyncio.wait(short)
            under_way = len(self._fetches)
            depth = await self._topic.depth()
            if self._fetches and depth.acquired > self._leases.count:
                await asyncio.wait(self._fetches, timeout=_ARRIVAL_S)
            if len(self._fetches) < under_way:
                depth = await self._topic.depth()
            return depth.available + self.ready_count

    async def estimate(self) -> int:
        """Like `size`, without waiting for items on their way."""
        return (await self._topic.count()).available + self.ready_count

    def _trim_after(self, runs: Sequence[ItemRun]) -> None:
        """Delete finished items when it is due: they stay in the log until the programs that get items delete them."""
        is_due = any(run.end_offset // _TRIM_ITEMS > run.first_offset // _TRIM_ITEMS for run in runs)
        if is_due or self._fetched_bytes >= _TRIM_BYTES:
            self._fetched_bytes = 0
            self._background.start("trim", self._topic.trim())

    def _note_epochs(self) -> None:
        with self._lock:
            self._forget_lost()
        partitions = self._topic.image().partitions
        self._epochs = {number: partition.leader_epoch for number, partition in enumerate(partitions)}

    def _fail(self, error: RaykaError) -> None:
        """End all waits with an error."""
        with self._lock:
            self._waiters.fail(error)

    # Ending.

    async def end(self, *, is_exit: bool = False) -> None:
        """Stop getting items: send the last acknowledgements, and give back all other items. Safe to repeat.

        Other items go back even if acknowledgements can't be sent, or Ctrl-C comes meanwhile. Who calls it again waits
        until the first call has ended.

        `is_exit`: the program ends, and its unfinished items count as delivered.
        """
        if self._is_closed:
            await self._has_ended.wait()
            return
        self._is_closed = True
        try:
            await self._end(is_exit)
        finally:
            self._has_ended.set()

    async def _end(self, is_exit: bool) -> None:
        self._error = RaykaError(ErrorCode.INVALID_REQUEST, f"This handle of the queue {self._topic.name} is closed")
        self._fail(self._error)
        if self._renewing is not None:
            self._renewing.cancel()
        try:
            if self._pumping is not None:
                self._pumping.cancel()
                await asyncio.wait([self._pumping])
            with self._lock:
                unfinished = self._leases.end(is_exit=is_exit)
            self._background.start("giving back", self._member.give_back(unfinished))
            async with asyncio.timeout(_LAST_S if is_exit else _ANSWER_S + _LAST_S):
                await self._send_first()
                async with asyncio.timeout(min(_LAST_S, self._member.lease_s / 4)):
                    await self._send_last()
        except TimeoutError:
            logger.warning(
                "items of the queue %s may be delivered again: no leader takes their last acknowledgements",
                self._topic.name,
            )
        finally:
            if self._epochs:
                await self._member.leave(self._epochs)
