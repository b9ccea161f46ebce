"""Micro-batches: each record once in the sink, whatever happens to the driver."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow.dataset
import pytest
import ray

from rayka.errors import ErrorCode, RaykaError
from rayka.spark import parquet_sink, stream_topic
from tests.support.scale import rounds

CRASHES = rounds(1, 20)
ROOT = Path(__file__).parents[2]


def fill(cluster, topic, count, start=0):
    with cluster.producer() as producer:
        for i in range(start, start + count):
            producer.send(topic, b"%d" % i, partition=i % 3)


def written(output):
    """How often the sink has each record."""
    if not list(output.glob("batch_id=*")):
        return Counter()
    table = pyarrow.dataset.dataset(os.fspath(output), format="parquet").to_table(["partition", "offset"])
    return Counter(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def once(count):
    return {(i % 3, i // 3): 1 for i in range(count)}


def test_batches_are_bounded_and_go_on_where_they_ended(spark, cluster, topic, tmp_path):
    fill(cluster, topic, 3_000)
    arguments = {"checkpoint": tmp_path / "checkpoint", "sink": parquet_sink(tmp_path / "out")}
    with stream_topic(spark, topic, max_offsets_per_trigger=1_000, **arguments) as stream:
        done = stream.process_available()
        assert [progress.offsets for progress in done] == [1_000] * 3
        assert [progress.behind for progress in done] == [2_000, 1_000, 0]
        assert str(done[0]).startswith("batch 0: 1,000 offsets in ")
        assert stream.process_available() == []
    fill(cluster, topic, 300, start=3_000)
    with stream_topic(spark, topic, **arguments) as stream:
        assert [progress.batch_id for progress in stream.process_available()] == [3]
    assert written(tmp_path / "out") == once(3_300)


def test_a_continuous_stream_takes_what_comes_until_it_is_stopped(spark, cluster, topic, tmp_path):
    total = []
    seen = threading.Event()

    def sink(frame, batch_id):
        total.append(frame.count())
        if sum(total) == 600:
            seen.set()

    with stream_topic(spark, topic, checkpoint=tmp_path, sink=sink) as stream:
        running = threading.Thread(target=stream.run, args=(0.1,))
        running.start()
        for part in range(3):
            fill(cluster, topic, 200, start=200 * part)
        assert seen.wait(300), total
        stream.stop()
        running.join(120)
        assert not running.is_alive()


def test_a_batch_whose_sink_failed_comes_again_with_the_same_number_and_records(spark, cluster, topic, tmp_path):
    fill(cluster, topic, 300)
    batches = []

    def sink(frame, batch_id):
        batches.append((batch_id, sorted(map(tuple, frame.select("partition", "offset").collect()))))
        if len(batches) == 1:
            raise OSError("the disk is full")

    with stream_topic(spark, topic, checkpoint=tmp_path, sink=sink) as stream, pytest.raises(OSError, match="full"):
        stream.process_available()
    fill(cluster, topic, 300, start=300)
    with stream_topic(spark, topic, checkpoint=tmp_path, sink=sink) as stream:
        stream.process_available()
    assert batches[0] == batches[1]
    assert [number for number, _ in batches] == [0, 0, 1]


def test_a_checkpoint_belongs_to_one_stream(spark, cluster, topic, tmp_path):
    with stream_topic(spark, topic, checkpoint=tmp_path, sink=print):
        with pytest.raises(RaykaError) as refused:
            stream_topic(spark, topic, checkpoint=tmp_path, sink=print)
        assert refused.value.code is ErrorCode.INVALID_REQUEST
    (tmp_path / "offsets" / "0").write_text("garbage")
    with pytest.raises(RaykaError) as refused:
        stream_topic(spark, topic, checkpoint=tmp_path, sink=print)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_stream_from_the_latest_reads_what_comes_after_it_was_made(spark, cluster, topic, tmp_path):
    fill(cluster, topic, 300)
    counts = []
    arguments = {"starting": "latest", "checkpoint": tmp_path, "sink": lambda frame, _: counts.append(frame.count())}
    stream_topic(spark, topic, **arguments).close()
    fill(cluster, topic, 30)
    with stream_topic(spark, topic, **arguments) as stream:
        stream.process_available()
        fill(cluster, topic, 6)
        stream.process_available()
    assert counts == [30, 6]


def test_a_sink_refuses_the_batches_of_another_stream(spark, cluster, topic, tmp_path):
    """Batch 0 of a new checkpoint would be taken for batch 0 of the old one, which is there."""
    fill(cluster, topic, 300)
    write = parquet_sink(tmp_path / "out")
    arguments = {"sink": lambda frame, batch_id: write(frame, batch_id)}
    with stream_topic(spark, topic, checkpoint=tmp_path / "checkpoint", **arguments) as stream:
        stream.process_available()
    fill(cluster, topic, 30)
    shutil.rmtree(tmp_path / "checkpoint")
    with stream_topic(spark, topic, checkpoint=tmp_path / "checkpoint", **arguments) as stream:
        with pytest.raises(RaykaError, match="holds the batches of another stream") as refused:
            stream.process_available()
        assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert written(tmp_path / "out") == once(300)


def test_a_second_frame_of_a_batch_is_refused_before_its_rows_are_left_out(spark, cluster, topic, tmp_path):
    fill(cluster, topic, 3)
    write = parquet_sink(tmp_path / "out")

    def write_twice(frame, batch_id):
        for partition in range(2):
            write(frame.where(f"partition = {partition}"), batch_id)

    with (
        stream_topic(spark, topic, checkpoint=tmp_path / "checkpoint", sink=write_twice) as stream,
        pytest.raises(RaykaError, match="of a parquet_sink, and there can be one"),
    ):
        stream.process_available()


def test_parquet_files_are_on_disk_before_the_batch_is_committed(spark, cluster, topic, tmp_path, monkeypatch):
    synced, sync = [], os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd)))
    fill(cluster, topic, 300)
    with stream_topic(spark, topic, checkpoint=tmp_path / "checkpoint", sink=parquet_sink(tmp_path / "out")) as stream:
        stream.process_available()
    before_commit = synced[: synced.index(os.fspath(tmp_path / "checkpoint" / "commits" / "0.tmp"))]
    parts = [path.name for path in (tmp_path / "out" / "batch_id=0").iterdir()]
    assert any(name.endswith(".parquet") for name in parts)
    assert set(parts) <= {Path(path).name for path in before_commit if "_attempt-0" in path}
    assert before_commit[-1] == os.fspath(tmp_path / "out")


def test_records_that_retention_took_fail_a_stream_or_are_reported(spark, cluster, topic, tmp_path):
    fill(cluster, topic, 300)
    counts = []
    arguments = {"checkpoint": tmp_path, "sink": lambda frame, _: counts.append(frame.count())}
    with stream_topic(spark, topic, **arguments) as stream:
        stream.process_available()
        fill(cluster, topic, 300)
        cluster.admin().delete_records({(topic, 0): 150})
        with pytest.raises(RaykaError, match="offsets 100 to 149 were deleted before they were read"):
            stream.process_available()
    with stream_topic(spark, topic, on_data_loss="skip", **arguments) as stream:
        (progress,) = stream.process_available()
        assert "offsets 100 to 149 were deleted" in str(progress)
    assert counts == [300, 250]


@contextlib.contextmanager
def restored(checkpoint, batch_id):
    """The checkpoint of a closed stream as it was before a batch was planned; afterwards as it is now."""
    kept = checkpoint.with_name("kept")
    shutil.copytree(checkpoint, kept)
    for folder in ("offsets", "commits"):
        (checkpoint / folder / str(batch_id)).unlink()
    yield
    shutil.rmtree(checkpoint)
    kept.rename(checkpoint)


def test_a_checkpoint_that_was_restored_does_not_pass_over_records(spark, cluster, topic, tmp_path):
    """Its next batch has the number of one that is there, and more records."""
    fill(cluster, topic, 300)
    arguments = {"checkpoint": tmp_path / "checkpoint", "sink": parquet_sink(tmp_path / "out")}
    with stream_topic(spark, topic, max_offsets_per_trigger=150, **arguments) as stream:
        stream.process_available()
    with restored(tmp_path / "checkpoint", batch_id=1):
        fill(cluster, topic, 30, start=300)
        with stream_topic(spark, topic, **arguments) as stream:
            with pytest.raises(RaykaError, match=r"has batch 1 .*\[50, 100\].*the checkpoint .*\[50, 110\]") as refused:
                stream.process_available()
            assert refused.value.code is ErrorCode.INVALID_REQUEST
    with stream_topic(spark, topic, **arguments) as stream:
        stream.process_available()
    assert written(tmp_path / "out") == once(330)


def test_a_written_batch_does_not_stop_the_stream_of_a_topic_that_was_created_again(spark, cluster, topic, tmp_path):
    """The driver died between the rename of the batch and its commit."""
    fill(cluster, topic, 300)
    arguments = {"checkpoint": tmp_path / "checkpoint", "sink": parquet_sink(tmp_path / "out"), "on_data_loss": "skip"}
    with stream_topic(spark, topic, **arguments) as stream:
        stream.process_available()
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    cluster.admin().delete_topic(topic)
    cluster.admin().create_topic(topic, 3)
    fill(cluster, topic, 30)
    with stream_topic(spark, topic, **arguments) as stream:
        repeated, new = stream.process_available()
    assert (repeated.offsets, len(repeated.losses), new.offsets) == (0, 3, 30)
    assert written(tmp_path / "out") == {**once(300), **{(i % 3, i // 3): 2 for i in range(30)}}


class Driver:
    """A process that streams, once it is told to begin: Spark starts in it while the one before is at work."""

    def __init__(self, log, *arguments):
        self._log = log
        command = [sys.executable, "-m", "tests.spark.streaming_driver", *map(os.fspath, arguments)]
        with log.open("w") as stderr:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=stderr, text=True, cwd=ROOT)
        self.lines = iter(self._process.stdout.readline, "")

    def begin(self, waits_in=None):
        """Let it stream; in the batch `waits_in` it stops between the sink's commit and that of the checkpoint."""
        assert "ready\n" in self.lines, self.errors()
        self._process.stdin.write(f"{waits_in}\n")
        self._process.stdin.flush()

    def errors(self):
        """The end of what it has printed as errors."""
        return self._log.read_text()[-3000:]

    def kill(self):
        self._process.kill()
        self._process.wait(60)


def stream_in_killed_drivers(cluster, topic, directory, sink, kills, seed):
    """Stream new records into a sink, in drivers that are killed anywhere in their batches; how many records."""
    max_offsets = 300
    count = 5 * max_offsets * (kills + 1)  # more batches than are done between two kills
    fill(cluster, topic, count)
    address = ray.get_runtime_context().gcs_address
    arguments = (address, topic, directory / "checkpoint", sink, str(max_offsets))
    chance = random.Random(seed)
    waiting = Driver(directory / "driver-0.log", *arguments)
    for number in range(1, kills + 1):
        driver, waiting = waiting, Driver(directory / f"driver-{number}.log", *arguments)
        driver.begin()
        wanted, begun = chance.randint(1, 3), 0
        while begun < wanted:
            begun += next(driver.lines).startswith("begin")
        time.sleep(chance.uniform(0, 0.5))  # anywhere in a batch
        driver.kill()
    waiting.begin()
    assert "done\n" in waiting.lines, waiting.errors()
    waiting.kill()
    return count


def test_the_driver_is_killed_again_and_again(cluster, topic, tmp_path):
    max_offsets = 300
    count = max_offsets * (5 * CRASHES - 2)  # more batches than are done between two crashes
    fill(cluster, topic, count)
    address = ray.get_runtime_context().gcs_address
    arguments = (address, topic, tmp_path / "checkpoint", tmp_path / "out", str(max_offsets))
    chance = random.Random(5)
    waiting = Driver(tmp_path / "driver-0.log", *arguments)
    for crash in range(1, CRASHES + 1):
        driver, waiting = waiting, Driver(tmp_path / f"driver-{crash}.log", *arguments)
        if crash == 1:
            driver.begin(waits_in=1)
            assert "batch 1\n" in driver.lines, driver.errors()
            driver.kill()
            assert (tmp_path / "out" / "batch_id=1").exists()
            assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
        else:
            driver.begin()
            lines = [*itertools.islice(driver.lines, 2 * chance.randint(0, 2) + 1)]
            time.sleep(chance.uniform(0, 0.05))  # somewhere in the batch that has just begun
            driver.kill()
            assert lines[-1].startswith("begin "), "the driver ended before it was killed"
        assert set(written(tmp_path / "out").values()) <= {1}
    waiting.begin()
    rest = list(waiting.lines)
    assert rest[0].startswith("begin "), "all was done before the last crash"
    assert rest[-1] == "done\n", waiting.errors()
    waiting.kill()
    assert written(tmp_path / "out") == once(count)
