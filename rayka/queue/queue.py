"""`rayka.Queue`: the interface of `ray.util.queue.Queue`, over a topic."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
import uuid
import weakref
from collections.abc import Coroutine, Hashable, Iterable
from typing import Any, Final, Self

from ray.util.queue import Empty, Full

from rayka.actors.node.spec import DEFAULT_NAMESPACE
from rayka.client.joined import RayCluster
from rayka.client.share.records import RecordAcknowledgement
from rayka.config.shares import MAX_RETRY_DELAY_MS
from rayka.errors import ErrorCode, RaykaError
from rayka.queue.connected import CONNECTING, UNNAMED, Connected, connect, end_later
from rayka.queue.holders import current_holder
from rayka.queue.items import all_unpickled, in_memory, pickled, unpickled
from rayka.queue.leases import ACCEPT, Item, ItemRun
from rayka.queue.settings import DEAD_LETTER_PREFIX, MOST_AHEAD, QueueSettings, lease_of
from rayka.queue.topic import require_queue
from rayka.queue.waiting_reader import LeasedItem
from rayka.share.record_state import AcknowledgeType

__all__ = ["Empty", "Full", "Queue"]

_MOST_REFUSALS: Final = 20
"""How often a get that must not wait asks again because a leader was away."""
_NEVER: Final = float("inf")
_IN_FLIGHT_S: Final = 0.5
"""How long a batch is looked for again while other items in flight keep it from being leased."""
_IN_FLIGHT_PAUSE_S: Final = 0.002
_LONGEST_DELAY_S: Final = MAX_RETRY_DELAY_MS // 1000
_FULL_PAUSES_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02)
"""The pauses between looks at a full queue; the last one is repeated."""


class Queue:
    """A first-in, first-out queue whose items survive the death of every process that uses it.

    A program that uses `ray.util.queue.Queue` only changes its import. Items are pickled as Ray pickles arguments.
    `put` returns when its item is in the log of the partition's leader, or in a journal that survives the same deaths.
    `get` leases an item: if the program dies before it has finished the item, another one gets it. So an item can be
    delivered more than once.

        queue = rayka.Queue(name="renders", lease="task_done")
        queue.put({"frame": 1})
        item = queue.get(timeout=5)
        queue.task_done()
    """

    _topic_id: bytes | None

    def __init__(
        self,
        maxsize: int = 0,
        actor_options: dict[str, Any] | None = None,
        *,
        name: str | None = None,
        lease: str = "next_get",
        lease_s: int | None = None,
        max_attempts: int | None = None,
        dead_letters: bool = False,
        partitions: int = 1,
        prefetch: int = MOST_AHEAD,
        put_ahead: int = 0,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """Open a queue; create it if it does not exist.

        maxsize: `put` waits, or raises `Full`, while this many items are in the queue. 0: no limit.
        actor_options: accepted as in Ray's interface and not used, because the queue has no actor of its own.
        name: the name of the topic behind the queue, and of its share group. The same name is the same queue. Without a
            name the queue is a new one, which is deleted when the process that made it ends.
        lease: when an item is finished. "next_get": when the same thread or asyncio task gets another item.
            "task_done": when it calls `task_done`. "program": when the program ends or drops its last handle.
        lease_s: how many seconds after the death of its process an item is delivered again, 15 to 60. A live process
            renews its leases. 30 for a new queue; an existing queue keeps its value if this is not given.
        max_attempts: how often an item is delivered, 2 to 10, if no program finishes it. 5 for a new queue; an existing
            queue keeps its value.
        dead_letters: write items that can't be unpickled, or were delivered that often, to the topic `dlq.` + name.
        partitions: the number of partitions of a new topic. Items of different partitions have no order.
        prefetch: the largest number of items that a process prefetches while it takes them quickly, 1 to 500.
        put_ahead: how many items `put` may accept before they are in the log, up to 10,000; only without a `maxsize`. A
            process that is killed loses these. A later `put` or `flush` raises the error of an item that failed.
        namespace: the Ray namespace of the broker.

        Raises ValueError for an invalid setting, and RaykaError: BROKER_NOT_AVAILABLE without a broker, INVALID_REQUEST
        if a topic of that name exists and is not a queue.
        """
        del actor_options
        settings = QueueSettings(
            maxsize, lease_of(lease), lease_s, max_attempts, dead_letters, partitions, prefetch, put_ahead
        )
        own_name = f"queue-{uuid.uuid4().hex[:12]}" if name is None else name
        self._set(RayCluster.here(namespace), own_name, settings, None)
        here = self._here
        self._topic_id = here.loop.run(here.topic.open(settings))
        if name is None:
            UNNAMED[self.name] = here

    @classmethod
    def find(cls, name: str, namespace: str = DEFAULT_NAMESPACE) -> Self | None:
        """The existing queue of this name; None if there is none. Raises INVALID_REQUEST for another topic."""
        cluster = RayCluster.here(namespace)
        broker = cluster.connection().broker
        topic = broker.image.topics.get(name)
        if topic is None:
            return None
        require_queue(broker, name)
        queue = cls.__new__(cls)
        queue._set(cluster, name, QueueSettings(), topic.topic_id.bytes)
        return queue

    def _set(self, cluster: RayCluster, name: str, settings: QueueSettings, topic_id: bytes | None) -> None:
        self.maxsize = settings.maxsize
        self.name = name
        self._cluster = cluster
        self._settings = settings
        self._topic_id = topic_id
        self._opened: Connected | None = None

    @property
    def _here(self) -> Connected:
        """The queue as this process is connected to it, from the first use on: Ray unpickles arguments where nothing
        may wait for an actor."""
        opened = self._opened
        if opened is None:
            return self._connect()
        if opened.loop.is_closed:
            reason = "The connection to the cluster is closed, or belongs to the process that forked this one"
            raise RaykaError(ErrorCode.INVALID_REQUEST, reason)
        return opened

    def _connect(self) -> Connected:
        with CONNECTING:
            if self._opened is None:
                self._opened = connected = connect(self._cluster, self.name, self._settings, self._topic_id)
                weakref.finalize(self, end_later, connected).atexit = False
            return self._opened

    def __reduce__(self) -> Any:
        return _handle, (self._cluster, self.name, self._settings, self._topic_id)

    def __repr__(self) -> str:
        return f"Queue(name={self.name!r}, maxsize={self.maxsize})"

    # How much is in it.

    def __len__(self) -> int:
        return self.size()

    def size(self) -> int:
        """The number of items that this program could get: those that no program has, and its own prefetched ones."""
        return self._here.loop.run(self._here.reader.size())

    def lag(self) -> int:
        """The number of unfinished items: waiting ones, and those that programs have leased."""
        depth = self._here.loop.run(self._here.topic.count())
        return depth.available + depth.acquired

    qsize = size

    def empty(self) -> bool:
        """Whether there is nothing to get."""
        return self.size() == 0

    def full(self) -> bool:
        """Whether `put` would wait."""
        return 0 < self.maxsize <= self.size()

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic of items that were delivered too often; None if there is none."""
        return DEAD_LETTER_PREFIX + self.name if self._settings.dead_letters else None

    # Putting.

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item; return when it is in the log of the partition's leader or a journal beside it, or earlier with
        `put_ahead`.

        If the queue is full, wait for room for at most `timeout` seconds. Raises `Full`, ValueError for a negative
        timeout, and RaykaError: MESSAGE_TOO_LARGE, UNKNOWN_TOPIC_OR_PARTITION after `shutdown`.
        """
        deadline_s = _deadline(block, timeout)
        self._here.wait_until_known()
        data = pickled(item)
        if self.maxsize > 0:
            self._wait_for_room(1, deadline_s)
        self._here.writer.put(data)

    async def put_async(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Like `put`, for asyncio, in any event loop."""
        deadline_s = _deadline(block, timeout)
        self._here.wait_until_known()
        data = pickled(item)
        if self.maxsize > 0:
            await self._wait_for_room_async(deadline_s)
        await self._here.writer.put_async(data)

    def put_nowait(self, item: Any) -> None:
        """Like `put` with `block=False`."""
        self.put(item, block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """Add several items in order. Raises `Full`, and adds none, if there is no room for all of them."""
        if not isinstance(items, Iterable):
            raise TypeError("Argument 'items' must be an Iterable")
        self._here.wait_until_known()
        values = [pickled(item) for item in items]
        if self.maxsize > 0:
            self._wait_for_room(len(values), time.monotonic())
        self._here.writer.put_all(values)

    def flush(self) -> None:
        """Return when all items that this process has put are in the log. Raises the error of one that failed."""
        self._here.writer.flush()

    def _wait_for_room(self, count: int, deadline_s: float) -> None:
        pauses_s = itertools.chain(_FULL_PAUSES_S, itertools.repeat(_FULL_PAUSES_S[-1]))
        while (size := self._here.loop.run(self._here.reader.estimate())) + count > self.maxsize:
            time.sleep(min(self._left_to_wait(size, count, deadline_s), next(pauses_s)))

    async def _wait_for_room_async(self, deadline_s: float) -> None:
        pauses_s = itertools.chain(_FULL_PAUSES_S, itertools.repeat(_FULL_PAUSES_S[-1]))
        reader = self._here.reader
        while (size := await asyncio.wrap_future(self._here.loop.submit(reader.estimate()))) >= self.maxsize:
            await asyncio.sleep(min(self._left_to_wait(size, 1, deadline_s), next(pauses_s)))

    def _left_to_wait(self, size: int, count: int, deadline_s: float) -> float:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise Full(f"Cannot add {count} items to queue of size {size} and maxsize {self.maxsize}.")
        return left_s

    # Getting.

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Lease the next item. If there is none, wait for one, for at most `timeout` seconds.

        Raises `Empty`, ValueError for a negative timeout, the error of unpickling (the item is then rejected), and
        RaykaError: UNKNOWN_TOPIC_OR_PARTITION after `shutdown`, KAFKA_STORAGE_ERROR or CORRUPT_MESSAGE if items
        can't be read. After such an error the next call waits for items of the other partitions. The error is raised
        again after ten seconds, or at the end of `timeout` instead of `Empty`. UNKNOWN_SERVER_ERROR and
        KAFKA_STORAGE_ERROR of a leader are raised when they have lasted a minute, or a second at the end of `timeout`.
        """
        holder = current_holder()
        return unpickled(self._here.reader, holder, lambda taken: self._lease(holder, taken, block, timeout))

    def lease(self, block: bool = True, timeout: float | None = None) -> Item:
        """Like `get`, but returns the pickled item with its location and delivery count."""
        holder = current_holder()
        return in_memory(self._here.reader, holder, lambda taken: self._lease(holder, taken, block, timeout))

    def _lease(self, holder: Hashable, taken: list[Item], block: bool, timeout: float | None) -> Item:
        deadline_s, reader = _deadline(block, timeout), self._here.reader
        reader.begin(holder)
        item = reader.take(holder, taken)
        if item is not None:
            return item
        waits = block and timeout != 0
        return self._wait_for_item(holder, taken, deadline_s) if waits else self._look_for_item(holder, taken)

    def _wait_for_item(self, holder: Hashable, taken: list[Item], deadline_s: float) -> Item:
        while (item := self._here.reader.take(holder, taken)) is None:
            waiter = self._here.reader.arrival()
            try:
                waiter.result(None if deadline_s == _NEVER else max(0.0, deadline_s - time.monotonic()))
            except BaseException as error:
                self._here.reader.forget(waiter)
                if isinstance(error, TimeoutError):
                    raise self._here.reader.take_lasting_error() or Empty from None
                raise
        return item

    def wait(self, timeout: float, unless: threading.Event) -> LeasedItem | None:
        """As `lease`, of a queue with a `prefetch` of 1, for threads that wait for tasks; see `WaitingReader.wait`."""
        return self._here.reader.wait(current_holder(), timeout, unless)

    def _look_for_item(self, holder: Hashable, taken: list[Item]) -> Item:
        are_here = self._here.loop.run(_to_its_end(self._look(1)))
        if not are_here or (item := self._here.reader.take(holder, taken)) is None:
            raise Empty
        return item

    async def _look(self, count: int) -> bool:
        """Fetch the items that are missing to `count`; return whether all are here.

        While a leader is away its answer is waited for, as `QueueTopic.count` waits.
        """
        reader, refusals = self._here.reader, 0
        while reader.ready_count < count:
            outcome = await reader.look(count)
            if outcome.is_refused and refusals < _MOST_REFUSALS:
                refusals += 1
                await self._here.topic.count()
            elif not outcome.item_count and reader.ready_count < count:
                return False
        return True

    async def _look_for_all(self, count: int) -> bool:
        """Like `_look`, for all of these items or none: what was fetched of too few goes back at once.

        Enough items may be available that can't be leased yet because too many others are in flight. So it looks again
        for a moment.
        """
        reader, topic = self._here.reader, self._here.topic
        if len(topic.partitions()) > 1 and (await topic.count()).available + reader.ready_count < count:
            return False
        end_s = time.monotonic() + _IN_FLIGHT_S
        while not (are_here := await self._look(count)):
            if time.monotonic() > end_s or (await topic.count()).available + reader.ready_count < count:
                break
            await asyncio.sleep(_IN_FLIGHT_PAUSE_S)
        if not are_here:
            await reader.give_back()
        return are_here

    def get_async(self, block: bool = True, timeout: float | None = None) -> Coroutine[Any, Any, Any]:
        """Like `get`, for asyncio, in any event loop. The item is leased to the task that calls this."""
        deadline_s, holder = _deadline(block, timeout), current_holder()
        self._here.reader.begin(holder)
        return self._get_async(holder, block and timeout != 0, deadline_s)

    async def _get_async(self, holder: Hashable, waits: bool, deadline_s: float) -> Any:
        while (item := self._here.reader.take(holder)) is None:
            if not waits:
                found = await asyncio.wrap_future(self._here.loop.submit(_to_its_end(self._look(1))))
                item = self._here.reader.take(holder) if found else None
                break
            await self._arrival(deadline_s)
        if item is None:
            raise Empty
        leased = item
        return unpickled(self._here.reader, holder, lambda _: leased)

    async def _arrival(self, deadline_s: float) -> None:
        waiter = self._here.reader.arrival()
        try:
            left_s = None if deadline_s == _NEVER else max(0.0, deadline_s - time.monotonic())
            await asyncio.wait_for(asyncio.wrap_future(waiter), left_s)
        except BaseException as error:
            self._here.reader.forget(waiter)
            if isinstance(error, TimeoutError):
                raise self._here.reader.take_lasting_error() or Empty from None
            raise

    def get_nowait(self) -> Any:
        """Like `get` with `block=False`."""
        return self.get(block=False)

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Lease the next items, in order. Raises `Empty`, and takes none, if there are fewer.

        If an item can't be unpickled, it is rejected, the others go back to the queue, and the error is raised.
        """
        if not isinstance(num_items, int):
            raise TypeError("Argument 'num_items' must be an int")
        if num_items < 0:
            raise ValueError("'num_items' must be nonnegative")
        holder = current_holder()
        return all_unpickled(self._here.reader, holder, lambda taken: self._lease_many(holder, taken, num_items))

    def _lease_many(self, holder: Hashable, taken: list[ItemRun], count: int) -> None:
        """Lease so many items, or none. Raises `Empty`."""
        reader = self._here.reader
        reader.begin(holder)
        runs = reader.take_many(holder, count, taken)
        if runs is None and self._here.loop.run(_to_its_end(self._look_for_all(count))):
            runs = reader.take_many(holder, count, taken)
        if runs is None:
            raise Empty(f"Cannot get {count} items from the queue, which has fewer.")

    # Ending leases.

    def task_done(self) -> None:
        """Finish the oldest unfinished item that this thread or asyncio task has got: no program gets it again.

        Raises ValueError if there is none.
        """
        self._settle(ACCEPT)

    def task_failed(self, *, delay_s: float = 0) -> None:
        """Give back the oldest unfinished item that this thread or asyncio task has got.

        No program gets it for `delay_s` seconds, at most a day. After `max_attempts` deliveries it becomes a dead
        letter. Raises ValueError if there is none, and for another delay.
        """
        if not 0 <= delay_s <= _LONGEST_DELAY_S:
            raise ValueError(f"delay_s must be between 0 and {_LONGEST_DELAY_S}, not {delay_s!r}")
        self._settle(RecordAcknowledgement(AcknowledgeType.RELEASE, round(delay_s * 1000)))

    def _settle(self, acknowledgement: RecordAcknowledgement) -> None:
        if not self._here.reader.settle(current_holder(), acknowledgement):
            raise ValueError("task_done() or task_failed() was called more often than get()")

    # Ending.

    def close(self) -> None:
        """`flush`, and release the queue in this process: leases end as `lease` says, prefetched items go back."""
        if self._opened is not None and not self._opened.loop.is_closed:
            try:
                self._opened.writer.close()
            finally:
                self._opened.loop.run(self._opened.reader.end())

    def shutdown(self, force: bool = False, grace_period_s: int = 5) -> None:
        """Delete the queue with all its items, for all programs. The arguments exist for Ray's interface.

        Raises RaykaError if the topic can't be deleted.
        """
        del force, grace_period_s
        here = self._here
        here.loop.run(here.reader.end())
        here.loop.run(here.topic.delete())
        UNNAMED.pop(self.name, None)


def _handle(cluster: RayCluster, name: str, settings: QueueSettings, topic_id: bytes | None) -> Queue:
    """Rebuild a queue that was pickled in another process."""
    queue = Queue.__new__(Queue)
    queue._set(cluster, name, settings, topic_id)
    return queue


async def _to_its_end(fetch: Coroutine[Any, Any, bool]) -> bool:
    """Who gives up, say by Ctrl-C, does not end the fetch, so what it finds goes back to the queue at once."""
    return await asyncio.shield(fetch)


def _deadline(block: bool, timeout: float | None) -> float:
    if not block:
        return time.monotonic()
    if timeout is not None and timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")
    return _NEVER if timeout is None else time.monotonic() + timeout
