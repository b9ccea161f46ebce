"""The requests of one member of a share group to the leaders of its partitions."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from rayka.client.share.held_records import Acknowledgements, Results
from rayka.client.share.records import RecordAcknowledgement, acknowledgement_batches
from rayka.errors import ErrorCode
from rayka.gateway.ports import ShareLeaders
from rayka.share.config import AcquireMode
from rayka.share.record_state import AcknowledgeType
from rayka.share.requests import ShareFetchParams, ShareFetchPartition, ShareFetchResult
from rayka.types import TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)

_MAX_BYTES: Final = 50 << 20
_LOCK_S: Final = 30.0
"""Of a group whose lock duration is not known yet: Kafka's default."""
_DELETED: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""What a leader answers about a topic that is deleted, or that was deleted and created again."""
RENEWED: Final = RecordAcknowledgement(AcknowledgeType.RENEW)


class Refused(NamedTuple):
    """Acknowledgements to be sent again, until the locks of their records have expired, by the loop's clock.

    `results` gets each answer.
    """

    acknowledgements: Acknowledgements
    until_s: float
    results: Results


class Caller:
    """Who waits for a commit. He sets whether he has heard its outcome, or will not.

    No function does this: Ctrl-C could come before it had.
    """

    has_heard: bool | None = None


class MemberLeaders:
    """Fetches and acknowledges; acknowledgements that come with a fetch and are refused for now are kept.

    They are sent again apart from later ones: a leader takes or refuses those of a request as a whole, and if only its
    answer was lost, it refuses them the second time.
    """

    def __init__(
        self, leaders: ShareLeaders, group_id: str, member_id: str, acquire_mode: AcquireMode, batch_size: int
    ) -> None:
        self.lock_duration_ms = 0
        self._leaders = leaders
        self._group_id = group_id
        self._member_id = member_id
        self._acquire_mode = acquire_mode
        self._batch_size = batch_size
        self._fetched: set[TopicPartition] = set()
        self._refused: deque[Refused] = deque()
        self._told: list[tuple[Caller, Refused]] = []
        self._under_way: list[Refused] = []
        self._resending = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    async def fetch(
        self,
        fetched: Collection[TopicIdPartition],
        acknowledgements: Acknowledgements,
        wait_s: float = 0.0,
        max_records: int = 0,
        results: Results | None = None,
    ) -> Results:
        """Acknowledge, and fetch. What is refused for now, or not answered, is kept.

        `results` gets the answers for `acknowledgements`, also later ones if they are sent again.
        """
        self._fetched |= {partition.topic_partition for partition in fetched}
        sent = self._to_send(acknowledgements, {} if results is None else results)
        return await self._ask_and_keep(sent, fetched, wait_s, max_records)

    def _to_send(self, acknowledgements: Acknowledgements, results: Results) -> Refused:
        return Refused(acknowledgements, self._loop.time() + (self.lock_duration_ms / 1000 or _LOCK_S), results)

    async def _ask_and_keep(
        self,
        sent: Refused,
        fetched: Collection[TopicIdPartition] = (),
        wait_s: float = 0.0,
        max_records: int = 0,
        caller: Caller | None = None,
    ) -> Results:
        answered: Results = {}
        self._under_way.append(sent)
        try:
            return await self._ask(fetched, sent.acknowledgements, answered, wait_s, max_records)
        finally:  # also if it is cancelled while one leader of several has not answered
            self._under_way = [each for each in self._under_way if each is not sent]
            sent.results.update(answered)
            refused = {
                partition: by_offset
                for partition, by_offset in sent.acknowledgements.items()
                if partition not in answered or ErrorCode(answered[partition].acknowledge_error).retriable
            }
            if any(refused.values()):
                kept = sent._replace(acknowledgements=refused)
                if caller is None:
                    self._refused.append(kept)
                else:
                    self._told.append((caller, kept))

    async def acknowledge(self, acknowledgements: Acknowledgements) -> Results:
        """Acknowledge. Nothing is kept: the caller is told what is refused."""
        return await self._ask((), acknowledgements, {})

    async def acknowledge_or_tell(
        self, acknowledgements: Acknowledgements, results: Results, caller: Caller | None
    ) -> None:
        """Acknowledge; `results` gets the answers.

        What is refused for now, or not answered, is kept if there is no caller, or as soon as he can't hear of it.
        """
        await self._ask_and_keep(self._to_send(acknowledgements, results), caller=caller)

    @property
    def has_refused(self) -> bool:
        """Whether there is something for `send_refused` to send."""
        self._keep_unheard()
        return bool(self._refused)

    def _keep_unheard(self) -> None:
        """Keep what no caller will hear of, and forget what they have heard of."""
        told, self._told = self._told, []
        for caller, refused in told:
            has_heard = caller.has_heard
            if has_heard is None:
                self._told.append((caller, refused))
            elif not has_heard:
                self._refused.append(refused)

    @property
    def may_succeed(self) -> bool:
        """Whether a leader may soon take what was kept, or is asked to. Of a deleted topic no leader does."""
        self._keep_unheard()
        return self._resending.locked() or any(
            partition not in refused.results or refused.results[partition].acknowledge_error not in _DELETED
            for refused in self._refused
            for partition in refused.acknowledgements
        )

    async def send_refused(self) -> Results:
        """Send again what was kept; of several results of a partition, one with an error.

        INVALID_RECORD_STATE: the leader was not reached before the locks expired, or the topic is deleted.
        """
        found: Results = {}
        async with self._resending:
            self._keep_unheard()
            for _ in range(len(self._refused)):
                refused = self._refused.popleft()
                # An answer about a partition whose records were all delivered anew would say nothing of them.
                left = {partition: by_offset for partition, by_offset in refused.acknowledgements.items() if by_offset}
                if not left:
                    continue
                refused = refused._replace(acknowledgements=left)
                is_late = self._loop.time() >= refused.until_s
                results = _expired(refused) if is_late else await self._ask_and_keep(refused)
                found |= {one: each for one, each in results.items() if each.acknowledge_error or one not in found}
        return found

    def forget_refused(self, partition: TopicIdPartition, offsets: Iterable[int]) -> None:
        """The offsets are delivered again, so what was said of them before no longer counts."""
        for refused in (*self._refused, *self._under_way, *(refused for _, refused in self._told)):
            of_partition = refused.acknowledgements.get(partition, {})
            for offset in of_partition.keys() & set(offsets):
                del of_partition[offset]

    async def give_back(self, offsets: Mapping[TopicIdPartition, Sequence[tuple[int, int]]]) -> None:
        """Give back records, as pairs of a first and a last offset."""
        await asyncio.gather(
            *(
                self._leaders.give_back(self._group_id, self._member_id, partition, topic_id.bytes, pairs)
                for (topic_id, partition), pairs in offsets.items()
            )
        )

    async def end_session(self) -> None:
        """Give back all that is not acknowledged."""
        await self._leaders.end_session(self._group_id, self._member_id, tuple(self._fetched), is_lost=False)

    async def _ask(
        self,
        fetched: Collection[TopicIdPartition],
        acknowledgements: Acknowledgements,
        answered: Results,
        wait_s: float = 0.0,
        max_records: int = 0,
    ) -> Results:
        """The answers. `answered` gets those about acknowledgements, also if this is cancelled."""
        wanted = dict.fromkeys(fetched)
        asked = list(wanted | acknowledgements)
        partitions = [
            ShareFetchPartition(
                partition.topic_partition,
                partition.topic_id.bytes,
                partition in wanted,
                acknowledgement_batches(acknowledgements.get(partition, {})),
            )
            for partition in asked
        ]
        params = ShareFetchParams(
            self._group_id,
            self._member_id,
            max_wait_s=wait_s,
            min_bytes=1,
            max_bytes=_MAX_BYTES,
            max_records=max_records,
            batch_size=self._batch_size,
            acquire_mode=self._acquire_mode,
            is_renew_ack=any(RENEWED in of_partition.values() for of_partition in acknowledgements.values()),
        )
        acknowledged: dict[int, ShareFetchResult] = {}
        try:
            lock_duration_ms, results = await self._leaders.fetch(params, partitions, acknowledged)
            acknowledged |= enumerate(results)
        finally:
            answered |= {
                asked[index]: result for index, result in acknowledged.items() if asked[index] in acknowledgements
            }
            for partition, result in answered.items():
                if result.acknowledge_error:
                    logger.warning("%s: not acknowledged: %s", partition, result.acknowledge_error_message)
        self.lock_duration_ms = lock_duration_ms or self.lock_duration_ms
        return dict(zip(asked, results, strict=True))


def is_full(results: Iterable[ShareFetchResult], max_records: int) -> bool:
    """Whether the answers to a fetch have so many records or bytes that perhaps not all partitions were asked."""
    count = size = 0
    for result in results:
        count += result.acquired_count
        size += result.size
    return count >= max_records or size >= _MAX_BYTES


def _expired(refused: Refused) -> Results:
    reason = "the leader was not reached before the locks expired"
    for partition in refused.acknowledgements:
        logger.warning("%s: not acknowledged: %s", partition, reason)
        refused.results[partition] = ShareFetchResult(
            acknowledge_error=ErrorCode.INVALID_RECORD_STATE, acknowledge_error_message=reason
        )
    return {partition: refused.results[partition] for partition in refused.acknowledgements}
