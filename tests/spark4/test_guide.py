"""The queries of Spark's Structured Streaming + Kafka Integration Guide, with the name of the format changed."""

from __future__ import annotations

import json
import os

import pytest

from tests.spark4.reading import fill

ONE, TWO = "guide-topic1", "guide-topic2"
TEXTS = ("CAST(key AS STRING)", "CAST(value AS STRING)")
STREAMS = {
    "1 topic": ({"subscribe": ONE}, TEXTS, 60),
    "1 topic, with headers": ({"subscribe": ONE, "includeHeaders": "true"}, (*TEXTS, "headers"), 60),
    "multiple topics": ({"subscribe": f"{ONE},{TWO}"}, TEXTS, 90),
    "a pattern": ({"subscribePattern": "guide-topic.*"}, TEXTS, 90),
}
STARTING = json.dumps({ONE: {"0": 23, "1": -2}, TWO: {"0": -2}})
ENDING = json.dumps({ONE: {"0": 28, "1": -1}, TWO: {"0": -1}})
BATCHES = {
    "defaults to the earliest and latest offsets": ({"subscribe": ONE}, 60),
    "explicit offsets": ({"subscribe": f"{ONE},{TWO}", "startingOffsets": STARTING, "endingOffsets": ENDING}, 65),
    "a pattern at the earliest and latest offsets": (
        {"subscribePattern": "guide-topic.*", "startingOffsets": "earliest", "endingOffsets": "latest"},
        90,
    ),
}


@pytest.fixture(scope="module")
def server(cluster):
    """The option that says where the broker is; the first topic has two partitions, the second one."""
    for topic, partitions, count in ((ONE, 2, 60), (TWO, 1, 30)):
        cluster.admin().create_topic(topic, partitions)
        fill(cluster, topic, count, partitions=partitions)
    return {"kafka.bootstrap.servers": cluster.bootstrap_servers}


def finish(writer, tmp_path):
    """Run a streaming query over what there is."""
    query = writer.option("checkpointLocation", os.fspath(tmp_path)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()


@pytest.mark.parametrize("name", STREAMS)
def test_streaming_queries(spark, server, tmp_path, name):
    options, columns, count = STREAMS[name]
    frame = spark.readStream.format("rayka").options(**server, **options).option("startingOffsets", "earliest").load()
    seen = []
    writer = frame.selectExpr(*columns).writeStream.foreachBatch(lambda rows, _: seen.append(rows.count()))
    finish(writer, tmp_path)
    assert sum(seen) == count


@pytest.mark.parametrize("name", BATCHES)
def test_batch_queries(spark, server, name):
    options, count = BATCHES[name]
    assert spark.read.format("rayka").options(**server, **options).load().selectExpr(*TEXTS).count() == count


@pytest.mark.parametrize("columns", [TEXTS, ("topic", *TEXTS)], ids=["option", "column"])
@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_records_are_written_to_the_topic_of_an_option_or_of_a_column(
    spark, server, cluster, topic, tmp_path, kind, columns
):
    """Into a new topic. A batch says mode("append"), which Spark's Kafka sink need not be told."""
    named = {} if "topic" in columns else {"topic": topic}
    options = {**server, "subscribe": TWO, "startingOffsets": "earliest"}
    written = [f"'{topic}' AS topic" if column == "topic" else column for column in columns]
    rows = (spark.read if kind == "batch" else spark.readStream).format("rayka").options(**options).load()
    selected = rows.selectExpr(*written).where("value IS NOT NULL")
    if kind == "batch":
        selected.write.format("rayka").options(**server, **named).mode("append").save()
    else:
        finish(selected.writeStream.format("rayka").options(**server, **named), tmp_path)
    assert spark.read.format("rayka").options(**server, subscribe=topic).load().count() == 29
