"""Filling a topic, and reading it by the source and by a plain consumer."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

START_MS = 1_700_000_000_000
PLACES = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
    ]
)


def fill(cluster: Any, topic: str, count: int, start: int = 0, partitions: int = 3) -> None:
    """Record i goes to partition i % partitions, a second after the one before; every hundredth has no value."""
    with cluster.producer(compression_type="lz4") as producer:
        for i in range(start, start + count):
            producer.send(
                topic,
                value=None if i % 100 == 0 else b"value %d" % i,
                key=None if i % 50 == 1 else b"key %d" % (i % 97),
                headers=[("a", b"1"), ("b", None)] if i % 3 == 0 else None,
                timestamp_ms=START_MS + 1000 * i,
                partition=i % partitions,
            )


def source(spark: Any, cluster: Any, topic: str | None = None, **options: Any) -> Any:
    """A DataFrame of `spark.read.format("rayka")`."""
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, **options}
    if topic is not None:
        given["subscribe"] = topic
    return spark.read.format("rayka").options(**given).load()


def places(rows: Any) -> list[tuple[int, int]]:
    """Partition and offset of each row, in order."""
    return sorted((row["partition"], row["offset"]) for row in rows)


def consumed(cluster: Any, topic: str, partitions: int = 3) -> list[Any]:
    """Everything as a plain consumer sees it."""
    rows: list[Any] = []
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        assigned = [(topic, partition) for partition in range(partitions)]
        consumer.assign(assigned)
        ends = consumer.end_offsets(assigned)
        while len(rows) < sum(ends.values()):
            for records in consumer.poll(timeout_ms=1000).values():
                rows.extend(records)
    return rows
