"""Writes DataFrames to a topic in transactions: exactly once from topic to topic.

The driver's producer begins and ends a transaction, and the tasks write in it (`joins`). First the rows are brought
together by their partition, since a partition's sequence numbers must come from one producer. A task that Spark repeats
would write its rows twice, so the driver's `WriteClaims` lets each task write once in a transaction. If one is
refused the job fails, and its transaction is aborted; the next one has another producer epoch, so that a task of the
failed job that is still alive somewhere can't write any more.

A stream commits the offsets that its batch has read in the same transaction, with the number of the batch as their
metadata. So a batch that comes again after a crash is recognised, and the group `rayka-stream-ID-TOPIC` shows the lag.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import ray
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import IntegerType, StructField, StructType

from rayka.client.forms import Closing
from rayka.client.group.coordinator import OffsetAndMetadata
from rayka.client.joined import RayCluster
from rayka.client.settings import OpenTransaction
from rayka.errors import ErrorCode, RaykaError
from rayka.spark.claims import WriteClaims
from rayka.spark.committed import Committed, PlannedOffsets
from rayka.spark.running import RunningBatch, Sink, running_batch
from rayka.spark.sessions import ray_cluster_of
from rayka.spark.write import TopicSender, count_of, records_of
from rayka.types import TopicPartition

logger = logging.getLogger(__name__)

TRANSACTION_TIMEOUT_MS = 900_000
"""The longest that brokers allow by default, because a transaction is open as long as its job runs."""
_ATTEMPTS = 3
_PARTITION = StructField("partition", IntegerType())


@dataclass(frozen=True)
class TransactionWriter:
    """A function for `mapInArrow` that writes rows in the driver's transaction and yields how many there were.

    Raises INVALID_TXN_STATE in a task that is not the first of its number in this transaction.
    """

    ray_cluster: RayCluster
    topic: str
    settings: dict[str, Any]
    transaction: OpenTransaction
    claims: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self.ray_cluster.join()  # connects this worker to Ray, which the claim needs
        self._claim()
        yield from TopicSender(self.ray_cluster, self.topic, {**self.settings, "joins": self.transaction})(batches)

    def _claim(self) -> None:
        task = TaskContext.get()
        assert task is not None
        claims: Any = ray.get_actor(self.claims, namespace=self.ray_cluster.namespace)
        if not ray.get(claims.claim.remote(self.transaction, task.partitionId())):
            raise RaykaError(
                ErrorCode.INVALID_TXN_STATE,
                f"Task {task.partitionId()} has written in this transaction before, so the transaction must be aborted",
            )


@dataclass(frozen=True)
class PartitionChooser:
    """A function for `mapInArrow` that sets the partition of rows that have a key and no partition."""

    partition_count: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from rayka.client.producer.tables import choose_partitions

        for batch in batches:
            names = batch.schema.names
            keys = choose_partitions(batch.column(names.index("key")), self.partition_count)
            chosen = pa.array(keys, pa.int32(), mask=keys < 0)
            if "partition" in names:
                chosen = pc.coalesce(batch.column(names.index("partition")), chosen)
            rest = [name for name in names if name != "partition"]
            columns = [batch.column(names.index(name)) for name in rest]
            yield pa.RecordBatch.from_arrays([*columns, chosen], [*rest, "partition"])


def by_partition(rows: DataFrame, partition_count: int) -> DataFrame:
    """The rows with their partitions, each partition in one task. Rows without a key are spread evenly."""
    if "key" in rows.columns:
        fields = [field for field in rows.schema.fields if field.name != "partition"]
        rows = rows.mapInArrow(PartitionChooser(partition_count), StructType([*fields, _PARTITION]))
    elif "partition" not in rows.columns:
        rows = rows.withColumn("partition", F.lit(None).cast("int"))
    row = F.monotonically_increasing_id().bitwiseAND(
        F.lit(2**33 - 1)
    )  # its number within the task; above is the task's
    turn = F.pmod(F.spark_partition_id() + row, F.lit(partition_count)).cast("int")
    placed = rows.withColumn("partition", F.coalesce("partition", turn))
    return placed.repartition(partition_count, "partition")


class TopicTransactions(Closing):
    """Writes DataFrames to a topic, each in a transaction; used by the driver.

    A later instance with the same transactional id fences this one.
    """

    def __init__(self, ray_cluster: RayCluster, topic: str, transactional_id: str, settings: Mapping[str, Any]) -> None:
        self._ray_cluster = ray_cluster
        self._topic = topic
        self._settings = dict(settings)
        timeout_ms = self._settings.pop("transaction_timeout_ms", TRANSACTION_TIMEOUT_MS)
        self._cluster = ray_cluster.join()
        self._producer = self._cluster.producer(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        self._claims_name = f"rayka-write-claims-{uuid.uuid4().hex}"
        claims = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(WriteClaims)
        self._claims: Any = claims.options(name=self._claims_name, namespace=ray_cluster.namespace).remote()

    def close(self) -> None:
        """Close the producer and end the actor."""
        try:
            ray.kill(self._claims)
        finally:
            self._producer.close()

    def init(self) -> None:
        """Fence earlier drivers and end their open transaction. Raises PRODUCER_FENCED if a later driver has begun."""
        self._producer.init_transactions()

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> Committed:
        """The offsets that earlier transactions committed."""
        with self._cluster.consumer(group, enable_auto_commit=False) as consumer:
            found = consumer.committed(partitions)
        return {partition: one for partition, one in found.items() if one is not None}

    def write(
        self, rows: DataFrame, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None, group: str = ""
    ) -> int:
        """Write all rows and commit offsets with them. After an exception the transaction is aborted or in doubt.

        Raises UNKNOWN_TOPIC_OR_PARTITION.
        """
        partition_count = len(self._cluster.admin().describe_topics([self._topic])[0].partitions)
        self._producer.begin_transaction()
        try:
            transaction = self._producer.share_transaction()
            ray.get(self._claims.begin.remote(transaction))
            writer = TransactionWriter(self._ray_cluster, self._topic, self._settings, transaction, self._claims_name)
            count = count_of(by_partition(rows, partition_count), writer)
            if offsets:
                self._producer.send_offsets(offsets, group)
        except BaseException:
            self._producer.abort_transaction()
            raise
        if count or offsets:
            self._producer.commit_transaction()
        else:
            self._producer.abort_transaction()
        return count


def topic_sink(
    topic: str,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    *,
    value: str | Column | None = None,
    key: str | Column | None = None,
    partition: str | Column | None = None,
    timestamp: str | Column | None = None,
    headers: str | Column | None = None,
    producer: dict[str, Any] | None = None,
) -> Sink:
    """Write each batch of a stream, transformed, to a topic in one transaction: exactly once.

    The arguments are those of `write_topic`. Consumers with `read_committed` see a batch as a whole or not at all. If
    its job fails, it is written again, a few times, in another transaction. A stream that is started again with its
    checkpoint ends the transaction that the earlier run left open, and continues after the last committed batch.

    A sink of your own may call several of these, each for another topic with its own transaction. A second call for one
    topic in a batch raises INVALID_REQUEST.
    """
    given = {"value": value, "key": key, "partition": partition, "timestamp": timestamp, "headers": headers}
    return TopicSink(topic, transform, given, producer or {})


class TopicSink:
    """See `topic_sink`."""

    def __init__(
        self,
        topic: str,
        transform: Callable[[DataFrame], DataFrame] | None,
        columns: Mapping[str, str | Column | None],
        settings: Mapping[str, Any],
    ) -> None:
        self._topic = topic
        self._transform = transform
        self._columns = columns
        self._settings = settings
        self._transactions: dict[str, TopicTransactions] = {}

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write a batch, unless it was committed. Raises the error of the last attempt."""
        running = running_batch()
        if running is None:
            raise RaykaError(ErrorCode.INVALID_REQUEST, "topic_sink is for streams: use write_topic")
        running.sinks.add(self)
        rows = records_of(df if self._transform is None else self._transform(df), **self._columns)
        planned = PlannedOffsets(self._group(running.stream_id), batch_id, running.ranges)
        with running.frames.only(f"topic {self._topic} of a topic_sink"):
            self._write(rows, self._transactions_of(df, running), planned)

    def _write(self, rows: DataFrame, transactions: TopicTransactions, planned: PlannedOffsets) -> None:
        batch_id, group = planned.batch_id, planned.group
        for attempt in range(1, _ATTEMPTS + 1):
            transactions.init()
            if planned.are_committed(transactions.committed(group, planned.offsets)):
                return
            try:
                transactions.write(rows, planned.offsets, group)
            except Exception as error:
                logger.warning("batch %d: attempt %d of %d failed: %s", batch_id, attempt, _ATTEMPTS, error)
                if attempt == _ATTEMPTS:
                    raise
            else:
                return

    def _transactions_of(self, df: DataFrame, running: RunningBatch) -> TopicTransactions:
        name = self._group(running.stream_id)
        if name not in self._transactions:
            ray_cluster = ray_cluster_of(df.sparkSession)
            self._transactions[name] = TopicTransactions(ray_cluster, self._topic, name, self._settings)
        return self._transactions[name]

    def release(self, stream_id: str) -> None:
        """Close the producer that was kept for the next batch of a stream."""
        transactions = self._transactions.pop(self._group(stream_id), None)
        if transactions is not None:
            transactions.close()

    def _group(self, stream_id: str) -> str:
        """The transactional id of a stream to this topic, and the group that has its offsets."""
        return f"rayka-stream-{stream_id}-{self._topic}"
