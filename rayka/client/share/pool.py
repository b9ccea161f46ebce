"""A pool of Ray actors that processes the records of a share group.

The program that starts the pool is the member of the group. It leases records, hands them to the actors, renews the
leases of records that are being processed, and acknowledges the results. When an actor dies, the record that it was
processing goes back to the group at once, those that waited behind it go to other actors, and a new actor takes its
place. When the program dies, its records go back when their locks expire.

Memory is bounded: the pool leases no more records than the actors process soon.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

from ray.exceptions import RayError

from rayka.client.forms import Closing, Shell, blocking
from rayka.client.loop import LoopThread
from rayka.client.share.commits import PoolCommits, ProcessingCounts
from rayka.client.share.consumer import AsyncShareConsumer
from rayka.client.share.processing import name_of
from rayka.client.share.record_socket import ProcessedRecord
from rayka.client.share.records import RecordAcknowledgement, ShareRecord
from rayka.client.share.records_ahead import RecordsAhead
from rayka.client.share.renewals import Renewals
from rayka.client.share.worker import Worker
from rayka.client.unpicklable import Unpicklable
from rayka.errors import ErrorCode, RaykaError
from rayka.share.record_state import AcknowledgeType

logger = logging.getLogger(__name__)

_WAIT_MS: Final = 500
_FIRST_PAUSE_S: Final = 0.2
"""How long the pool waits before it replaces an actor that died. A start takes a second or two of a processor, which
the other actors need for the records of the one that died.
"""
_MOST_STARTS: Final = 3
"""The pool ends with an error when this many starts of an actor have failed in a row."""
_CHECKS: Final = 10
"""How often the pool checks an actor within `max_processing_ms`."""
_CLOSE_TIMEOUT_MS: Final = 30_000
_RELEASED: Final = RecordAcknowledgement(AcknowledgeType.RELEASE, 0)


class AsyncProcessingPool(Unpicklable):
    """To be used in the event loop where it was made.

    Invariant: each leased record is in one place: it waits for an actor (`_waiting`), an actor has it (`records` of its
    worker), or its acknowledgement is on its way (`PoolCommits`).
    """

    def __init__(
        self,
        consumer: AsyncShareConsumer,
        spawn: Callable[[], Worker],
        actors: int,
        max_processing_ms: float | None = None,
    ) -> None:
        _check(actors, max_processing_ms)
        self._consumer = consumer
        self._commits = PoolCommits(consumer, self._check_idle)
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._workers: list[Worker] = []
        self._waiting: deque[ShareRecord] = deque()
        self._ahead = RecordsAhead()
        self._has_room = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._idle_since = self._loop.time()
        self._failure: BaseException | None = None
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._feeder = self._start(self._feed())
        self._start(self._commits.run())
        self._start(Renewals(consumer, self._leased).run())
        if max_processing_ms is not None:
            self._start(self._watch(max_processing_ms / 1000))
        for _ in range(actors):
            self._start(self._start_worker())

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """An error of the pool itself ends it; `join` and `close` raise it."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._failure is None:
            self._failure = error
            self._feeder.cancel()
            self._is_idle.set()

    @property
    def counts(self) -> ProcessingCounts:
        """How many records had each outcome so far."""
        return self._commits.counts

    # Actors.

    @property
    def ready_actors(self) -> int:
        """How many actors can process records now."""
        return len(self._workers)

    async def _start_worker(self, pause_s: float = 0.0) -> None:
        for attempt in range(_MOST_STARTS):
            await asyncio.sleep(pause_s)
            pause_s = 2 * pause_s or _FIRST_PAUSE_S
            worker = self._spawn()
            try:
                await worker.ready(self._processed, self._actor_lost)
            except RayError as error:
                logger.warning("an actor of the pool did not start: %s", error)
                if attempt == _MOST_STARTS - 1:
                    raise
            except asyncio.CancelledError:
                worker.kill()
                raise
            else:
                self._workers.append(worker)
                worker.serve()
                self._hand_out()
                return

    def _hand_out(self) -> None:
        """Give waiting records to the actors that have the fewest, several at once if they are processed quickly."""
        most = 1 + self._ahead.records
        while self._waiting and self._workers:
            worker = min(self._workers, key=lambda one: len(one.records))
            if 2 * len(worker.records) > most:
                break
            worker.give(self._take_share(most - len(worker.records)))
        if self._room() > 0:
            self._has_room.set()

    def _take_share(self, most: int) -> list[ShareRecord]:
        """The next records for an actor, no more than its share of those that wait.

        A record that was delivered before may be the one that kills its actors. It goes alone, so that no other record
        is lost with it.
        """
        count = min(most, math.ceil(len(self._waiting) / len(self._workers)))
        records = [self._waiting.popleft()]
        while len(records) < count and records[-1].delivery_count == self._waiting[0].delivery_count == 1:
            records.append(self._waiting.popleft())
        return records

    def _processed(self, worker: Worker, processed: Sequence[ProcessedRecord]) -> None:
        for acknowledgement, seconds in processed:
            record = worker.records.popleft()
            self._ahead.processed(record, seconds)
            self._commits.add(record, acknowledgement)
        self._commits.commit_soon()
        self._hand_out()

    def _actor_lost(self, worker: Worker, begun: int) -> None:
        """Replace an actor that died. What it may have begun goes back to the group, the rest to other actors."""
        if worker not in self._workers:
            return
        self._workers.remove(worker)
        records = list(worker.records)
        worker.records.clear()
        for record in records[:begun]:
            self._commits.add(record, _RELEASED)
        self._commits.commit_soon()
        if not self._is_closed:
            self._waiting.extendleft(reversed(records[begun:]))
            self._start(self._start_worker(_FIRST_PAUSE_S))
            self._hand_out()

    async def _watch(self, max_processing_s: float) -> None:
        """Kill actors that take longer than this for a record.

        It counts checks and not time: answers are read between checks, so a pause of this program is not mistaken for
        one of an actor.
        """
        checks: dict[Worker, tuple[ShareRecord, int]] = {}
        while True:
            await asyncio.sleep(max_processing_s / _CHECKS)
            before, checks = checks, {}
            for worker in [one for one in self._workers if one.records]:
                record, (last, count) = worker.records[0], before.get(worker, (None, 0))
                checks[worker] = record, count + 1 if record is last else 1
                if checks[worker][1] > _CHECKS * worker.begun:
                    logger.warning("an actor of the pool took more than %g s for %s", max_processing_s, name_of(record))
                    worker.give_up()

    # Leases.

    async def _feed(self) -> None:
        """Lease as many records as there is room for."""
        while True:
            self._has_room.clear()
            room = self._room()
            if room <= 0:
                await self._has_room.wait()
                continue
            records = await self._consumer.poll_more(_WAIT_MS, room)
            if records:
                self._waiting.extend(records)
                self._is_idle.clear()
            elif self._consumer.is_assigned:
                self._check_idle()
            # A poll may have found offsets without records, which are acknowledged too.
            self._commits.commit_soon()
            self._hand_out()

    def _room(self) -> int:
        """How many records to lease: for each actor the one that it processes, those behind it, and as many again."""
        if self._waiting:
            return 0
        ahead = self._ahead.records
        return sum(max(0, 1 + 2 * ahead - len(worker.records)) for worker in self._workers)

    @property
    def _running(self) -> Iterator[ShareRecord]:
        """The records that actors have."""
        return itertools.chain.from_iterable(worker.records for worker in self._workers)

    @property
    def _is_busy(self) -> bool:
        """Whether there are records whose acknowledgement is not durable yet."""
        return bool(self._waiting or any(self._running) or not self._commits.is_empty)

    def _check_idle(self) -> None:
        if not (self._is_busy or self._is_idle.is_set()):
            self._idle_since = self._loop.time()
            self._is_idle.set()

    def _leased(self) -> Iterator[ShareRecord]:
        """The records whose locks must not expire."""
        return itertools.chain(self._waiting, self._running, self._commits.waiting_records)

    # Waiting and ending.

    async def join(self, idle_ms: float = 1000, timeout_ms: float | None = None) -> ProcessingCounts:
        """Return when there was nothing to do for `idle_ms`; records that wait for their retry do not count.

        Raises the error that ended the pool, and TimeoutError after `timeout_ms`.
        """
        async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
            while True:
                await self._is_idle.wait()
                if self._failure is not None:
                    raise self._failure
                left_s = self._idle_since + idle_ms / 1000 - self._loop.time()
                if left_s <= 0:
                    return self.counts
                await asyncio.sleep(left_s)

    async def close(self, timeout_ms: float = _CLOSE_TIMEOUT_MS) -> None:
        """Stop leasing records, finish those that are being processed, give back the others, and end the actors.

        Raises the error that ended the pool. Safe to repeat.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._feeder.cancel()
        self._waiting.clear()
        try:
            if self._failure is None and self._is_busy:
                await asyncio.wait_for(self._is_idle.wait(), timeout_ms / 1000)
        except TimeoutError:
            count = len(list(self._running))
            logger.warning("gave back %d records that were still being processed", count)
        finally:
            await self._end()
        if self._failure is not None:
            raise self._failure

    async def _end(self) -> None:
        workers, self._workers = self._workers, []
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in workers:
            worker.kill()
        await self._consumer.close()


class ProcessingPool(Unpicklable, Shell[AsyncProcessingPool], Closing):
    """A pool that works from its creation until it is closed; the end of a `with` block closes it."""

    def __init__(self, core: AsyncProcessingPool, loop: LoopThread) -> None:
        super().__init__(core, loop)

    join = blocking(AsyncProcessingPool.join)

    @property
    def counts(self) -> ProcessingCounts:
        """See `AsyncProcessingPool.counts`."""
        return self._core.counts

    @property
    def ready_actors(self) -> int:
        """See `AsyncProcessingPool.ready_actors`."""
        return self._core.ready_actors

    def close(self, timeout_ms: float = _CLOSE_TIMEOUT_MS) -> None:
        """See `AsyncProcessingPool.close`."""
        if not self._loop.is_closed:
            self._loop.run(self._core.close(timeout_ms))


def _check(actors: int, max_processing_ms: float | None) -> None:
    """Raises INVALID_REQUEST."""
    if actors < 1:
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"Invalid value {actors} for actors: it must be at least 1")
    if max_processing_ms is not None and max_processing_ms <= 0:
        reason = f"Invalid value {max_processing_ms} for max_processing_ms: it must be above 0"
        raise RaykaError(ErrorCode.INVALID_REQUEST, reason)
