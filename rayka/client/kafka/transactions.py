"""Transactions of any broker: lists and describes them, finds hanging ones, and aborts one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rayka.client.kafka.admin import by_topic
from rayka.client.kafka.cluster import KafkaCluster, raise_for
from rayka.client.kafka.connection import BrokerConnection, entity
from rayka.client.kafka.values import BrokerNode
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.wire.codec import EPOCH
from rayka.types import TopicPartition


class TransactionListing(NamedTuple):
    """A transactional id. The state is written as Kafka writes it, `PrepareCommit`."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    """A transactional id and its open transaction, which began at `start_ms`; None if there is none."""

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[TopicPartition, ...]


class ProducerDescription(NamedTuple):
    """What a partition remembers of a producer. `start_offset`: of its open transaction, None if there is none."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    start_offset: int | None


class KafkaTransactionAdmin:
    """The requests about transactions (KIP-664). Every method raises RaykaError with Kafka's code."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster

    def list_transactions(
        self,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int = -1,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids of all brokers that pass these filters, in order of their names.

        `duration_ms`: only transactions that are open for longer. Raises INVALID_REGULAR_EXPRESSION, and
        INVALID_REQUEST for a state that no broker knows.
        """
        from kio.schema.list_transactions.v2.request import ListTransactionsRequest

        request = entity(ListTransactionsRequest, tuple(states), tuple(producer_ids), duration_ms, pattern)
        found: dict[str, TransactionListing] = {}
        for broker in self._cluster.metadata().brokers.values():
            for one in self._listed(broker, request):
                found[one.transactional_id] = one
        return sorted(found.values())

    def _listed(self, broker: BrokerNode, request: Any) -> list[TransactionListing]:
        def ask() -> list[TransactionListing]:
            response = self._cluster.broker(broker).request(request)
            pattern = request.transactional_id_pattern
            raise_for(response.error_code, f"transactions can't be listed (pattern {pattern!r})")
            if response.unknown_state_filters:
                unknown = ", ".join(response.unknown_state_filters)
                raise RaykaError(ErrorCode.INVALID_REQUEST, f"no transaction has the state {unknown}")
            return [
                TransactionListing(one.transactional_id, broker.broker_id, one.producer_id, one.transaction_state)
                for one in response.transaction_states
            ]

        return self._cluster.patiently(ask)

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """One transactional id. Raises TRANSACTIONAL_ID_NOT_FOUND."""
        from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest

        request = entity(DescribeTransactionsRequest, (transactional_id,))

        def describe() -> TransactionDescription:
            coordinator = self._cluster.transaction_coordinator(transactional_id)
            (found,) = self._cluster.broker(coordinator).request(request).transaction_states
            raise_for(found.error_code, f"transactional id {transactional_id} can't be described")
            return _description(found, coordinator)

        return self._cluster.patiently(describe)

    def active_producers(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[ProducerDescription]]:
        """What each partition's leader remembers of its producers."""
        from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest

        def ask(leader: BrokerConnection, led: list[TopicPartition]) -> dict[TopicPartition, list[ProducerDescription]]:
            wanted = tuple(entity(TopicRequest, topic, tuple(numbers)) for topic, numbers in by_topic(led).items())
            found = {}
            for topic in leader.request(entity(DescribeProducersRequest, wanted)).topics:
                for one in topic.partitions:
                    topic_partition = TopicPartition(topic.name, one.partition_index)
                    raise_for(one.error_code, one.error_message or f"producers of {topic_partition} can't be described")
                    found[topic_partition] = sorted(
                        _producer(topic_partition, producer) for producer in one.active_producers
                    )
            return found

        return self._cluster.by_leader(partitions, ask)

    def hanging_transactions(
        self, partitions: Iterable[TopicPartition], longest_timeout_ms: int
    ) -> list[ProducerDescription]:
        """Transactions that are open in a partition and unknown to their coordinator, so that nothing ends them.

        Only those are examined whose producer has written nothing for `longest_timeout_ms`: a coordinator has aborted
        what is open for longer.
        """
        before_ms = time.time() * 1000 - longest_timeout_ms
        producers = self.active_producers(partitions)
        opened = [
            one
            for producers_of_partition in producers.values()
            for one in producers_of_partition
            if one.start_offset is not None and one.last_timestamp_ms < before_ms
        ]
        known = self._known_partitions({one.producer_id for one in opened})
        return sorted(one for one in opened if one.topic_partition not in known.get(one.producer_id, ()))

    def _known_partitions(self, producer_ids: set[int]) -> Mapping[int, Sequence[TopicPartition]]:
        """The partitions that the coordinators have in the open transactions of producers."""
        known = {}
        for listed in self.list_transactions(producer_ids=producer_ids) if producer_ids else ():
            try:
                found = self.describe_transaction(listed.transactional_id)
            except RaykaError as error:
                if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    raise
            else:
                known[found.producer_id] = found.partitions
        return known

    def abort(self, opened: ProducerDescription) -> None:
        """Write the marker of an abort to the partition, whatever the coordinator knows."""
        from kio.schema.write_txn_markers.v1.request import (
            WritableTxnMarker,
            WritableTxnMarkerTopic,
            WriteTxnMarkersRequest,
        )

        topic_partition = opened.topic_partition
        topic = entity(WritableTxnMarkerTopic, topic_partition.topic, (topic_partition.partition,))
        epoch = max(opened.coordinator_epoch, 0)
        marker = entity(WritableTxnMarker, opened.producer_id, opened.producer_epoch, False, (topic,), epoch)
        request = entity(WriteTxnMarkersRequest, (marker,))

        def ask(leader: BrokerConnection, led: list[TopicPartition]) -> dict[TopicPartition, None]:
            (result,) = leader.request(request).markers
            for one in (one for topic in result.topics for one in topic.partitions):
                raise_for(
                    one.error_code,
                    f"the transaction of producer {opened.producer_id} in {topic_partition} can't be aborted",
                )
            return dict.fromkeys(led)

        self._cluster.by_leader([topic_partition], ask)


def _description(found: Any, coordinator: BrokerNode) -> TransactionDescription:
    start_ms = (found.transaction_start_time - EPOCH).total_seconds() * 1000
    return TransactionDescription(
        found.transactional_id,
        coordinator.broker_id,
        found.producer_id,
        found.producer_epoch,
        found.transaction_state,
        round(found.transaction_timeout.total_seconds() * 1000),
        round(start_ms) if start_ms >= 0 else None,
        tuple(sorted(TopicPartition(topic.topic, number) for topic in found.topics for number in topic.partitions)),
    )


def _producer(topic_partition: TopicPartition, one: Any) -> ProducerDescription:
    return ProducerDescription(
        topic_partition,
        one.producer_id,
        one.producer_epoch,
        one.coordinator_epoch,
        one.last_sequence,
        one.last_timestamp,
        one.current_txn_start_offset if one.current_txn_start_offset >= 0 else None,
    )
