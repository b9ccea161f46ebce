"""The checkpoint of a stream: what is on disk, whatever happens to the machine."""

from __future__ import annotations

import errno
import pathlib
import random

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.batches import MicroBatches, StreamSettings
from rayka.ranges.checkpoint import Checkpoint, PlannedBatch
from rayka.storage.files import RealFiles
from tests.support.faulty_files import FaultyFiles
from tests.support.power_cut import PowerCut, PowerLost
from tests.unit.ranges.topic import Topic, ranges

BATCHES = 3


def opened(directory, files=None):
    return Checkpoint(directory, files or RealFiles())


def test_a_checkpoint_keeps_the_last_batches_and_has_one_owner(tmp_path):
    checkpoint = opened(tmp_path)
    for batch_id in range(150):
        batch = PlannedBatch(batch_id, tuple(ranges((batch_id, batch_id + 1))))
        checkpoint.plan(batch)
        assert not checkpoint.is_done(batch)
        checkpoint.commit(batch)
    assert len(list((tmp_path / "offsets").iterdir())) == 100
    with pytest.raises(RaykaError) as refused:
        opened(tmp_path)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    checkpoint.close()
    (tmp_path / "offsets" / "²").touch()
    assert opened(tmp_path).last() == batch


@pytest.mark.parametrize("text", ["", "garbage", '{"version": 9}\n', '{"version": 1}\n[1, 2]\n'])
@pytest.mark.parametrize("name", ["offsets/3", "metadata"])
def test_a_broken_checkpoint_is_named(tmp_path, text, name):
    opened(tmp_path).close()
    (tmp_path / name).write_text(text)
    with pytest.raises(RaykaError, match=name) as refused:
        MicroBatches(Topic((0, 1)), opened(tmp_path), StreamSettings(), "new")
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("place", ["s3://bucket/clicks", "file:///data/clicks", pathlib.Path("hdfs://nodes/clicks")])
def test_a_checkpoint_is_no_uri(tmp_path, monkeypatch, place):
    """It was a folder of that name where the program happened to run, and the next run began anew elsewhere."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RaykaError, match="is a URI") as refused:
        opened(place)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_was_restored_in_part_is_refused(tmp_path):
    """Batch 2 would be planned with other records, and count as done before its sink has them."""
    checkpoint = opened(tmp_path)
    for batch_id in range(3):
        batch = PlannedBatch(batch_id, tuple(ranges((batch_id, batch_id + 1))))
        checkpoint.plan(batch)
        checkpoint.commit(batch)
    checkpoint.close()
    (tmp_path / "offsets" / "2").unlink()
    with pytest.raises(RaykaError, match="commits/2 is there without offsets/2") as refused:
        MicroBatches(Topic((0, 9)), opened(tmp_path), StreamSettings(), "new")
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_checkpoint_without_topic_ids_goes_on(tmp_path):
    opened(tmp_path).close()
    (tmp_path / "offsets" / "3").write_text('{"version": 1}\n["t", 0, 5, 9]')
    (tmp_path / "commits" / "3").write_text("{}")
    batches = MicroBatches(Topic((0, 12)), opened(tmp_path), StreamSettings(), "new")
    assert batches.stream_id == "new"
    assert batches.next(batches.bounds()).ranges[0].start_offset == 9


class Run:
    """A stream into a sink that keeps batch numbers; remembers what it was told to be on disk."""

    def __init__(self):
        self.topic = Topic((0, 5), (7, 9))
        self.stream_id = None
        self.read = {}
        self.committed = set()

    def go(self, directory, files):
        """Process what there is, with new records after each batch."""
        checkpoint = Checkpoint(directory, files)
        batches = MicroBatches(self.topic, checkpoint, StreamSettings(), f"id of run with {files.calls} calls")
        try:
            self._process(batches)
        finally:
            batches.close()

    def _process(self, batches):
        assert self.stream_id in (None, batches.stream_id), "the stream has lost its id"
        self.stream_id = batches.stream_id
        while len(self.committed) < BATCHES:
            batch = batches.next(batches.bounds())
            if batch is None:
                self.topic.bounds = [(start, end + 2) for start, end in self.topic.bounds]
                continue
            assert batch.batch_id not in self.committed, "a committed batch comes again"
            assert self.read.setdefault(batch.batch_id, batch) == batch, "a batch comes again with other records"
            batches.commit(batch)
            self.committed.add(batch.batch_id)

    def require_every_offset_once(self):
        for partition, first in ((0, 0), (1, 7)):
            for batch_id in sorted(self.read):
                each = self.read[batch_id].ranges[partition]
                assert each.start_offset == first, "offsets are left out or come twice"
                first = each.end_offset


def steps(directory):
    files = PowerCut()
    Run().go(directory, files)
    return files.calls


@pytest.mark.parametrize("seed", range(3))
def test_power_may_fail_at_every_step(tmp_path, seed):
    for cut_at in range(1, steps(tmp_path / "whole") + 1):
        chance, directory, run = random.Random(f"{seed}-{cut_at}"), tmp_path / f"{cut_at}" / "deep" / "er", Run()
        files = PowerCut(cut_at)
        with pytest.raises(PowerLost):
            run.go(directory, files)
        files.crash(chance)
        run.go(directory, PowerCut())
        run.require_every_offset_once()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_disk_may_fail_at_every_step(tmp_path, error):
    counting = FaultyFiles(error=error)
    Run().go(tmp_path / "whole", counting)
    for fail_at in range(1, counting.calls + 1):
        run = Run()
        with pytest.raises((OSError, RaykaError)):
            run.go(tmp_path / str(fail_at), FaultyFiles(fail_at, error))
        run.go(tmp_path / str(fail_at), FaultyFiles())
        run.require_every_offset_once()
