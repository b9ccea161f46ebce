"""Lets one poll of a consumer be under way at a time: two would get the same records."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from typing import Final, TypeVar

from rayka.errors import ErrorCode, RaykaError

T = TypeVar("T")
AnyPoll = TypeVar("AnyPoll", bound="Poll")

OTHER_THREAD = "Another thread is using this consumer: give each its own"


class Poll:
    """A poll, or the part of an iteration that takes records.

    It is under way until its caller sets `has_ended`. No function does this: Ctrl-C could come before it had.
    """

    has_ended = False

    @property
    def is_under_way(self) -> bool:
        """Whether it may still return records."""
        return not self.has_ended

    def may_run_beside(self, other: Poll) -> bool:
        """Whether both get records of their own."""
        return False

    @property
    def refusal(self) -> str:
        """What a poll is told that begins meanwhile."""
        raise NotImplementedError

    def take(self, take: Callable[[], T]) -> T | None:
        """What `take` takes, or None if this poll has ended: the next one may already have taken that."""
        return None if self.has_ended else take()


UNGUARDED: Final = Poll()
"""For a caller that sees to it that no two of its polls get the same records."""


class ThreadPoll(Poll):
    """Of the calling thread, which waits for it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    @property
    def refusal(self) -> str:
        """See `Poll.refusal`."""
        if threading.get_ident() != self._thread:
            return OTHER_THREAD
        return "This consumer is polling: a signal handler must not poll or iterate meanwhile"


class TaskPoll(Poll):
    """Of the running task. It is over, too, as soon as that can return no records: if it has ended or was cancelled
    since, or if its loop is closed.
    """

    def __init__(self, *, is_iteration: bool = False) -> None:
        task = asyncio.current_task()
        self._task = weakref.ref(task) if task is not None else None  # it may be left behind in a loop that has ended
        self._cancels = task.cancelling() if task is not None else 0  # a program may have caught an earlier one
        self._is_iteration = is_iteration

    @property
    def is_under_way(self) -> bool:
        """See `Poll.is_under_way`."""
        if self.has_ended or (task := self._running()) is None or task.get_loop().is_closed():
            return False
        return task.cancelling() <= self._cancels

    def may_run_beside(self, other: Poll) -> bool:
        """Iterations may, in tasks of one loop: each record goes to the one that asks first."""
        if not (isinstance(other, TaskPoll) and self._is_iteration and other._is_iteration):
            return False
        mine, theirs = self._running(), other._running()
        return mine is not None and theirs is not None and mine.get_loop() is theirs.get_loop()

    @property
    def refusal(self) -> str:
        """See `Poll.refusal`."""
        task = self._running()
        name = "its task" if task is None else task.get_name()
        reason = "This consumer is polling: let one task poll, or tasks of one event loop iterate"
        return f"{reason}. If nobody waits for {name} any more, say after Ctrl-C, cancel that task first"

    def _running(self) -> asyncio.Task[object] | None:
        task = self._task() if self._task is not None else None
        return None if task is None or task.done() else task


class PollGuard:
    """The polls of one consumer that are under way."""

    def __init__(self) -> None:
        self._polls: list[Poll] = []

    def has_one_beside(self, poll: Poll) -> bool:
        """Whether a poll is under way that this one may run beside."""
        return any(other.is_under_way and poll.may_run_beside(other) for other in self._polls)

    def begin(self, poll: AnyPoll) -> AnyPoll:
        """The poll is under way from now on. Raises INVALID_REQUEST if another is, unless both may be.

        One that is over without having been ended, say because its task was cancelled, ends now.
        """
        under_way: list[Poll] = []
        for other in self._polls:
            if not other.is_under_way:
                other.has_ended = True
            elif poll.may_run_beside(other):
                under_way.append(other)
            else:
                raise RaykaError(ErrorCode.INVALID_REQUEST, other.refusal)
        self._polls = [*under_way, poll]  # the last step, and no call: Ctrl-C comes before it, or in the caller's `try`
        return poll
