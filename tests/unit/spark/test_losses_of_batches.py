"""What a stream reports of records that are deleted, whatever else goes wrong while its batches run."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.batches import MicroBatches, StreamSettings
from rayka.ranges.checkpoint import Checkpoint
from rayka.spark.running import running_batch
from rayka.spark.stream import TopicStream
from rayka.storage.files import RealFiles
from tests.unit.ranges.topic import Topic, bounds


class NoFrames:
    def read(self, spark, ranges):
        return None


class UnsteadyTopic(Topic):
    """A topic whose offsets cannot be looked up while `is_silent`."""

    is_silent = False

    def list_offsets(self, timestamps):
        if self.is_silent:
            raise RaykaError(ErrorCode.REQUEST_TIMED_OUT, "no answer from the leader")
        return super().list_offsets(timestamps)


class Stream:
    """A stream over a topic. `while_running` has what happens in each batch, and then nothing more happens."""

    def __init__(self, directory, topic, *while_running, max_offsets=None):
        self.given = []
        self._while_running = list(while_running)
        settings = StreamSettings(max_offsets=max_offsets, on_data_loss="skip")
        batches = MicroBatches(topic, Checkpoint(directory, RealFiles()), settings, "an id")
        self.stream = TopicStream(None, batches, NoFrames(), self._sink)

    def process(self):
        """The losses that each batch reports."""
        return [[str(loss) for loss in progress.losses] for progress in self.stream.process_available()]

    def _sink(self, df, batch_id):
        self.given.append((batch_id, bounds(running_batch().ranges)))
        if self._while_running:
            self._while_running.pop(0)()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr("rayka.client.consumer.topic_offsets._PATIENCE_S", 0.2)


def sets(thing, error=None, **values):
    """What sets these attributes and raises the error."""

    def happen():
        for name, value in values.items():
            setattr(thing, name, value)
        if error is not None:
            raise error

    return happen


def test_a_batch_is_done_although_nobody_tells_what_was_deleted(tmp_path, caplog):
    topic = UnsteadyTopic((0, 500))
    stream = Stream(tmp_path, topic, sets(topic, bounds=[(300, 500)], is_silent=True))
    assert stream.process() == [[]]
    assert "cannot tell whether records were deleted while they were read" in caplog.text
    topic.is_silent, topic.bounds = False, [(300, 600)]
    assert stream.process() == [["t-0: offsets 0 to 299 were deleted while they were read"]]
    topic.bounds = [(300, 700)]
    assert stream.process() == [[]]
    assert stream.given == [(0, [(0, 0, 500)]), (1, [(0, 500, 600)]), (2, [(0, 600, 700)])]


def test_the_error_of_a_sink_is_raised_although_nobody_tells_what_was_deleted(tmp_path):
    topic = UnsteadyTopic((0, 500))
    stream = Stream(tmp_path, topic, sets(topic, RuntimeError("a task failed"), bounds=[(300, 500)], is_silent=True))
    with pytest.raises(RuntimeError, match="a task failed"):
        stream.process()


def test_only_partitions_of_a_batch_are_looked_up_after_it(tmp_path):
    topic = UnsteadyTopic((0, 500), (7, 7))
    stream = Stream(tmp_path, topic)
    asked = []
    look_up = topic.list_offsets
    stream._while_running.append(
        lambda: setattr(topic, "list_offsets", lambda times: asked.extend(times) or look_up(times))
    )
    stream.process()
    assert {each.partition for each in asked} == {0}


def test_a_batch_that_runs_again_reports_what_it_had_lost_before(tmp_path):
    topic = Topic((0, 500))
    stream = Stream(tmp_path, topic)
    stream.process()
    topic.bounds = [(700, 900)]
    stream._while_running.append(sets(topic, RuntimeError("a task failed"), bounds=[(800, 900)]))
    assert stream.process() == [
        [
            "t-0: offsets 500 to 699 were deleted before they were read",
            "t-0: offsets 700 to 799 were deleted before they were read",
        ]
    ]


def test_a_batch_that_failed_reports_what_it_had_lost_when_it_is_processed_again(tmp_path):
    topic = Topic((0, 500))
    stream = Stream(tmp_path, topic)
    stream.process()
    topic.bounds = [(700, 900)]
    stream._while_running.append(sets(topic, RuntimeError("a task failed")))
    with pytest.raises(RuntimeError, match="a task failed"):
        stream.process()
    assert stream.process() == [["t-0: offsets 500 to 699 were deleted before they were read"]]


def test_a_stopped_stream_does_not_run_a_batch_again(tmp_path):
    topic = Topic((0, 500))
    stream = Stream(tmp_path, topic)
    stream._while_running.append(lambda: (stream.stream.stop(), sets(topic, RuntimeError(), bounds=[(300, 500)])()))
    assert stream.process() == []
    assert stream.given == [(0, [(0, 0, 500)])]
    stream.stream.close()
    again = Stream(tmp_path, topic)
    again.process()
    assert again.given == [(0, [(0, 300, 500)])], "it was not committed"


def test_what_comes_after_the_call_is_left_although_records_are_lost_in_each_batch(tmp_path):
    """Records arrive and are deleted as fast as they are processed."""
    topic = Topic((0, 100))

    def move():
        start, end = topic.bounds[0]
        topic.bounds = [(start + 50, end + 50)]

    stream = Stream(tmp_path, topic, *[move] * 50, max_offsets=10)
    stream.process()
    assert len(stream.given) < 10
    assert max(end for _, ranges in stream.given for _, _, end in ranges) == 100
    del stream._while_running[:]
    assert stream.process()[0][0].startswith("t-0: offsets 100 to ")


def test_partitions_and_topics_that_come_after_the_call_are_left(tmp_path):
    topic = Topic((0, 10))
    stream = Stream(tmp_path, topic, lambda: topic.recreate((0, 20), (0, 5)), max_offsets=5)
    stream.process()
    assert max(end for _, ranges in stream.given for _, _, end in ranges) == 5
    stream.process()
    assert stream.given[-1][1] == [(0, 16, 20), (1, 4, 5)]
