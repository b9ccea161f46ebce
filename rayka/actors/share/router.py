"""Sends the requests of one process to the leaders of share-partitions: implements `gateway.ports.ShareLeaders`.

Acquiring has an effect, so a request whose answer nobody wants is a loss until its locks expire. One leader does a
whole fetch, waiting included. Several are asked one after the other until there are enough records, in the order of the
partitions; when none has any, the fetch waits at all of them without acquiring, and asks again when the first is ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from rayka.actors.channel.link import CALL_TIMEOUT_S
from rayka.actors.channel.requests import (
    DescribedShareRecords,
    DescribeShareRecords,
    EndShareSession,
    MeasureShareDepth,
    ReturnShareRecords,
    ShareFetch,
    ShareFetched,
    ShareRequest,
)
from rayka.actors.channel.router import Router
from rayka.errors import ErrorCode, RaykaError
from rayka.share.requests import InFlightRecords, ShareDepth, ShareFetchParams, ShareFetchPartition, ShareFetchResult
from rayka.types import TopicPartition

_END_TIMEOUT_S = 10.0


class ShareRouter:
    """Sends the requests of members to the leaders."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def fetch(
        self, params: ShareFetchParams, partitions: Sequence[ShareFetchPartition]
    ) -> tuple[int, list[ShareFetchResult]]:
        """As `ShareLeaders.fetch`."""
        return await RoutedShareFetch(self._router, params, partitions).run()

    async def end_session(
        self,
        group_id: str,
        member_id: str,
        topic_partitions: Sequence[TopicPartition],
        *,
        is_lost: bool,
        session_id: str = "",
    ) -> None:
        """As `ShareLeaders.end_session`."""
        found = {self._router.locate(topic_partition) for topic_partition in topic_partitions}
        actors = sorted(one[0] for one in found if not isinstance(one, ErrorCode))
        request = EndShareSession(group_id, member_id, is_lost, session_id)
        await asyncio.gather(*(self._router.ask(actor, request, _END_TIMEOUT_S) for actor in dict.fromkeys(actors)))

    async def depth(self, group_id: str, topic_partition: TopicPartition, topic_id: bytes) -> ShareDepth:
        """As `ShareLeaders.depth`."""
        answer = await self._ask(topic_partition, MeasureShareDepth(group_id, topic_partition, topic_id))
        if isinstance(answer, ShareDepth):
            return answer
        if isinstance(answer, RaykaError):
            raise answer
        raise RaykaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(answer))

    async def records(self, group_id: str, topic_partition: TopicPartition) -> tuple[InFlightRecords, ...] | None:
        """As `ShareLeaders.records`."""
        answer = await self._ask(topic_partition, DescribeShareRecords(group_id, topic_partition))
        is_loaded = isinstance(answer, DescribedShareRecords) and answer.is_loaded
        return answer.records if is_loaded else None

    async def give_back(
        self,
        group_id: str,
        member_id: str,
        topic_partition: TopicPartition,
        topic_id: bytes,
        offsets: Sequence[tuple[int, int]],
    ) -> None:
        """As `ShareLeaders.give_back`."""
        await self._ask(
            topic_partition, ReturnShareRecords(group_id, member_id, topic_partition, topic_id, tuple(offsets))
        )

    async def _ask(self, topic_partition: TopicPartition, request: ShareRequest) -> Any:
        found = self._router.locate(topic_partition)
        if isinstance(found, ErrorCode):
            return RaykaError(found)
        return await self._router.ask(found[0], request, _END_TIMEOUT_S)


class RoutedShareFetch:
    """One fetch over the share-partitions of several leaders."""

    def __init__(self, router: Router, params: ShareFetchParams, partitions: Sequence[ShareFetchPartition]) -> None:
        self._router = router
        self._params = params
        self._partitions = partitions
        self._results = [ShareFetchResult()] * len(partitions)
        self._leaders: dict[str, list[int]] = {}
        self._lock_duration_ms = 0
        self._loop = asyncio.get_running_loop()
        for index, partition in enumerate(partitions):
            found = router.locate(partition.topic_partition)
            if isinstance(found, ErrorCode):
                self._failed([index], RaykaError(found), with_acknowledgements=True)
            else:
                self._leaders.setdefault(found[0], []).append(index)

    async def run(self) -> tuple[int, list[ShareFetchResult]]:
        """The lock duration of the group, and the results in the order of the partitions."""
        if len(self._leaders) == 1:
            await self._ask(next(iter(self._leaders)), self._params)
        elif self._leaders:
            await self._ask_several()
        return self._lock_duration_ms, self._results

    async def _ask_several(self) -> None:
        until = self._loop.time() + self._params.max_wait_s
        first, *others = self._leaders
        acknowledging = [name for name in others if self._has_acknowledgements(name)]
        nothing = self._params._replace(max_records=0, max_wait_s=0.0)
        await asyncio.gather(
            self._ask(first, self._params._replace(max_wait_s=0.0)),
            *(self._ask(name, nothing) for name in acknowledging),
        )
        await self._ask_in_turn(others)
        while not self._is_enough() and (left_s := until - self._loop.time()) > 0:
            if not await self._wait(left_s):
                return
            await self._ask_in_turn(list(self._leaders))

    def _has_acknowledgements(self, name: str) -> bool:
        return any(self._partitions[index].acknowledgement_batches for index in self._leaders[name])

    def _is_enough(self) -> bool:
        is_fetched = self._params.has_room and any(partition.is_fetched for partition in self._partitions)
        return not is_fetched or any(result.error or result.acquired for result in self._results)

    async def _ask_in_turn(self, names: Sequence[str]) -> None:
        """Acquire what is still missing; the acknowledgements have been sent."""
        for name in names:
            records_left = self._params.max_records - sum(result.acquired_count for result in self._results)
            if records_left > 0:
                params = self._params._replace(max_wait_s=0.0, max_records=records_left)
                await self._ask(name, params, with_acknowledgements=False)

    async def _wait(self, left_s: float) -> bool:
        """Wait until a leader has records or the time is over. Returns False if the fetch was superseded."""
        params = self._params._replace(max_wait_s=left_s)
        waits = [
            asyncio.ensure_future(
                self._router.ask(name, ShareFetch(params, self._requests(name, False), is_wait=True), left_s + 1.0)
            )
            for name in self._leaders
        ]
        answered, pending = await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in pending:
            wait.cancel()
        answers = [wait.result() for wait in answered]
        return not any(isinstance(answer, ShareFetched) and answer.is_superseded for answer in answers)

    def _requests(self, name: str, with_acknowledgements: bool) -> tuple[ShareFetchPartition, ...]:
        partitions = [self._partitions[index] for index in self._leaders[name]]
        if with_acknowledgements:
            return tuple(partitions)
        return tuple(partition._replace(acknowledgement_batches=()) for partition in partitions)

    async def _ask(self, name: str, params: ShareFetchParams, *, with_acknowledgements: bool = True) -> None:
        request = ShareFetch(params, self._requests(name, with_acknowledgements))
        answer: Any = await self._router.ask(name, request, params.max_wait_s + CALL_TIMEOUT_S)
        indexes = self._leaders[name]
        if isinstance(answer, ShareFetched):
            self._lock_duration_ms = answer.lock_duration_ms
            for index, result in zip(indexes, answer.results, strict=True):
                self._merge(index, result)
        else:
            error = answer if isinstance(answer, RaykaError) else RaykaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._failed(indexes, error, with_acknowledgements=with_acknowledgements)

    def _merge(self, index: int, result: ShareFetchResult) -> None:
        """Keep the results of the acknowledgements."""
        known = self._results[index]
        if known.acknowledge_error:
            result = result._replace(
                acknowledge_error=known.acknowledge_error, acknowledge_error_message=known.acknowledge_error_message
            )
        self._results[index] = result

    def _failed(self, indexes: Sequence[int], error: RaykaError, *, with_acknowledgements: bool) -> None:
        """The leader was not reached, or did not answer. Acknowledgements of an earlier request are not concerned."""
        code, message = error.code, error.message or error.code.name
        for index in indexes:
            result = ShareFetchResult(code, message) if self._partitions[index].is_fetched else ShareFetchResult()
            if with_acknowledgements and self._partitions[index].acknowledgement_batches:
                result = result._replace(acknowledge_error=code, acknowledge_error_message=message)
            self._merge(index, result)
