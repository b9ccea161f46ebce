"""`spark.read.format("rayka")`: what is read is what a consumer reads; options are those of Spark's Kafka source."""

from __future__ import annotations

import datetime
import json

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from tests.spark4.reading import START_MS, consumed, fill, places, source
from tests.support.leaders import kill_leader
from tests.support.transactions import COMMITTED, undecided

COUNT = 3_000
SCHEMA_OF_SPARKS_SOURCE = [
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("timestampType", "int"),
]
HEADERS = ("headers", "array<struct<key:string,value:binary>>")


def by_partition(topic, *offsets):
    return json.dumps({topic: {str(number): offset for number, offset in enumerate(offsets)}})


def test_columns_are_those_of_sparks_source(spark, cluster, topic):
    fill(cluster, topic, COUNT)
    assert source(spark, cluster, topic).dtypes == SCHEMA_OF_SPARKS_SOURCE
    frame = source(spark, cluster, topic, includeHeaders="true")
    assert frame.dtypes == [*SCHEMA_OF_SPARKS_SOURCE, HEADERS]
    read = {(row["partition"], row["offset"]): row for row in frame.collect()}
    records = consumed(cluster, topic)
    assert len(read) == len(records) == COUNT
    for record in records:
        row = read[record.partition, record.offset]
        assert (row["topic"], row["key"], row["value"]) == (topic, record.key, record.value)
        assert row["timestamp"].replace(tzinfo=datetime.UTC).timestamp() * 1000 == record.timestamp
        assert row["timestampType"] == 0
        headers = None if row["headers"] is None else [(each["key"], each["value"]) for each in row["headers"]]
        assert (headers or []) == [tuple(header) for header in record.headers]


def test_a_schema_with_fewer_columns_reads_only_those(spark, cluster, topic):
    fill(cluster, topic, COUNT)
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}
    reading = spark.read.format("rayka").options(**options)
    frame = reading.schema("value binary, partition int").load()
    counted, length = frame.agg(F.count("*"), F.sum(F.length("value"))).collect()[0]
    assert (counted, length) == (COUNT, sum(len(record.value or b"") for record in consumed(cluster, topic)))
    with pytest.raises(PySparkException, match="has no column price int"):
        reading.schema("price int").load().collect()


def test_sql_reads_a_view_of_a_topic(spark, cluster, topic):
    fill(cluster, topic, COUNT)
    options = f"OPTIONS (`kafka.bootstrap.servers` '{cluster.bootstrap_servers}', subscribe '{topic}')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW clicks USING rayka {options}")
    counted = f"CREATE OR REPLACE TEMPORARY VIEW counted (partition INT) USING rayka {options}"
    spark.sql(counted)
    described = [(row["col_name"], row["data_type"]) for row in spark.sql("DESCRIBE clicks").collect()]
    assert described == SCHEMA_OF_SPARKS_SOURCE
    query = "SELECT partition, max(offset) FROM clicks WHERE cast(value AS string) LIKE 'value%' GROUP BY 1 ORDER BY 1"
    assert [tuple(row) for row in spark.sql(query).collect()] == [(0, 999), (1, 999), (2, 999)]
    assert spark.sql("SELECT count(*) FROM counted").first()[0] == COUNT
    fill(cluster, topic, 30)
    spark.sql(counted)
    assert spark.sql("SELECT count(*) FROM counted").first()[0] == COUNT + 30


def test_offsets_bound_a_read(spark, cluster, topic):
    fill(cluster, topic, COUNT)
    each = COUNT // 3
    starts, ends = by_partition(topic, 10, 20, -2), by_partition(topic, 15, -1, 3)
    frame = source(spark, cluster, topic, startingOffsets=starts, endingOffsets=ends)
    expected = [(0, i) for i in range(10, 15)] + [(1, i) for i in range(20, each)] + [(2, i) for i in range(3)]
    assert places(frame.collect()) == expected


def test_timestamps_bound_a_read(spark, cluster, topic):
    fill(cluster, topic, COUNT)
    at = str(START_MS + 1000 * 600)
    assert source(spark, cluster, topic, startingTimestamp=at).count() == COUNT - 600
    assert source(spark, cluster, topic, endingTimestamp=at).count() == 600
    times = by_partition(topic, START_MS, START_MS + 1000 * 600, START_MS + 1000 * 2999)
    assert source(spark, cluster, topic, startingOffsetsByTimestamp=times).count() == 1000 + 800 + 1
    assert source(spark, cluster, topic, endingOffsetsByTimestamp=times).count() == 200 + 999
    after = str(START_MS + 10**9)
    assert (
        source(spark, cluster, topic, startingTimestamp=after, startingOffsetsByTimestampStrategy="latest").count() == 0
    )
    with pytest.raises(PySparkException, match="has no record with timestamp"):
        source(spark, cluster, topic, startingTimestamp=after).count()


def test_topics_are_chosen_by_name_pattern_and_partition(spark, cluster, topic, other_topic):
    fill(cluster, topic, 300)
    fill(cluster, other_topic, 30)
    assert source(spark, cluster, f"{topic}, {other_topic}").count() == 330
    assert source(spark, cluster, subscribePattern=f"{topic[:30]}.*").count() == 330
    assert places(source(spark, cluster, assign=json.dumps({other_topic: [1]})).collect()) == [
        (1, i) for i in range(10)
    ]


def test_splits_are_finer_than_partitions(spark, cluster, topic):
    fill(cluster, topic, COUNT)
    frame = source(spark, cluster, topic, minPartitions="8")
    assert frame.rdd.getNumPartitions() >= 8
    assert places(frame.collect()) == places(source(spark, cluster, topic).collect())
    sizes = source(spark, cluster, topic, maxRecordsPerPartition="400").rdd.glom().map(len).collect()
    assert max(sizes) <= 400
    assert sum(sizes) == COUNT


def test_an_empty_topic_has_no_rows(spark, cluster, topic):
    assert source(spark, cluster, topic).collect() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "no-such-topic"}, "UNKNOWN_TOPIC_OR_PARTITION|does not exist"),
        ({"startingOffsets": '{"T": {"0": 5}}'}, "no position is given for"),
        ({"startingOffsets": '{"T": {"0": 5, "1": 0, "2": 99999}}'}, "has no offset 99999"),
        ({"startingOffsets": "latest"}, "can't be the latest in a batch query"),
        ({"kafka.ssl.keystore.location": "x"}, "kafka.ssl.keystore.location is not supported"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is not supported: it is one of streaming queries only"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.request.timeout.ms": "200"}, "no broker answers"),
    ],
)
def test_reads_that_are_not_possible_are_refused_with_the_reason(spark, cluster, topic, options, words):
    fill(cluster, topic, 30)
    options = {name: value.replace('"T"', f'"{topic}"') for name, value in options.items()}
    with pytest.raises(PySparkException, match=words):
        source(spark, cluster, **{"subscribe": topic, **options}).collect()


def test_only_committed_transactions_are_read_if_asked_for(spark, cluster, topic):
    committed = {"kafka.isolation.level": "read_committed"}
    with undecided(cluster, topic):
        assert sorted(row.value for row in source(spark, cluster, topic, **committed).collect()) == COMMITTED
        assert source(spark, cluster, topic).count() == 4


def test_deleted_records_fail_the_read_unless_that_is_allowed(spark, cluster, topic):
    fill(cluster, topic, 300)
    cluster.admin().delete_records({(topic, 0): 50})
    earlier = by_partition(topic, 0, 0, 0)
    with pytest.raises(PySparkException, match="has no offset 0"):
        source(spark, cluster, topic, startingOffsets=earlier).count()
    assert source(spark, cluster, topic, startingOffsets=earlier, failOnDataLoss="false").count() == 250


def test_a_read_goes_on_after_a_leader_was_killed(spark, cluster, topic):
    fill(cluster, topic, COUNT)
    expected = places(source(spark, cluster, topic).collect())
    kill_leader(cluster, topic, 1)
    assert places(source(spark, cluster, topic, maxRecordsPerPartition="500").collect()) == expected
