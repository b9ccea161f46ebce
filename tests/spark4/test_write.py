"""`df.write.format("rayka")` and `writeStream`: rows become records as those of Kafka's own producers."""

from __future__ import annotations

import os

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from tests.spark4.reading import consumed, fill, places, source

HEADERS = "array<struct<key:string,value:binary>>"


def write(frame, cluster, topic=None, **options):
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, **options}
    if topic is not None:
        given["topic"] = topic
    frame.write.format("rayka").options(**given).mode("append").save()


def test_what_is_read_can_be_written_and_comes_back(spark, cluster, topic, other_topic):
    fill(cluster, topic, 900)
    columns = ("key", "value", "partition", "headers")
    frame = source(spark, cluster, topic, includeHeaders="true").select(*columns)
    write(frame, cluster, other_topic, **{"kafka.compression.type": "lz4"})
    copied = source(spark, cluster, other_topic, includeHeaders="true").select(*columns)
    as_text = F.col("headers").cast("string").alias("headers")
    one, other = (each.select("key", "value", "partition", as_text) for each in (frame, copied))
    assert one.exceptAll(other).count() == other.exceptAll(one).count() == 0


def test_keys_choose_the_partition_that_kafka_chooses(spark, cluster, topic, other_topic):
    keys = [f"key {number}" for number in range(200)]
    write(spark.createDataFrame([(key, key) for key in keys], "key string, value string"), cluster, topic)
    with cluster.producer() as producer:
        for key in keys:
            producer.send(other_topic, key.encode(), key=key.encode())
    expected = {record.key: record.partition for record in consumed(cluster, other_topic)}
    assert {record.key: record.partition for record in consumed(cluster, topic)} == expected


def test_a_column_names_the_topic_of_each_row(spark, cluster, topic, other_topic):
    rows = [(topic, "a"), (other_topic, "b"), (topic, "c")]
    write(spark.createDataFrame(rows, "topic string, value string"), cluster)
    assert sorted(record.value for record in consumed(cluster, topic)) == [b"a", b"c"]
    assert [record.value for record in consumed(cluster, other_topic)] == [b"b"]
    with pytest.raises(PySparkException, match="its column topic is null"):
        write(spark.createDataFrame([(None, "a")], "topic string, value string"), cluster)


@pytest.mark.parametrize(
    ("schema", "options", "words"),
    [
        ("value int", {"topic": "T"}, "Column value has type int"),
        ("value string", {}, "Give the option topic, or a column topic"),
        ("value string", {"topic": "no-such-topic"}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("value string", {"topic": "T", "kafka.linger.ms": "5"}, "kafka.linger.ms is not supported"),
    ],
)
def test_writes_that_are_not_possible_are_refused_with_the_reason(spark, cluster, topic, schema, options, words):
    options = {name: value.replace("T", topic, 1) if value == "T" else value for name, value in options.items()}
    frame = spark.createDataFrame([(None,)], schema)
    with pytest.raises(PySparkException, match=words):
        write(frame, cluster, **options)


def test_a_topic_is_not_overwritten(spark, cluster, topic):
    writer = spark.createDataFrame([("a",)], "value string").write.format("rayka").option("topic", topic)
    with pytest.raises(PySparkException, match="never overwritten"):
        writer.option("kafka.bootstrap.servers", cluster.bootstrap_servers).mode("overwrite").save()


def test_a_stream_is_written_from_topic_to_topic(spark, cluster, topic, other_topic, tmp_path):
    fill(cluster, topic, 300)
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    reading = spark.readStream.format("rayka").options(subscribe=topic, startingOffsets="earliest", **options).load()
    writing = (
        reading.select("key", "value", "partition").writeStream.format("rayka").options(topic=other_topic, **options)
    )
    query = writing.option("checkpointLocation", os.fspath(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    assert places(source(spark, cluster, other_topic).collect()) == places(source(spark, cluster, topic).collect())
