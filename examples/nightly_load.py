"""The nightly batch load: each partition of a topic, from one point in time to another, into Parquet.

The load runs twice, as it would after a failure, while new records arrive. Both runs read the same records, because the
range of time is resolved to the same offsets.
"""

from __future__ import annotations

import datetime
import hashlib
import tempfile

from pyspark.sql import DataFrame, SparkSession

import rayka
import rayka.spark

DAY = datetime.datetime(2026, 3, 14, tzinfo=datetime.UTC)
HOURS, RECORDS_PER_HOUR, PARTITIONS = 72, 300, 4


def fill(cluster: rayka.client.cluster.Cluster, first_hour: int, hours: int) -> None:
    """Records of some hours, counted from the day before."""
    began_ms = int((DAY - datetime.timedelta(days=1)).timestamp() * 1000) + first_hour * 3_600_000
    with cluster.producer() as producer:
        for number in range(hours * RECORDS_PER_HOUR):
            when = began_ms + number * 3_600_000 // RECORDS_PER_HOUR
            producer.send("orders", b"order %d" % number, timestamp_ms=when, partition=number % PARTITIONS)


def load(spark: SparkSession, path: str) -> DataFrame:
    """One day's records, a folder of files for each partition of the topic."""
    day = rayka.spark.read_topic(spark, "orders", starting=DAY, ending=DAY + datetime.timedelta(days=1))
    day.write.partitionBy("partition").parquet(path)
    return spark.read.parquet(path)


def digest(frame: DataFrame) -> str:
    """Tells two loads apart."""
    rows = frame.select("partition", "offset", "value", "timestamp").orderBy("partition", "offset").collect()
    return hashlib.sha256(repr(rows).encode()).hexdigest()


with tempfile.TemporaryDirectory() as directory, rayka.start(f"{directory}/data", "127.0.0.1:0") as cluster:
    cluster.admin().create_topic("orders", partitions=PARTITIONS)
    fill(cluster, 0, HOURS)
    spark = rayka.spark.session(configs={"spark.sql.shuffle.partitions": "4"})
    first = load(spark, f"{directory}/first")
    fill(cluster, HOURS, 2)
    second = load(spark, f"{directory}/second")

    first.groupBy("partition").count().orderBy("partition").show()
    assert first.count() == 24 * RECORDS_PER_HOUR
    assert digest(first) == digest(second)
    print(f"{first.count():,} orders of {DAY:%d %B %Y}, loaded twice with equal results")
    rayka.spark.stop()
