"""Micro-batches: what each reads, where a stream starts, and what it does when records are gone."""

from __future__ import annotations

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.batches import MicroBatches, StreamSettings, behind
from rayka.ranges.checkpoint import Checkpoint
from rayka.storage.files import RealFiles
from tests.unit.ranges.topic import Topic, bounds


class Stream:
    """A stream over a topic, in a process that may be started again."""

    def __init__(self, directory, topic, **settings):
        self.topic = topic
        self.batches = MicroBatches(topic, Checkpoint(directory, RealFiles()), StreamSettings(**settings), "an id")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.batches.close()

    def next(self):
        return self.batches.next(self.batches.bounds())

    def process(self):
        """What the next batch reads; it is committed."""
        batch = self.next()
        self.batches.commit(batch)
        return bounds(batch.ranges)


def test_batches_are_bounded_and_shared_by_what_each_partition_has(tmp_path):
    with Stream(tmp_path, Topic((0, 30), (0, 10)), max_offsets=10) as stream:
        first = stream.next()
        assert bounds(first.ranges) == [(0, 0, 8), (1, 0, 2)]
        assert behind(first, stream.batches.bounds()) == 30
        assert stream.next() is first
        stream.batches.commit(first)
        assert bounds(stream.next().ranges) == [(0, 8, 16), (1, 2, 4)]


def test_a_planned_batch_survives_and_a_new_partition_begins_at_its_start(tmp_path):
    topic = Topic((0, 3))
    with Stream(tmp_path, topic) as stream:
        planned = stream.next()
    topic.bounds = [(0, 9)]
    with Stream(tmp_path, topic) as stream:
        assert stream.next() == planned
        stream.batches.commit(planned)
        topic.bounds = [(0, 9), (0, 6)]
        assert stream.process() == [(0, 3, 9), (1, 0, 6)]


def test_without_new_records_there_is_no_batch(tmp_path):
    with Stream(tmp_path, Topic((5, 5))) as stream:
        assert stream.next() is None
        stream.topic.bounds = [(5, 6)]
        assert stream.process() == [(0, 5, 6)]
        assert stream.next() is None


def test_a_stream_that_starts_at_the_latest_reads_what_comes_after_it_was_made(tmp_path):
    topic = Topic((0, 100))
    with Stream(tmp_path, topic, starting="latest") as stream:
        assert stream.next() is None
    topic.bounds = [(0, 107)]
    with Stream(tmp_path, topic, starting="latest") as stream:
        assert stream.process() == [(0, 100, 107)]


def test_a_reader_may_shorten_a_batch_before_it_is_planned(tmp_path):
    with Stream(tmp_path, Topic((0, 10))) as stream:

        def shorten(proposed):
            return [each.between(each.start_offset, each.start_offset + 4) for each in proposed]

        planned = stream.batches.next(stream.batches.bounds(), shorten)
        assert bounds(planned.ranges) == [(0, 0, 4)]
    with Stream(tmp_path, Topic((0, 10))) as stream:
        stream.topic.topic_id = planned.ranges[0].topic_id
        assert stream.next() == planned


def lose(stream, topic):
    """What the error says that the stream raises."""
    with pytest.raises(RaykaError) as failure:
        stream.next()
    return failure.value


def test_retention_that_overtook_a_stream_fails_it(tmp_path):
    topic = Topic((0, 10))
    with Stream(tmp_path, topic) as stream:
        stream.process()
        topic.bounds = [(50, 60)]
        error = lose(stream, topic)
    assert error.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert "t-0: offsets 10 to 49 were deleted before they were read" in error.message


def test_retention_that_overtook_a_stream_is_skipped_and_reported_if_wanted(tmp_path):
    topic = Topic((0, 10), (0, 10))
    with Stream(tmp_path, topic, on_data_loss="skip") as stream:
        stream.process()
        assert stream.batches.losses == ()
        topic.bounds = [(50, 60), (0, 10)]
        assert stream.process() == [(0, 50, 60), (1, 10, 10)]
        assert [bounds([loss.offsets]) for loss in stream.batches.losses] == [[(0, 10, 50)]]
        assert stream.next() is None


@pytest.mark.parametrize("earliest", [4, 10, 30])
def test_a_planned_batch_whose_records_are_gone_does_not_stop_a_stream_that_skips(tmp_path, earliest):
    topic = Topic((0, 10))
    with Stream(tmp_path, topic) as stream:
        planned = stream.next()
    topic.bounds = [(earliest, 40)]
    with Stream(tmp_path, topic) as stream:
        assert lose(stream, topic).code is ErrorCode.OFFSET_OUT_OF_RANGE
    with Stream(tmp_path, topic, on_data_loss="skip") as stream:
        again = stream.next()
        assert again.batch_id == planned.batch_id
        assert bounds(again.ranges) == [(0, earliest, max(earliest, 10))]
        stream.batches.commit(again)
        assert stream.process() == [(0, max(earliest, 10), 40)]


@pytest.mark.parametrize("is_done", [True, False])
def test_a_topic_that_was_created_again_is_noticed(tmp_path, is_done):
    topic = Topic((0, 10))
    with Stream(tmp_path, topic) as stream:
        batch = stream.next()
        if is_done:
            stream.batches.commit(batch)
    topic.recreate((0, 20))
    with Stream(tmp_path, topic) as stream:
        error = lose(stream, topic)
        assert error.code is ErrorCode.UNKNOWN_TOPIC_ID
        assert "t-0: the topic was deleted and created again" in error.message
    with Stream(tmp_path, topic, on_data_loss="skip") as stream:
        if not is_done:
            assert stream.process() == [(0, 0, 0)]
        assert stream.process() == [(0, 0, 20)]


def test_a_partition_that_was_deleted_is_noticed(tmp_path):
    topic = Topic((0, 10), (0, 5))
    with Stream(tmp_path, topic) as stream:
        stream.process()
        topic.bounds = [(0, 12)]
        assert lose(stream, topic).code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with Stream(tmp_path, topic, on_data_loss="skip") as stream:
        assert stream.process() == [(0, 10, 12)]


def test_a_new_partition_whose_beginning_is_gone_is_noticed(tmp_path):
    topic = Topic((0, 10))
    with Stream(tmp_path, topic) as stream:
        stream.process()
        topic.bounds = [(0, 10), (4, 6)]
        assert "t-1: offsets 0 to 3 of this new partition were deleted" in lose(stream, topic).message
    with Stream(tmp_path, topic, on_data_loss="skip") as stream:
        assert not stream.batches.doubts(stream.batches.bounds())
        assert stream.process() == [(0, 10, 10), (1, 4, 6)]
        assert [bounds([loss.offsets]) for loss in stream.batches.losses] == [[(1, 0, 4)]]


def test_a_log_that_ends_before_what_was_read_is_noticed_before_new_records_take_those_offsets(tmp_path):
    topic = Topic((0, 10))
    with Stream(tmp_path, topic) as stream:
        stream.process()
        topic.bounds = [(0, 7)]
        assert stream.batches.doubts(stream.batches.bounds())
        error = lose(stream, topic)
        assert error.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert "t-0: the log ends at offset 7, and had been read up to offset 10" in error.message
    with Stream(tmp_path, topic, on_data_loss="skip") as stream:
        assert stream.process() == [(0, 7, 7)]
        assert [bounds([loss.offsets]) for loss in stream.batches.losses] == [[(0, 7, 10)]]
        assert stream.next() is None
    topic.bounds = [(0, 12)]
    with Stream(tmp_path, topic) as stream:
        assert stream.process() == [(0, 7, 12)]


def test_a_stream_that_reads_only_committed_records_from_now_on_waits_for_the_open_transaction(tmp_path):
    """Its records had been read, uncommitted: nothing is lost, and nothing is read twice."""
    with Stream(tmp_path, Topic((0, 15))) as stream:
        assert stream.process() == [(0, 0, 15)]
    topic = stream.topic
    topic.bounds, topic.uncommitted = [(0, 10)], 5
    with Stream(tmp_path, topic) as stream:
        assert not stream.batches.doubts(stream.batches.bounds())
        assert stream.next() is None
        topic.uncommitted = 4
        assert stream.batches.doubts(stream.batches.bounds()), "the log was cut at 14"
        topic.bounds, topic.uncommitted = [(0, 17)], 0
        assert stream.process() == [(0, 15, 17)]


def test_a_batch_with_records_of_an_open_transaction_comes_again_as_it_was_planned(tmp_path):
    with Stream(tmp_path, Topic((0, 15))) as stream:
        planned = stream.next()
    stream.topic.bounds, stream.topic.uncommitted = [(0, 10)], 5
    with Stream(tmp_path, stream.topic) as again:
        assert again.next() == planned


def test_a_planned_batch_ends_where_the_log_was_cut(tmp_path):
    topic = Topic((0, 10), (0, 10))
    with Stream(tmp_path, topic) as stream:
        stream.next()
        topic.bounds = [(2, 7), (0, 10)]
        assert stream.batches.doubts(stream.batches.bounds())
        message = lose(stream, topic).message
        assert "offsets 0 to 1 were deleted before they were read" in message
        assert "the log ends at offset 7, and was to be read up to offset 10" in message
    with Stream(tmp_path, topic, on_data_loss="skip") as stream:
        assert stream.process() == [(0, 2, 7), (1, 0, 10)]
        topic.bounds = [(2, 9), (0, 10)]
        assert stream.process() == [(0, 7, 9), (1, 10, 10)]


def test_a_stream_whose_only_topic_is_gone_has_a_last_batch_that_says_so(tmp_path):
    topic = Topic((0, 10))
    with Stream(tmp_path, topic, on_data_loss="skip") as stream:
        stream.process()
        topic.bounds = []
        assert stream.process() == []
        assert [loss.code for loss in stream.batches.losses] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert stream.next() is None


def test_a_bad_answer_to_data_loss_is_refused():
    with pytest.raises(RaykaError, match="on_data_loss must be"):
        StreamSettings(on_data_loss="ignore")


def test_a_topic_that_was_created_again_while_a_batch_was_read_is_noticed(tmp_path):
    topic = Topic((0, 10))
    with Stream(tmp_path, topic, on_data_loss="skip") as stream:
        batch = stream.next()
        topic.recreate((0, 20))
        assert [(loss.code, len(loss.offsets)) for loss in stream.batches.deleted_since(batch.ranges)] == [
            (ErrorCode.UNKNOWN_TOPIC_ID, 10)
        ]
