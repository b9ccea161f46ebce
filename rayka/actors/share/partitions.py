"""The share-partitions of one partition actor: those of the partitions that it leads.

A share-partition is loaded when a member first fetches from it, and forgotten when the partition is led elsewhere, or
when no member of the group is left, and no lock: then others may change its persisted state (AlterShareGroupOffsets).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from rayka.actors.background import BackgroundTasks, answered
from rayka.actors.channel.link import Done
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
from rayka.actors.replica.remote_tier import RemoteTier
from rayka.actors.share.dead_letters import DeadLetterQueue
from rayka.actors.share.fetched_partitions import FetchedPartitions, Found
from rayka.actors.share.leader import LeadSharePartition
from rayka.actors.share.load_faults import LoadFaults
from rayka.actors.share.waiters import GroupPartition, Waiters
from rayka.errors import ErrorCode, RaykaError
from rayka.replica.replicas import Replicas
from rayka.share.config import ShareGroupConfig
from rayka.share.persister import Persister, persister_error
from rayka.share.requests import ShareDepth, ShareFetchPartition, ShareFetchResult
from rayka.types import NO_LEADER_EPOCH, TopicPartition

_LOAD_TIMEOUT_S = 10.0
_FORGOTTEN_AFTER_S = 600.0
_KEPT_S = 10.0
"""How long a share-partition is kept, once it is loaded or could not be, if nobody comes back for it."""
_NOT_YET = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.INVALID_REQUEST})
"""Errors of a load that a member gets as COORDINATOR_NOT_AVAILABLE, or not at all: its next fetch tries again.
INVALID_REQUEST: the group coordinator has not initialized the state yet, or has deleted it."""


class LastFetch(NamedTuple):
    """When a member last fetched or acquired records, by the loop's clock, and in which session."""

    time_s: float
    session_id: str


class SharePartitions:
    """Implements `PartitionUsers` of the replica server. `group_config` gives the newest settings of a group."""

    def __init__(
        self,
        replicas: Replicas,
        persister: Persister,
        group_config: Callable[[str], ShareGroupConfig],
        dead_letters: DeadLetterQueue,
        remote_reads: RemoteTier | None = None,
    ) -> None:
        self._remote_reads = remote_reads
        self._replicas = replicas
        self._persister = persister
        self._group_config = group_config
        self._dead_letters = dead_letters
        self._leaders: dict[GroupPartition, LeadSharePartition] = {}
        self._members: dict[str, dict[str, LastFetch]] = {}
        self._waiters = Waiters()
        self._load_faults = LoadFaults()
        self._background = BackgroundTasks("share-partitions")
        self._loop = asyncio.get_running_loop()
        self._sweeping = self._loop.call_later(_FORGOTTEN_AFTER_S, self._sweep)

    def __len__(self) -> int:
        return len(self._leaders)

    def ask(self, request: ShareRequest, done: Done) -> None:
        """Carry out a request; `done` is called with the answer."""
        match request:
            case ShareFetch():
                self._background.start("share fetch", self._fetch(request, done))
            case EndShareSession():
                self._background.start("end of a share session", self._end_session(request, done))
            case DescribeShareRecords():
                done(self._describe(request))
            case _:
                self._background.start("share-partition", self._ask_one(request, done))

    def _describe(self, request: DescribeShareRecords) -> DescribedShareRecords:
        """Forgets a group that nobody reads, if who is told so may change its persisted state."""
        is_read = self._is_read(request.group_id)
        if request.is_to_change and not is_read:
            self._members.pop(request.group_id, None)
            self._forget_absent(request.group_id)
        leader = self._leaders.get(GroupPartition(request.group_id, request.topic_partition))
        if leader is None or not leader.is_loaded:
            return DescribedShareRecords(is_loaded=False, is_read=is_read)
        try:
            return DescribedShareRecords(True, leader.describe(), is_read)
        except RaykaError:  # It is led elsewhere by now.
            return DescribedShareRecords(is_loaded=False, is_read=is_read)

    def _is_read(self, group_id: str) -> bool:
        """Whether a member waits, holds records, or has fetched lately: later than a lock lasts it may be dead."""
        has_locks = any(leader.has_locks for key, leader in self._leaders.items() if key.group_id == group_id)
        if has_locks or self._waiters.has_group(group_id):
            return True
        oldest_s = self._loop.time() - self._group_config(group_id).record_lock_duration_ms / 1000
        return any(last_fetch.time_s > oldest_s for last_fetch in self._members.get(group_id, {}).values())

    def more_bytes(self, topic_partition: TopicPartition) -> None:
        """Wake a fetch of each group that waits for records of the partition; records may gather for a while first."""
        for key in self._waiters.keys(topic_partition):
            leader = self._leaders.get(key)
            longest_s = self._waiters.gather_s(key)
            gather_s = leader.pace.on_records(self._loop.time(), longest_s) if leader is not None and longest_s else 0.0
            if leader is not None and gather_s:
                self._loop.call_later(gather_s, self._gathered, key, leader)
            elif gather_s is not None:
                self._wake(key)

    def _gathered(self, key: GroupPartition, leader: LeadSharePartition) -> None:
        leader.pace.gathered(self._loop.time())
        self._wake(key)

    def _wake(self, key: GroupPartition) -> None:
        """Records may have become available, or room for more: wake a fetch that waits, if it can have some."""
        leader = self._leaders.get(key)
        if self._waiters.has_waiters(key) and (leader is None or leader.has_more):
            self._waiters.wake(key)

    def released(self, topic_partition: TopicPartition) -> None:
        """The partition changed its role, left or failed: forget what its groups have in flight."""
        for key in [key for key in self._leaders if key.topic_partition == topic_partition]:
            self._leaders.pop(key).close()
        self._waiters.wake_all(topic_partition)

    def close(self) -> None:
        """Drop all state; requests under way get no answer."""
        self._sweeping.cancel()
        for key in list(self._leaders):
            self._forget(key)
        self._background.cancel()

    # Fetching.

    async def _fetch(self, request: ShareFetch, done: Done) -> None:
        params = request.params
        try:
            found = await self._find(request)
            if any(one.leader is not None for one in found):
                self._note_fetch(request)
            acknowledged = [self._acknowledge(request, one) for one in found]
            results, is_superseded = await self._read(request, found)
            if any(result.acquired for result in results):
                self._note_fetch(request)
            answers = [
                await self._with_acknowledgement(result, future)
                for result, future in zip(results, acknowledged, strict=True)
            ]
            lock_duration_ms = self._group_config(params.group_id).record_lock_duration_ms
            done(ShareFetched(lock_duration_ms, tuple(answers), is_superseded))
        except RaykaError as error:
            done(error)
        except Exception as error:
            done(RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error)))
            raise

    def _note_fetch(self, request: ShareFetch) -> None:
        params = request.params
        last_fetch = LastFetch(self._loop.time(), params.session_id)
        self._members.setdefault(params.group_id, {})[params.member_id] = last_fetch

    async def _find(self, request: ShareFetch) -> list[Found]:
        """The share-partitions, loaded."""
        found = [self._open(request.params.group_id, partition) for partition in request.partitions]
        loading = [one.leader.loaded() for one in found if one.leader is not None and not one.leader.is_loaded]
        if not loading:
            return found
        params = request.params
        must_load = params.min_records or any(partition.acknowledgement_batches for partition in request.partitions)
        timeout_s = _LOAD_TIMEOUT_S if must_load else max(params.max_wait_s, 0.0)
        await asyncio.wait([asyncio.ensure_future(load) for load in loading], timeout=timeout_s)
        checked = [self._check_loaded(params.group_id, one) for one in found]
        tells = params.min_records or params.tells_not_loaded
        return [one if one.leader or not tells else self._refused(params.group_id, one) for one in checked]

    async def _ask_one(self, request: ReturnShareRecords | MeasureShareDepth, done: Done) -> None:
        """What concerns one share-partition, which is loaded if it is not there."""
        done(await answered(self._answer_one(request)))

    async def _answer_one(self, request: ReturnShareRecords | MeasureShareDepth) -> ShareDepth | int:
        wanted = ShareFetchPartition(request.topic_partition, request.topic_id, False)
        leader = await self._loaded(request.group_id, wanted)
        if isinstance(request, MeasureShareDepth):
            return leader.depth()
        await leader.release(request.member_id, were_delivered=False, offsets=request.offsets)
        return len(request.offsets)

    async def _loaded(self, group_id: str, wanted: ShareFetchPartition) -> LeadSharePartition:
        """Raises RaykaError: COORDINATOR_NOT_AVAILABLE if it can't be loaded in time."""
        found = self._open(group_id, wanted)
        if found.leader is not None and not found.leader.is_loaded:
            await asyncio.wait([asyncio.ensure_future(found.leader.loaded())], timeout=_LOAD_TIMEOUT_S)
            found = self._check_loaded(group_id, found)
        if found.leader is None:
            error = self._refused(group_id, found).error
            assert error is not None
            raise error
        return found.leader

    def _refused(self, group_id: str, found: Found) -> Found:
        """The share-partitions that could not be loaded in time, with an error."""
        reason = f"the share-partition {found.request.topic_partition} of group {group_id} is not loaded"
        return found._replace(error=found.error or RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, reason))

    def _open(self, group_id: str, request: ShareFetchPartition) -> Found:
        key = GroupPartition(group_id, request.topic_partition)
        try:
            partition = self._replicas.get(request.topic_partition)
            if partition.leader_epoch == NO_LEADER_EPOCH:
                raise RaykaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{request.topic_partition} is not led here")
            if partition.topic_id.bytes != request.topic_id:
                raise RaykaError(ErrorCode.UNKNOWN_TOPIC_ID, f"{request.topic_partition} has another topic id")
        except RaykaError as error:
            return Found(request, None, error)
        leader = self._leaders.get(key)
        if leader is None or leader.partition is not partition or leader.leader_epoch != partition.leader_epoch:
            self._forget(key)
            leader = self._leaders[key] = LeadSharePartition(
                group_id,
                partition,
                self._persister,
                partial(self._group_config, group_id),
                partial(self._changed, key),
                partial(self._forget, key),
                self._dead_letters,
                self._remote_reads,
            )
            leader.when_loaded(partial(self._note_load, key, leader))
            leader.when_loaded(partial(self._loop.call_later, _KEPT_S, self._forget_unused, key, leader))
        return Found(request, leader)

    def _note_load(self, key: GroupPartition, leader: LeadSharePartition) -> None:
        error = leader.load_error
        if leader.is_loaded:
            self._load_faults.passed(key)
        elif error is not None:
            self._load_faults.failed(key, error, self._loop.time())

    def _forget_unused(self, key: GroupPartition, leader: LeadSharePartition) -> None:
        """A fetch that does not wait may begin to load the state for any group, also one that does not exist."""
        is_unused = leader.load_error is not None or key.group_id not in self._members
        if is_unused and leader.is_idle and self._leaders.get(key) is leader:
            self._forget(key)

    def _check_loaded(self, group_id: str, found: Found) -> Found:
        """Leave out what is not loaded. What could not be loaded is forgotten, so that the next fetch tries again."""
        leader = found.leader
        if leader is None or leader.is_loaded:
            return found
        error = leader.load_error
        if error is None:
            return found._replace(leader=None)
        key = GroupPartition(group_id, found.request.topic_partition)
        if self._leaders.get(key) is leader:
            self._forget(key)
        return found._replace(leader=None, error=None if error.code in _NOT_YET else persister_error(error))

    def _changed(self, key: GroupPartition) -> None:
        """Wake who waits for records. What was kept for its locks or dead letters alone is forgotten after them."""
        self._wake(key)
        leader = self._leaders.get(key)
        if key.group_id not in self._members and leader is not None and leader.is_idle:
            self._forget(key)

    def _forget(self, key: GroupPartition) -> None:
        leader = self._leaders.pop(key, None)
        if leader is not None:
            leader.close()

    async def _read(self, request: ShareFetch, found: Sequence[Found]) -> tuple[list[ShareFetchResult], bool]:
        """Acquire records as soon as there are enough, or when the time is over; also whether it was superseded."""
        params = request.params
        until = self._loop.time() + params.max_wait_s
        member = params.group_id, params.member_id
        keys = [GroupPartition(params.group_id, one.request.topic_partition) for one in found if one.is_fetched]
        is_last = not params.has_room or not any(one.request.is_fetched for one in found)
        partitions = FetchedPartitions(request, found)
        was_woken = False
        while True:
            is_last = is_last or self._loop.time() >= until
            results = partitions.acquire(is_last=is_last)
            if was_woken:
                self._pass_on(found, results)
            if is_last or any(map(params.is_answer, results)):
                return results, False
            if request.is_wait and partitions.has_enough():
                return results, False
            if not await self._waiters.wait(member, keys, until, params.gather_s):
                self._pass_on(found, results)
                return results, True
            was_woken = True

    def _pass_on(self, found: Sequence[Found], results: Sequence[ShareFetchResult]) -> None:
        """Wake the next waiting fetches, if this one has left records."""
        for one, result in zip(found, results, strict=True):
            if one.leader is None or not one.is_fetched:
                continue
            key = one.leader.group_partition
            if self._waiters.has_waiters(key) and one.leader.has_more:
                if result.acquired:
                    self._waiters.wake(key)
                else:
                    self._waiters.pass_on(key)

    # Acknowledging.

    def _acknowledge(self, request: ShareFetch, found: Found) -> asyncio.Future[None] | RaykaError | None:
        batches = found.request.acknowledgement_batches
        if not batches:
            return None
        if found.leader is None:
            return found.error or RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the share-partition is not loaded")
        params = request.params
        config = self._group_config(params.group_id)
        renew_allowed = params.is_renew_ack and config.renew_acknowledge_enable
        try:
            return found.leader.acknowledge(params.member_id, batches, renew_allowed=renew_allowed)
        except RaykaError as error:
            return error

    async def _with_acknowledgement(
        self, result: ShareFetchResult, acknowledged: asyncio.Future[None] | RaykaError | None
    ) -> ShareFetchResult:
        try:
            if isinstance(acknowledged, RaykaError):
                raise acknowledged
            if acknowledged is not None:
                await acknowledged
        except RaykaError as error:
            return result._replace(acknowledge_error=error.code, acknowledge_error_message=error.message)
        return result

    # Ending.

    async def _end_session(self, request: EndShareSession, done: Done) -> None:
        """Give back what a member holds; with the last member of a group its share-partitions go.

        A gateway may notice late that a connection is lost, when the member is back at another one.
        """
        last_fetch = self._members.get(request.group_id, {}).get(request.member_id)
        if last_fetch is not None and last_fetch.session_id != request.session_id:
            done(0)
            return
        self._waiters.supersede((request.group_id, request.member_id))
        keys = [key for key in self._leaders if key.group_id == request.group_id]
        releases = [await_ for key in keys if (await_ := self._release(key, request)) is not None]
        await asyncio.gather(*releases, return_exceptions=True)
        self._left(request.group_id, request.member_id)
        done(len(releases))

    def _release(self, key: GroupPartition, request: EndShareSession) -> asyncio.Future[None] | None:
        try:
            return self._leaders[key].release(request.member_id, were_delivered=request.is_lost)
        except RaykaError:
            return None

    def _left(self, group_id: str, member_id: str) -> None:
        self._members.get(group_id, {}).pop(member_id, None)
        self._forget_absent(group_id)

    def _forget_absent(self, group_id: str) -> None:
        """Forget members that have not come back for long; with the last one the group's share-partitions go.

        Those with locks go when these have ended (`_changed`): a lock may last longer.
        """
        oldest_s = self._loop.time() - _FORGOTTEN_AFTER_S
        members = self._members.pop(group_id, {})
        present = {member_id: last_fetch for member_id, last_fetch in members.items() if last_fetch.time_s > oldest_s}
        if present:
            self._members[group_id] = present
            return
        for key in [key for key, leader in self._leaders.items() if key.group_id == group_id and leader.is_idle]:
            self._forget(key)

    def _sweep(self) -> None:
        """Remove members that were killed or whose topic was deleted: they never leave by themselves."""
        for group_id in list(self._members):
            self._forget_absent(group_id)
        self._load_faults.forget_older(self._loop.time() - _FORGOTTEN_AFTER_S)
        self._sweeping = self._loop.call_later(_FORGOTTEN_AFTER_S, self._sweep)
