"""The records of a share consumer on their way to the program.

A fetch continues when its poll ends before it: acquired records would stay locked if nobody took the answer. Records
arrive here, and stay until a poll has returned them. When half of their lock is over they are given back, which does
not count as a delivery, and so are records of which the poll asked for fewer.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from rayka.client.share.acquired import take_records
from rayka.client.share.held_records import Aside, HeldRecords, Results
from rayka.client.share.leaders import MemberLeaders, is_full
from rayka.client.share.member import ShareConsumerMember
from rayka.client.share.records import ShareRecord
from rayka.errors import ErrorCode, RaykaError, may_pass
from rayka.share.requests import ShareFetchResult
from rayka.storage.segments.reader import SegmentReader
from rayka.types import TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)

_LONGEST_WAIT_S: Final = 0.5
_GRACE_S: Final = 1.0
"""How long a poll waits for an answer when its time is over; longer, after records came too late for the next one."""
_MOST_GRACE_S: Final = 30.0
_TO_GIVE_S: Final = 1.0
"""At least so long the program's thread has to take records that have arrived."""
_TO_END_S: Final = 1.0
_RETRY_S: Final = 0.1

Start = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]


class Arrivals:
    """`start` runs a request that continues when its caller is cancelled.

    records: those that have arrived, each held. There are none while a fetch is in progress.
    damage: why records were rejected, until somebody sets it to None.
    """

    def __init__(self, leaders: MemberLeaders, member: ShareConsumerMember, held: HeldRecords, start: Start) -> None:
        self.records: Sequence[ShareRecord] = ()
        self.damage: RaykaError | None = None
        self._leaders = leaders
        self._member = member
        self._held = held
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._reader = SegmentReader()
        self._grace_s = _GRACE_S
        self._fetching: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._resending: asyncio.Task[Results] | None = None
        self._acknowledging: set[asyncio.Task[Any]] = set()
        self._asking: asyncio.Task[Results] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._expires_s = 0.0
        self._unread: dict[TopicIdPartition, str] = {}
        self._assignment: Mapping[TopicPartition, uuid.UUID] = {}
        self._order: Sequence[TopicIdPartition] = ()

    @property
    def is_fetching(self) -> bool:
        """Whether more may arrive."""
        return self._fetching is not None

    async def wait(self, until_s: float, max_records: int) -> None:
        """Fetch up to `max_records` unless there are records, and wait for them until `until_s`, by the loop's clock.

        It also acknowledges. A leader that does not answer delays it by a second, or longer after records came too
        late. Raises an error of a partition that is not temporary.
        """
        if self.records and self._loop.time() >= self._expires_s:
            self._expire()
        self._held.set_aside()
        left_s = max(0.0, until_s - self._loop.time())
        if self._fetching is None and not self.records:
            self._fetching = self._start(self._fetch(min(left_s, _LONGEST_WAIT_S), max_records))
        else:
            self._send_all(self._held.take_aside())
        if self.records:
            self._expire_at(max(self._expires_s, self._loop.time() + _TO_GIVE_S))
            return
        assert self._fetching is not None
        await asyncio.wait([self._fetching], timeout=left_s + self._grace_s)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self.records:
            self._grace_s = _GRACE_S

    def limit(self, max_records: int) -> None:
        """Give back what is more than that: an earlier poll, which did not wait for it, asked for more."""
        self._give_back(max_records)

    async def acknowledged(self) -> None:
        """Wait for the acknowledgements that polls have sent.

        Before others are sent again, the fetch in progress shows whether their records have been delivered anew.
        """
        if self._acknowledging:
            await asyncio.wait({*self._acknowledging})
        if self._fetching is not None and self._leaders.has_refused:
            await asyncio.wait([self._fetching])

    async def close(self) -> None:
        """End the fetch in progress. What it should acknowledge is set aside again, or will be sent again.

        If the leaders have it already, it first gets a second to end by itself: they refuse what is sent twice, and a
        released record that the fetch has acquired once more would count as delivered.
        """
        fetching, asking = self._fetching, self._asking
        if fetching is not None:
            if asking is not None and asking in self._acknowledging:
                await asyncio.wait([asking], timeout=_TO_END_S)
            fetching.cancel()
            await asyncio.wait([fetching])
        if self._expiry is not None:
            self._expiry.cancel()

    def _expire_at(self, when_s: float) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = self._loop.call_at(when_s, self._expire)

    def _expire(self) -> None:
        """Programs that poll seldom and briefly, and leaders that take longer, must not miss each other for ever."""
        if self.records:
            self._grace_s = min(2 * self._grace_s, _MOST_GRACE_S)
            self._give_back(0)

    def _give_back(self, kept: int) -> None:
        """Leaders take requests in order, so the next fetch may get these records again."""
        surplus, self.records = self.records[kept:], self.records[:kept]
        offsets: dict[TopicIdPartition, list[tuple[int, int]]] = defaultdict(list)
        for record in surplus:
            self._held.remove(record)
            offsets[record.topic_id_partition].append((record.offset, record.offset))
        if offsets:
            self._start(self._leaders.give_back(offsets))

    def _send_all(self, asides: Iterable[Aside]) -> None:
        for each in asides:
            self._send(each)

    def _send(
        self, aside: Aside, fetched: Collection[TopicIdPartition] = (), wait_s: float = 0.0, max_records: int = 0
    ) -> asyncio.Task[Results]:
        task = self._start(self._ask(aside, fetched, wait_s, max_records))
        if aside.acknowledgements:
            self._acknowledging.add(task)
            task.add_done_callback(partial(self._answered, aside))
        return task

    async def _ask(
        self, aside: Aside, fetched: Collection[TopicIdPartition], wait_s: float, max_records: int
    ) -> Results:
        aside.is_sent = True
        return await self._leaders.fetch(fetched, aside.acknowledgements, wait_s, max_records, aside.results)

    def _answered(self, aside: Aside, task: asyncio.Task[Results]) -> None:
        self._acknowledging.discard(task)
        if not aside.is_sent:  # `close` has cancelled it before it began
            self._held.put_back(aside)
        else:
            aside.settle()

    async def _fetch(self, wait_s: float, max_records: int) -> None:
        try:
            await self._fetch_records(wait_s, max_records)
        except Exception as error:
            self._error = error
        finally:
            self._fetching = self._asking = None

    async def _fetch_records(self, wait_s: float, max_records: int) -> None:
        await self._send_refused()
        assigned = self._assigned()
        *earlier, aside = self._held.take_aside() or [Aside({})]
        self._send_all(earlier)
        self._asking = self._send(aside, assigned, wait_s, max_records)
        results = await self._asking
        had_records = [bool(result.acquired) for result in results.values()]
        self._order = _next_order(assigned, had_records, is_full=is_full(results.values(), max_records))
        records = self._take(results)
        if not assigned:
            await self._await_assignment(wait_s)
        elif not records:
            await self._raise_or_pause(results, wait_s)
        else:
            self.records = records
            self._expires_s = self._loop.time() + self._leaders.lock_duration_ms / 2000
            self._expire_at(max(self._expires_s, self._loop.time() + _TO_GIVE_S))

    def _assigned(self) -> Sequence[TopicIdPartition]:
        """The partitions to read, in the order for the next fetch."""
        if self._assignment is not self._member.assignment:
            self._assignment = self._member.assignment
            self._order = [TopicIdPartition(topic_id, one) for one, topic_id in self._assignment.items()]
        return self._order

    async def _send_refused(self) -> None:
        """A leader that does not answer keeps the records of others waiting only for a moment."""
        if self._resending is None and self._leaders.has_refused:
            self._resending = self._start(self._leaders.send_refused())
        if self._resending is not None:
            await asyncio.wait([self._resending], timeout=_GRACE_S)
            if self._resending.done():
                self._resending = None

    def _take(self, results: Results) -> list[ShareRecord]:
        """The records of answers. What can't be read now is given back, and its error takes the place of the answer."""
        taken: list[ShareRecord] = []
        unread: dict[TopicIdPartition, Sequence[tuple[int, int]]] = {}
        for partition, result in results.items():
            if not result.acquired:
                continue
            records, acknowledgements, unread_offsets, error, damage = take_records(self._reader, partition, result)
            offsets = {record.offset for record in records}
            self._leaders.forget_refused(partition, offsets)
            self._leaders.forget_refused(partition, acknowledgements)
            self._held.leave_out(partition, acknowledgements)
            self._held.add(partition, offsets)
            taken += records
            if damage is not None:
                logger.warning("group %s does not process damaged records: %s", self._member.group_id, damage)
                self.damage = self.damage or damage
            if error is None:
                self._unread.pop(partition, None)
            else:
                unread[partition] = unread_offsets
                results[partition] = ShareFetchResult(error.code, error.message)
                self._warn(partition, error)
        if unread:
            self._start(self._leaders.give_back(unread))
        return taken

    def _warn(self, partition: TopicIdPartition, error: RaykaError) -> None:
        """Once: it will be tried again and again."""
        if self._unread.get(partition) != error.message:
            self._unread[partition] = error.message
            logger.warning("group %s gives back records that can't be read: %s", self._member.group_id, error)

    async def _await_assignment(self, wait_s: float) -> None:
        self._member.changed.clear()
        try:
            await asyncio.wait_for(self._member.changed.wait(), wait_s)
        except TimeoutError:
            return

    async def _raise_or_pause(self, results: Mapping[TopicIdPartition, ShareFetchResult], wait_s: float) -> None:
        """Raise the first permanent error. Pause after temporary ones, because leaders answer with them at once."""
        errors = [(partition, result) for partition, result in results.items() if result.error]
        for partition, result in errors:
            code = ErrorCode(result.error)
            if not may_pass(code):
                raise RaykaError(code, f"{partition}: {result.error_message or code.name}")
        if errors:
            await asyncio.sleep(min(wait_s, _RETRY_S))


def _next_order(
    order: Sequence[TopicIdPartition], had_records: Sequence[bool], *, is_full: bool
) -> Sequence[TopicIdPartition]:
    """The order of partitions in the next fetch, from those of the last one and whether each had records.

    Leaders are asked in order, and each reads its partitions in order, until there is enough. So after a full answer it
    is not known which were asked in vain: all without records come first. Of those the one that was first moves behind
    the others, because only the first one is certain to be asked. So a partition waits for no more fetches than there
    are partitions. Otherwise those with records come first, whose leader acknowledges and acquires in one request.
    """
    asked = list(zip(order, had_records, strict=False))  # results of acknowledgements alone come behind these
    with_records = [one for one, had_some in asked if had_some]
    without = [one for one, had_some in asked if not had_some]
    if not with_records:
        return order
    if not is_full:
        return [*with_records, *without]
    if not had_records[0]:
        without.append(without.pop(0))
    return [*without, *with_records]
