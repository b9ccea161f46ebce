"""A member of the share group of a queue: its requests to the leaders of the queue's partitions.

It keeps no acknowledgements. Those that could not be sent go back to its owner, which sends them again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

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
_GAP: Final = RecordAcknowledgement(AcknowledgeType.GAP)
_RENEW: Final = RecordAcknowledgement(AcknowledgeType.RENEW)
_REFUSED: Final = frozenset({ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST})


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


class QueueMember:
    """`unsent` takes acknowledgements that are to be sent again, `lost` a renewed lease that had ended already."""

    def __init__(
        self,
        broker: Broker,
        topic: QueueTopic,
        lease_s: float,
        unsent: Callable[[Sequence[RangeAcknowledgement]], None],
        lost: Callable[[LeasedOffsets], None],
    ) -> None:
        self.lease_s = lease_s
        """How long a lease lasts, as the last answer of a leader has it."""
        self._broker = broker
        self._topic = topic
        self._member_id = f"queue-{uuid.uuid4()}"
        self._unsent = unsent
        self._lost = lost
        self._unread_in_a_row = 0

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
    ) -> tuple[dict[TopicPartition, ShareFetchResult], Coroutine[Any, Any, None] | None]:
        """As the other `fetch`, of one item, in this thread. The coroutine is to be run if something was refused."""
        params = self._fetching(1, wait_s)
        requests = self._requests(self._topic.partitions(), acknowledgements)
        try:
            lock_duration_ms, results = fetch(params, requests)
        except BaseException:
            self._unsent(acknowledgements)
            raise
        answers = self._answers(lock_duration_ms, requests, results)
        is_refused = any(result.acknowledge_error for result in results)
        return answers, self._settle_refused(answers, acknowledgements, renews=False) if is_refused else None

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

    async def acknowledge(self, acknowledgements: Sequence[RangeAcknowledgement]) -> None:
        """Send acknowledgements alone."""
        await self._ask(self._acknowledging(renews=False), (), acknowledgements)

    async def renew(self, places: Iterable[LeasedOffsets]) -> None:
        """Renew leases."""
        acknowledgements = [RangeAcknowledgement(place, _RENEW) for place in places]
        await self._ask(self._acknowledging(renews=True), (), acknowledgements)

    async def give_back(self, ranges: Mapping[int, Sequence[tuple[int, int]]]) -> None:
        """Give back items, by partition, that were not delivered."""
        topic = self._topic
        for number, offsets in ranges.items():
            if not offsets:
                continue
            partition = TopicPartition(topic.name, number)
            await self._broker.share_leaders.give_back(topic.name, self._member_id, partition, topic.topic_id, offsets)

    async def leave(self, numbers: Iterable[int]) -> None:
        """End the session in these partitions."""
        partitions = [TopicPartition(self._topic.name, number) for number in numbers]
        await self._broker.share_leaders.end_session(self._topic.name, self._member_id, partitions, is_lost=False)

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
        )

    def _acknowledging(self, *, renews: bool) -> ShareFetchParams:
        return ShareFetchParams(self._topic.name, self._member_id, is_renew_ack=renews)

    async def _ask(
        self,
        params: ShareFetchParams,
        fetched: Sequence[TopicPartition],
        acknowledgements: Sequence[RangeAcknowledgement],
    ) -> dict[TopicPartition, ShareFetchResult]:
        requests = self._requests(fetched, acknowledgements)
        try:
            lock_duration_ms, results = await self._broker.share_leaders.fetch(params, requests)
        except BaseException:
            self._send_again(acknowledgements, renews=params.is_renew_ack)
            raise
        answers = self._answers(lock_duration_ms, requests, results)
        await self._settle_refused(answers, acknowledgements, renews=params.is_renew_ack)
        return answers

    def _answers(
        self, lock_duration_ms: int, requests: Sequence[ShareFetchPartition], results: Sequence[ShareFetchResult]
    ) -> dict[TopicPartition, ShareFetchResult]:
        if lock_duration_ms > 0:
            self.lease_s = lock_duration_ms / 1000
        return {request.topic_partition: result for request, result in zip(requests, results, strict=True)}

    async def _settle_refused(
        self,
        answers: Mapping[TopicPartition, ShareFetchResult],
        acknowledgements: Sequence[RangeAcknowledgement],
        *,
        renews: bool,
    ) -> None:
        for (_, number), result in answers.items():
            if result.acknowledge_error and result.acknowledge_error not in GONE:
                refused = [one for one in acknowledgements if one.place.partition == number]
                # What the same answer has leased anew must not be acknowledged for the lease before.
                rest = refused
                for first_offset, last_offset in result.acquired_offsets:
                    rest = without(rest, LeasedOffsets(number, first_offset, last_offset))
                if rest and rest != refused and result.acknowledge_error in _REFUSED:
                    await self._ask(self._acknowledging(renews=renews), (), rest)
                elif rest:
                    await self._refused(result.acknowledge_error, rest, renews=renews)

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

    async def _refused(self, error: int, acknowledgements: Sequence[RangeAcknowledgement], *, renews: bool) -> None:
        """A leader refuses acknowledgements as a whole if the lease of one item has ended; then halves are sent."""
        if error not in _REFUSED:
            self._send_again(acknowledgements, renews=renews)
        elif sum(one.place.length for one in acknowledgements) == 1:
            self._lease_ended(acknowledgements[0].place, renews=renews)
        else:
            for half in halves_of(acknowledgements):
                await self._ask(self._acknowledging(renews=renews), (), half)

    def _send_again(self, acknowledgements: Sequence[RangeAcknowledgement], *, renews: bool) -> None:
        if not renews:
            self._unsent(acknowledgements)

    def _lease_ended(self, place: LeasedOffsets, *, renews: bool) -> None:
        partition, offset, _ = place
        logger.info(
            "%s-%d: the lease of offset %s had ended; it is delivered again", self._topic.name, partition, offset
        )
        if renews:
            self._lost(place)
