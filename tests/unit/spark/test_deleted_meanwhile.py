"""Records that are deleted while a batch of a stream runs."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from rayka.ranges.batches import MicroBatches, StreamSettings
from rayka.ranges.checkpoint import Checkpoint
from rayka.spark.running import running_batch
from rayka.spark.stream import TopicStream
from rayka.storage.files import RealFiles
from tests.unit.ranges.topic import Topic, bounds


class NoFrames:
    def read(self, spark, ranges):
        return None


class Stream:
    """A stream over a topic. While its first batch runs the topic gets other bounds, and its sink raises an error."""

    def __init__(self, directory, topic, bounds=None, error=None, on_data_loss="skip"):
        self.given = []
        self._topic, self._bounds, self._errors = topic, bounds, [error]
        settings = StreamSettings(on_data_loss=on_data_loss)
        batches = MicroBatches(topic, Checkpoint(directory, RealFiles()), settings, "an id")
        self.stream = TopicStream(None, batches, NoFrames(), self._sink)

    def process(self):
        """The losses that each batch reports."""
        with self.stream:
            return [[str(loss) for loss in progress.losses] for progress in self.stream.process_available()]

    def _sink(self, df, batch_id):
        self.given.append((batch_id, bounds(running_batch().ranges)))
        if self._errors:
            self._topic.bounds = self._topic.bounds if self._bounds is None else self._bounds
            if (error := self._errors.pop()) is not None:
                raise error


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr("rayka.client.consumer.topic_offsets._PATIENCE_S", 0.2)


def test_nothing_is_reported_where_nothing_was_deleted(tmp_path):
    topic = Topic((3, 9), (4, 4))
    assert Stream(tmp_path, topic).process() == [[]]
    topic.bounds = [(3, 20), (4, 5)]
    assert Stream(tmp_path, topic).process() == [[]]


@pytest.mark.parametrize(("start", "last"), [(300, 299), (700, 499)])
def test_records_that_were_deleted_while_a_batch_ran_are_reported(tmp_path, start, last):
    stream = Stream(tmp_path, Topic((0, 500), (0, 10)), [(start, 800), (0, 10)])
    assert stream.process()[0] == [f"t-0: offsets 0 to {last} were deleted while they were read"]


def test_a_topic_that_was_deleted_while_a_batch_ran_is_reported(tmp_path):
    first, *_ = Stream(tmp_path, Topic((0, 5), (7, 7)), []).process()
    assert first == ["t-0: offsets 0 to 4 were deleted while they were read"]


def test_a_batch_that_fails_as_records_were_deleted_runs_again_without_them(tmp_path):
    stream = Stream(tmp_path, Topic((0, 500), (0, 10)), [(300, 500), (0, 10)], RuntimeError("a task failed"))
    assert stream.process() == [["t-0: offsets 0 to 299 were deleted before they were read"]]
    assert stream.given == [(0, [(0, 0, 500), (1, 0, 10)]), (0, [(0, 300, 500), (1, 0, 10)])]


def test_a_partition_that_was_deleted_in_a_batch_is_not_planned_again(tmp_path):
    stream = Stream(tmp_path, Topic((0, 5), (0, 5)), [(0, 5)], RuntimeError("a task failed"))
    assert stream.process() == [["t-1: the partition was deleted; it had been read up to offset 0"]]
    assert stream.given == [(0, [(0, 0, 5), (1, 0, 5)]), (0, [(0, 0, 5)])]


def test_a_batch_that_fails_for_another_reason_fails_the_stream(tmp_path):
    with pytest.raises(RuntimeError, match="a task failed"):
        Stream(tmp_path, Topic((0, 5)), error=RuntimeError("a task failed")).process()


def test_a_stream_that_skips_nothing_fails_with_its_sink(tmp_path):
    stream = Stream(tmp_path, Topic((0, 5)), [(3, 5)], RuntimeError("OFFSET_OUT_OF_RANGE"), on_data_loss="fail")
    with pytest.raises(RuntimeError, match="OFFSET_OUT_OF_RANGE"):
        stream.process()
