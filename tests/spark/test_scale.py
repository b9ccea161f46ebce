"""A topic that came through the wire, as Spark and as a plain Kafka consumer see it: in the long form of 2 GB."""

from __future__ import annotations

import zlib
from collections import Counter

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.load import CONSUMER
from benchmarks.spark import write
from rayka.spark import read_topic
from tests.spark.conftest import new_topic
from tests.support.scale import rounds

RECORDS = rounds(100_000, 20_000_000)
PARTITIONS = 8


class Consumed:
    """What a plain consumer computes, record by record: counts and sums of checksums by key, and sums over all."""

    def __init__(self, bootstrap, topic):
        self.counts, self.checksums = Counter(), Counter()
        self.length = self.offsets = self.checksum = 0
        consumer = Consumer({"bootstrap.servers": bootstrap, **CONSUMER})
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        while self.counts.total() < RECORDS:
            records = consumer.consume(10_000, timeout=120)
            assert records, f"only {self.counts.total()} of {RECORDS} records came"
            self._add(records)
        assert not consumer.consume(1, timeout=0.2)
        consumer.close()

    def _add(self, records):
        keys = [record.key() for record in records]
        values = [record.value() for record in records]
        self.counts.update(keys)
        self.length += sum(map(len, values))
        self.offsets += sum(record.offset() for record in records)
        for key, checksum in zip(keys, map(zlib.crc32, values), strict=True):
            self.checksums[key] += checksum
            self.checksum += checksum


def test_count_sums_group_by_and_join_are_those_of_a_plain_consumer(spark, cluster, request):
    topic = new_topic(cluster, request.node.name, PARTITIONS)
    write(cluster.bootstrap_servers, RECORDS, topic=topic)
    consumed = Consumed(cluster.bootstrap_servers, topic)
    frame = read_topic(spark, topic)

    assert frame.count() == RECORDS
    checksum = F.crc32("value")
    sums = frame.agg(F.sum(F.length("value")), F.sum("offset"), F.sum(checksum)).first()
    assert tuple(sums) == (consumed.length, consumed.offsets, consumed.checksum)

    spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")
    groups = frame.groupBy("key").agg(F.count("*"), F.sum(checksum)).toPandas()
    grouped = {bytes(key): (count, checksum) for key, count, checksum in groups.itertuples(index=False)}
    assert grouped == {key: (count, consumed.checksums[key]) for key, count in consumed.counts.items()}

    few = frame.where("partition = 3 and offset < 1000").select("key")
    keys = Counter(bytes(row["key"]) for row in few.collect())
    assert keys.total() == 1000
    joined = sum(consumed.counts[key] * times for key, times in keys.items())
    assert frame.join(few, "key").count() == joined
