"""Rows of Arrow batches into topics over the Kafka protocol, each acknowledged by all in-sync replicas.

Rows become record batches in compiled code. A batch whose acknowledgement was lost is sent again with the same
sequence, so that the leader keeps it once. A task that Spark repeats has another producer id: its rows come again.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from rayka.client.kafka.admin import TOPIC, KafkaAdmin, Resource
from rayka.client.kafka.cluster import KafkaCluster, existing, raise_for
from rayka.client.kafka.connection import BrokerConnection, entity
from rayka.client.producer.partitioner import Partitioner, StickyPartition, key_partition
from rayka.client.settings import ProducerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import stamp_producer
from rayka.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from rayka.client.producer.row_batches import EncodedBatch

_RETRY_S = 0.1
_ACKS_ALL = -1
_BATCH_BYTES = 1_000_000
_MAX_SEQUENCE = 2**31 - 1
_MAX_WAIT_S = 30.0
_NO_TRANSACTIONS = timedelta(milliseconds=-1)
_FINAL = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
T = TypeVar("T")


class TopicPartitioner:
    """The partitions of a topic, and the choice of one for each record. `max_batch_size` is max.message.bytes."""

    def __init__(self, topic: str, partition_count: int, max_batch_size: int) -> None:
        self.topic = topic
        self.partition_count = partition_count
        self.max_batch_size = max_batch_size
        self._sticky = StickyPartition(_BATCH_BYTES)

    def choose(self, key: bytes | None, size: int, partition: int | None, partitioner: Partitioner | None) -> int:
        """The partition asked for, else the key's, else the one that rows without a key go to at the moment."""
        if partition is not None and not 0 <= partition < self.partition_count:
            message = f"partition {partition}: topic {self.topic} has partitions 0 to {self.partition_count - 1}"
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        if partition is not None:
            return partition
        if key is not None:
            return key_partition(key, self.partition_count)
        return self._sticky.next(size, range(self.partition_count))


class RowSender(AbstractContextManager["RowSender"]):
    """Sends rows over its own connections; use it as a context manager. `timeout_s` limits each batch."""

    def __init__(
        self,
        bootstrap_servers: str,
        compression_type: str,
        timeout_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._config = ProducerConfig(compression_type=compression_type)
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._cluster: KafkaCluster | None = None
        self._topics: dict[str, TopicPartitioner] = {}
        self._leaders: dict[TopicPartition, BrokerConnection] = {}

    def __exit__(self, *raised: object) -> None:
        self._forget()

    def send(self, topic: str, rows: pa.RecordBatch) -> int:
        """Send rows and return their number once all are acknowledged. Raises RaykaError."""
        from rayka.client.producer.row_batches import RowEncoder
        from rayka.client.producer.tables import arrow_table, rows_of_table

        partitions = self._retried(functools.partial(self._partitions, topic))
        now_ms = time.time_ns() // 1_000_000
        encoder = RowEncoder(partitions, self._config, None)
        for part, chosen in rows_of_table(arrow_table(rows), partitions, self._config, now_ms):
            for batch in encoder.encode(part, chosen):
                partition = TopicPartition(topic, batch.partition)
                self._retried(functools.partial(self._send, partition, self._stamped(partition, batch)))
        return int(rows.num_rows)

    def _send(self, partition: TopicPartition, records: bytes) -> None:
        """Send one batch and wait. Raises RaykaError, BROKER_NOT_AVAILABLE if no answer came."""
        response = self._leader(partition).request(_request(partition, records, self._timeout_s))
        (answer,) = response.responses[0].partition_responses
        if answer.error_code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            raise_for(answer.error_code, answer.error_message or f"{partition} cannot be written")

    def _stamped(self, partition: TopicPartition, batch: EncodedBatch) -> bytes:
        """The batch with this producer's id and the next sequence of the partition."""
        if self._producer is None:
            self._producer = self._retried(self._new_producer)
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = (sequence + batch.record_count) & _MAX_SEQUENCE
        stamp_producer(batch.buffer, 0, *self._producer, sequence)
        return bytes(batch.buffer)

    def _new_producer(self) -> tuple[int, int]:
        from kio.schema.init_producer_id.v4.request import InitProducerIdRequest

        answer = self._connected().any_broker().request(entity(InitProducerIdRequest, None, _NO_TRANSACTIONS))
        raise_for(answer.error_code, "no producer id is given")
        return answer.producer_id, answer.producer_epoch

    def _partitions(self, topic: str) -> TopicPartitioner:
        if topic not in self._topics:
            cluster = self._connected()
            count = len(cluster.metadata([topic]).topics[topic].partitions)
            configs = KafkaAdmin(cluster).describe_configs(Resource(TOPIC, topic))
            limit = next(int(each.value or 0) for each in configs if each.name == "max.message.bytes")
            self._topics[topic] = TopicPartitioner(topic, count, limit)
        return self._topics[topic]

    def _leader(self, partition: TopicPartition) -> BrokerConnection:
        if partition not in self._leaders:
            metadata = self._connected().metadata([partition.topic])
            leader = existing(metadata, partition).leader
            if leader not in metadata.brokers:
                raise RaykaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader")
            self._leaders[partition] = self._connected().broker(metadata.brokers[leader])
        return self._leaders[partition]

    def _connected(self) -> KafkaCluster:
        if self._cluster is None:
            self._cluster = KafkaCluster(self._bootstrap_servers, self._timeout_s)
        return self._cluster

    def _forget(self) -> None:
        cluster, self._cluster = self._cluster, None
        self._leaders.clear()
        if cluster is not None:
            cluster.__exit__(None, None, None)

    def _retried(self, attempt: Callable[[], T]) -> T:
        """Retry while errors are transient. Raises the last one when the time is up."""
        deadline_s = self._clock() + self._timeout_s
        while True:
            try:
                return attempt()
            except RaykaError as error:
                passes = error.code.retriable or error.code is ErrorCode.BROKER_NOT_AVAILABLE
                if not passes or error.code in _FINAL or self._clock() >= deadline_s:
                    raise
            self._forget()
            self._sleep(_RETRY_S)


def _request(partition: TopicPartition, records: bytes, timeout_s: float) -> Any:
    from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData

    topic = entity(TopicProduceData, partition.topic, (entity(PartitionProduceData, partition.partition, records),))
    return entity(ProduceRequest, None, _ACKS_ALL, timedelta(seconds=min(timeout_s, _MAX_WAIT_S)), (topic,))
