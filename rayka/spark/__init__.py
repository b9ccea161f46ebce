"""Spark on Ray reads and writes topics.

    import rayka.spark

    spark = rayka.spark.session()
    clicks = rayka.spark.read_topic(spark, "clicks")

`session` starts Spark on the broker's Ray cluster (RayDP). `read_topic` returns a DataFrame with the columns of Spark's
own Kafka source. `write_topic` sends a DataFrame to a topic. `stream_topic` runs micro-batches with a checkpoint, into
a sink for Parquet files (`parquet_sink`), topics (`topic_sink`) or Delta tables (`delta_sink`). This needs the extra
`rayka[spark]`. A name is loaded when it is first used, so executors load only what reads or writes.

`rayka.spark.source` is the data source of PySpark 4, with the extra `rayka[spark4]`. `local_settings` lets its sessions
start sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayka.lazy import lazy_names

if TYPE_CHECKING:
    from rayka.ranges.losses import DataLoss
    from rayka.ranges.plan import Timestamp
    from rayka.spark.delta import delta_settings, delta_sink
    from rayka.spark.java import prepare_java
    from rayka.spark.local import local_settings
    from rayka.spark.read import read_topic
    from rayka.spark.running import batch_offsets, stream_id
    from rayka.spark.sessions import session, stop
    from rayka.spark.sinks import parquet_sink
    from rayka.spark.stream import Progress, TopicStream, stream_topic
    from rayka.spark.transactions import topic_sink
    from rayka.spark.values.decoding import arrow_values, avro_values, json_values, registry_values
    from rayka.spark.values.protobuf import protobuf_values
    from rayka.spark.write import write_topic

_MODULES = {
    "rayka.ranges.losses": ("DataLoss",),
    "rayka.ranges.plan": ("Timestamp",),
    "rayka.spark.values.decoding": (
        "arrow_values",
        "avro_values",
        "json_values",
        "registry_values",
    ),
    "rayka.spark.delta": (
        "delta_settings",
        "delta_sink",
    ),
    "rayka.spark.java": ("prepare_java",),
    "rayka.spark.local": ("local_settings",),
    "rayka.spark.values.protobuf": ("protobuf_values",),
    "rayka.spark.read": ("read_topic",),
    "rayka.spark.running": (
        "batch_offsets",
        "stream_id",
    ),
    "rayka.spark.sessions": (
        "session",
        "stop",
    ),
    "rayka.spark.sinks": ("parquet_sink",),
    "rayka.spark.stream": (
        "Progress",
        "TopicStream",
        "stream_topic",
    ),
    "rayka.spark.transactions": ("topic_sink",),
    "rayka.spark.write": ("write_topic",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "DataLoss",
    "Progress",
    "Timestamp",
    "TopicStream",
    "arrow_values",
    "avro_values",
    "batch_offsets",
    "delta_settings",
    "delta_sink",
    "json_values",
    "local_settings",
    "parquet_sink",
    "prepare_java",
    "protobuf_values",
    "read_topic",
    "registry_values",
    "session",
    "stop",
    "stream_id",
    "stream_topic",
    "topic_sink",
    "write_topic",
]

__getattr__, __dir__ = lazy_names(__name__, _MODULE_OF, extra="spark")
