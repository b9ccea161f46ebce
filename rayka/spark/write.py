"""Writes a DataFrame to a topic, from the executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, NullType, StringType

from rayka.client.joined import RayCluster
from rayka.client.producer.tables import COLUMNS
from rayka.errors import ErrorCode, RaykaError
from rayka.spark.sessions import ray_cluster_of

_OF_BYTES = ("key", "value")
_CASTS = {"value": "binary", "key": "binary", "timestamp": "timestamp", "partition": "int"}


def write_topic(
    df: DataFrame,
    topic: str,
    *,
    value: str | Column | None = None,
    key: str | Column | None = None,
    partition: str | Column | None = None,
    timestamp: str | Column | None = None,
    headers: str | Column | None = None,
    producer: dict[str, Any] | None = None,
    transactional_id: str | None = None,
) -> int:
    """Send every row as a record, and return how many the brokers have acknowledged (acks=all).

    Each argument is the name of a column of the DataFrame, or an expression. By default the columns `value`, `key`,
    `partition`, `timestamp` and `headers` are used if they exist. Without a `value` a row is sent as JSON of all
    columns. Without a `partition` the key chooses the partition, as in Kafka. `producer` are settings of the producer,
    for example compression_type. Keys and values are bytes or text; of another type raises INVALID_REQUEST.

    A task that Spark repeats sends its rows again: at least once. With a `transactional_id` all rows are written in one
    transaction: each row once, or none if this raises an error (after REQUEST_TIMED_OUT the transaction may have been
    committed). Other jobs with this id must not run at the same time.
    """
    rows = records_of(df, value=value, key=key, partition=partition, timestamp=timestamp, headers=headers)
    ray_cluster = ray_cluster_of(df.sparkSession)
    if transactional_id is not None:
        from rayka.spark.transactions import TopicTransactions

        with TopicTransactions(ray_cluster, topic, transactional_id, producer or {}) as transactions:
            return transactions.write(rows)
    return count_of(rows, TopicSender(ray_cluster, topic, dict(producer or {})))


def records_of(df: DataFrame, **given: str | Column | None) -> DataFrame:
    """The columns of records that `write_topic` sends, from its arguments."""
    chosen = {name: _column(df, name, column) for name, column in given.items()}
    if chosen["value"] is None:
        chosen["value"] = F.to_json(F.struct(*map(_quoted, df.columns)))
    columns = {name: chosen[name] for name in COLUMNS}
    rows = df.select(*[column.alias(name) for name, column in columns.items() if column is not None])
    for each in rows.schema:
        if each.name in _OF_BYTES and not isinstance(each.dataType, (BinaryType, StringType, NullType)):
            message = f"Column {each.name} must have bytes or text, not {each.dataType.simpleString()}: cast it"
            raise RaykaError(ErrorCode.INVALID_REQUEST, message)
    return rows.select(*[_cast(name, rows[name]) for name in rows.columns])


def count_of(rows: DataFrame, writer: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> int:
    """Let the executors write rows. Returns how many were acknowledged."""
    counts = rows.mapInArrow(writer, "records long").agg(F.sum("records")).collect()
    return int(counts[0][0] or 0)


def _column(df: DataFrame, name: str, given: str | Column | None) -> Column | None:
    if given is None:
        return df[name] if name in df.columns else None
    return df[given] if isinstance(given, str) else given


def _quoted(name: str) -> str:
    """The name of a column, which may have dots, as Spark's SQL has it."""
    return f"`{name.replace('`', '``')}`"


def _cast(name: str, column: Any) -> Column:
    cast: Column = column.cast(_CASTS[name]) if name in _CASTS else column
    return cast.alias(name)


@dataclass(frozen=True)
class TopicSender:
    """A function for `mapInArrow` that sends rows and yields how many were acknowledged."""

    ray_cluster: RayCluster
    topic: str
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sent = 0
        with self.ray_cluster.join().producer(**{"linger_ms": 5, **self.settings}) as producer:
            for batch in batches:
                for future in producer.send_table(self.topic, batch):
                    sent += future.result().record_count
        yield pa.RecordBatch.from_pydict({"records": [sent]})
