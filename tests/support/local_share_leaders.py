"""The real share-partitions behind the gateway's port, over a local broker's replicas and share coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rayka.actors.channel.requests import (
    DescribeShareRecords,
    EndShareSession,
    MeasureShareDepth,
    ReturnShareRecords,
    ShareFetch,
    ShareRequest,
)
from rayka.actors.share.configs import ShareGroupConfigs
from rayka.actors.share.dead_letters import DeadLetterQueue
from rayka.actors.share.partitions import SharePartitions
from rayka.actors.share.persister import CoordinatorPersister
from rayka.share.requests import InFlightRecords, ShareDepth, ShareFetchParams, ShareFetchPartition, ShareFetchResult
from rayka.types import TopicPartition

if TYPE_CHECKING:
    from tests.support.local_broker import LocalBroker


class LocalShareLeaders:
    """`ports.ShareLeaders`."""

    def __init__(self, broker: LocalBroker) -> None:
        self.partitions = SharePartitions(
            broker.partitions.replicas,
            CoordinatorPersister(broker.shares),
            ShareGroupConfigs(broker).of,
            DeadLetterQueue(broker),
        )
        broker.partitions.more_bytes = self.partitions.more_bytes

    async def fetch(
        self, params: ShareFetchParams, partitions: Sequence[ShareFetchPartition], *_: Any
    ) -> tuple[int, list[ShareFetchResult]]:
        answer = await self._ask(ShareFetch(params, tuple(partitions)))
        return answer.lock_duration_ms, list(answer.results)

    async def end_session(
        self,
        group_id: str,
        member_id: str,
        topic_partitions: Sequence[TopicPartition],
        *,
        is_lost: bool,
        session_id: str = "",
    ) -> None:
        await self._ask(EndShareSession(group_id, member_id, is_lost, session_id))

    async def depth(self, group_id: str, topic_partition: TopicPartition, topic_id: bytes) -> ShareDepth:
        answer = await self._ask(MeasureShareDepth(group_id, topic_partition, topic_id))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def records(self, group_id: str, topic_partition: TopicPartition) -> tuple[InFlightRecords, ...] | None:
        answer = await self._ask(DescribeShareRecords(group_id, topic_partition))
        return answer.records if answer.is_loaded else None

    async def is_read(self, group_id: str, topic_partitions: Sequence[TopicPartition]) -> bool:
        answers = [await self._ask(DescribeShareRecords(group_id, one, True)) for one in topic_partitions]
        return any(answer.is_read for answer in answers)

    async def give_back(
        self,
        group_id: str,
        member_id: str,
        topic_partition: TopicPartition,
        topic_id: bytes,
        offsets: Sequence[tuple[int, int]],
    ) -> None:
        await self._ask(ReturnShareRecords(group_id, member_id, topic_partition, topic_id, tuple(offsets)))

    async def _ask(self, request: ShareRequest) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.partitions.ask(request, lambda answer: None if future.done() else future.set_result(answer))
        return await future
