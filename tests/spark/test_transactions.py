"""From topic to topic in transactions: the output has each result once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter

import pytest
from ray.util import list_named_actors

from rayka.errors import ErrorCode, RaykaError
from rayka.murmur2 import murmur2
from rayka.spark import read_topic, stream_topic, topic_sink, write_topic
from rayka.spark.transactions import by_partition
from rayka.testing import wait_until
from tests.spark.test_faults import executor_pid
from tests.spark.test_stream import fill, restored, stream_in_killed_drivers
from tests.support.gate import Gate
from tests.support.scale import IS_LONG, rounds

DRIVER_KILLS = rounds(1, 12)
EXECUTOR_KILLS = rounds(2, 8)
ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def found(cluster, topic):
    """How often readers of committed records find each value."""
    values = Counter()
    with cluster.consumer(auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        consumer.assign([(topic, partition) for partition in range(3)])
        ends = consumer.end_offsets(consumer.assignment())
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for records in consumer.poll(timeout_ms=500).values():
                values.update(int(record.value) for record in records)
    return values


def once(count):
    return Counter(range(count))


def text(frame):
    return frame.selectExpr("cast(id as string) as value", "cast(id as string) as key")


def test_a_job_writes_each_row_once_or_none(spark, cluster, topic):
    rows = text(spark.range(1_000))
    assert write_topic(rows, topic, transactional_id=topic) == 1_000
    assert write_topic(rows.limit(0), topic, transactional_id=topic) == 0
    failing = spark.range(1_000).selectExpr("raise_error('stop') as value")
    with pytest.raises(Exception, match="stop"):
        write_topic(failing, topic, transactional_id=topic)
    assert found(cluster, topic) == once(1_000)


def test_keys_choose_the_partition_as_in_kafka(spark, cluster, topic):
    key, partition = "if(id < 200, cast(id as string), null) as key", "if(id < 100, 2, null) as partition"
    rows = spark.range(300).selectExpr("cast(id as string) as value", key, partition)
    write_topic(rows, topic, transactional_id=topic)
    written = {int(row.value): row.partition for row in read_topic(spark, topic).collect()}
    assert {written[number] for number in range(100)} == {2}
    for number in range(100, 200):
        assert written[number] == (murmur2(b"%d" % number) & 0x7FFFFFFF) % 3
    assert {written[number] for number in range(200, 300)} == {0, 1, 2}


def test_rows_without_a_key_are_spread_also_where_each_task_has_one(spark):
    rows = spark.range(0, 24, 1, 24).selectExpr("cast(id as string) as value")
    for count in (3, 4, 8):
        spread = {
            row["partition"]: row["count"] for row in by_partition(rows, count).groupBy("partition").count().collect()
        }
        assert spread == dict.fromkeys(range(count), 24 // count)


def test_a_batch_that_comes_again_after_its_commit_is_recognised(spark, cluster, topic, other_topic, tmp_path):
    """The driver died after the transaction and before the checkpoint."""
    fill(cluster, topic, 300)
    checkpoint = tmp_path / "checkpoint"
    arguments = {"checkpoint": checkpoint, "sink": topic_sink(other_topic)}
    with stream_topic(spark, topic, max_offsets_per_trigger=150, **arguments) as stream:
        stream.process_available()
    (checkpoint / "commits" / "1").unlink()
    fill(cluster, topic, 30, start=300)
    with stream_topic(spark, topic, **arguments) as stream:
        assert [progress.batch_id for progress in stream.process_available()] == [1, 2]
    assert found(cluster, other_topic) == once(330)
    with restored(checkpoint, batch_id=2):
        fill(cluster, topic, 30, start=330)
        stream = stream_topic(spark, topic, **arguments)
        with (
            stream,
            pytest.raises(RaykaError, match=r"committed batch 2 .*-0: 110.* the checkpoint has batch 2 .*-0: 120"),
        ):
            stream.process_available()
    assert found(cluster, other_topic) == once(330)
    (group,) = [each for each in cluster.admin().list_groups() if each.group_id.endswith(other_topic)]
    assert sum(offset.lag for offset in cluster.admin().describe_group(group.group_id).offsets) == 30


def test_a_stream_follows_a_topic_that_grows_and_keeps_nothing_when_it_is_closed(
    spark, cluster, topic, other_topic, tmp_path
):
    fill(cluster, topic, 30)
    before = claims()
    with stream_topic(spark, topic, checkpoint=tmp_path, sink=topic_sink(other_topic, values_alone)) as stream:
        stream.process_available()
        cluster.admin().create_partitions({other_topic: 6})
        fill(cluster, topic, 60, start=30)
        stream.process_available()
        assert len(claims() - before) == 1
    rows = read_topic(spark, other_topic).collect()
    assert Counter(int(row.value) for row in rows) == once(90)
    assert {row.partition for row in rows if int(row.value) >= 30} == set(range(6))
    wait_until(lambda: claims() <= before, 120, "the actor of the transactions ends")


def values_alone(frame):
    """Without the partitions that the records come from."""
    return frame.select("value")


def claims():
    """The actors that admit tasks to transactions."""
    return {actor["name"] for actor in list_named_actors(all_namespaces=True) if "write-claims" in actor["name"]}


def test_a_stream_writes_to_several_topics(spark, cluster, topic, other_topic, tmp_path):
    """Each has its own transaction; to one topic a batch writes once."""
    fill(cluster, topic, 30)
    sinks = [topic_sink(topic_of_sink) for topic_of_sink in (other_topic, f"{other_topic}-2")]
    cluster.admin().create_topic(f"{other_topic}-2", 3)

    def write(frame, batch_id):
        for sink in sinks:
            sink(frame, batch_id)

    with stream_topic(spark, topic, checkpoint=tmp_path, sink=write) as stream:
        stream.process_available()
        assert found(cluster, other_topic) == found(cluster, f"{other_topic}-2") == once(30)
        sinks.append(topic_sink(other_topic))
        fill(cluster, topic, 30, start=30)
        with pytest.raises(RaykaError, match="A frame of this batch is in topic"):
            stream.process_available()


def test_a_sink_for_topics_needs_a_stream(spark, topic):
    with pytest.raises(RaykaError) as refused:
        topic_sink(topic)(text(spark.range(1)), 0)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def waiting_in_the_middle(directory):
    """A serializer that waits at a gate when the task has written some rows; is pickled by value."""
    seen = []

    def serialize(value):
        import os

        seen.append(None)
        if len(seen) == 60:
            open(os.path.join(directory, "reading-0"), "w").close()
            deadline_s = time.monotonic() + 60
            while not os.path.exists(os.path.join(directory, "open")) and time.monotonic() < deadline_s:
                time.sleep(0.02)
        return value

    return serialize


@pytest.mark.skipif(not IS_LONG, reason="takes minutes on a busy machine")
@pytest.mark.timeout(60 + 60 * EXECUTOR_KILLS)
def test_executors_are_killed_in_the_middle_of_a_transaction(spark, cluster, topic, other_topic, tmp_path):
    """Some rows are written: the batch is aborted, and written again in another transaction."""
    rows_per_batch = spark.conf.get(ARROW_ROWS)
    spark.conf.set(ARROW_ROWS, "50")
    for kill in range(EXECUTOR_KILLS):
        fill(cluster, topic, 300, start=300 * kill)
        gate = Gate(tmp_path / f"gate-{kill}")
        gate.directory.mkdir()
        sink = topic_sink(other_topic, producer={"value_serializer": waiting_in_the_middle(str(gate.directory))})
        with stream_topic(spark, topic, checkpoint=tmp_path / "checkpoint", sink=sink) as stream:
            batch = threading.Thread(target=stream.process_available)
            batch.start()
            gate.wait_for_readers()
            os.kill(executor_pid(), signal.SIGKILL)
            gate.open()
            batch.join(120)
            assert not batch.is_alive()
    spark.conf.set(ARROW_ROWS, rows_per_batch)
    assert found(cluster, other_topic) == once(300 * EXECUTOR_KILLS)


@pytest.mark.skipif(not IS_LONG, reason="takes minutes on a busy machine")
@pytest.mark.timeout(120 + 120 * DRIVER_KILLS)
def test_drivers_are_killed_again_and_again(cluster, topic, other_topic, tmp_path):
    count = stream_in_killed_drivers(cluster, topic, tmp_path, f"topic:{other_topic}", DRIVER_KILLS, seed=7)
    assert found(cluster, other_topic) == once(count)
