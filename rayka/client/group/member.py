"""Keeps a consumer in its group: sends the membership's heartbeats and carries out what it decides."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from rayka.client.group.coordinator import ConsumerGroupMetadata, GroupCalls
from rayka.client.group.membership import Action, ActionKind, Membership, MembershipState
from rayka.client.group.subscription import Subscription
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.types import TopicPartition

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.1
"""How often a topic is looked for that the coordinator knows already and this process does not, and how often the end
of a callback is: an interrupt may keep the loop from being told of it.
"""

RUNS: ContextVar[tuple[object, ...]] = ContextVar("RUNS", default=())
"""Of the callbacks, of any consumer, in which the running task or thread is, or the task was begun: what was added to
their `runs`."""

BLOCKED: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("BLOCKED", default=None)
"""The loop whose thread waits for the running task, so that no callback in it goes on before."""

Listener: TypeAlias = Callable[[list[TopicPartition]], Awaitable[None] | None]
"""Takes the partitions that were assigned, are to be given up, or are lost."""


@dataclass(slots=True)
class RebalanceCallback:
    """A callback of the program that is to be run now; `GroupMember.callback_done` continues the rebalance.

    Several calls may get it, say a poll and a `close` in another thread. Each adds an object to `runs`, and runs the
    callback if its own is the first. No function does this: Ctrl-C could come behind it, and nobody would run it.

    `has_ended` is set before the loop is told: an interrupt, or a cancellation, may keep the loop from being told, and
    then the next `step` notices.

    `loop` is that of an asynchronous callback, once it has begun.
    """

    listener: Listener
    partitions: list[TopicPartition]
    action: Action
    runs: list[object] = field(default_factory=list)
    has_ended: bool = False
    loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_running(self) -> bool:
        """Whether the program is in it."""
        return bool(self.runs) and not self.has_ended

    @property
    def waits_for_caller(self) -> bool:
        """Whether it can't end before the running task or thread goes on, as that is in it, or blocks its loop."""
        return self.runs[0] in RUNS.get() or (self.loop is not None and self.loop is BLOCKED.get())


class Reading(Protocol):
    """The part of the consumer that reads."""

    async def before_revoke(self, partitions: Sequence[TopicPartition]) -> None:
        """Commit what has been read, if that is to be done here. Nothing is given out meanwhile."""

    async def begin(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these too, from their committed offsets."""

    def end(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these no longer."""


class GroupMember:
    """The shell of `Membership`, in the event loop. `news` is called when there may be something for `step` to do.

    With `is_independent` it takes part in rebalances without a program that polls: then there are no callbacks.
    """

    def __init__(
        self,
        membership: Membership,
        calls: GroupCalls,
        broker: Broker,
        reading: Reading,
        news: Callable[[], None],
        *,
        is_independent: bool = False,
    ) -> None:
        self.membership = membership
        self.listeners: Mapping[ActionKind, Listener | None] = {}
        self._calls = calls
        self._broker = broker
        self._reading = reading
        self._news = news
        self._is_independent = is_independent
        self._loop_task: asyncio.Task[None] | None = None
        self._action_task: asyncio.Task[None] | None = None
        self._callback: RebalanceCallback | None = None
        self._wake = asyncio.Event()

    def start(self) -> None:
        """Start sending heartbeats, unless that has begun."""
        if self._loop_task is None:
            self._loop_task = asyncio.get_running_loop().create_task(self._speak())

    def subscribe(self, subscription: Subscription, listeners: Mapping[ActionKind, Listener | None]) -> None:
        """Join, or continue with another subscription."""
        self.listeners = listeners
        self.membership.subscribe(subscription)
        self._wake.set()

    def leave(self) -> None:
        """Revoke all partitions, with callbacks, and leave."""
        self.membership.leave()
        self._wake.set()

    def hurry(self) -> None:
        """Send the next heartbeat soon."""
        self.membership.hurry()
        self._wake.set()

    @property
    def has_left(self) -> bool:
        """Whether `leave` has finished."""
        return self.membership.state is MembershipState.UNSUBSCRIBED

    @property
    def has_callback(self) -> bool:
        """Whether a callback is to be run, or runs, or has ended without the loop being told."""
        return self._callback is not None

    def polling(self) -> None:
        """The program is in a poll: the poll interval does not run."""
        if self.membership.polling():
            self._wake.set()

    def step(self) -> RebalanceCallback | None:
        """Start the next action, unless one is in progress. Returns the callback to run, if there is one.

        None while a callback runs: there is news when it has ended.
        """
        callback = self._callback
        if callback is not None:
            if callback.has_ended:  # a single look: it may end now, in its thread, and must not be given out again
                self.callback_done(callback)
            elif callback.runs:
                return None
        if self._callback is None and self._action_task is None:
            action = self.membership.next_action(self._name_of)
            if action is not None:
                self._action_task = asyncio.get_running_loop().create_task(self._carry_out(action))
        return self._callback

    def require_no_callback(self, call: str, *, may_wait: bool = False) -> None:
        """Raises INVALID_REQUEST while the program runs a callback; with `may_wait` only where that would wait for this
        call. From any thread.
        """
        callback = self._callback
        if callback is not None and callback.is_running and not (may_wait and not callback.waits_for_caller):
            reason = f"a {call} within it would wait for the callback itself, any other can follow it"
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"A rebalance callback runs: {reason}")

    def require_ended_callback(self) -> None:
        """Raises REQUEST_TIMED_OUT if a callback still runs, for which a departure has waited."""
        callback = self._callback
        if callback is not None and callback.is_running:
            reason = "The consumer could not leave its group in time: a rebalance callback still runs"
            raise RaykaError(ErrorCode.REQUEST_TIMED_OUT, reason)

    def callback_done(self, callback: RebalanceCallback) -> None:
        """The callback has returned, or raised."""
        if self._callback is callback:
            self._callback = None
            self._finish(callback.action)

    def committer(self) -> ConsumerGroupMetadata:
        """As whom to commit."""
        member = self.membership
        if member.state is MembershipState.UNSUBSCRIBED:
            return ConsumerGroupMetadata()
        return ConsumerGroupMetadata(member.identity.member_id, member.member_epoch, member.identity.instance_id)

    async def close(self) -> None:
        """Stop without telling the coordinator."""
        for task in (self._loop_task, self._action_task):
            if task is not None:
                task.cancel()
        await asyncio.gather(*(t for t in (self._loop_task, self._action_task) if t), return_exceptions=True)

    async def _speak(self) -> None:
        while True:
            await self._exchange()
            self._news()
            if self._is_independent:
                self.step()

    async def _exchange(self) -> None:
        """One heartbeat, when it is due."""
        if self.membership.expire(_now_ms()):
            logger.warning("group %s: no poll within max_poll_interval_ms, leaving", self._calls.group_id)
        request = self.membership.heartbeat(_now_ms())
        if request is None:
            await self._rest()
            return
        try:
            answer = await self._calls.heartbeat(request)
        except Exception as error:
            logger.info("group %s: heartbeat: %s", self._calls.group_id, error)
            self.membership.failed(_rayka_error(error), _now_ms())
        else:
            self.membership.answered(answer, _now_ms())

    async def _rest(self) -> None:
        """Until the next deadline, or until something has happened."""
        self._wake.clear()
        deadline_ms = self.membership.next_deadline()
        timeout_s = None if deadline_ms is None else max(0.0, (deadline_ms - _now_ms()) / 1000)
        if self._is_independent and self.membership.may_wait_for_topics:
            timeout_s = LOOK_AGAIN_S if timeout_s is None else min(timeout_s, LOOK_AGAIN_S)
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _carry_out(self, action: Action) -> None:
        partitions = [held.topic_partition for held in action.partitions]
        logger.info("group %s: %s %s", self._calls.group_id, action.kind.name, [*map(str, partitions)])
        try:
            await self._prepare(action.kind, partitions)
        except Exception as error:
            self._give_up(error)
            return
        finally:
            self._action_task = None
        listener = self.listeners.get(action.kind)
        if listener is None:
            self._finish(action)
        else:
            self._callback = RebalanceCallback(listener, partitions, action)
            self._news()

    async def _prepare(self, kind: ActionKind, partitions: list[TopicPartition]) -> None:
        if kind is ActionKind.REVOKE:
            await self._reading.before_revoke(partitions)
        elif kind is ActionKind.ASSIGN:
            await self._reading.begin(partitions)

    def _give_up(self, error: Exception) -> None:
        """Partitions can't be assigned: the next poll raises the error, unless the member has left."""
        logger.warning("group %s: %s", self._calls.group_id, error)
        if self.membership.state is MembershipState.RECONCILING:
            self.membership.fail(_rayka_error(error))
        self.membership.abandoned()
        self._happened()

    def _finish(self, action: Action) -> None:
        if action.kind is not ActionKind.ASSIGN:
            self._reading.end([held.topic_partition for held in action.partitions])
        self.membership.done(action)
        self._happened()

    def _happened(self) -> None:
        self._wake.set()
        self._news()

    def _name_of(self, topic_id: uuid.UUID) -> str | None:
        return self._broker.image.topic_names_by_id.get(topic_id)


def _rayka_error(error: Exception) -> RaykaError:
    return error if isinstance(error, RaykaError) else RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error))


def _now_ms() -> float:
    return time.monotonic() * 1000
