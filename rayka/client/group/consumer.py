"""The consumer in a group: it shares the partitions of its topics with the other members, and commits its positions.

Heartbeats are sent in the background. The steps of a rebalance happen in `poll` and in iteration. By then the program
has processed the records of earlier polls, so these can be committed before their partitions are given up. No records
are returned during a step.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from rayka.client.consumer.consumer import seconds_of
from rayka.client.consumer.pending import Polled
from rayka.client.consumer.poll_guard import UNGUARDED, AnyPoll, Poll
from rayka.client.consumer.sequence import BLOCK_RECORDS, ConsumerRecords
from rayka.client.forms import at_home
from rayka.client.group.commits import Commits
from rayka.client.group.committing import CommittingConsumer
from rayka.client.group.coordinator import GroupCalls, GroupMetadata
from rayka.client.group.member import LOOK_AGAIN_S, RUNS, GroupMember, Listener, RebalanceCallback
from rayka.client.group.membership import ActionKind, Membership
from rayka.client.group.settings import CONSUMER_PROTOCOL, GroupConsumerConfig
from rayka.client.group.subscription import Identity, Subscription, subscription_of
from rayka.client.settings import configure
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.types import TopicPartition

CLOSE_TIMEOUT_MS = 30_000
_MIN_WAIT_S = 0.01
_FOREVER = float("inf")
_ITERATION_S = 0.1
"""Iteration polls again after this time, however much is here: else a program that has become slow would be out."""

T = TypeVar("T")


class AsyncGroupConsumer(CommittingConsumer):
    """Reads its share of the topics that it subscribes to; for asyncio, in any event loop.

    Settings: see `GroupConsumerConfig`. With `assign` instead of `subscribe` the consumer shares no partitions; the
    group then only stores its offsets.
    """

    config: GroupConsumerConfig
    max_fill_records = 8192
    """The steps of a rebalance wait until these are given out, or for `_ITERATION_S` and one block."""

    def __init__(
        self,
        broker: Broker,
        home: asyncio.AbstractEventLoop | None = None,
        *,
        group_id: str,
        topics: Iterable[str] | None = None,
        member_id: str | None = None,
        is_independent: bool = False,
        **config: Any,
    ) -> None:
        if not isinstance(group_id, str) or not group_id.strip():
            raise RaykaError(ErrorCode.INVALID_GROUP_ID, f"group_id must be a non-empty str, not {group_id!r}")
        super().__init__(broker, home, **config)
        settings = self.config
        self._calls = GroupCalls(
            broker,
            group_id,
            request_timeout_ms=settings.request_timeout_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
        )
        identity = _identity(group_id, member_id or str(uuid.uuid4()), settings)
        poll_interval_ms = None if is_independent else settings.max_poll_interval_ms
        self._membership = Membership(identity, poll_interval_ms, settings.retry_backoff_ms)
        self._member = GroupMember(
            self._membership, self._calls, broker, self, self._fetcher.wake, is_independent=is_independent
        )
        self._is_assigned_by_hand = self._is_leaving = False
        self._iteration_s = _FOREVER if is_independent else _ITERATION_S
        self.pending.block_records = min(BLOCK_RECORDS, settings.max_poll_records)
        self._commits = Commits(self._calls, settings, self._member.committer, self._positions)
        if topics is not None:
            self._require_protocol()
            self._membership.subscribe(self._subscription(topics, None))

    @at_home
    async def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Share these topics with the group, instead of the earlier ones. A topic may be created later.

        `pattern` (RE2's syntax) subscribes to all topics, present and future, whose whole name matches. The callbacks
        take a list of partitions and run inside `poll`, iteration or `close`. They may seek, commit and await, but not
        poll. `on_assigned` is called with new partitions. `on_revoked` is called with partitions that will be given up;
        their offsets can still be committed. `on_lost` is called with partitions that the group has already given to
        others (by default `on_revoked` is called for these too). If a callback raises an error, the poll raises it, and
        the rebalance continues.
        """
        self._require_open()
        self._require_protocol()
        if self._is_assigned_by_hand:
            raise RaykaError(ErrorCode.INVALID_REQUEST, "this consumer has assigned partitions: unsubscribe first")
        listeners = {
            ActionKind.ASSIGN: on_assigned,
            ActionKind.REVOKE: on_revoked,
            ActionKind.LOSE: on_lost or on_revoked,
        }
        for listener in listeners.values():
            if listener is not None and not callable(listener):
                raise RaykaError(ErrorCode.INVALID_REQUEST, f"a callback must be callable, not {listener!r}")
        self._member.subscribe(self._subscription(topics, pattern), listeners)
        self._member.start()

    @at_home
    async def subscription(self) -> set[str]:
        """The topics that are subscribed to by name. Only the coordinator knows those that match a pattern."""
        return set(self._membership.subscription.topics)

    @at_home
    async def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Like `AsyncConsumer.assign`; new partitions start at the committed offset. Not together with `subscribe`."""
        if not self._member.has_left:
            raise RaykaError(ErrorCode.INVALID_REQUEST, "this consumer has subscribed to topics: unsubscribe first")
        self._require_open()
        wanted = [self._require_valid(partition) for partition in partitions]
        self._warn_of_missing(partition.topic for partition in wanted)
        self._is_assigned_by_hand = True
        await self._assign(wanted)

    async def unsubscribe(self) -> None:
        """Give up all partitions and leave the group; first commit, if commits are automatic.

        If it is cancelled, or interrupted, polls do the rest; also after REQUEST_TIMED_OUT, where a callback of
        another task goes on. Within a callback it raises INVALID_REQUEST, and changes nothing.
        """
        self.require_may_leave()
        try:
            await self._leave(time.monotonic() + self.config.default_api_timeout_ms / 1000)
        except BaseException:
            self.stop_leaving()
            raise

    async def poll(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, ConsumerRecords]:
        """Like `AsyncConsumer.poll`; joins the group, and takes part in its rebalances.

        Also raises errors of the coordinator that are not temporary, such as UNRELEASED_INSTANCE_ID. The next poll
        tries again.
        """
        return await super().poll(timeout_ms, max_records)

    def begin_poll(self, poll: AnyPoll) -> AnyPoll:
        """As `AsyncConsumer.begin_poll`; a callback of the poll that is under way gets an error of its own.

        An iteration beside that of another task waits for the end of its callback.
        """
        self._member.require_no_callback("poll", may_wait=self._poll_guard.has_one_beside(poll))
        return super().begin_poll(poll)

    def require_may_leave(self) -> None:
        """Raises INVALID_REQUEST within a callback, which would wait for its own end, and for a call that blocks the
        loop of one. From any thread.
        """
        if not self._is_closed:
            self._member.require_no_callback("close or unsubscribe", may_wait=True)

    def stop_leaving(self) -> None:
        """Let polls do the rest. From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, so that nothing polls
            # in the next turn: a call that was cancelled before it began does so in this one
            self.home.call_soon_threadsafe(self.home.call_soon, self._stop_leaving)

    def _stop_leaving(self) -> None:
        self._is_leaving = False
        self._fetcher.wake()

    async def take(self, take: Callable[[], Polled | None], timeout_ms: float) -> Polled | None:
        """As `AsyncConsumer.take`."""
        return await self._poll_events(take, deadline_after(timeout_ms))

    async def fill(self, poll: Poll = UNGUARDED) -> bool:
        """Put the next records into `pending`, for iteration; False when `consumer_timeout_ms` is over."""
        deadline_s = deadline_after(self.config.consumer_timeout_ms)
        filled = await self._poll_events(partial(poll.take, self.filling), deadline_s)
        return filled is not None  # another task that iterates may already have taken them all

    @at_home
    async def group_metadata(self) -> GroupMetadata:
        """The group id and this member's identity in the group."""
        return self.read_offsets().group

    async def close(self, timeout_ms: float = CLOSE_TIMEOUT_MS) -> None:
        """Commit, if commits are automatic, and leave the group, within `timeout_ms`. Safe to repeat.

        Commits that are under way end first.

        A static member keeps its partitions: it may come back within the group's session timeout.

        If a rebalance callback runs in another thread or task, this waits for its end; REQUEST_TIMED_OUT where that is
        not within `timeout_ms`: then the consumer is closed, but its group waits for the session timeout. Within a
        callback it raises INVALID_REQUEST, and changes nothing: close the consumer after the poll.
        """
        self.require_may_leave()
        deadline_s = time.monotonic() + timeout_ms / 1000
        try:
            await self.commits_ended(timeout_ms / 2)
            await self._leave(deadline_s)
        finally:
            await self.stop()

    @at_home
    async def next_event(self, take: Callable[[], T], deadline_s: float | None) -> T | RebalanceCallback | None:
        """Return what `take` gives as soon as that is not empty, a rebalance callback to run, or None at the deadline.

        This runs in the client's loop, but callbacks belong to the caller's thread or loop: the caller runs the
        callback, unless another has begun to (see `RebalanceCallback`), and reports back with `callback_done`.
        """
        await asyncio.sleep(0)
        self._require_open()
        if self._is_leaving:
            raise RaykaError(ErrorCode.INVALID_REQUEST, "The consumer is leaving its group")
        if not self._member.has_left:
            self._member.start()
        try:
            while True:
                self._member.polling()
                callback = None if self._is_leaving else self._member.step()
                if callback is not None:
                    return callback
                if not self._is_leaving and not self._membership.is_under_way:
                    self._raise_failure()
                    self._raise_if_woken()
                    self._commits.save_if_due()
                    taken = take()
                    if taken:
                        return taken
                if not await self._wait_until(deadline_s):
                    return None
                self._require_open()
        finally:
            self._membership.polled(time.monotonic() * 1000)

    @at_home
    async def next_leave_event(self, deadline_s: float) -> RebalanceCallback | None:
        """Return the next callback to run before leaving, or None when that is done or the deadline has come."""
        if self._is_closed:
            return None
        if not self._is_leaving:
            self._is_leaving = True
            if self._is_assigned_by_hand:
                await self.before_revoke([*self._fetcher.partitions])
            self._member.leave()
        while not self._member.has_left:
            if self._membership.subscription:  # a callback or another task has subscribed: it would join again
                self._member.leave()
            callback = self._member.step()
            if callback is not None:
                return callback
            if not await self._wait_until(deadline_s):
                break
            if self._is_closed:  # by a call with less time
                return None
        self._is_leaving = self._is_assigned_by_hand = False
        self._fetcher.assign(())
        self.collector.forget_unassigned()
        self._fetcher.wake()  # a poll of another task, which has heard of nothing meanwhile
        self._member.require_ended_callback()
        return None

    @at_home
    async def callback_done(self, callback: RebalanceCallback) -> None:
        """The callback has returned, or raised."""
        self._member.callback_done(callback)

    @at_home
    async def stop(self) -> None:
        """Stop at once, without leaving the group."""
        self._is_closed = True
        self._commits.close()
        await self._member.close()
        self._stop_fetching()

    def filling(self) -> bool:
        """As `AsyncConsumer.filling`, for `next_event`; events come next after a while."""
        is_filled = super().filling()
        self.pending.until_s = time.monotonic() + self._iteration_s
        return is_filled

    async def before_revoke(self, partitions: Sequence[TopicPartition]) -> None:
        """Commit the positions, if commits are automatic."""
        await self._commits.save()

    async def begin(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these too, from their committed offsets."""
        await self._assign([*self._fetcher.partitions, *partitions])

    def end(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these no longer."""
        gone = set(partitions)
        self._commits.forget(gone)
        self._fetcher.assign([partition for partition in self._fetcher.partitions if partition not in gone])
        self.collector.forget_unassigned()

    async def _assign(self, wanted: Sequence[TopicPartition]) -> None:
        new = [partition for partition in wanted if partition not in self._fetcher.partitions]
        self._fetcher.assign(wanted, await self._commits.begin(new))
        self.collector.forget_unassigned()

    async def _poll_events(self, take: Callable[[], T], deadline_s: float | None) -> T | None:
        while isinstance(event := await self.next_event(take, deadline_s), RebalanceCallback):
            await self._run_callback(event)
        return event

    async def _leave(self, deadline_s: float) -> None:
        """A callback that fails does not keep the member from leaving."""
        failure = None
        while (callback := await self.next_leave_event(deadline_s)) is not None:
            try:
                await self._run_callback(callback)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def _run_callback(self, callback: RebalanceCallback) -> None:
        outer, run = RUNS.get(), object()
        try:
            RUNS.set((*outer, run))
            callback.runs += [run]
            if callback.runs[0] is run:
                callback.loop = asyncio.get_running_loop()
                waiting = callback.listener(callback.partitions)
                if inspect.isawaitable(waiting):
                    await waiting
        finally:
            try:
                if callback.runs[:1] == [run]:
                    callback.has_ended = True
                    await self.callback_done(callback)
            finally:
                RUNS.set(outer)

    async def _wait_until(self, deadline_s: float | None) -> bool:
        """Wait for news, or for the next commit or look; False if the deadline has come."""
        now_s = time.monotonic()
        waits_s = [] if deadline_s is None else [deadline_s - now_s]
        if waits_s and waits_s[0] <= 0:
            return False
        if self.config.enable_auto_commit:
            waits_s.append(max(self._commits.next_save_s - now_s, _MIN_WAIT_S))
        if self._membership.may_wait_for_topics or self._member.has_callback:
            waits_s.append(LOOK_AGAIN_S)
        await self._fetcher.wait(min(waits_s, default=None), for_records=True)
        return True

    def _raise_failure(self) -> None:
        error = self._membership.take_error()
        if error is not None:
            raise RaykaError(error.code, error.message)

    def _subscription(
        self, topics: Iterable[str] | re.Pattern[str] | None, pattern: str | re.Pattern[str] | None
    ) -> Subscription:
        """The topics or the pattern, with a warning for topics that do not exist. Raises as `subscription_of`."""
        subscription = subscription_of(topics, pattern)
        self._warn_of_missing(subscription.topics)
        return subscription

    def _require_protocol(self) -> None:
        if CONSUMER_PROTOCOL not in self._broker.config["group.coordinator.rebalance.protocols"]:
            reason = "group.coordinator.rebalance.protocols does not include the consumer protocol"
            raise RaykaError(ErrorCode.UNSUPPORTED_VERSION, reason)

    def _configure(self, config: Mapping[str, Any]) -> GroupConsumerConfig:
        return configure(GroupConsumerConfig, config)


def deadline_after(timeout_ms: float | None) -> float | None:
    """On the monotonic clock, in seconds; None stays None: never."""
    return None if timeout_ms is None else time.monotonic() + seconds_of(timeout_ms)


def _identity(group_id: str, member_id: str, config: GroupConsumerConfig) -> Identity:
    return Identity(
        group_id,
        member_id,
        config.group_instance_id,
        config.client_rack,
        config.client_id,
        socket.gethostname(),
        config.group_remote_assignor,
        int(config.max_poll_interval_ms),
    )
