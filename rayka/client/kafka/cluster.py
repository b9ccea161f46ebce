"""The brokers of a cluster: who leads, who coordinates, who controls, and connections to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from rayka.client.kafka.connection import BrokerConnection, entity
from rayka.client.kafka.values import BrokerNode, Metadata, PartitionInfo, TopicDescription
from rayka.errors import ErrorCode, RaykaError
from rayka.types import TopicPartition, is_number

TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 10.0
_BACKOFF_S = 0.05
_MAX_PORT = 65535
_GROUP_KEY = 0
_TRANSACTION_KEY = 1
_SHARE_KEY = 2
_FINAL = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.BROKER_NOT_AVAILABLE)
"""Errors that Kafka calls retriable, and after which a command does not wait for the topic or the broker to appear."""

_UNUSABLE = {
    int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): "does not exist",
    int(ErrorCode.INVALID_TOPIC_EXCEPTION): "has a name that is not valid: it may have up to 249 of a-z A-Z 0-9 . _ -",
}

T = TypeVar("T")


class KafkaCluster:
    """A cluster, found through `bootstrap_servers` (`HOST:PORT`, several separated by commas).

    Errors are RaykaError with Kafka's code. What may succeed a moment later (a coordinator that loads, a leader that
    moves) is asked again for `timeout_s` seconds.
    """

    def __init__(self, bootstrap_servers: str, timeout_s: float = TIMEOUT_S) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._timeout_s = timeout_s
        self._connections: dict[tuple[str, int], BrokerConnection] = {}
        self._bootstrap = self._first_that_answers(bootstrap_servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for connection in self._connections.values():
            connection.close()

    def metadata(self, topics: Iterable[str] | None = (), *, create: bool = False) -> Metadata:
        """The brokers, and these topics (None: all). Raises UNKNOWN_TOPIC_OR_PARTITION; `create` lets the broker create
        a topic that does not exist, if it does so for clients."""
        from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic

        wanted = None if topics is None else tuple(entity(MetadataRequestTopic, None, name) for name in topics)
        request = entity(MetadataRequest, wanted, create, False)
        return self.patiently(lambda: _metadata(self._bootstrap.request(request)))

    def named_partitions(self, topics: Mapping[str, Iterable[int] | None]) -> list[TopicPartition]:
        """The partitions with these numbers (None: all) of each topic. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        metadata = self.metadata(topics)
        named: list[TopicPartition] = []
        for name, numbers in topics.items():
            every = range(len(metadata.topics[name].partitions))
            named += [TopicPartition(name, number) for number in (every if numbers is None else sorted(set(numbers)))]
        for topic_partition in named:
            existing(metadata, topic_partition)
        return named

    def broker(self, broker: BrokerNode) -> BrokerConnection:
        """A connection to this broker."""
        return self._connection(broker.host, broker.port)

    def any_broker(self) -> BrokerConnection:
        """A connection to the broker that was found first."""
        return self._bootstrap

    def controller(self) -> BrokerConnection:
        """A connection to the controller, or to any broker where it is not known."""
        metadata = self.metadata()
        found = metadata.brokers.get(metadata.controller_id)
        return self.broker(found) if found else self._bootstrap

    def coordinator(self, group_id: str) -> BrokerNode:
        """The broker that coordinates the group."""
        from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest

        return self._coordinator(entity(FindCoordinatorRequest, _GROUP_KEY, (group_id,)), f"group {group_id}")

    def ask_coordinator(self, group_id: str, request: Any) -> Any:
        """The response of the group's coordinator to a request."""
        return self.broker(self.coordinator(group_id)).request(request)

    def transaction_coordinator(self, transactional_id: str) -> BrokerNode:
        """The broker that coordinates the transactions of a transactional id."""
        from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest

        request = entity(FindCoordinatorRequest, _TRANSACTION_KEY, (transactional_id,))
        return self._coordinator(request, f"transactional id {transactional_id}")

    def share_coordinator(self, key: str) -> BrokerNode:
        """The broker that coordinates a share-partition, by `group:topicId:partition`."""
        from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest

        return self._coordinator(entity(FindCoordinatorRequest, _SHARE_KEY, (key,)), f"share-partition {key}")

    def _coordinator(self, request: Any, what: str) -> BrokerNode:
        def find() -> BrokerNode:
            (found,) = self._bootstrap.request(request).coordinators
            raise_for(found.error_code, found.error_message or what)
            return BrokerNode(found.node_id, found.host, found.port)

        return self.patiently(find)

    def by_leader(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[BrokerConnection, list[TopicPartition]], Mapping[Any, T]],
    ) -> dict[TopicPartition, T]:
        """Ask the leader of each partition about it. Raises UNKNOWN_TOPIC_OR_PARTITION for one that does not exist."""
        wanted = list(partitions)

        def once() -> dict[TopicPartition, T]:
            answers: dict[TopicPartition, T] = {}
            for broker, led in self._leaders(wanted).items():
                answers.update(ask(self.broker(broker), led))
            return answers

        return self.patiently(once) if wanted else {}

    def _leaders(self, wanted: list[TopicPartition]) -> dict[BrokerNode, list[TopicPartition]]:
        metadata = self.metadata(dict.fromkeys(topic_partition.topic for topic_partition in wanted))
        leaders: dict[BrokerNode, list[TopicPartition]] = {}
        for topic_partition in wanted:
            partition = existing(metadata, topic_partition)
            if partition.leader not in metadata.brokers:
                raise RaykaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic_partition} has no leader")
            leaders.setdefault(metadata.brokers[partition.leader], []).append(topic_partition)
        return leaders

    def patiently(self, ask: Callable[[], T]) -> T:
        """Ask again while the error is one that passes. Raises the last error when the time is up."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return ask()
            except RaykaError as error:
                if error.code in _FINAL or not error.code.retriable or time.monotonic() >= deadline:
                    raise
            time.sleep(_BACKOFF_S)

    def _connection(self, host: str, port: int) -> BrokerConnection:
        if (host, port) not in self._connections:
            self._connections[host, port] = BrokerConnection(host, port, min(self._timeout_s, _CONNECT_TIMEOUT_S))
        return self._connections[host, port]

    def _first_that_answers(self, bootstrap_servers: str) -> BrokerConnection:
        failure: RaykaError | None = None
        for host, port in addresses(bootstrap_servers):
            try:
                return self._connection(host, port)
            except RaykaError as error:
                failure = error
        assert failure is not None
        raise failure


def addresses(bootstrap_servers: str) -> list[tuple[str, int]]:
    """The host and port of each server. Raises INVALID_REQUEST for one that has none."""
    found = []
    for server in bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not is_number(port) or not 1 <= int(port) <= _MAX_PORT:
            message = f"{server.strip()!r} is not of the form HOST:PORT, with a port from 1 to {_MAX_PORT}"
            raise RaykaError(ErrorCode.INVALID_REQUEST, message)
        found.append((host.strip("[]"), int(port)))
    return found


def existing(metadata: Metadata, topic_partition: TopicPartition) -> PartitionInfo:
    """The partition. Raises UNKNOWN_TOPIC_OR_PARTITION."""
    topic = metadata.topics[topic_partition.topic]
    for partition in topic.partitions:
        if partition.partition == topic_partition.partition:
            return partition
    message = f"{topic_partition.topic} has no partition {topic_partition.partition}; it has {len(topic.partitions)}"
    raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


def raise_for(code: int, message: str) -> None:
    """Raise the RaykaError for an error code of the protocol; 0 is none."""
    if code:
        raise RaykaError(ErrorCode(code), message)


def _metadata(response: Any) -> Metadata:
    brokers = {one.node_id: BrokerNode(one.node_id, one.host, one.port, one.rack) for one in response.brokers}
    topics = {}
    for topic in response.topics:
        raise_for(topic.error_code, f"topic {topic.name} " + _UNUSABLE.get(topic.error_code, "cannot be used"))
        topics[topic.name] = TopicDescription(topic.name, topic.topic_id, topic.is_internal, _partitions(topic))
    return Metadata(response.cluster_id or "", response.controller_id, brokers, topics)


def _partitions(topic: Any) -> tuple[PartitionInfo, ...]:
    found = [
        PartitionInfo(
            one.partition_index, one.leader_id, one.leader_epoch, tuple(one.replica_nodes), tuple(one.isr_nodes)
        )
        for one in topic.partitions
    ]
    return tuple(sorted(found))
