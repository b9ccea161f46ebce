"""Topics as Ray Data datasets."""

from __future__ import annotations

import os
import signal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import ray
import ray.data

from rayka.data import iter_topic, read_topic, write_topic
from rayka.errors import ErrorCode, RaykaError
from tests.support.readme import ROOT, program

COUNT = 3_000


def fill(cluster, topic, count=COUNT, start=0):
    with cluster.producer() as producer:
        for i in range(start, start + count):
            producer.send(topic, b"value %d" % i, key=b"key %d" % (i % 7), partition=i % 3)


def values(rows):
    return sorted(row["value"] for row in rows)


def expected(count=COUNT):
    return sorted(b"value %d" % i for i in range(count))


def test_every_record_is_there_once(cluster, topic):
    fill(cluster, topic)
    dataset = read_topic(topic)
    assert dataset.schema().names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert dataset.count() == COUNT
    assert values(dataset.take_all()) == expected()
    assert values(read_topic(topic, min_splits=10, columns=("value",)).take_all()) == expected()
    assert read_topic(topic).select_columns(["offset"]).schema().names == ["offset"]


def test_a_dataset_is_fixed_when_it_is_made(cluster, topic):
    fill(cluster, topic, 300)
    dataset = read_topic(topic)
    fill(cluster, topic, 300, start=300)
    assert values(dataset.take_all()) == expected(300)
    assert read_topic(topic, starting={topic: {0: 100, 1: 100, 2: 100}}).count() == 300
    assert read_topic(topic, starting="latest").count() == 0


def test_batches_are_mapped_and_written_to_another_topic(cluster, topic):
    fill(cluster, topic)
    other = f"{topic}-lengths"
    cluster.admin().create_topic(other, 2)

    def lengths(batch: pa.Table) -> pa.Table:
        text = pc.cast(pc.binary_length(batch["value"]), pa.string())
        return pa.table({"key": batch["key"], "length": text})

    mapped = read_topic(topic).map_batches(lengths, batch_format="pyarrow")
    assert write_topic(mapped, other, key="key", value="length") == COUNT
    rows = read_topic(other).take_all()
    assert sum(int(row["value"]) for row in rows) == sum(map(len, expected()))
    partitions = {row["key"]: set() for row in rows}
    for row in rows:
        partitions[row["key"]].add(row["partition"])
    assert all(len(found) == 1 for found in partitions.values())


def test_a_column_that_is_not_there_is_named(cluster, topic):
    with pytest.raises(Exception, match="no column price"):
        write_topic(ray.data.from_items([{"value": "a"}]), topic, value="price")
    with pytest.raises(RaykaError) as refused:
        read_topic("no-such-topic")
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_leader_is_killed(cluster, topic):
    fill(cluster, topic)
    leader = cluster.admin().describe_topics([topic])[0].partitions[0].leader_actor
    dataset = read_topic(topic, min_splits=6)
    os.kill(ray.get(ray.get_actor(leader, namespace="rayka").process_id.remote()), signal.SIGKILL)
    assert values(dataset.take_all()) == expected()


def test_an_endless_read_commits_what_is_done(cluster, topic, tmp_path):
    fill(cluster, topic, 1_000)
    blocks = iter_topic(topic, checkpoint=tmp_path, max_offsets_per_block=300, idle_timeout_s=0.5)
    first = next(blocks)
    second = next(blocks)
    blocks.close()
    assert first.num_rows == second.num_rows == 300
    again = iter_topic(topic, checkpoint=tmp_path, max_offsets_per_block=300, idle_timeout_s=0.5)
    repeated = next(again)
    assert repeated.equals(second)
    rest = [first, repeated, *again]
    assert sorted(value for block in rest for value in block["value"].to_pylist()) == expected(1_000)
    assert list(iter_topic(topic, checkpoint=tmp_path, idle_timeout_s=0.1)) == []


def test_the_tour_in_the_readme(cluster, tmp_path, capfd):
    for name in ("clicks", "lengths"):
        cluster.admin().create_topic(name, 2)
    with cluster.producer() as producer:
        for number in range(300):
            producer.send("clicks", b"/item/%d" % (number % 3), key=b"%d" % number)
    exec(program("Ray Data", tmp_path), {"__name__": "tour"})
    printed = capfd.readouterr().out
    assert "300 clicks" in printed
    assert "300 more are done" in printed
    assert {row["value"] for row in read_topic("lengths").take_all()} == {b"7"}


def test_the_program_in_the_documentation(cluster, tmp_path, capfd):
    for name in ("reviews", "scores"):
        cluster.admin().create_topic(name, 2)
    with cluster.producer() as producer:
        for number in range(300):
            producer.send("reviews", b"good", key=b"%d" % number)
    exec(program("For the Ray Data user", tmp_path, ROOT / "docs" / "spark.md"), {"__name__": "tour"})
    assert sum(map(int, capfd.readouterr().out.split())) == 300
    assert {row["value"] for row in read_topic("scores").take_all()} == {b"4"}
