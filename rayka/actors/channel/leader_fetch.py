"""A fetch whose partitions all have one leader, as most fetches do: the leader does all of it, waiting included."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence

from rayka.actors.channel.link import Failed, LeaderClient
from rayka.actors.channel.requests import FetchParams
from rayka.actors.channel.routed_fetch import CLOCK_SLACK_S, LOST, limit_results
from rayka.types import FetchResult


class LeaderFetch:
    """`link` gives the link to the leader; `start` gives the future of the results, in request order."""

    __slots__ = ("_deadline", "_future", "_key", "_leader", "_link", "_loop", "_params")

    def __init__(self, link: Callable[[], LeaderClient], params: FetchParams, loop: asyncio.AbstractEventLoop) -> None:
        self._link = link
        self._params = params
        self._loop = loop
        self._deadline = loop.time() + params.max_wait_s
        self._future: asyncio.Future[list[FetchResult]] = loop.create_future()
        self._leader: LeaderClient | None = None
        self._key: Hashable = None

    def start(self) -> asyncio.Future[list[FetchResult]]:
        """Send the request."""
        self._ask(self._params)
        if not self._future.done():
            self._future.add_done_callback(self._ended)
        return self._future

    def _ask(self, params: FetchParams) -> None:
        self._leader = leader = self._link()
        self._key = leader.fetch(params, self._answered)

    def _answered(self, answer: Sequence[FetchResult] | Failed) -> None:
        self._leader = None
        if self._future.done():
            return
        results = [LOST] * len(self._params.partitions) if isinstance(answer, Exception) else list(answer)
        if self._is_enough(results) or self._remaining_s() < CLOCK_SLACK_S:
            self._future.set_result(results if len(results) == 1 else limit_results(results, self._params.max_bytes))
        else:  # what the leader counted as new can't be read yet
            self._loop.call_soon(self._ask_again)

    def _is_enough(self, results: Sequence[FetchResult]) -> bool:
        missing = self._params.min_bytes
        for result in results:
            if result.error or result.has_more:
                return True
            missing -= result.size
        return missing <= 0

    def _ask_again(self) -> None:
        if not self._future.done():
            self._ask(self._params._replace(max_wait_s=self._remaining_s()))

    def _remaining_s(self) -> float:
        return max(0.0, self._deadline - self._loop.time())

    def _ended(self, future: asyncio.Future[list[FetchResult]]) -> None:
        """If nobody waits for the answer any more, the leader stops waiting too."""
        if self._leader is not None:
            self._leader.cancel(self._key)
