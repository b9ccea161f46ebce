"""`spark.readStream.format("rayka")`: each record once, with the offsets in Spark's own checkpoint."""

from __future__ import annotations

import json
import os
from collections import Counter

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark4.reading import fill
from tests.support.leaders import kill_leader

TIMEOUT_S = 300


def stream(spark, cluster, topic, **options):
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
    return spark.readStream.format("rayka").options(**{**given, **options}).load().select("partition", "offset")


def run(frame, tmp_path, sink=None):
    """Process everything that there is now, into Parquet files or a function of each batch."""
    writer = frame.writeStream.option("checkpointLocation", os.fspath(tmp_path / "checkpoint"))
    writer = writer.trigger(availableNow=True)
    if sink is None:
        query = writer.format("parquet").option("path", os.fspath(tmp_path / "out")).start()
    else:
        query = writer.foreachBatch(sink).start()
    try:
        assert query.awaitTermination(TIMEOUT_S)
        return [each for each in query.recentProgress if each["numInputRows"]]
    finally:
        query.stop()


def written(spark, tmp_path):
    rows = spark.read.schema("partition int, offset long").parquet(os.fspath(tmp_path / "out")).collect()
    return Counter((row["partition"], row["offset"]) for row in rows)


def once(count, start=0):
    return {(i % 3, i // 3): 1 for i in range(start, count)}


def test_batches_are_bounded_and_a_restart_goes_on_where_the_checkpoint_ends(spark, cluster, topic, tmp_path):
    fill(cluster, topic, 900)
    progress = run(stream(spark, cluster, topic, maxOffsetsPerTrigger="300"), tmp_path)
    assert [each["numInputRows"] for each in progress] == [300] * 3
    assert run(stream(spark, cluster, topic), tmp_path) == []
    fill(cluster, topic, 90, start=900)
    assert [each["numInputRows"] for each in run(stream(spark, cluster, topic), tmp_path)] == [90]
    assert written(spark, tmp_path) == once(990)


def test_the_checkpoint_has_where_each_batch_begins_and_ends(spark, cluster, topic, tmp_path):
    fill(cluster, topic, 30)
    run(stream(spark, cluster, topic), tmp_path)
    offset = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1])
    described = cluster.admin().describe_topics([topic])[0]
    counts = {"start": {"0": 0, "1": 0, "2": 0}, "end": {"0": 10, "1": 10, "2": 10}}
    assert offset == {topic: {"id": str(described.topic_id), **counts}}


def test_a_stream_from_the_latest_reads_what_comes_after_its_first_start(spark, cluster, topic, tmp_path):
    fill(cluster, topic, 300)
    latest = stream(spark, cluster, topic, startingOffsets="latest")
    assert run(latest, tmp_path) == []
    fill(cluster, topic, 30, start=300)
    run(latest, tmp_path)
    assert written(spark, tmp_path) == once(330, start=300)


def test_a_batch_that_failed_comes_again_with_the_same_records(spark, cluster, topic, tmp_path):
    fill(cluster, topic, 300)
    batches = []

    def sink(frame, batch_id):
        batches.append((batch_id, sorted(map(tuple, frame.collect()))))
        if len(batches) == 1:
            raise OSError("the disk is full")

    with pytest.raises(StreamingQueryException, match="the disk is full"):
        run(stream(spark, cluster, topic), tmp_path, sink)
    fill(cluster, topic, 300, start=300)
    run(stream(spark, cluster, topic, startingOffsets="latest"), tmp_path, sink)
    assert [number for number, _ in batches] == [0, 0, 1]
    assert batches[0] == batches[1]
    assert len(batches[2][1]) == 300


def test_records_that_retention_deleted_fail_the_stream_unless_that_is_allowed(spark, cluster, topic, tmp_path):
    fill(cluster, topic, 300)
    run(stream(spark, cluster, topic), tmp_path)
    fill(cluster, topic, 300, start=300)
    cluster.admin().delete_records({(topic, 0): 150})
    with pytest.raises(StreamingQueryException, match=r"offsets 100 to 149 were deleted before they were read"):
        run(stream(spark, cluster, topic), tmp_path)
    run(stream(spark, cluster, topic, failOnDataLoss="false"), tmp_path)
    assert written(spark, tmp_path) == {place: 1 for place in once(600) if place[0] or not 100 <= place[1] < 150}


def test_a_topic_that_was_created_again_fails_the_stream_unless_that_is_allowed(spark, cluster, topic, tmp_path):
    fill(cluster, topic, 30)
    run(stream(spark, cluster, topic), tmp_path)
    cluster.admin().delete_topic(topic)
    cluster.admin().create_topic(topic, 3)
    fill(cluster, topic, 60)
    with pytest.raises(StreamingQueryException, match="the topic was deleted and created again"):
        run(stream(spark, cluster, topic), tmp_path)
    progress = run(stream(spark, cluster, topic, failOnDataLoss="false"), tmp_path)
    assert [each["numInputRows"] for each in progress] == [60]


def test_a_stream_goes_on_while_leaders_are_killed(spark, cluster, topic, tmp_path):
    fill(cluster, topic, 900)
    killed = []

    def sink(frame, batch_id):
        if batch_id in (1, 2):
            kill_leader(cluster, topic, batch_id)
            killed.append(batch_id)
        frame.write.mode("overwrite").parquet(os.fspath(tmp_path / "out" / f"batch={batch_id}"))

    run(stream(spark, cluster, topic, maxOffsetsPerTrigger="300"), tmp_path, sink)
    assert killed == [1, 2]
    assert written(spark, tmp_path) == once(900)
