"""One fetch over the partitions of several leaders.

One leader alone can do the whole fetch, waiting included (`leader_fetch.py`). With several, the first round reads from
all of them at once. When that is less than `min_bytes`, the fetch waits at every leader for its share of
what is missing. When all bytes together are enough, at least one leader has its share, so the first one to
have its share ends the round: the other waits are cancelled, and the next round reads again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from rayka.actors.channel.link import Failed, LeaderClient
from rayka.actors.channel.requests import FetchParams
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD, read_header
from rayka.storage.segments.reader import SegmentReader
from rayka.types import FetchPartition, FetchResult, FileSlice, IsolationLevel

if TYPE_CHECKING:
    from rayka.actors.channel.router import Router

CLOCK_SLACK_S = 0.002
"""A wait that has less than this left is over: timers may be early."""
LOST = FetchResult(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))


class RoutedFetch:
    """Collects the results of one fetch; `start` gives the future of them, in request order.

    `results` holds an error for each partition without a leader, None for the others; `groups` are the
    indexes of those by the name of the leader's actor.
    """

    def __init__(
        self,
        router: Router,
        partitions: Sequence[FetchPartition],
        results: list[FetchResult | None],
        groups: Mapping[str, Sequence[int]],
        *,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        isolation: IsolationLevel,
    ) -> None:
        self._router = router
        self._partitions = partitions
        self._results = results
        self._groups = groups
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._isolation = isolation
        self._loop = asyncio.get_running_loop()
        # A partition without a leader is an error already: answer without waiting for more bytes.
        wait_ms = max_wait_ms if all(result is None for result in results) else 0
        self._deadline = self._loop.time() + wait_ms / 1000
        self._future: asyncio.Future[list[FetchResult]] = self._loop.create_future()
        self._outstanding: dict[str, tuple[LeaderClient, Hashable] | None] = {}
        self._parked = False
        self._round = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> asyncio.Future[list[FetchResult]]:
        """Send the first round."""
        self._future.add_done_callback(self._abandon)
        if not self._groups:
            self._timer = self._loop.call_at(self._deadline, self._finish)
        elif len(self._groups) == 1:
            self._park()
        else:
            self._read()
        return self._future

    def _read(self) -> None:
        """Ask every leader for what it has now."""
        self._parked = False
        self._send_all(dict.fromkeys(self._groups, 0), 0.0)

    def _park(self) -> None:
        """Wait at every leader for its share of what is missing."""
        self._parked = True
        share = -(-(self._min_bytes - self._size(range(len(self._results)))) // len(self._groups))
        shares = {actor_name: self._size(indexes) + share for actor_name, indexes in self._groups.items()}
        self._send_all(shares, self._remaining_s())

    def _send_all(self, min_bytes: Mapping[str, int], wait_s: float) -> None:
        """Begin a round. A leader in this process may answer before `fetch` returns, and so begin the next one."""
        self._cancel_outstanding()
        self._round += 1
        this_round = self._round
        self._outstanding = dict.fromkeys(self._groups)
        for actor_name, indexes in self._groups.items():
            partitions = tuple([self._partitions[index] for index in indexes])
            params = FetchParams(partitions, wait_s, min_bytes[actor_name], self._max_bytes, self._isolation)
            leader = self._router.link(actor_name)
            key = leader.fetch(params, partial(self._answered, actor_name))
            if self._round != this_round or self._future.done():
                leader.cancel(key)
                return
            if actor_name in self._outstanding:
                self._outstanding[actor_name] = leader, key

    def _answered(self, actor_name: str, answer: Sequence[FetchResult] | Failed) -> None:
        del self._outstanding[actor_name]
        for position, index in enumerate(self._groups[actor_name]):
            self._results[index] = LOST if isinstance(answer, Exception) else answer[position]
        out_of_time = self._remaining_s() < CLOCK_SLACK_S
        if self._is_satisfied() or (out_of_time and not self._outstanding):
            self._finish()
        elif self._parked and not out_of_time:
            self._read()
        elif not self._outstanding:
            self._park()

    def _is_satisfied(self) -> bool:
        if None in self._results:
            return False
        results = cast("list[FetchResult]", self._results)
        is_enough = self._size(range(len(results))) >= self._min_bytes
        return is_enough or any(result.error or result.has_more for result in results)

    def _size(self, indexes: Iterable[int]) -> int:
        return sum(result.size for index in indexes if (result := self._results[index]) is not None)

    def _remaining_s(self) -> float:
        return max(0.0, self._deadline - self._loop.time())

    def _finish(self) -> None:
        if not self._future.done():
            self._future.set_result(limit_results(self._results, self._max_bytes))

    def _abandon(self, future: asyncio.Future[list[FetchResult]]) -> None:
        """The answer is given, or nobody waits for it any more: leaders stop waiting too."""
        if self._timer is not None:
            self._timer.cancel()
        self._cancel_outstanding()

    def _cancel_outstanding(self) -> None:
        outstanding, self._outstanding = self._outstanding, {}
        for sent in outstanding.values():
            if sent is not None:
                leader, key = sent
                leader.cancel(key)


def limit_results(results: Sequence[FetchResult | None], max_bytes: int) -> list[FetchResult]:
    """Keep the total within `max_bytes`, in request order; the first partition with records keeps them all.

    Every leader gives the first of its partitions a whole batch, whatever the size. What is cut here keeps its first
    batch whole or loses all its records: a Java consumer fails at records without a complete batch.
    """
    limited: list[FetchResult] = []
    left = max_bytes
    is_first = True
    for result in results:
        if result is None:
            limited.append(LOST)
            continue
        if result.size > left and not is_first:
            result = result._replace(records=_cut(result.records, left))
        size = result.size
        left -= size
        is_first = is_first and not size
        limited.append(result)
    return limited


def _cut(records: FileSlice | bytes | None, size: int) -> FileSlice | bytes | None:
    """The first `size` bytes, None if those are less than a batch."""
    if records is None or size <= 0 or _first_batch_size(records) > size:
        return None
    return records._replace(size=size) if isinstance(records, FileSlice) else records[:size]


def _first_batch_size(records: FileSlice | bytes) -> float:
    """Of a segment that is gone nothing can be sent, so its first batch is too large."""
    if isinstance(records, FileSlice):
        try:
            records = SegmentReader().read(records._replace(size=RECORD_BATCH_OVERHEAD))
        except RaykaError:
            return math.inf
    return read_header(records).size_in_bytes
