"""A topic as a DataFrame.

The rows of an inner DataFrame are splits, each a range of offsets, which `SplitReader` maps in the executors' Python
workers. The offsets are fixed when the DataFrame is created: an action that runs again, and a task that Spark repeats,
read the same records.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rayka.client.cluster import Cluster
from rayka.client.consumer.range_reader import COLUMNS
from rayka.client.consumer.topic_offsets import TopicOffsets, isolation_of
from rayka.client.joined import node_hosts
from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.batches import OnDataLoss
from rayka.ranges.filters import Condition, narrow
from rayka.ranges.plan import NO_TOPIC_ID, OffsetRange, Positions, plan_ranges, split
from rayka.spark.sessions import TABLES, ray_cluster_of
from rayka.spark.source.options import DEFAULT_FETCH_BYTES, DEFAULT_TIMEOUT_MS, FetchSettings
from rayka.spark.values.decoding import Decoding
from rayka.spark.worker.splits import SPLIT, Fetches, SplitReader, Tables
from rayka.types import IsolationLevel

_HEADER = StructType([StructField("key", StringType(), False), StructField("value", BinaryType())])
SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", ArrayType(_HEADER)),
    ]
)
"""The columns of Spark's Kafka source."""
_OF_SPLIT = ("topic", "partition")
_COMPARED: Mapping[str, Callable[[Column, Any], Column]] = {
    "=": operator.eq,
    "in": lambda column, values: column.isin(list(values)),
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_SPLITS = StructType([StructField("split", StringType(), False)])


def read_topic(
    spark: SparkSession,
    topics: str | Iterable[str] | None = None,
    *,
    pattern: str | None = None,
    starting: Positions = "earliest",
    ending: Positions = "latest",
    columns: Sequence[str] = COLUMNS,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
    values: Decoding | None = None,
    where: Iterable[tuple[str, str, Any]] = (),
    read_committed: bool = True,
) -> DataFrame:
    """The records of one or several topics, or of those whose whole name matches `pattern`.

    `starting` and `ending` are "earliest", "latest", a `datetime`, a `Timestamp`, or for each partition one of these or
    an offset: `{topic: {partition: offset}}`. `columns` are those of `SCHEMA`; other columns are not read, so name only
    those that you need. `min_partitions` asks for more and smaller splits than the topics have partitions;
    `max_records_per_partition` bounds them. `values` (`json_values`, `avro_values`, `arrow_values`) replaces `value` by
    the columns of a given schema.

    `where` has conditions on topic, partition, offset and timestamp, all of which must hold: `[("partition", "in", [0,
    2]), ("timestamp", ">=", time)]`, with the operators = in > >= < <=. A filter on the DataFrame gives the same
    records, but Spark does not pass it to the reader, which then reads all records.
    """
    conditions = [Condition(*each) for each in where]
    admin = ray_cluster_of(spark).join().admin()
    offsets = TopicOffsets(admin, topics, pattern, isolation_of(read_committed))
    ranges = plan_ranges(offsets.topic_ids(), offsets.list_offsets, starting, ending)
    ranges = narrow(ranges, conditions, offsets.list_offsets)
    splits = split(ranges, min_partitions or 1, max_records_per_partition)
    inexact = [each for each in conditions if not each.is_exact]
    added = tuple(dict.fromkeys(each.column for each in inexact if each.column not in columns))
    frame = read_splits(spark, splits, (*columns, *added), values, offsets.isolation)
    for each in inexact:
        frame = frame.where(_COMPARED[each.operator](F.col(each.column), each.value))
    return frame.drop(*added)


def read_splits(
    spark: SparkSession,
    splits: Sequence[OffsetRange],
    columns: Sequence[str] = COLUMNS,
    values: Decoding | None = None,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    on_data_loss: OnDataLoss = "fail",
) -> DataFrame:
    """The records of exactly these ranges, each a partition of the DataFrame."""
    wanted = tuple(columns)
    _require_columns(wanted, values)
    decoding = None if values is None else replace(values, schema=values.fields)
    ray_cluster = ray_cluster_of(spark)
    carried = tuple(name for name in wanted if name not in _OF_SPLIT)
    source: Tables | Fetches = Tables(ray_cluster, isolation, on_data_loss)
    if spark.conf.get(TABLES, "true") == "false" and on_data_loss == "fail" and all(map(_has_topic_id, splits)):
        brokers, timeout_s = ray_cluster.connection().bootstrap_servers, DEFAULT_TIMEOUT_MS / 1000
        source = Fetches(FetchSettings(brokers, isolation, True, timeout_s, DEFAULT_FETCH_BYTES))
    reader = SplitReader(source, carried, decoding.decode if decoding else None)
    schema = StructType([SCHEMA[name] for name in carried])
    mapped = (decoding.replace(schema) if decoding else schema).add(SPLIT, IntegerType())
    frame = _splits(spark, ray_cluster.join(), splits).mapInArrow(reader, mapped)
    whole = StructType([SCHEMA[name] for name in wanted])
    names = (decoding.replace(whole) if decoding else whole).names
    return frame.select(*(_of_split(name, splits) if name in _OF_SPLIT else frame[name] for name in names))


def _has_topic_id(offsets: OffsetRange) -> bool:
    return offsets.topic_id != NO_TOPIC_ID


def _of_split(name: str, splits: Sequence[OffsetRange]) -> Column:
    """Topic or partition, which all records of a split share: looked up only where the query uses it."""
    texts = F.split(F.lit(",".join(str(getattr(each, name)) for each in splits)), ",")
    return texts[F.col(SPLIT)].cast(SCHEMA[name].dataType).alias(name)


def _require_columns(columns: Sequence[str], values: Decoding | None) -> None:
    unknown = [name for name in columns if name not in SCHEMA.names]
    if unknown or not columns:
        message = f"Unknown column: {unknown} (there are {', '.join(SCHEMA.names)})"
        raise RaykaError(ErrorCode.INVALID_REQUEST, message)
    if values is not None and "value" not in columns:
        raise RaykaError(ErrorCode.INVALID_REQUEST, "the argument values needs the column value: add it to columns")


def _splits(spark: SparkSession, cluster: Cluster, splits: Sequence[OffsetRange]) -> DataFrame:
    """One row for each split, in a partition of its own; Spark prefers to run it on the leader's node."""
    if not splits:
        return spark.createDataFrame([], _SPLITS)
    context: Any = spark.sparkContext
    jvm = context._jvm
    hosts = node_hosts(cluster)
    leaders = _leaders(cluster, splits)
    located = jvm.java.util.ArrayList()
    for number, each in enumerate(splits):
        fields = json.dumps((number, *each.to_json()))
        row = jvm.org.apache.spark.sql.RowFactory.create(_array_of(context, fields))
        host = hosts.get(leaders[each.topic, each.partition])
        places = _scala_seq(jvm, [] if host is None else [host])
        located.add(jvm.scala.Tuple2(row, places))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("org.apache.spark.sql.Row"))
    rdd = context._jsc.sc().makeRDD(jvm.scala.collection.JavaConverters.asScalaBufferConverter(located).asScala(), tag)
    session: Any = spark
    schema = session._jsparkSession.parseDataType(_SPLITS.json())
    return DataFrame(session._jsparkSession.createDataFrame(rdd.toJavaRDD(), schema), spark)


def _array_of(context: Any, text: str) -> Any:
    array = context._gateway.new_array(context._jvm.java.lang.Object, 1)
    array[0] = text
    return array


def _scala_seq(jvm: Any, items: Sequence[str]) -> Any:
    buffer = jvm.java.util.ArrayList()
    for item in items:
        buffer.add(item)
    return jvm.scala.collection.JavaConverters.asScalaBufferConverter(buffer).asScala().toSeq()


def _leaders(cluster: Cluster, splits: Sequence[OffsetRange]) -> dict[tuple[str, int], int]:
    topics = cluster.admin().describe_topics({each.topic for each in splits})
    return {(topic.name, each.partition): each.leader for topic in topics for each in topic.partitions}
