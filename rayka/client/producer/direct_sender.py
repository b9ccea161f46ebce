"""Appends whose request and answer the program's own thread exchanges with the leader.

This is for a program that waits for each record before it sends the next one. A partition uses it while the program
blocked for the outcome of its last batch, nothing else of the partition is in progress, and the leader is another
process of this node. The event loop takes over appends that no thread waits for, and all failures. Until an append has
an outcome, the partition sends nothing else, so its batches keep their order and sequences.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from rayka.actors.channel.blocking_channel import BlockingChannel
from rayka.actors.channel.link import GRACE_S
from rayka.actors.channel.requests import AppendedRecords, AppendFrame
from rayka.actors.channel.socket import ChannelClosed
from rayka.client.producer.accumulator import Accumulator, PartitionQueue
from rayka.client.producer.batch import APPENDED, ProducerBatch
from rayka.client.settings import ProducerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.metadata.image import MetadataImage
from rayka.types import AppendParams, AppendResult, TopicPartition

_WATCH_S = 0.01
"""How long an append may be under way without a thread that waits for it, before the event loop takes it over."""

Answer: TypeAlias = Sequence[AppendResult] | RaykaError | ChannelClosed


class LoopSide(Protocol):
    """The part of direct sending that runs in the event loop."""

    def take_over(self, queue: PartitionQueue) -> None:
        """Look at the queue soon, and take over its append if no thread waits for it. From any thread."""

    def answered_directly(self, append: DirectAppend, result: AppendResult) -> None:
        """The append is answered; called in the loop."""


class Link:
    """A connection to a leader, for one append at a time, which is its `user` from `Accumulator.take_alone` on."""

    __slots__ = ("channel", "user")

    def __init__(self, path: str) -> None:
        self.channel = BlockingChannel(path)
        self.user: DirectAppend | None = None


class DirectAppend:
    """A batch that a thread sends. Of the threads and the loop, the one that has claimed it handles the answer.

    `claimed_by`, the identifier of that thread, and `is_wanted`, which says that the loop waits for the partition, are
    the accumulator's, under its lock. `is_sent`: the thread has done its part of sending. `is_settled`: the loop has
    the answer.
    """

    __slots__ = (
        "_sender", "batch", "claimed_by", "deadline_s", "is_sent", "is_settled", "is_wanted", "link", "queue", "sent_s"
    )  # fmt: skip

    batch: ProducerBatch

    def __init__(self, sender: DirectSender, queue: PartitionQueue, link: Link, timeout_s: float) -> None:
        self._sender = sender
        self.queue = queue
        self.link = link
        self.sent_s = time.monotonic()
        self.deadline_s = self.sent_s + timeout_s
        self.claimed_by: int | None = threading.get_ident()
        self.is_wanted = False
        self.is_sent = False
        self.is_settled = False

    def wait(self, timeout_s: float | None) -> None:
        """Read the answer in this thread, for at most `timeout_s`, unless somebody else does."""
        self._sender.wait(self, timeout_s)

    def hand_over(self) -> None:
        """Let the event loop read the answer, since no thread may wait for it."""
        self._sender.hand_over(self)


class DirectSender:
    """One producer's way to the leaders on this node. `send`, `wait` and `hand_over` are for threads."""

    def __init__(
        self,
        broker: Broker,
        accumulator: Accumulator,
        config: ProducerConfig,
        loop: asyncio.AbstractEventLoop,
        loop_side: LoopSide,
    ) -> None:
        self._broker = broker
        self._accumulator = accumulator
        self._loop = loop
        self._loop_side = loop_side
        timeout_ms = max(1, min(config.request_timeout_ms, config.delivery_timeout_ms))
        self._params = AppendParams(config.required_acks, timeout_ms)
        self._timeout_s = timeout_ms / 1000 + GRACE_S
        self._links: dict[str, Link] = {}
        self._routed: tuple[MetadataImage | None, dict[TopicPartition, tuple[Link, int] | None]] = (None, {})
        self._outstanding: set[DirectAppend] = set()
        self._sent_s = 0.0
        self._is_watching = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def send(self, queue: PartitionQueue) -> bool:
        """Send the batch that is filling, if it can be sent in this thread now."""
        route = None if self._is_closed else self._route(queue.topic_partition)
        if route is None:
            return False
        link, leader_epoch = route
        append = DirectAppend(self, queue, link, self._timeout_s)
        try:
            if not self._accumulator.take_alone(append):
                return False
            self._outstanding.add(append)
            self._transmit(append, leader_epoch)
        except BaseException:  # Ctrl-C
            self._is_watching = False  # it may have come before the loop was told to
            if append.is_sent:
                self._unclaim(append)
            elif queue.direct is append:
                self._settle_in_loop(append, ChannelClosed("interrupted", sent=True))
            raise
        return True

    def _transmit(self, append: DirectAppend, leader_epoch: int) -> None:
        queue, batch = append.queue, append.batch
        self._sent_s = append.sent_s
        batch.direct = append
        batch.attempts += 1
        try:
            buffer = queue.number(batch)
        except Exception as error:  # say for lack of memory: then the loop tries it, and may fail the batch
            self._settle_in_loop(append, RaykaError(ErrorCode.NETWORK_EXCEPTION, repr(error)))
            return
        records = AppendedRecords(queue.topic_partition, leader_epoch, len(buffer))
        try:
            append.link.channel.request(AppendFrame(self._params, (records,)), buffer)
        except ChannelClosed as error:
            self._answered(append, error)
            return
        if not self._is_watching:
            self._is_watching = True
            with contextlib.suppress(RuntimeError):  # the loop is closed; this thread gets its answer all the same
                self._loop.call_soon_threadsafe(self._keep_watching)
        append.is_sent = True
        self._unclaim(append)

    def wait(self, append: DirectAppend, timeout_s: float | None) -> None:
        """As `DirectAppend.wait`."""
        answer: Answer | None = None
        try:
            if not self._accumulator.claim(append):
                return
            answer = self._receive(append, timeout_s)
            if answer is None:
                self._unclaim(append)
            else:
                self._answered(append, answer)
        except BaseException:  # Ctrl-C: what was received may be lost
            if append.queue.direct is append and append.claimed_by == threading.get_ident():
                self._settle_in_loop(append, answer or ChannelClosed("interrupted", sent=True))
            else:
                self._loop_side.take_over(append.queue)
            raise

    def _receive(self, append: DirectAppend, timeout_s: float | None) -> Answer | None:
        remaining_s = max(append.deadline_s - time.monotonic(), 0)
        try:
            answer: Answer | None = append.link.channel.receive(
                remaining_s if timeout_s is None else min(remaining_s, timeout_s)
            )
        except ChannelClosed as error:
            return error
        return answer

    def hand_over(self, append: DirectAppend) -> None:
        """As `DirectAppend.hand_over`."""
        if append.queue.direct is append:
            self._loop_side.take_over(append.queue)

    def watch(self, append: DirectAppend) -> None:
        """Read the answer in the loop, which has claimed the append."""
        channel = append.link.channel

        def finish(answer: Answer) -> None:
            timer.cancel()
            self._loop.remove_reader(channel.fileno())
            self._settle(append, answer)

        def look() -> None:
            try:
                answer: Answer | None = channel.receive_now()
            except ChannelClosed as error:
                answer = error
            if answer is not None:
                finish(answer)

        late = ChannelClosed("no answer in time", sent=True)
        timer = self._loop.call_later(max(append.deadline_s - time.monotonic(), 0), finish, late)
        self._loop.add_reader(channel.fileno(), look)

    def close(self) -> None:
        """Stop sending and end all waits for answers. In the loop."""
        self._is_closed = True
        for link in list(self._links.values()):
            if not self._close_if_idle(link):
                link.channel.interrupt()

    def _answered(self, append: DirectAppend, answer: Answer) -> None:
        """Complete a successful append in this thread; leave errors to the loop."""
        result = _result(answer)
        if result.error not in APPENDED:
            self._settle_in_loop(append, answer)
            return
        append.queue.acknowledged()
        append.batch.finish()
        append.batch.complete(result.base_offset, result.log_append_time_ms, None)
        self._take_out(append)
        if self._accumulator.release_alone(append):
            self._loop_side.take_over(append.queue)

    def _settle_in_loop(self, append: DirectAppend, answer: Answer) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and has failed everything before
            self._loop.call_soon_threadsafe(self._settle, append, answer)

    def _settle(self, append: DirectAppend, answer: Answer) -> None:
        if append.is_settled:  # an interrupted thread has said it twice
            return
        append.is_settled = True
        if isinstance(answer, ChannelClosed):
            append.link.channel.close()
        self._take_out(append)
        self._loop_side.answered_directly(append, _result(answer))

    def _take_out(self, append: DirectAppend) -> None:
        self._outstanding.discard(append)
        if append.link.user is append:
            append.link.user = None

    def _unclaim(self, append: DirectAppend) -> None:
        if self._accumulator.unclaim(append):
            self._loop_side.take_over(append.queue)

    def _keep_watching(self) -> None:
        """Look after what no thread waits for, as long as threads send."""
        if self._timer is None:
            self._timer = self._loop.call_later(_WATCH_S, self._look, time.monotonic())

    def _look(self, began_s: float) -> None:
        self._timer = None
        for append in list(self._outstanding):
            if append.sent_s < began_s and append.claimed_by is None:
                self._loop_side.take_over(append.queue)
        self._is_watching = self._sent_s > began_s
        if self._is_watching or self._outstanding:
            self._is_watching = True
            self._keep_watching()

    def _route(self, topic_partition: TopicPartition) -> tuple[Link, int] | None:
        """The connection to the leader, and the leader epoch; as before while the image is the same."""
        image = self._broker.image
        routed_image, routes = self._routed
        if image is not routed_image:
            routes = {}
            self._routed = image, routes
            self._links = {path: link for path, link in list(self._links.items()) if not self._close_if_idle(link)}
        route = routes.get(topic_partition)
        if topic_partition not in routes or (route is not None and route[0].channel.is_closed):
            route = routes[topic_partition] = self._open(topic_partition)
        return route

    def _open(self, topic_partition: TopicPartition) -> tuple[Link, int] | None:
        found = self._broker.partitions.channel_of(topic_partition)
        if found is None:
            return None
        path, leader_epoch = found
        link = self._links.get(path)
        if link is None or link.channel.is_closed:
            try:
                link = self._links[path] = Link(path)
            except ChannelClosed:
                return None
        return link, leader_epoch

    def _close_if_idle(self, link: Link) -> bool:
        """Close the connection unless an append uses it. Returns whether it is closed."""
        with self._accumulator.lock:
            if link.user is None:
                link.channel.close()
        return link.channel.is_closed


def _result(answer: Answer) -> AppendResult:
    if isinstance(answer, ChannelClosed):
        return AppendResult(int(ErrorCode.REQUEST_TIMED_OUT))
    return AppendResult(int(answer.code)) if isinstance(answer, RaykaError) else answer[0]
