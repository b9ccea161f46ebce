"""Blocks of an endless topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("ray.data")

from rayka.client.consumer.range_reader import TopicDeleted
from rayka.client.consumer.remote_ranges import RangeRecords
from rayka.data.endless import BlockReader, TopicBlocks
from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.batches import MicroBatches, OnDataLoss, StreamSettings
from rayka.ranges.checkpoint import Checkpoint
from rayka.ranges.plan import OffsetRange
from rayka.storage.files import RealFiles
from tests.unit.ranges.topic import Topic


class Ranges:
    """What reads a range: the offsets themselves. When so many have been read, the topic is created again with these
    bounds, or only deleted if there are none."""

    def __init__(self, topic: Topic, reads_before: int, *bounds: tuple[int, int]) -> None:
        self._topic = topic
        self._reads_left = reads_before
        self._bounds = bounds

    def read(self, offsets: OffsetRange) -> Iterator[RangeRecords]:
        """See `RangeReader.read`."""
        if self._reads_left == 0:
            self._topic.recreate(*self._bounds)
        self._reads_left -= 1
        if offsets.topic_id != self._topic.topic_id:
            raise TopicDeleted(ErrorCode.UNKNOWN_TOPIC_ID, "topic t was deleted")
        numbers = pa.array(range(offsets.start_offset, offsets.end_offset), pa.int64())
        yield RangeRecords(offsets.end_offset, pa.RecordBatch.from_arrays([numbers], ["offset"]))


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A topic with five records, and little patience with losses that are not certain."""
    monkeypatch.setattr("rayka.client.consumer.topic_offsets._PATIENCE_S", 0.2)
    return Topic((0, 5))


def blocks(
    directory: Path,
    topic: Topic,
    on_data_loss: OnDataLoss,
    reads_before: int = 0,
    recreated: tuple[int, int] | None = (0, 3),
) -> TopicBlocks:
    """The blocks of a stream. After so many reads its topic is created again, with these offsets."""
    settings = StreamSettings(on_data_loss=on_data_loss)
    batches = MicroBatches(topic, Checkpoint(directory, RealFiles()), settings, "an id")
    ranges: Any = Ranges(topic, reads_before, *(() if recreated is None else (recreated,)))
    return TopicBlocks(batches, BlockReader(ranges, ("offset",), 1_000_000), 0.01, 0.0)


def test_a_topic_that_is_created_again_while_a_block_is_read_is_read_from_its_beginning(
    tmp_path: Path, topic: Topic
) -> None:
    given = blocks(tmp_path, topic, "skip")
    assert [block.column("offset").to_pylist() for block in given if block.num_rows] == [[0, 1, 2]]


def test_a_topic_that_is_created_again_while_a_block_is_read_fails_a_stream_that_skips_nothing(
    tmp_path: Path, topic: Topic
) -> None:
    with blocks(tmp_path, topic, "fail") as given, pytest.raises(RaykaError, match='Set on_data_loss="skip"') as lost:
        next(given)
    assert lost.value.code is ErrorCode.UNKNOWN_TOPIC_ID


def test_a_topic_that_is_created_again_while_a_block_is_read_once_more_is_read_from_its_beginning(
    tmp_path: Path, topic: Topic
) -> None:
    with blocks(tmp_path, topic, "skip", reads_before=1) as given:
        assert next(given).column("offset").to_pylist() == [0, 1, 2, 3, 4]
    again = blocks(tmp_path, topic, "skip")
    assert [block.column("offset").to_pylist() for block in again if block.num_rows] == [[0, 1, 2]]


def test_a_topic_that_is_deleted_while_a_block_is_read_is_a_loss(
    tmp_path: Path, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    given = blocks(tmp_path, topic, "skip", recreated=None)
    assert [block.num_rows for block in given] == [0]
    assert "t-0: the partition was deleted; it had been read up to offset 0" in caplog.text


def test_a_block_that_only_reports_a_loss_is_empty_though_a_part_was_read_before(tmp_path: Path, topic: Topic) -> None:
    topic.recreate((0, 5), (0, 5))
    given = blocks(tmp_path, topic, "skip", reads_before=1, recreated=(0, 0))
    assert [block.num_rows for block in given] == [0]


@pytest.mark.parametrize("max_bytes", [0, -1])
def test_blocks_of_no_bytes_are_refused(max_bytes: int) -> None:
    """No record would ever be read, and the iterator would wait for one."""
    reader: Any = None
    with pytest.raises(RaykaError, match="max_bytes_per_block must be 1 or more") as refused:
        BlockReader(reader, ("value",), max_bytes)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
