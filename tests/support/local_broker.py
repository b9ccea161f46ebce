"""A broker without Ray: the cores of storage, metadata and groups behind the gateway's ports, in one process.

The handlers' tests and the gateway's profile run against it. Everything happens in the event loop.

    python -m tests.support.local_broker PORT DIRECTORY [NAME=VALUE ...]
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
import uuid
from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rayka.config import BrokerConfig
from rayka.config.groups import GROUP_CONFIGS
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import (
    ActorRegistration,
    BrokerRegistration,
    ConfigAlteration,
    ConfigReplacement,
    ConfigResult,
    ControllerResult,
    FeatureUpdate,
    NewPartitions,
    NewTopic,
    TopicResult,
    UpdateFeatures,
)
from rayka.metadata.controller import Controller
from rayka.metadata.image import MetadataImage
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.files import RealFiles
from rayka.storage.log.log import Log
from rayka.types import (
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
    ReplicaDescription,
    TopicPartition,
    TxnMarker,
)
from tests.support.local_groups import LocalGroups
from tests.support.local_share_leaders import LocalShareLeaders
from tests.support.local_shares import LocalShares
from tests.support.local_transactions import LocalTransactions, write_marker

NODE_ID = 1


class WaitingFetch(NamedTuple):
    """A fetch and what it waits for."""

    future: Future[list[FetchResult]]
    partitions: Sequence[FetchPartition]
    min_bytes: int
    max_bytes: int
    isolation: IsolationLevel


class LocalPartitions:
    """`ports.Partitions` over replicas in this process."""

    def __init__(self, broker: LocalBroker, directory: str) -> None:
        self._broker = broker
        self.directory = directory
        self.replicas = Replicas()
        self.more_bytes: Callable[[TopicPartition], None] = lambda _: None
        self._waiting: dict[Future[Any], WaitingFetch] = {}
        self._loop = asyncio.get_running_loop()

    def append(self, requests: Sequence[AppendRequest], params: AppendParams) -> Future[list[AppendResult]]:
        future: Future[list[AppendResult]] = self._loop.create_future()
        now_ms = time.time_ns() // 1_000_000
        future.set_result([self._append(request, params, now_ms) for request in requests])
        for request in requests:
            self.more_bytes(request.topic_partition)
        if self._waiting:
            appended = {request.topic_partition for request in requests}
            for fetch in list(self._waiting.values()):
                if not appended.isdisjoint(partition.topic_partition for partition in fetch.partitions):
                    self._try(fetch)
        return future

    def _append(self, request: AppendRequest, params: AppendParams, now_ms: int) -> AppendResult:
        try:
            verification = self._broker.transactions.verify(request, params)
        except RaykaError as error:
            return AppendResult(int(error.code))
        return self.replicas.append(request, params, now_ms, verification).result

    async def write_txn_marker(self, marker: TxnMarker) -> list[ErrorCode]:
        return write_marker(self._broker, marker)

    async def describe_producers(self, partitions: Sequence[TopicPartition]) -> list[ActiveProducers]:
        return self.replicas.active_producers(partitions)

    def fetch(
        self,
        partitions: Sequence[FetchPartition],
        *,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        isolation: IsolationLevel,
    ) -> Future[list[FetchResult]]:
        future: Future[list[FetchResult]] = self._loop.create_future()
        fetch = WaitingFetch(future, partitions, min_bytes, max_bytes, isolation)
        if not self._try(fetch, at_once=max_wait_ms <= 0):
            self._waiting[future] = fetch
            timer = self._loop.call_later(max_wait_ms / 1000, lambda: self._try(fetch, at_once=True))
            future.add_done_callback(lambda _: self._forget(future, timer))
        return future

    def _forget(self, future: Future[Any], timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        self._waiting.pop(future, None)

    def _try(self, fetch: WaitingFetch, at_once: bool = False) -> bool:
        """Answer the fetch if there is enough to read, or if it must be now."""
        results = self.replicas.fetch(fetch.partitions, fetch.max_bytes, fetch.isolation)
        enough = sum(result.size for result in results) >= fetch.min_bytes
        if not (enough or at_once or any(result.error for result in results)):
            return False
        if not fetch.future.done():
            fetch.future.set_result(results)
        return True

    def process_of(self, topic_partition: TopicPartition) -> str | None:
        return None

    def are_on_this_node(self, topic_partitions: Sequence[TopicPartition]) -> bool:
        return True

    def channel_of(self, topic_partition: TopicPartition) -> tuple[str, int] | None:
        return None

    async def list_offsets(self, queries: Sequence[OffsetQuery], isolation: IsolationLevel) -> list[OffsetAnswer]:
        return self.replicas.list_offsets(queries, isolation)

    async def epoch_end_offsets(self, queries: Sequence[EpochQuery]) -> list[EpochEndOffset]:
        return self.replicas.epoch_end_offsets(queries)

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], timeout_ms: int
    ) -> dict[TopicPartition, DeleteRecordsResult]:
        return dict(zip(offsets, self.replicas.delete_records(list(offsets.items())), strict=True))

    def check_records(self, records: FileSlice) -> None:
        """Nothing fails here."""

    async def describe_log_dirs(self) -> list[LogDirDescription]:
        replicas = tuple(
            ReplicaDescription(partition.topic_partition, partition.log.size) for partition in self.replicas
        )
        usage = shutil.disk_usage(self.directory)
        return [LogDirDescription(0, self.directory, replicas, usage.total, usage.free)]

    def follow(self, image: MetadataImage, config: BrokerConfig) -> None:
        """Hold and lead what the image says."""
        wanted = {
            TopicPartition(topic.name, partition.partition): (topic, partition)
            for topic in image.topics.values()
            for partition in topic.partitions
        }
        for partition in self.replicas:
            name = partition.topic_partition
            if name not in wanted or wanted[name][0].topic_id != partition.topic_id:
                self.replicas.remove(name).log.close(time.time_ns() // 1_000_000)
                shutil.rmtree(partition.log.directory)
        for name, (topic, partition) in wanted.items():
            log_config = config.log_config(image.topic_configs(topic.name))
            if name not in self.replicas:
                log = Log.open(
                    os.path.join(self.directory, str(name)),
                    name,
                    log_config,
                    RealFiles(),
                    now_ms=time.time_ns() // 1_000_000,
                    topic_id=topic.topic_id,
                )
                self.replicas.add(Partition(log, topic.topic_id, is_internal=topic.is_internal))
            self.replicas.get(name).log.configure(log_config)
            self.replicas.get(name).become_leader(partition.leader_epoch)


class LocalController:
    """`ports.Controller` over the controller's core."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool, timeout_ms: int
    ) -> list[TopicResult]:
        ids = [uuid.uuid4() for _ in topics]
        return self._broker.commit(self._broker.core.create_topics(topics, validate_only, ids))

    async def delete_topics(self, topics: Sequence[str | uuid.UUID], timeout_ms: int) -> list[TopicResult]:
        return self._broker.commit(self._broker.core.delete_topics(topics))

    async def create_partitions(
        self, requests: Sequence[NewPartitions], validate_only: bool, timeout_ms: int
    ) -> list[TopicResult]:
        return self._broker.commit(self._broker.core.create_partitions(requests, validate_only))

    async def incremental_alter_configs(
        self, alterations: Sequence[ConfigAlteration], validate_only: bool
    ) -> list[ConfigResult]:
        return self._broker.commit(self._broker.core.incremental_alter_configs(alterations, validate_only))

    async def alter_configs(self, replacements: Sequence[ConfigReplacement], validate_only: bool) -> list[ConfigResult]:
        return self._broker.commit(self._broker.core.alter_configs(replacements, validate_only))

    async def update_features(self, updates: Sequence[FeatureUpdate], validate_only: bool, timeout_ms: int) -> None:
        self._broker.commit(self._broker.core.update_features(UpdateFeatures(tuple(updates), validate_only)))

    async def allocate_producer_id(self) -> int:
        return self._broker.commit(self._broker.core.allocate_producer_ids(NODE_ID)).first


class LocalBroker:
    """`ports.Broker`. Topics live as long as the object; `configs` are broker settings."""

    def __init__(self, directory: str, configs: Mapping[str, str] | None = None) -> None:
        texts = {"log.dirs": directory, **(configs or {})}
        self.node_id = NODE_ID
        self.config = BrokerConfig.parse(texts)
        self.core = Controller(MetadataImage(), texts, GROUP_CONFIGS)
        self.partitions = LocalPartitions(self, directory)
        self.controller = LocalController(self)
        self.groups = LocalGroups(self)
        self.shares = LocalShares(self)
        self.transactions = LocalTransactions(self)
        self.share_leaders = LocalShareLeaders(self)

    @property
    def image(self) -> MetadataImage:
        return self.core.image

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def register(self, host: str, port: int) -> None:
        """Enter the address that clients are given."""
        self.commit(self.core.create_cluster("local-cluster"))
        registration = BrokerRegistration("node", host, port, NODE_ID, log_dirs=(self.partitions.directory,))
        self.commit(self.core.register_broker(registration))
        self.commit(self.core.register_actor(ActorRegistration("actor", NODE_ID, self.partitions.directory, "one")))

    def commit(self, result: ControllerResult[Any]) -> Any:
        """Replay a command's records and let the partitions follow."""
        if result.records:
            self.core.replay(result.records)
            self.partitions.follow(self.image, self.config)
            self.groups.follow(self.image)
            self.shares.follow(self.image)
        return result.response

    def close(self) -> None:
        """Close the logs."""
        self.groups.close()
        self.share_leaders.partitions.close()
        for partition in self.partitions.replicas:
            partition.log.close(self.now_ms())


async def serve(port: int, directory: str, configs: Mapping[str, str]) -> None:
    """Listen until cancelled."""
    from rayka.gateway.server.listener import Listener

    broker = LocalBroker(directory, configs)
    listener = Listener(broker, "127.0.0.1", port)
    await listener.start()
    broker.register("127.0.0.1", listener.port)
    print(f"listening on 127.0.0.1:{listener.port}", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await listener.stop()
        broker.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(int(sys.argv[1]), sys.argv[2], dict(argument.split("=", 1) for argument in sys.argv[3:])))
