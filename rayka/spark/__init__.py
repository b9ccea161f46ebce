"""Spark on Ray reads and writes topics.

    import rayka.spark

    spark = rayka.spark.session()
    clicks = rayka.spark.read_topic(spark, "clicks")

`session` starts Spark on the Ray cluster (RayDP) that the broker is on. `read_topic` gives a DataFrame with the columns
of Spark's own Kafka source, `stream_topic` runs micro-batches with a checkpoint, `write_topic` sends a DataFrame to a
topic.
It needs the extra `rayka[spark]`.
"""

from __future__ import annotations

from rayka.ranges.batches import DataLoss
from rayka.ranges.plan import Timestamp
from rayka.spark.decoding import arrow_values, avro_values, json_values
from rayka.spark.java import prepare_java
from rayka.spark.read import read_topic
from rayka.spark.sessions import session, stop
from rayka.spark.sinks import parquet_sink
from rayka.spark.stream import Progress, Stream, stream_id, stream_topic
from rayka.spark.write import write_topic

__all__ = [
    "DataLoss",
    "Progress",
    "Stream",
    "Timestamp",
    "arrow_values",
    "avro_values",
    "json_values",
    "parquet_sink",
    "prepare_java",
    "read_topic",
    "session",
    "stop",
    "stream_id",
    "stream_topic",
    "write_topic",
]
