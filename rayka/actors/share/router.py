"""Sends the requests of one process to the leaders of share-partitions: implements `gateway.ports.ShareLeaders`.

Acquiring has an effect, so a request whose answer nobody wants is a loss until its locks expire. One leader does a
whole fetch, waiting included. Several are asked one after the other until there are enough records, in the order of the
partitions; when none has any, the fetch waits at all of them without acquiring, and asks again when the first is ready.
A leader that does not answer soon does not hold up the others: what it acquires later is given back, and until then
it is not asked for more. If it is to acknowledge records, the fetch waits a few seconds for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

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
_IS_READ_TIMEOUT_S = 2.0
"""Well below the time that clients give a request that has to know whether a group is read."""
_PATIENCE_S = 1.0
"""How long a fetch from several leaders waits for the records of one."""
_ACKNOWLEDGE_PATIENCE_S = 5.0
"""As long it waits for acknowledgements. The locks of what other leaders have acquired must not expire meanwhile."""


class LateKey(NamedTuple):
    """A member that a leader has not answered yet."""

    group_id: str
    member_id: str
    leader: str


class ShareRouter:
    """Sends the requests of members to the leaders."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._late: dict[LateKey, asyncio.Task[None]] = {}

    async def fetch(
        self,
        params: ShareFetchParams,
        partitions: Sequence[ShareFetchPartition],
        acknowledged: dict[int, ShareFetchResult] | None = None,
    ) -> tuple[int, list[ShareFetchResult]]:
        """As `ShareLeaders.fetch`."""
        return await RoutedShareFetch(self, params, partitions, {} if acknowledged is None else acknowledged).run()

    def locate(self, topic_partition: TopicPartition) -> tuple[str, int] | ErrorCode:
        """As `Router.locate`."""
        return self._router.locate(topic_partition)

    async def ask(self, name: str, request: ShareFetch) -> Any:
        """The answer of a leader to a fetch, or a failure."""
        return await self._router.ask(name, request, request.params.max_wait_s + CALL_TIMEOUT_S)

    async def ask_briefly(self, name: str, request: ShareFetch, patience_s: float) -> Any:
        """As `ask`; None if it does not answer in time."""
        key = LateKey(request.params.group_id, request.params.member_id, name)
        asking = asyncio.ensure_future(self.ask(name, request))
        try:
            await asyncio.wait([asking], timeout=patience_s)
        finally:
            if not asking.done():
                late = self._late[key] = asyncio.ensure_future(self._return(asking, request))
                late.add_done_callback(partial(self._answered, key))
        return asking.result() if asking.done() else None

    def _answered(self, key: LateKey, late: asyncio.Task[None]) -> None:
        if self._late.get(key) is late:  # and not a later request
            del self._late[key]

    def late(self, group_id: str, member_id: str, name: str) -> asyncio.Task[None] | None:
        """Ends when the leader has answered the member; None unless it is late."""
        return self._late.get(LateKey(group_id, member_id, name))

    async def _return(self, asking: asyncio.Future[Any], request: ShareFetch) -> None:
        """Give back what nobody waits for any more."""
        answer = await asking
        if not isinstance(answer, ShareFetched):
            return
        group_id, member_id = request.params.group_id, request.params.member_id
        for partition, result in zip(request.partitions, answer.results, strict=True):
            if result.acquired:
                topic_partition, topic_id = partition.topic_partition, partition.topic_id
                await self.give_back(group_id, member_id, topic_partition, topic_id, result.acquired_offsets)

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

    async def is_read(self, group_id: str, topic_partitions: Sequence[TopicPartition]) -> bool:
        """As `ShareLeaders.is_read`. An actor answers for all its partitions, so one of them is enough."""
        found = [(self._router.locate(topic_partition), topic_partition) for topic_partition in topic_partitions]
        asked = {place[0]: topic_partition for place, topic_partition in found if not isinstance(place, ErrorCode)}
        answers = await asyncio.gather(
            *(
                self._router.ask(actor, DescribeShareRecords(group_id, topic_partition, True), _IS_READ_TIMEOUT_S)
                for actor, topic_partition in asked.items()
            )
        )
        described = [answer for answer in answers if isinstance(answer, DescribedShareRecords)]
        is_read = any(answer.is_read for answer in described)
        if not is_read and len(described) < len(answers):
            reason = f"a leader of share group {group_id} does not answer whether the group is read"
            raise RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, reason)
        return is_read

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

    def __init__(
        self,
        router: ShareRouter,
        params: ShareFetchParams,
        partitions: Sequence[ShareFetchPartition],
        acknowledged: dict[int, ShareFetchResult],
    ) -> None:
        self._router = router
        self._params = params
        self._partitions = partitions
        self._acknowledged = acknowledged
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

    @property
    def _may_acquire(self) -> bool:
        return self._params.has_room and any(partition.is_fetched for partition in self._partitions)

    def _is_enough(self) -> bool:
        return not self._may_acquire or any(map(self._params.is_answer, self._results))

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
        late = [task for name in self._leaders if (task := self._late(name)) is not None]
        waits = [
            asyncio.ensure_future(self._router.ask(name, ShareFetch(params, self._requests(name, False), is_wait=True)))
            for name in self._leaders
            if self._late(name) is None
        ]
        try:
            answered, _ = await asyncio.wait([*waits, *late], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:  # also if the fetch is cancelled; they acquire and acknowledge nothing
            for wait in waits:
                wait.cancel()
        answers = [wait.result() for wait in waits if wait in answered]
        return not any(isinstance(answer, ShareFetched) and answer.is_superseded for answer in answers)

    def _late(self, name: str) -> asyncio.Task[None] | None:
        return self._router.late(self._params.group_id, self._params.member_id, name)

    def _requests(self, name: str, with_acknowledgements: bool) -> tuple[ShareFetchPartition, ...]:
        partitions = [self._partitions[index] for index in self._leaders[name]]
        if with_acknowledgements:
            return tuple(partitions)
        return tuple(partition._replace(acknowledgement_batches=()) for partition in partitions)

    async def _ask(self, name: str, params: ShareFetchParams, *, with_acknowledgements: bool = True) -> None:
        if len(self._leaders) > 1 and self._late(name) is not None:
            params = params._replace(max_records=0)
        request = ShareFetch(params, self._requests(name, with_acknowledgements))
        acknowledges = any(partition.acknowledgement_batches for partition in request.partitions)
        answer: Any
        if len(self._leaders) == 1 or (acknowledges and not self._may_acquire):
            answer = await self._router.ask(name, request)
        elif acknowledges:
            answer = await self._router.ask_briefly(name, request, _ACKNOWLEDGE_PATIENCE_S)
        elif self._late(name) is None:
            answer = await self._router.ask_briefly(name, request, _PATIENCE_S)
        else:
            return
        if answer is None:
            if acknowledges:
                self._not_acknowledged(self._leaders[name], RaykaError(ErrorCode.REQUEST_TIMED_OUT))
            return
        indexes = self._leaders[name]
        if isinstance(answer, ShareFetched):
            self._lock_duration_ms = answer.lock_duration_ms
            for index, result in zip(indexes, answer.results, strict=True):
                self._merge(index, result)
        else:
            error = answer if isinstance(answer, RaykaError) else RaykaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._failed(indexes, error, with_acknowledgements=with_acknowledgements)

    def _not_acknowledged(self, indexes: Sequence[int], error: RaykaError) -> None:
        """The leader has not answered yet; there are no records of it, which is no error."""
        for index in indexes:
            if self._partitions[index].acknowledgement_batches:
                result = ShareFetchResult(
                    acknowledge_error=error.code, acknowledge_error_message=error.message or error.code.name
                )
                self._merge(index, result)

    def _merge(self, index: int, result: ShareFetchResult) -> None:
        """Keep the results of the acknowledgements."""
        known = self._results[index]
        if known.acknowledge_error:
            result = result._replace(
                acknowledge_error=known.acknowledge_error, acknowledge_error_message=known.acknowledge_error_message
            )
        self._results[index] = result
        if self._partitions[index].acknowledgement_batches:
            self._acknowledged[index] = result

    def _failed(self, indexes: Sequence[int], error: RaykaError, *, with_acknowledgements: bool) -> None:
        """The leader was not reached, or did not answer. Acknowledgements of an earlier request are not concerned."""
        code, message = error.code, error.message or error.code.name
        for index in indexes:
            result = ShareFetchResult(code, message) if self._partitions[index].is_fetched else ShareFetchResult()
            if with_acknowledgements and self._partitions[index].acknowledgement_batches:
                result = result._replace(acknowledge_error=code, acknowledge_error_message=message)
            self._merge(index, result)
