"""A member of the share group of a queue: its requests to the leaders of the queue's partitions.

Acknowledgements that could not be sent go back to its owner, which sends them again. It keeps those that a leader has
refused until they are settled: the leader refuses those of a request as a whole if the lease of one item has ended, so
they are sent again in halves until that item is found.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, TypeAlias

from rayka.client.share.records import RecordAcknowledgement
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.queue.fetched_items import AcquiredItems, acquired_items
from rayka.queue.leased_offsets import (
    LeasedOffsets,
    RangeAcknowledgement,
    acknowledgement_batches,
    halves_of,
    without,
)
from rayka.queue.leases import ItemRun
from rayka.queue.topic import GONE, QueueTopic
from rayka.share.config import AcquireMode
from rayka.share.record_state import AcknowledgeType
from rayka.share.requests import ShareFetchParams, ShareFetchPartition, ShareFetchResult
from rayka.types import TopicPartition

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 16 << 20
"""The most bytes of records in one fetch. A large item stays in the log, and a fetch brings its location."""
Fetch: TypeAlias = Callable[[ShareFetchParams, Sequence[ShareFetchPartition]], tuple[int, Sequence[ShareFetchResult]]]
"""`ShareLeaders.fetch` for a thread."""
_MOST_UNREAD: Final = 3
"""The program gets the error when the items of this many fetches in a row could not be read."""
_LEAVE_S: Final = 3.0
"""How long the end of a handle waits for leaders to give back its items. The end of the event loop waits for it too."""
_GAP: Final = RecordAcknowledgement(AcknowledgeType.GAP)
_RENEW: Final = RecordAcknowledgement(AcknowledgeType.RENEW)
_REFUSED: Final = frozenset({ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST})
_ANSWERED: Final = _REFUSED | GONE | {ErrorCode.NONE}
"""What a leader answers to acknowledgements. Any other error may pass."""


class FetchedItems(NamedTuple):
    """The items of a fetch, and by partition the first and last offsets of those that could not be read.

    `damage` says which records are damaged. `refused` are the errors of leaders by partition, and `unreadable` the
    reasons why items could not be read, when that was so several times in a row.
    """

    runs: Sequence[ItemRun]
    unread: Mapping[int, Sequence[tuple[int, int]]]
    damage: RaykaError | None
    refused: Mapping[int, RaykaError]
    unreadable: Mapping[int, RaykaError]

    @property
    def is_refused(self) -> bool:
        """Whether there are no items because a leader refused the fetch, or because they could not be read."""
        return not self.runs and bool(self.unread or self.refused)


class RefusedPart(NamedTuple):
    """Acknowledgements of one partition to be sent again, until all leases have ended, by `time.monotonic`."""

    acknowledgements: Sequence[RangeAcknowledgement]
    until_s: float


class QueueMember:
    """`unsent` takes acknowledgements that are to be sent again, `lost` a renewed lease that had ended already.

    `due` returns those of acknowledgements whose items were not leased anew since.
    """

    def __init__(
        self,
        broker: Broker,
        topic: QueueTopic,
        lease_s: float,
        unsent: Callable[[Sequence[RangeAcknowledgement]], None],
        lost: Callable[[LeasedOffsets], None],
        due: Callable[[Sequence[RangeAcknowledgement]], Sequence[RangeAcknowledgement]],
    ) -> None:
        self.lease_s = lease_s
        """How long a lease lasts, as the last answer of a leader has it."""
        self._broker = broker
        self._topic = topic
        self._member_id = f"queue-{uuid.uuid4()}"
        self._unsent = unsent
        self._lost = lost
        self._due = due
        self._unread_in_a_row = 0
        # By partition. Threads add at the end, and `settle_refused` takes the first.
        self._refused: defaultdict[int, deque[RefusedPart]] = defaultdict(deque)
        self._settling: set[int] = set()
        self._has_left = False
        self._sending: set[object] = set()

    @property
    def has_refused(self) -> bool:
        """Whether there are refused acknowledgements that are not settled."""
        return any(list(self._refused.values()))

    @property
    def sending(self) -> Set[object]:
        """What is on its way to the leaders with acknowledgements: they may come back, or be refused."""
        return self._sending

    async def fetch(
        self,
        count: int,
        wait_s: float,
        at_least: int,
        acknowledgements: Sequence[RangeAcknowledgement],
        gather_s: float,
    ) -> dict[TopicPartition, ShareFetchResult]:
        """Acknowledge, and fetch up to `count` items from all partitions."""
        params = self._fetching(count, wait_s)._replace(min_records=at_least, gather_s=gather_s)
        return await self._ask(params, self._topic.partitions(), acknowledgements)

    def fetch_by(
        self, fetch: Fetch, wait_s: float, acknowledgements: Sequence[RangeAcknowledgement]
    ) -> dict[TopicPartition, ShareFetchResult]:
        """As the other `fetch`, of one item, in this thread."""
        params = self._fetching(1, wait_s)
        requests = self._requests(self._topic.partitions(), acknowledgements)
        with self._acknowledgements_sent(acknowledgements):
            lock_duration_ms, results = fetch(params, requests)
            return self._answered(self._answers(lock_duration_ms, requests, results), acknowledgements)

    def read(self, results: Mapping[TopicPartition, ShareFetchResult]) -> FetchedItems:
        """The items that a fetch has brought.

        Those that can't be read are gone if this process stood still until their leases ended, or if the queue was
        deleted. The next fetch knows.
        """
        runs: list[ItemRun] = []
        unread: dict[int, list[tuple[int, int]]] = {}
        refused: dict[int, RaykaError] = {}
        unreadable: dict[int, RaykaError] = {}
        damage = None
        for topic_partition, result in results.items():
            if result.error:
                code = ErrorCode(result.error)
                reason = f"{topic_partition}: {result.error_message or code.name}"
                refused[topic_partition.partition] = RaykaError(code, reason)
            try:
                found = self._items(topic_partition, result)
            except RaykaError as error:
                if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                    raise
                logger.warning("items of the queue %s go back: %s", self._topic.name, error)
                unread[topic_partition.partition] = result.acquired_offsets
                unreadable[topic_partition.partition] = RaykaError(error.code, f"{topic_partition}: {error.message}")
                continue
            runs += found.runs
            damage = damage or found.damage
        self._unread_in_a_row = self._unread_in_a_row + 1 if unread else 0
        if self._unread_in_a_row < _MOST_UNREAD:
            unreadable = {}
        return FetchedItems(runs, unread, damage, refused, unreadable)

    def _items(self, topic_partition: TopicPartition, result: ShareFetchResult) -> AcquiredItems:
        """The items of one partition. Offsets without an item are acknowledged as gaps, unless they may be damaged."""
        if not result.acquired or result.records is None:
            return AcquiredItems([], None)
        number = topic_partition.partition
        found = acquired_items(number, result.records, result.acquired)
        runs = found.runs
        if found.damage is not None:
            reason = f"{topic_partition} from offset {result.acquired[0].first_offset} on: {found.damage.message}"
            logger.error("%s; its items are not delivered", reason)
            return found._replace(damage=RaykaError(found.damage.code, reason))
        if sum(len(run.values) for run in runs) < result.acquired_count:
            missing = [LeasedOffsets(number, first, last) for first, last, _ in result.acquired]
            for run in runs:
                missing = [rest for one in missing for rest in one.without(run.place)]
            self._unsent([RangeAcknowledgement(one, _GAP) for one in missing])
        return found

    def by_leader(self, acknowledgements: Iterable[RangeAcknowledgement]) -> list[list[RangeAcknowledgement]]:
        """The acknowledgements for each leader: in one request, the answer of each would wait for all others."""
        of_partitions: dict[int, list[RangeAcknowledgement]] = defaultdict(list)
        for one in acknowledgements:
            of_partitions[one.place.partition].append(one)
        found: dict[str | None, list[RangeAcknowledgement]] = defaultdict(list)
        for number, part in of_partitions.items():
            partition = self._broker.image.partition(TopicPartition(self._topic.name, number))
            found[None if partition is None else partition.leader_actor] += part
        return list(found.values())

    async def acknowledge(self, acknowledgements: Sequence[RangeAcknowledgement]) -> None:
        """Send acknowledgements alone."""
        await self._ask(self._acknowledging(renews=False), (), acknowledgements)

    def to_settle(self) -> list[int]:
        """The partitions with refused acknowledgements that `settle_refused` does not send now."""
        return [number for number, parts in list(self._refused.items()) if parts and number not in self._settling]

    async def settle_refused(self, number: int) -> None:
        """Send refused acknowledgements of a partition again, until all are settled, at most as long as a lease lasts.

        Each partition is settled by itself, so that a leader that stands still delays no others. However this ends,
        those without an answer stay for the next call, until their leases have ended.
        """
        if number in self._settling:
            return
        self._settling.add(number)
        try:
            await self._settle(self._refused[number])
        finally:
            self._settling.discard(number)

    async def _settle(self, parts: deque[RefusedPart]) -> None:
        while parts and not self._has_left:
            part = parts[0]
            due = self._due(part.acknowledgements)
            if not due or time.monotonic() >= part.until_s:
                self._leases_ended(due, renews=False)
                parts.popleft()
                continue
            answers = await self._send(self._acknowledging(renews=False), (), due)
            if any(result.acknowledge_error not in _ANSWERED for result in answers.values()):
                # The leader is away. All parts go back: each would wait for it.
                while parts:
                    self._unsent(parts[0].acknowledgements)
                    parts.popleft()
            else:
                rest = self._parts_to_send(answers, due, renews=False)
                parts.popleft()
                parts.extend(part._replace(acknowledgements=one) for one in rest)

    async def renew(self, places: Iterable[LeasedOffsets]) -> None:
        """Renew leases. It takes as long as a lease lasts, and a request more: then the others have ended."""
        until_s = time.monotonic() + self.lease_s
        of_leaders = self.by_leader(RangeAcknowledgement(one, _RENEW) for one in places)
        await asyncio.gather(*(self._renew(part, until_s) for part in of_leaders))

    async def _renew(self, of_leader: Sequence[RangeAcknowledgement], until_s: float) -> None:
        parts = deque([of_leader])
        while parts and not self._has_left and time.monotonic() < until_s:
            part = parts.popleft()
            answers = await self._send(self._acknowledging(renews=True), (), part)
            parts += self._parts_to_send(answers, part, renews=True)

    async def give_back(self, ranges: Mapping[int, Sequence[tuple[int, int]]]) -> None:
        """Give back items, by partition, that were not delivered."""
        name, leaders = self._topic.name, self._broker.share_leaders
        await asyncio.gather(
            *(
                leaders.give_back(name, self._member_id, TopicPartition(name, number), self._topic.topic_id, offsets)
                for number, offsets in ranges.items()
                if offsets
            )
        )

    async def leave(self, numbers: Iterable[int]) -> None:
        """End the session in these partitions. No more acknowledgements are sent again.

        A leader that does not answer for `_LEAVE_S` gives the items back when it continues.
        """
        self._has_left = True
        partitions = [TopicPartition(self._topic.name, number) for number in numbers]
        leaving = self._broker.share_leaders.end_session(self._topic.name, self._member_id, partitions, is_lost=False)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await leaving

    def _fetching(self, count: int, wait_s: float) -> ShareFetchParams:
        return ShareFetchParams(
            self._topic.name,
            self._member_id,
            max_wait_s=wait_s,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            max_records=count,
            batch_size=max(1, count),
            acquire_mode=AcquireMode.RECORD_LIMIT,
            tells_not_loaded=True,
        )

    def _acknowledging(self, *, renews: bool) -> ShareFetchParams:
        return ShareFetchParams(self._topic.name, self._member_id, is_renew_ack=renews)

    async def _ask(
        self,
        params: ShareFetchParams,
        fetched: Sequence[TopicPartition],
        acknowledgements: Sequence[RangeAcknowledgement],
    ) -> dict[TopicPartition, ShareFetchResult]:
        with self._acknowledgements_sent(acknowledgements):
            return self._answered(await self._send(params, fetched, acknowledgements), acknowledgements)

    @contextmanager
    def _acknowledgements_sent(self, acknowledgements: Sequence[RangeAcknowledgement]) -> Iterator[None]:
        """These are on their way. They go back if that fails."""
        sent = object()
        if acknowledgements:
            self._sending.add(sent)
        try:
            yield
        except BaseException:
            self._unsent(acknowledgements)
            raise
        finally:
            self._sending.discard(sent)

    async def _send(
        self,
        params: ShareFetchParams,
        fetched: Sequence[TopicPartition],
        acknowledgements: Sequence[RangeAcknowledgement],
    ) -> dict[TopicPartition, ShareFetchResult]:
        requests = self._requests(fetched, acknowledgements)
        lock_duration_ms, results = await self._broker.share_leaders.fetch(params, requests)
        return self._answers(lock_duration_ms, requests, results)

    def _answers(
        self, lock_duration_ms: int, requests: Sequence[ShareFetchPartition], results: Sequence[ShareFetchResult]
    ) -> dict[TopicPartition, ShareFetchResult]:
        if lock_duration_ms > 0:
            self.lease_s = lock_duration_ms / 1000
        return {request.topic_partition: result for request, result in zip(requests, results, strict=True)}

    def _answered(
        self, answers: dict[TopicPartition, ShareFetchResult], acknowledgements: Sequence[RangeAcknowledgement]
    ) -> dict[TopicPartition, ShareFetchResult]:
        """The answers. What they refuse is kept for `settle_refused`: items that they bring do not wait for that."""
        until_s = time.monotonic() + self.lease_s
        parts = self._parts_to_send(answers, acknowledgements, renews=False)
        for part in parts:
            self._refused[part[0].place.partition].append(RefusedPart(part, until_s))
        return answers

    def _parts_to_send(
        self,
        answers: Mapping[TopicPartition, ShareFetchResult],
        acknowledgements: Sequence[RangeAcknowledgement],
        *,
        renews: bool,
    ) -> list[Sequence[RangeAcknowledgement]]:
        """What to send again of acknowledgements that leaders have refused, each part by itself."""
        parts: list[Sequence[RangeAcknowledgement]] = []
        for (_, number), result in answers.items():
            if not result.acknowledge_error or result.acknowledge_error in GONE:
                continue
            refused = [one for one in acknowledgements if one.place.partition == number]
            # What the same answer has leased anew must not be acknowledged for the lease before.
            acquired = [LeasedOffsets(number, first, last) for first, last in result.acquired_offsets]
            rest = without(refused, acquired) if acquired else refused
            if not rest:
                continue
            if result.acknowledge_error not in _REFUSED:
                if not renews:
                    self._unsent(rest)
            elif rest != refused:
                parts.append(rest)
            elif sum(one.place.length for one in rest) == 1:
                self._leases_ended(rest, renews=renews)
            else:
                parts += halves_of(rest)
        return parts

    def _requests(
        self, fetched: Sequence[TopicPartition], acknowledgements: Sequence[RangeAcknowledgement]
    ) -> list[ShareFetchPartition]:
        batches = acknowledgement_batches(acknowledgements)
        wanted = dict.fromkeys(fetched, True)
        for number in batches:
            wanted.setdefault(TopicPartition(self._topic.name, number), False)
        return [
            ShareFetchPartition(one, self._topic.topic_id, is_fetched, batches.get(one.partition, ()))
            for one, is_fetched in wanted.items()
        ]

    def _leases_ended(self, acknowledgements: Iterable[RangeAcknowledgement], *, renews: bool) -> None:
        for place, _, _ in acknowledgements:
            logger.info("%s-%d: the leases of offsets %d to %d had ended: delivered again", self._topic.name, *place)
            if renews:
                self._lost(place)
