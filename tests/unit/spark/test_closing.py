"""What a stream holds is free once it is closed, also where a part of it fails to close."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from rayka.ranges.batches import MicroBatches, StreamSettings
from rayka.ranges.checkpoint import Checkpoint
from rayka.spark.running import running_batch
from rayka.spark.stream import TopicStream
from rayka.storage.files import RealFiles
from tests.unit.ranges.topic import Topic


class NoFrames:
    def read(self, spark, ranges):
        return None


class Kept:
    """What a sink has kept for a stream, which may fail to close."""

    def __init__(self, error=None):
        self.error = error
        self.released = []

    def release(self, stream_id):
        self.released.append(stream_id)
        if self.error is not None:
            raise self.error


def test_the_checkpoint_and_other_sinks_are_closed_although_a_sink_fails_to_close(tmp_path):
    sinks = [Kept(RuntimeError("Ray is gone")), Kept(), Kept(RuntimeError("Ray is gone"))]

    def write(df, batch_id):
        running_batch().sinks.update(sinks)

    batches = MicroBatches(Topic((0, 3)), Checkpoint(tmp_path, RealFiles()), StreamSettings(), "an id")
    stream = TopicStream(None, batches, NoFrames(), write)
    stream.process_available()
    with pytest.raises(RuntimeError, match="Ray is gone"):
        stream.close()
    assert [sink.released for sink in sinks] == [["an id"]] * 3
    Checkpoint(tmp_path, RealFiles()).close()
    stream.close()
