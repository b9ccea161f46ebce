"""How a process puts many small items: through a journal that the leader on its node reads.

`rayka.storage.journal.layout` says what a journal is. A process gets one when it puts quickly, so that a program that
puts now and then costs no file. Where there can be none, items are sent as by any producer.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from rayka.client.loop import LoopThread
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.queue.topic import QueueTopic
from rayka.storage.format.pieces import MaybePieces
from rayka.storage.journal.layout import (
    HEADER_BYTES,
    MOST_LARGE_RECORD_BYTES,
    MOST_RECORD_BYTES,
    MOST_UNREAD_RECORDS,
    JournalState,
)
from rayka.storage.journal.writer import JournalWriter

logger = logging.getLogger(__name__)

_QUICK_PUTS: Final = 64
_QUICK_S: Final = 1.0
"""A process puts quickly if it puts `_QUICK_PUTS` items within this time."""
_REFUSED_S: Final = 60.0
"""How long the leader is not asked again after it refused a journal."""
_TIMEOUT_S: Final = 120.0
"""How long to wait for the leader, as long as producers do (`delivery.timeout.ms`)."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0002, 0.005


class PutJournal:
    """One journal of this process. Any thread may use it. `ring` asks the leader to look into it."""

    def __init__(self, path: str, max_record_bytes: int, ring: Callable[[], None]) -> None:
        """Raises OSError, and ValueError for a file that is too short."""
        self.max_record_bytes = max_record_bytes
        self._ring = ring
        self._lock = threading.Lock()
        self._is_retired = False
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # tells the leader that this process lives
            self._mapping = mmap.mmap(descriptor, HEADER_BYTES)
        except (OSError, ValueError):
            os.close(descriptor)
            raise
        self._words = memoryview(self._mapping).cast("q")
        self._writer = JournalWriter(partial(os.pwritev, descriptor), self._words)
        self._close = weakref.finalize(self, os.close, descriptor)
        self._close.atexit = False  # it may be used until the process ends
        _all.add(self)

    def put(self, items: Sequence[MaybePieces]) -> int:
        """Write items, none larger than `max_record_bytes`, and return how many the log has or will have.

        It has not the others, nor those of later calls: the journal is closed or retired, or the disk takes no more.
        Raises REQUEST_TIMED_OUT if the leader makes no room for two minutes.
        """
        done, pauses = 0, None
        while done < len(items):
            with self._lock:
                if self._is_retired:
                    return done
                try:
                    count = self._writer.write(_from(items, done))
                except OSError:
                    return done
                if self._writer.state is not JournalState.OPEN:
                    return done + self._kept(count)
            done += count
            if not self._writer.is_watched:
                self._ring()
            if count:
                pauses = None
            else:
                pauses = pauses or _Pauses("room in a put journal")
                pauses.wait()
        return done

    def _kept(self, count: int) -> int:
        """The leader closes the journal: how many of the last `count` items the log has."""
        pauses = _Pauses("the leader, which closes a put journal")
        while self._writer.state is JournalState.CLOSING:
            pauses.wait()
        if self._writer.state is JournalState.OPEN:
            return count
        missing = self._writer.missing(count)
        self._writer.send_otherwise(missing)
        return count - missing

    @property
    def is_closed(self) -> bool:
        """Whether the leader has closed it."""
        return self._writer.state is JournalState.CLOSED

    @property
    def is_retired(self) -> bool:
        """Whether it takes no more items."""
        return self._is_retired

    def retire(self) -> None:
        """Take no more items, of any thread, and return when the log has all. Raises as `wait_until_drained`."""
        with self._lock:
            self._is_retired = True
        self.wait_until_drained()

    def wait_until_drained(self) -> None:
        """Return when the log has all items that were put before. Raises as `check_kept`."""
        pauses = _Pauses("the leader, which has not read a put journal")
        with self._lock:
            end = self._writer.end
        while not self._writer.is_drained(end):
            if self.is_closed:
                return self.check_kept()
            self._ring()
            pauses.wait()
        return None

    def check_kept(self) -> None:
        """Raises the error with which the leader closed the journal, if the log has not got all items of it."""
        with self._lock:
            if self._writer.has_lost and self._writer.error:
                code = ErrorCode(self._writer.error)
                raise RaykaError(code, f"Items could not be appended to the log: {code.name}")


def _from(items: Sequence[MaybePieces], start: int) -> Sequence[MaybePieces]:
    """As many as the journal could take at once: it may have room often, and each time for a small part of a list."""
    return items[start : start + MOST_UNREAD_RECORDS] if len(items) > 1 else items


_all: WeakSet[PutJournal] = WeakSet()


def _close_all() -> None:
    """This process is a fork, which must not keep its parent's journals open when the parent has died."""
    for journal in list(_all):
        journal._words.release()
        journal._mapping.close()  # it has a descriptor too
        journal._close()


os.register_at_fork(after_in_child=_close_all)


class _Pauses:
    """Pauses that get longer, for two minutes in all."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._end_s = time.monotonic() + _TIMEOUT_S
        self._pause_s = _FIRST_PAUSE_S

    def wait(self) -> None:
        """Raises REQUEST_TIMED_OUT."""
        if time.monotonic() > self._end_s:
            raise RaykaError(ErrorCode.REQUEST_TIMED_OUT, f"Waited for {self._what} for {_TIMEOUT_S:.0f} s")
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


class JournalOpener:
    """Opens a journal for a queue when a process puts quickly, and rings for it."""

    def __init__(self, broker: Broker, loop: LoopThread, topic: QueueTopic) -> None:
        self._broker = broker
        self._loop = loop
        self._topic = topic
        self._lock = threading.Lock()
        self._puts = 0
        self._largest = 0  # of all: a new journal for each large item would soon take all that a leader has
        self._has_large = False
        self._since_s = 0.0
        self._not_before_s = 0.0
        self._is_opening = False
        self._is_rung = self._is_ringing = False
        self.journal: PutJournal | None = None
        """The journal, when there is one."""

    def count(self, puts: int, largest: int) -> None:
        """Count items of at most `largest` bytes that were put without a journal. Ask for one if they are many."""
        if largest > MOST_LARGE_RECORD_BYTES:
            return
        self._puts += puts
        self._largest = max(self._largest, largest)
        if self._puts < _QUICK_PUTS:
            return
        now_s = time.monotonic()
        with self._lock:
            is_quick, self._puts = now_s - self._since_s < _QUICK_S, 0
            self._since_s = now_s
            if not is_quick or self._is_opening or now_s < self._not_before_s or self.journal is not None:
                return
            self._is_opening = True
        self._start(self._open(self._largest > MOST_RECORD_BYTES))

    def put_otherwise(self, journal: PutJournal, size: int) -> None:
        """An item of this size does not go through the journal. Return when it may be sent, after those that did.

        If it would go through a large journal, the next one is. Raises as `PutJournal.wait_until_drained`.
        """
        journal.wait_until_drained()
        needs_large = not self._has_large and MOST_RECORD_BYTES < size <= MOST_LARGE_RECORD_BYTES
        if needs_large or journal.is_retired:
            self._largest = max(self._largest, size)
            journal.retire()
            self.drop(journal)

    def give_back(self) -> None:
        """The leader may have the journal. Raises as `PutJournal.wait_until_drained`."""
        if (journal := self.journal) is not None:
            journal.retire()
            self.drop(journal)

    def drop(self, journal: PutJournal) -> None:
        """This journal takes no more items, and the log has those that it took."""
        with self._lock:
            if self.journal is journal:
                self.journal = None

    async def _open(self, is_large: bool) -> None:
        try:
            (partition,) = self._topic.partitions()
            if self._broker.partitions.channel_of(partition) is None:
                raise RaykaError(ErrorCode.INVALID_REQUEST, f"{partition} is not led by another process of this node")
            producer_id = await self._broker.controller.allocate_producer_id()
            opened = await self._broker.partitions.open_journal(
                partition, self._topic.topic_id, producer_id, is_large=is_large
            )
            self._has_large = is_large
            self.journal = PutJournal(opened.path, opened.max_record_bytes, partial(_ring_for, weakref.ref(self)))
        except (RaykaError, OSError, ValueError) as error:
            logger.info("items of the queue %s are put without a journal: %s", self._topic.name, error)
            self._not_before_s = time.monotonic() + _REFUSED_S
        finally:
            self._is_opening = False

    def ring(self) -> None:
        """Ask the leader to look into the journal. From any thread."""
        self._is_rung = True
        self._loop.call_soon(self._answer_ring)

    def _answer_ring(self) -> None:
        if not self._is_ringing:
            self._is_ringing = True
            self._start(self._ring_leader())

    async def _ring_leader(self) -> None:
        """Ask the leader to look. One that is away looks when it is back."""
        try:
            while self._is_rung:
                self._is_rung = False
                for partition in self._topic.partitions():
                    await self._broker.partitions.drain_journals(partition)
        except RaykaError as error:
            logger.info("the leader of the queue %s does not answer: %s", self._topic.name, error)
        finally:
            self._is_ringing = False

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(RaykaError):  # the connection was closed meanwhile
            self._loop.submit(work)


def _ring_for(opener: weakref.ref[JournalOpener]) -> None:
    """The journal does not keep its opener: both go with the queue's handle, at once and not with a cycle."""
    if (found := opener()) is not None:
        found.ring()
