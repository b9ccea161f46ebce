"""Topics as DataFrames: what is read is what a plain consumer reads."""

from __future__ import annotations

import datetime

import pytest
from pyspark.sql import functions as F  # noqa: N812

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.plan import Timestamp
from rayka.spark import read_topic, write_topic
from rayka.spark.read import SCHEMA
from rayka.spark.sessions import TABLES, session
from rayka.types import OffsetSpec
from tests.support import tiered_topic
from tests.support.leaders import kill_leader
from tests.support.tiered_topic import create_tiered
from tests.support.transactions import COMMITTED, undecided

COUNT = 6_000
START_MS = 1_700_000_000_000


def fill(cluster, topic, count=COUNT, partitions=3):
    """Record i goes to partition i % partitions, a second after the one before; every hundredth has no value."""
    with cluster.producer(compression_type="lz4") as producer:
        for i in range(count):
            producer.send(
                topic,
                value=None if i % 100 == 0 else b"value %d" % i,
                key=None if i % 50 == 1 else b"key %d" % (i % 97),
                headers=[("a", b"1"), ("b", None)] if i % 3 == 0 else None,
                timestamp_ms=START_MS + 1000 * i,
                partition=i % partitions,
            )


def plain(cluster, topic, partitions=3):
    """Everything as a plain consumer sees it."""
    rows = []
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, partition) for partition in range(partitions)])
        ends = consumer.end_offsets([(topic, partition) for partition in range(partitions)])
        while len(rows) < sum(ends.values()):
            for records in consumer.poll(timeout_ms=1000).values():
                rows.extend(records)
    return rows


def places(rows):
    return sorted((row["partition"], row["offset"]) for row in rows)


def offsets(topic, *offsets):
    return {topic: dict(enumerate(offsets))}


@pytest.fixture(params=["true", "false"], ids=["tables", "fetched"])
def either_way(spark, request):
    """Workers map tables, or fetch."""
    spark.conf.set(TABLES, request.param)
    yield
    spark.conf.unset(TABLES)


def test_a_program_has_one_session(spark):
    with pytest.raises(RaykaError, match=r"rayka\.spark\.stop\(\) first"):
        session()


@pytest.mark.usefixtures("either_way")
def test_columns_are_those_of_sparks_source(spark, cluster, topic):
    fill(cluster, topic)
    frame = read_topic(spark, topic, columns=SCHEMA.names)
    assert frame.schema == SCHEMA
    read = {(row["partition"], row["offset"]): row for row in frame.collect()}
    consumed = plain(cluster, topic)
    assert len(read) == len(consumed) == COUNT
    for record in consumed:
        row = read[record.partition, record.offset]
        assert (row["topic"], row["key"], row["value"]) == (topic, record.key, record.value)
        timestamp = row["timestamp"].replace(tzinfo=datetime.UTC).timestamp()
        assert round(timestamp * 1000) == record.timestamp
        assert row["timestampType"] == 0
        headers = None if row["headers"] is None else [(each["key"], each["value"]) for each in row["headers"]]
        assert (headers or []) == [tuple(header) for header in record.headers]


def test_old_records_are_read_from_the_store(spark, cluster, tmp_path_factory):
    local_start = create_tiered(cluster, "tiered", tmp_path_factory.getbasetemp())
    records = read_topic(spark, "tiered", min_partitions=4)

    found = records.select("offset", "value").collect()

    assert sorted(int(bytes(row.value).split()[0]) for row in found) == list(range(tiered_topic.COUNT))
    assert records.where(F.col("offset") < local_start).count() == local_start


def test_conditions_read_less_and_give_what_a_filter_gives(spark, cluster, topic):
    fill(cluster, topic)
    time = datetime.datetime.fromtimestamp(START_MS / 1000 + 4_000.5, datetime.UTC)
    where = [("partition", "in", [0, 2]), ("timestamp", ">=", time), ("offset", "<", 1_900)]
    frame = read_topic(
        spark, topic, columns=("value", "partition", "offset"), where=where, max_records_per_partition=100
    )
    assert frame.columns == ["value", "partition", "offset"]
    every = read_topic(spark, topic).where((F.col("partition") != 1) & (F.col("offset") < 1_900))
    assert places(frame.collect()) == places(every.where(F.col("timestamp") >= F.lit(time)).collect())
    assert frame.rdd.getNumPartitions() == 12
    early = read_topic(spark, topic, columns=("value",), where=[("timestamp", "<", time)])
    assert (early.columns, early.count()) == (["value"], 4_001)
    with pytest.raises(RaykaError, match="value = 5 is not a condition"):
        read_topic(spark, topic, where=[("value", "=", 5)])


def test_sums_join_and_group_by_are_those_of_a_plain_consumer(spark, cluster, topic, other_topic):
    fill(cluster, topic)
    fill(cluster, other_topic, 500)
    frame, other = read_topic(spark, topic), read_topic(spark, other_topic)
    rows, others = plain(cluster, topic), plain(cluster, other_topic)
    total = frame.agg(F.count("*"), F.sum(F.length("value")), F.sum("offset")).collect()[0]
    assert tuple(total) == (
        COUNT, sum(len(row.value or b"") for row in rows), sum(row.offset for row in rows)
    )  # fmt: skip
    groups = {row["key"] and bytes(row["key"]): row["count"] for row in frame.groupBy("key").count().collect()}
    expected = {}
    for row in rows:
        expected[row.key] = expected.get(row.key, 0) + 1
    assert groups == expected
    keys = {}
    for row in others:
        keys[row.key] = keys.get(row.key, 0) + 1
    joined = frame.join(other.select("key"), "key").count()
    assert joined == sum(keys.get(row.key, 0) for row in rows if row.key is not None)


def test_offsets_times_and_names_bound_a_read(spark, cluster, topic):
    fill(cluster, topic)
    each = COUNT // 3
    exact = read_topic(spark, topic, starting=offsets(topic, 10, 20, 30), ending=offsets(topic, 15, each, 30))
    assert places(exact.collect()) == [(0, i) for i in range(10, 15)] + [(1, i) for i in range(20, each)]
    since = datetime.datetime.fromtimestamp(START_MS / 1000 + 3_000, datetime.UTC)
    assert read_topic(spark, topic, starting=since).count() == COUNT - 3_000
    assert read_topic(spark, topic, ending=Timestamp(START_MS + 3_000_000)).count() == 3_000
    mixed = read_topic(spark, topic, starting=offsets(topic, OffsetSpec.LATEST, "earliest", since), ending="latest")
    assert mixed.count() == each + 1_000
    assert read_topic(spark, topic, starting="latest").count() == 0
    assert read_topic(spark, pattern=topic[:-3] + ".*").count() == COUNT


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"starting": {"T": {0: 5}}}, ErrorCode.INVALID_REQUEST),
        ({"starting": {"T": {0: 5, 1: 0, 2: 99_999}}}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"starting": 5}, ErrorCode.INVALID_REQUEST),
        ({"columns": ("value", "price")}, ErrorCode.INVALID_REQUEST),
        ({"topics": "no-such-topic"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_reads_that_are_not_possible_are_refused_at_once(spark, cluster, topic, arguments, code):
    fill(cluster, topic, 30)
    arguments = {"topics": topic, **arguments}
    if isinstance(arguments.get("starting"), dict):
        arguments["starting"] = {topic: arguments["starting"]["T"]}
    with pytest.raises(RaykaError) as refused:
        read_topic(spark, **arguments)
    assert refused.value.code is code


def test_splits_are_finer_than_partitions(spark, cluster, topic):
    fill(cluster, topic)
    frame = read_topic(spark, topic, min_partitions=8)
    assert frame.rdd.getNumPartitions() >= 8
    assert places(frame.collect()) == places(read_topic(spark, topic).collect())
    small = read_topic(spark, topic, max_records_per_partition=500)
    sizes = small.rdd.glom().map(len).collect()
    assert max(sizes) <= 500
    assert sum(sizes) == COUNT


def test_a_frame_reads_the_same_records_when_more_have_come(spark, cluster, topic):
    fill(cluster, topic, 300)
    frame = read_topic(spark, topic)
    before = places(frame.collect())
    fill(cluster, topic, 300)
    assert places(frame.collect()) == before
    assert read_topic(spark, topic).count() == 600


@pytest.mark.usefixtures("either_way")
def test_a_frame_is_read_after_its_leader_was_killed(spark, cluster, topic):
    fill(cluster, topic)
    expected = places(read_topic(spark, topic).collect())
    for _ in range(2):
        frame = read_topic(spark, topic, max_records_per_partition=200)
        kill_leader(cluster, topic, 1)
        assert places(frame.collect()) == expected


@pytest.mark.usefixtures("either_way")
def test_deleted_records_fail_the_job(spark, cluster, topic):
    fill(cluster, topic, 300)
    frame = read_topic(spark, topic)
    cluster.admin().delete_records({(topic, 0): 50})
    with pytest.raises(Exception, match="OFFSET_OUT_OF_RANGE"):
        frame.count()
    assert read_topic(spark, topic).count() == 250


def test_written_frames_come_back(spark, cluster, topic, other_topic):
    fill(cluster, topic, 900)
    columns = ("key", "value", "partition", "timestamp", "headers")
    frame = read_topic(spark, topic, columns=columns)
    assert write_topic(frame, other_topic) == 900
    copied = read_topic(spark, other_topic, columns=columns)
    assert frame.exceptAll(copied).count() == copied.exceptAll(frame).count() == 0


def test_rows_are_written_as_json_without_a_value(spark, cluster, topic):
    frame = spark.createDataFrame([("ann", 1), ("bob", 2)], "user string, n int")
    assert write_topic(frame, topic, key="user", producer={"compression_type": "zstd"}) == 2
    read = {bytes(row["key"]): bytes(row["value"]) for row in read_topic(spark, topic).collect()}
    assert read == {b"ann": b'{"user":"ann","n":1}', b"bob": b'{"user":"bob","n":2}'}


def test_names_of_columns_with_dots_are_written_as_json(spark, cluster, topic):
    assert write_topic(spark.createDataFrame([(1,)], "`a.b``c` int"), topic) == 1
    assert [bytes(row["value"]) for row in read_topic(spark, topic).collect()] == [b'{"a.b`c":1}']


def test_keys_and_values_are_bytes_or_text(spark, cluster, topic):
    for column in ("key", "value"):
        with pytest.raises(RaykaError, match=f"Column {column} must have bytes or text, not bigint") as refused:
            write_topic(
                spark.range(3).selectExpr("id", "cast(id as string) as text"), topic, **{"value": "text", column: "id"}
            )
        assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert read_topic(spark, topic).count() == 0


def test_writing_to_no_topic_fails(spark, cluster):
    frame = spark.createDataFrame([("ann",)], "value string")
    with pytest.raises(Exception, match=r"UNKNOWN_TOPIC_OR_PARTITION|INVALID_TOPIC"):
        write_topic(frame, "no such topic")


@pytest.mark.usefixtures("either_way")
def test_only_committed_transactions_are_read_unless_others_are_asked_for(spark, cluster, topic):
    with undecided(cluster, topic):
        assert sorted(row.value for row in read_topic(spark, topic).collect()) == COMMITTED
        assert read_topic(spark, topic, read_committed=False).count() == 4
