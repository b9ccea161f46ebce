"""Sends the requests of one process to the partition leaders: implements `gateway.ports.Partitions`.

The metadata image names the actor that leads a partition, and the epoch of the actor's start. An actor in this process
is called directly, one on this node over its local channel, and any other one by actor calls: three links with the same
requests. Nothing is retried here: a request whose leader is unavailable gets a retriable error, and the client tries
again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from rayka.actors.channel.actor_link import ActorLeaderClient
from rayka.actors.channel.channel_link import ChannelLeaderClient
from rayka.actors.channel.leader_fetch import LeaderFetch
from rayka.actors.channel.link import CALL_TIMEOUT_S, Failed, LeaderClient, result_setter
from rayka.actors.channel.requests import (
    CheckRecords,
    DeleteRecords,
    DescribeLogDir,
    DescribeProducers,
    DrainJournals,
    FetchParams,
    FindEpochEnds,
    LeaderRequest,
    ListOffsets,
    OpenJournal,
    WriteTxnMarkers,
)
from rayka.actors.channel.routed_fetch import RoutedFetch
from rayka.actors.channel.socket import ChannelClosed
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.image import MetadataImage
from rayka.storage.directory.names import parse_directory_name
from rayka.types import (
    NO_LEADER_EPOCH,
    ActiveProducers,
    AppendParams,
    AppendRequest,
    AppendResult,
    DeleteRecordsResult,
    EpochEndOffset,
    EpochQuery,
    FetchPartition,
    FetchResult,
    FileSlice,
    IsolationLevel,
    LogDirDescription,
    OffsetAnswer,
    OffsetQuery,
    OpenedJournal,
    TopicPartition,
    TxnMarker,
)

Q = TypeVar("Q", bound=tuple[Any, ...])
R = TypeVar("R")


class Router:
    """Sends requests to leaders. `image` returns the newest image, `node_id` is Ray's id of this node.

    `own` are the links to actors in this process, by name. With `local` False every other actor is reached by actor
    calls, as from another node.
    """

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        node_id: str,
        socket_dir: str,
        namespace: str,
        *,
        own: Mapping[str, LeaderClient] | None = None,
        local: bool = True,
    ) -> None:
        self._image = image
        self._node_id = node_id
        self._socket_dir = socket_dir
        self._namespace = namespace
        self._local = local
        self._own = dict(own or {})
        self._links: dict[str, tuple[int, LeaderClient]] = {}
        # The ways that appends took under `_routed_image`, each a link and the leader epoch.
        self._routes: dict[TopicPartition, tuple[LeaderClient, int]] = {}
        self._processes: dict[TopicPartition, str | None] = {}
        self._routed_image: MetadataImage | None = None
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Close every link; requests in progress end with an error."""
        for _, link in self._links.values():
            link.close()
        self._links.clear()
        self._routes.clear()

    def locate(self, topic_partition: TopicPartition) -> tuple[str, int] | ErrorCode:
        """The name of the leader's actor and the leader epoch."""
        partition = self._image().partition(topic_partition)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        actor = partition.leader_actor
        return (actor, partition.leader_epoch) if actor is not None else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def link(self, actor_name: str) -> LeaderClient:
        """The link to an actor since its last start in the image; it is opened when first needed."""
        own = self._own.get(actor_name)
        if own is not None:
            return own
        epoch = self._epoch_of(actor_name)
        known_epoch, link = self._links.get(actor_name, (NO_LEADER_EPOCH, None))
        if link is None or known_epoch != epoch:
            if link is not None:
                link.close()
            link = self._open(actor_name, epoch)
            self._links[actor_name] = epoch, link
        return link

    def _epoch_of(self, actor_name: str) -> int:
        actor = self._image().actors.get(actor_name)
        return actor.epoch if actor is not None else NO_LEADER_EPOCH

    def image_changed(self) -> None:
        """Close links to earlier starts of actors. Requests waiting on these end now, and clients send them again."""
        for actor_name, (epoch, link) in list(self._links.items()):
            if epoch != self._epoch_of(actor_name):
                link.close()
                self._loop.call_soon(self._forget, actor_name, link)  # after everybody has heard of the end

    def _forget(self, actor_name: str, link: LeaderClient) -> None:
        if self._links.get(actor_name, (NO_LEADER_EPOCH, None))[1] is link:
            del self._links[actor_name]

    def is_local(self, actor_name: str) -> bool:
        """Whether the actor runs on this node, so that its files can be read here."""
        image = self._image()
        actor = image.actors.get(actor_name)
        broker = image.brokers.get(actor.broker_id) if actor is not None else None
        return self._local and broker is not None and broker.node_id == self._node_id

    def _open(self, actor_name: str, epoch: int) -> LeaderClient:
        if self.is_local(actor_name):
            return ChannelLeaderClient(socket_path(self._socket_dir, actor_name, epoch))
        return ActorLeaderClient(actor_name, self._namespace, self._node_id)

    def append(self, requests: Sequence[AppendRequest], params: AppendParams) -> asyncio.Future[list[AppendResult]]:
        """Send batches to their leaders, in order, before returning; errors are in the results."""
        future: asyncio.Future[list[AppendResult]] = self._loop.create_future()
        if len(requests) == 1:
            self._append_one(requests[0], params, future)
        else:
            self._append_many(requests, params, future)
        return future

    def _append_one(
        self, request: AppendRequest, params: AppendParams, future: asyncio.Future[list[AppendResult]]
    ) -> None:
        """The path of most appends, with as little work as possible."""
        topic_partition, records, _, topic_id = request
        route = self._route(topic_partition)
        if isinstance(route, ErrorCode):
            future.set_result([AppendResult(int(route))])
            return

        def done(answer: Sequence[AppendResult] | Failed) -> None:
            if not future.done():
                future.set_result([AppendResult(_loss(answer))] if isinstance(answer, Exception) else list(answer))

        link, leader_epoch = route
        link.append((AppendRequest(topic_partition, records, leader_epoch, topic_id),), params, done)

    def _route(self, topic_partition: TopicPartition) -> tuple[LeaderClient, int] | ErrorCode:
        """The link to the leader, and the leader epoch; cached while the image is the same."""
        self._refresh_routes()
        route = self._routes.get(topic_partition)
        if route is None:
            found = self.locate(topic_partition)
            if isinstance(found, ErrorCode):
                return found
            if self._has_started_again(found[0]):
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            route = self._routes[topic_partition] = self.link(found[0]), found[1]
        return route

    def _has_started_again(self, actor_name: str) -> bool:
        """Whether the link was to an earlier start of the actor; it is replaced.

        Requests on it end now. The append that notices this is refused, because it must not overtake those before it.
        """
        _, known = self._links.get(actor_name, (NO_LEADER_EPOCH, None))
        return self.link(actor_name) is not known and known is not None

    def process_of(self, topic_partition: TopicPartition) -> str | None:
        """The path where the partition's leader takes connections, if it is another process of this node."""
        self._refresh_routes()
        if topic_partition in self._processes:
            return self._processes[topic_partition]
        process = self._find_process(topic_partition)
        if self._image().partition(topic_partition) is not None:  # a client may ask for any number of others
            self._processes[topic_partition] = process
        return process

    def are_on_this_node(self, topic_partitions: Sequence[TopicPartition]) -> bool:
        """Whether none of the leaders is on another node."""
        leaders = {found[0] for name in topic_partitions if isinstance(found := self.locate(name), tuple)}
        return all(actor_name in self._own or self.is_local(actor_name) for actor_name in leaders)

    def channel_of(self, topic_partition: TopicPartition) -> tuple[str, int] | None:
        """The path of the leader's local channel and the leader epoch, if the leader is another process of this node.

        From any thread.
        """
        found = self._neighbour(topic_partition)
        return None if found is None else (socket_path(self._socket_dir, *found[:2]), found[2])

    def _find_process(self, topic_partition: TopicPartition) -> str | None:
        found = self._neighbour(topic_partition)
        return None if found is None else handover_path(self._socket_dir, *found[:2])

    def _neighbour(self, topic_partition: TopicPartition) -> tuple[str, int, int] | None:
        """The leader's actor, if it is in another process of this node, with the epochs of its start and as leader."""
        found = self.locate(topic_partition)
        if isinstance(found, ErrorCode) or found[0] in self._own or not self.is_local(found[0]):
            return None
        return found[0], self._epoch_of(found[0]), found[1]

    def _refresh_routes(self) -> None:
        """Drop the routes of an older image."""
        image = self._image()
        if image is not self._routed_image:
            self._routes.clear()
            self._processes.clear()
            self._routed_image = image

    def _append_many(
        self, requests: Sequence[AppendRequest], params: AppendParams, future: asyncio.Future[list[AppendResult]]
    ) -> None:
        results: list[Any] = [None] * len(requests)
        groups = self._by_leader([request.topic_partition for request in requests], results, AppendResult)
        outstanding = len(groups)

        def answered(indexes: Sequence[int], answer: Sequence[AppendResult] | Failed) -> None:
            nonlocal outstanding
            for position, index in enumerate(indexes):
                results[index] = AppendResult(_loss(answer)) if isinstance(answer, Exception) else answer[position]
            outstanding -= 1
            if not outstanding and not future.done():
                future.set_result(results)

        if not groups:
            future.set_result(results)
        for actor_name, entries in groups.items():
            indexes = [index for index, _ in entries]
            if self._has_started_again(actor_name):
                answered(indexes, RaykaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{actor_name} has started again"))
                continue
            batch = [requests[index]._replace(leader_epoch=epoch) for index, epoch in entries]
            self.link(actor_name).append(batch, params, partial(answered, indexes))

    def fetch(
        self,
        partitions: Sequence[FetchPartition],
        *,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        isolation: IsolationLevel,
    ) -> asyncio.Future[list[FetchResult]]:
        """Read from the leaders; wait for `min_bytes` in all, at most `max_wait_ms`."""
        results: list[FetchResult | None] = [None] * len(partitions)
        groups = self._by_leader([partition.topic_partition for partition in partitions], results, FetchResult)
        if len(groups) == 1 and not any(results):
            (actor_name,) = groups
            params = FetchParams(tuple(partitions), max(max_wait_ms, 0) / 1000, min_bytes, max_bytes, isolation)
            return LeaderFetch(partial(self.link, actor_name), params, self._loop).start()
        return RoutedFetch(
            self,
            partitions,
            results,
            {name: [index for index, _ in entries] for name, entries in groups.items()},
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation=isolation,
        ).start()

    async def list_offsets(self, queries: Sequence[OffsetQuery], isolation: IsolationLevel) -> list[OffsetAnswer]:
        """Find offsets by timestamp or by `OffsetSpec`."""
        return await self._ask_leaders(queries, lambda part: ListOffsets(part, isolation), OffsetAnswer)

    async def epoch_end_offsets(self, queries: Sequence[EpochQuery]) -> list[EpochEndOffset]:
        """Find where leader epochs ended (KIP-101)."""
        return await self._ask_leaders(queries, FindEpochEnds, EpochEndOffset)

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], timeout_ms: int
    ) -> dict[TopicPartition, DeleteRecordsResult]:
        """Move log start offsets up."""
        answers = await self._ask_leaders(list(offsets.items()), DeleteRecords, DeleteRecordsResult)
        return dict(zip(offsets, answers, strict=True))

    async def describe_producers(self, partitions: Sequence[TopicPartition]) -> list[ActiveProducers]:
        """What partitions remember of their producers (KIP-664)."""
        return await self._ask_leaders(
            [(partition,) for partition in partitions],
            lambda part: DescribeProducers(tuple(partition for (partition,) in part)),
            ActiveProducers,
        )

    async def write_txn_marker(self, marker: TxnMarker) -> list[ErrorCode]:
        """Write the end of a transaction to its partitions; an error for each, NONE when it is durable."""

        def request(part: tuple[tuple[TopicPartition], ...]) -> WriteTxnMarkers:
            partitions = tuple(partition for (partition,) in part)
            return WriteTxnMarkers((marker._replace(partitions=partitions),))

        answers: list[Any] = await self._ask_leaders(
            [(partition,) for partition in marker.partitions], request, ErrorCode, unwrap=lambda answer: answer[0]
        )
        return [ErrorCode(answer) for answer in answers]

    async def open_journal(
        self, topic_partition: TopicPartition, topic_id: bytes, producer_id: int, *, is_large: bool = False
    ) -> OpenedJournal:
        """Let the leader make a put journal. Raises RaykaError."""
        opened: OpenedJournal = await self._ask_leader(
            topic_partition, OpenJournal(topic_partition, topic_id, producer_id, is_large)
        )
        return opened

    async def drain_journals(self, topic_partition: TopicPartition) -> None:
        """Let the leader append what is in the put journals of the partition. Raises RaykaError."""
        await self._ask_leader(topic_partition, DrainJournals(topic_partition))

    async def _ask_leader(self, topic_partition: TopicPartition, request: LeaderRequest) -> Any:
        found = self.locate(topic_partition)
        if isinstance(found, ErrorCode):
            raise RaykaError(found, f"{topic_partition} has no leader")
        answer = await self.ask(found[0], request)
        if isinstance(answer, (ChannelClosed, RaykaError)):
            raise RaykaError(ErrorCode(_loss(answer)), str(answer)) from answer
        return answer

    async def describe_log_dirs(self) -> list[LogDirDescription]:
        """The log directories of this node's actors."""
        image = self._image()
        names = [actor.name for actor in image.actors.values() if self.is_local(actor.name) or not self._local]
        answers = await asyncio.gather(*(self.ask(name, DescribeLogDir()) for name in names))
        return [
            LogDirDescription(ErrorCode.KAFKA_STORAGE_ERROR, image.actors[name].log_dir)
            if isinstance(answer, Exception)
            else answer
            for name, answer in zip(names, answers, strict=True)
        ]

    def check_records(self, records: FileSlice) -> None:
        """Let the leader read records that could not be read here."""
        topic_partition = parse_directory_name(os.path.basename(os.path.dirname(records.path)))
        found = None if topic_partition is None else self.locate(topic_partition)
        if isinstance(found, tuple):
            self.link(found[0]).ask(CheckRecords(records), lambda _: None)

    async def ask(self, actor_name: str, request: LeaderRequest, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Send a request to an actor and return its answer, as `OPERATIONS` names it, or a failure."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self.link(actor_name).ask(request, result_setter(future), timeout_s)
        return await future

    async def _ask_leaders(
        self,
        queries: Sequence[Q],
        request_of: Callable[[tuple[Q, ...]], LeaderRequest],
        answer_type: Callable[[int], R],
        unwrap: Callable[[Any], Sequence[R]] = lambda answer: answer,
    ) -> list[R]:
        """Put each query, whose first field is its partition, to its leader."""
        results: list[Any] = [None] * len(queries)
        groups = self._by_leader([query[0] for query in queries], results, answer_type)

        async def ask(actor_name: str, indexes: list[int]) -> None:
            answer = await self.ask(actor_name, request_of(tuple([queries[index] for index in indexes])))
            for position, index in enumerate(indexes):
                failed = isinstance(answer, Exception)
                results[index] = answer_type(_loss(answer)) if failed else unwrap(answer)[position]

        await asyncio.gather(*(ask(name, [index for index, _ in entries]) for name, entries in groups.items()))
        return results

    def _by_leader(
        self, topic_partitions: Sequence[TopicPartition], results: list[Any], answer_type: Callable[..., Any]
    ) -> dict[str, list[tuple[int, int]]]:
        """Group (index, leader epoch) by the leader's actor; partitions without a leader get their error at once."""
        groups: dict[str, list[tuple[int, int]]] = {}
        for index, topic_partition in enumerate(topic_partitions):
            found = self.locate(topic_partition)
            if isinstance(found, ErrorCode):
                results[index] = answer_type(int(found))
            else:
                groups.setdefault(found[0], []).append((index, found[1]))
        return groups


def socket_path(socket_dir: str, actor_name: str, epoch: int) -> str:
    """The path of the local channel of one start of an actor."""
    return os.path.join(socket_dir, f"{actor_name}.{epoch}.sock")


def handover_path(socket_dir: str, actor_name: str, epoch: int) -> str:
    """The path where one start of an actor takes clients' connections from other processes."""
    return os.path.join(socket_dir, f"{actor_name}.{epoch}.fds")


def _loss(failure: Failed) -> int:
    """The error for a client, which then looks for the new leader, or is left in doubt: the append may be done."""
    if isinstance(failure, RaykaError):
        return int(failure.code)
    return int(ErrorCode.REQUEST_TIMED_OUT if failure.sent else ErrorCode.NOT_LEADER_OR_FOLLOWER)
