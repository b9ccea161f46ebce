"""A topic as a Delta table: each record once, or the last record of each key, whatever dies in between."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter

import pytest

import rayka.spark
from rayka.errors import ErrorCode, RaykaError
from rayka.spark import delta_sink, read_topic, stream_topic
from tests.spark.conftest import create_anew
from tests.spark.test_stream import fill, once, restored, stream_in_killed_drivers
from tests.support.readme import ROOT, blocks, relocated
from tests.support.scale import IS_LONG, rounds

DRIVER_KILLS = rounds(1, 20)
SMALL_FILES = "spark.databricks.delta.autoCompact.minNumFiles"


def places(spark, path):
    """How often the table has each record."""
    rows = spark.read.format("delta").load(os.fspath(path)).select("partition", "offset").collect()
    return Counter(map(tuple, rows))


def history(spark, path):
    """The table's commits, the last one first."""
    return spark.sql(f"DESCRIBE HISTORY delta.`{path}`").collect()


def commits_of_batches(spark, path):
    return [json.loads(commit.userMetadata) for commit in history(spark, path) if commit.userMetadata]


def test_a_table_has_each_record_once_and_belongs_to_its_stream(spark, cluster, topic, tmp_path):
    """The driver died after a commit of the table and before that of the checkpoint; later the checkpoint is lost."""
    table = tmp_path / "table"
    spark.conf.set(SMALL_FILES, "4")
    fill(cluster, topic, 300)
    arguments = {"checkpoint": tmp_path / "checkpoint", "sink": delta_sink(table)}
    with stream_topic(spark, topic, max_offsets_per_trigger=150, **arguments) as stream:
        stream.process_available()
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    fill(cluster, topic, 30, start=300)
    with stream_topic(spark, topic, **arguments) as stream:
        assert [progress.batch_id for progress in stream.process_available()] == [1, 2]
    spark.conf.unset(SMALL_FILES)
    assert places(spark, table) == once(330)
    shown = commits_of_batches(spark, table)
    assert [commit["batch_id"] for commit in shown] == [2, 1, 0]
    assert shown[0]["offsets"] == {topic: {str(partition): [100, 110] for partition in range(3)}}
    assert "OPTIMIZE" in {commit.operation for commit in history(spark, table)}, "small files are left"
    with restored(tmp_path / "checkpoint", batch_id=2):
        fill(cluster, topic, 30, start=330)
        stream = stream_topic(spark, topic, **arguments)
        with stream, pytest.raises(RaykaError, match=r"has batch 2 .*\[100, 110\].*the checkpoint .*\[100, 120\]"):
            stream.process_available()
    assert places(spark, table) == once(330)
    shutil.rmtree(tmp_path / "checkpoint")
    arguments = {"checkpoint": tmp_path / "checkpoint", "sink": delta_sink(table)}
    with stream_topic(spark, topic, **arguments) as stream:
        with pytest.raises(RaykaError, match="has the batches of another stream") as refused:
            stream.process_available()
        assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_all_frames_of_a_batch_are_upserted_once(spark, cluster, topic, tmp_path):
    """By one sink or two for a table; the first time, the batch fails between its frames. The second has no rows."""
    fill(cluster, topic, 30)
    sinks = [delta_sink(tmp_path / "table", key="cast(value as string)") for _ in range(2)]
    failures = [OSError("the network is down")]

    def write(frame, batch_id):
        sinks[0](frame.where("partition = 0"), batch_id)
        sinks[0](frame.where("partition = 7"), batch_id)
        if failures:
            raise failures.pop()
        sinks[1](frame.where("partition > 0 and partition < 7"), batch_id)

    arguments = {"checkpoint": tmp_path / "checkpoint", "sink": write}
    with stream_topic(spark, topic, **arguments) as stream, pytest.raises(OSError, match="the network is down"):
        stream.process_available()
    with stream_topic(spark, topic, **arguments) as stream:
        stream.process_available()
    assert places(spark, tmp_path / "table") == once(30)
    assert sorted(commit.get("frame", 0) for commit in commits_of_batches(spark, tmp_path / "table")) == [0, 1, 2]


def test_a_table_has_the_last_record_of_each_key(spark, cluster, topic, tmp_path):
    table = tmp_path / "table"
    key, expected = "cast(key as string)", {}

    def send(rounds_of_keys):
        with cluster.producer() as producer:
            for number in rounds_of_keys:
                name = f"user-{number % 20}"
                value = None if number % 7 == 0 else b"%d" % number
                producer.send(topic, value, key=name.encode())
                expected.pop(name, None)
                if value is not None:
                    expected[name] = number

    def counted(records):
        return records.selectExpr("key", "cast(cast(value as string) as int) as number")

    arguments = {"checkpoint": tmp_path / "checkpoint", "sink": delta_sink(table, counted, key=key)}
    for part in (range(100), range(100, 150)):
        send(part)
        with stream_topic(spark, topic, **arguments) as stream:
            stream.process_available()
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    with stream_topic(spark, topic, **arguments) as stream:
        assert [progress.batch_id for progress in stream.process_available()] == [1]
    assert dict(map(tuple, spark.read.format("delta").load(os.fspath(table)).collect())) == expected
    assert [commit["batch_id"] for commit in commits_of_batches(spark, table)] == [1, 0]


def test_only_one_row_of_each_key_can_be_upserted(spark, cluster, topic, tmp_path):
    fill(cluster, topic, 3)
    sink = delta_sink(tmp_path / "table", key="key")
    stream = stream_topic(spark, topic, checkpoint=tmp_path / "checkpoint", sink=sink)
    with stream, pytest.raises(Exception, match="without a key can't be upserted"):
        stream.process_available()
    sink = delta_sink(tmp_path / "several", lambda records: records.union(records), key="cast(offset as string)")
    stream = stream_topic(spark, topic, checkpoint=tmp_path / "checkpoint-2", sink=sink)
    with stream, pytest.raises(Exception, match="several rows of a key"):
        stream.process_available()
    with pytest.raises(RaykaError, match="delta_sink is for streams"):
        sink(read_topic(spark, topic), 0)


def test_the_program_in_the_documentation(spark, cluster, tmp_path, monkeypatch, capfd):
    """It reads the tables with pandas."""
    create_anew(cluster, "clicks", "users")
    with cluster.producer() as producer:
        for number in range(300):
            producer.send("clicks", b"/page/%d" % (number % 3))
            producer.send("users", b'{"name": "user %d"}' % number, key=b"%d" % (number % 5))
        producer.send("users", None, key=b"0")
    programs = [block for block in blocks(ROOT / "docs" / "spark.md") if block.test == "tests/spark/test_delta.py"]
    tour = {"__name__": "tour"}
    monkeypatch.setattr(rayka.spark, "session", lambda configs: spark)
    for block in programs:
        exec(relocated(block.text, tmp_path), tour)
    printed = capfd.readouterr().out
    assert len(programs) == 2
    assert "|/page/1|" in printed
    assert sorted(tour["users"]["name"]) == [f"user {number}" for number in range(296, 300)]


@pytest.mark.skipif(not IS_LONG, reason="takes minutes on a busy machine")
@pytest.mark.timeout(120 + 120 * DRIVER_KILLS)
def test_drivers_are_killed_again_and_again(spark, cluster, topic, tmp_path):
    count = stream_in_killed_drivers(cluster, topic, tmp_path, f"delta:{tmp_path / 'table'}", DRIVER_KILLS, seed=11)
    assert places(spark, tmp_path / "table") == once(count)
