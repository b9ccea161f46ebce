"""Faults on the way to the partitions and back, as a network and a dying leader make them.

Wraps a real `ports.Partitions`; what is not told to fail goes through untouched.
"""

from __future__ import annotations

import asyncio
import random
from asyncio import Future
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rayka.errors import ErrorCode
from rayka.types import (
    AppendParams,
    AppendRequest,
    AppendResult,
    FetchPartition,
    FetchResult,
    IsolationLevel,
    OffsetAnswer,
    OffsetQuery,
    TopicPartition,
)


@dataclass(frozen=True)
class Fault:
    """What happens to one append: `copies` of it arrive (0: none), and its answer is `answer`, late by `delay_s`."""

    copies: int = 1
    answer: ErrorCode | None = None
    delay_s: float = 0.0


PASS = Fault()
ANSWER_LOST = Fault(answer=ErrorCode.REQUEST_TIMED_OUT)
REQUEST_LOST = Fault(copies=0, answer=ErrorCode.REQUEST_TIMED_OUT)
NO_LEADER = Fault(copies=0, answer=ErrorCode.NOT_LEADER_OR_FOLLOWER)
REFUSED = Fault(copies=0, answer=ErrorCode.MESSAGE_TOO_LARGE)
TWICE = Fault(copies=2)
LATE = Fault(delay_s=0.003)
TEMPORARY = (ANSWER_LOST, REQUEST_LOST, NO_LEADER, TWICE, LATE)


class FaultyPartitions:
    """Asks `on_append` about each append and `on_fetch` about each fetched partition."""

    def __init__(self, partitions: Any) -> None:
        self._partitions = partitions
        self.appends = 0
        self.on_append: Callable[[AppendRequest], Fault] = lambda _: PASS
        self.on_fetch: Callable[[FetchPartition], ErrorCode | None] = lambda _: None
        self.last_fetch: Future[list[FetchResult]] | None = None
        self._stalled: list[AppendRequest] | None = None
        self._failing_look_ups: list[BaseException] = []
        self.channel: tuple[str, int] | None = None

    def channel_of(self, topic_partition: TopicPartition) -> tuple[str, int] | None:
        return self.channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._partitions, name)

    def fail_appends(self, *faults: Fault) -> None:
        """The next appends fare like this, one by one; then nothing fails."""
        coming = list(faults)
        self.on_append = lambda _: coming.pop(0) if coming else PASS

    def fail_at_random(self, seed: int, share: float, faults: Sequence[Fault] = TEMPORARY) -> None:
        """This share of the appends has one of these faults."""
        chance = random.Random(seed)
        self.on_append = lambda _: chance.choice(faults) if chance.random() < share else PASS

    def fail_fetches(self, *errors: ErrorCode) -> None:
        """The next fetched partitions get these errors."""
        coming = list(errors)
        self.on_fetch = lambda _: coming.pop(0) if coming else None

    def fail_look_ups(self, *errors: BaseException) -> None:
        """The next look-ups of offsets raise these."""
        self._failing_look_ups = [*errors]

    def stall(self) -> None:
        """The leader stops (SIGSTOP): requests queue up in front of it and time out."""
        self._stalled = []

    def go_on(self) -> None:
        """The leader wakes up and takes what queued up, in order. Nobody waits for those answers."""
        stalled, self._stalled = self._stalled or [], None
        for request in stalled:
            self._partitions.append([request], AppendParams(-1, 1000))

    def append(self, requests: Sequence[AppendRequest], params: AppendParams) -> Future[list[AppendResult]]:
        self.appends += 1
        (request,) = requests
        if self._stalled is not None:
            self._stalled.append(request._replace(records=memoryview(bytearray(request.records))))
            return _answered([AppendResult(ErrorCode.REQUEST_TIMED_OUT)], params.timeout_ms / 1000)
        fault = self.on_append(request)
        results = [AppendResult(ErrorCode.NONE)]
        for _ in range(fault.copies):
            results = self._partitions.append(requests, params).result()
        if fault.answer is not None:
            results = [AppendResult(fault.answer)]
        return _answered(results, fault.delay_s)

    async def list_offsets(self, queries: Sequence[OffsetQuery], isolation: IsolationLevel) -> list[OffsetAnswer]:
        if self._failing_look_ups:
            raise self._failing_look_ups.pop(0)
        answers: list[OffsetAnswer] = await self._partitions.list_offsets(queries, isolation)
        return answers

    def fetch(self, partitions: Sequence[FetchPartition], **options: Any) -> Future[list[FetchResult]]:
        errors = [self.on_fetch(partition) for partition in partitions]
        if any(errors):
            return _answered([FetchResult(error or ErrorCode.NONE) for error in errors])
        fetch: Future[list[FetchResult]] = self._partitions.fetch(partitions, **options)
        self.last_fetch = fetch
        return fetch


def _answered(results: Iterable[Any], delay_s: float = 0.0) -> Future[Any]:
    loop = asyncio.get_running_loop()
    future: Future[Any] = loop.create_future()
    loop.call_later(delay_s, lambda: future.done() or future.set_result(list(results)))
    return future
