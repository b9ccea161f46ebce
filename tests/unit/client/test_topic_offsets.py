"""Streams over topics of a cluster, and what they do when one of them is deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.client.consumer.topic_offsets import TopicOffsets, believed_bounds
from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.batches import MicroBatches, OnDataLoss, StreamSettings
from rayka.ranges.checkpoint import Checkpoint
from rayka.storage.files import RealFiles
from tests.unit.client.grouped import write

Open = Callable[[OnDataLoss], MicroBatches]


@pytest.fixture
def opened(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens the stream over two topics again."""
    monkeypatch.setattr("rayka.client.consumer.topic_offsets._PATIENCE_S", 0.2)
    streams: list[MicroBatches] = []

    def open_again(on_data_loss: OnDataLoss) -> MicroBatches:
        for stream in streams:
            stream.close()
        offsets = TopicOffsets(cluster.admin(), ["events", "other"])
        checkpoint = Checkpoint(tmp_path / "checkpoint", RealFiles())
        streams.append(MicroBatches(offsets, checkpoint, StreamSettings(on_data_loss=on_data_loss), "an id"))
        return streams[-1]

    for name in ("events", "other"):
        cluster.admin().create_topic(name)
        write(cluster, 5, name)
    yield open_again
    for stream in streams:
        stream.close()


def process(batches: MicroBatches) -> dict[str, tuple[int, int]] | None:
    """What the next batch reads of each topic; it is committed."""
    batch = batches.next(believed_bounds(batches))
    if batch is None:
        return None
    batches.commit(batch)
    return {each.topic: (each.start_offset, each.end_offset) for each in batch.ranges}


def test_a_stream_that_skips_goes_on_without_a_topic_that_was_deleted(cluster: Cluster, opened: Open) -> None:
    batches = opened("fail")
    assert process(batches) == {"events": (0, 5), "other": (0, 5)}
    cluster.admin().delete_topic("other")
    with pytest.raises(RaykaError) as deleted:
        process(batches)
    assert deleted.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    batches = opened("skip")
    assert process(batches) == {"events": (5, 5)}
    assert [loss.code for loss in batches.losses] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    write(cluster, 2, first=5)
    assert process(batches) == {"events": (5, 7)}
    assert batches.losses == ()
    cluster.admin().create_topic("other")
    write(cluster, 3, "other")
    assert process(batches) == {"events": (7, 7), "other": (0, 3)}


def test_a_topic_that_is_deleted_while_its_offsets_are_looked_up_is_lost_and_no_error(
    cluster: Cluster, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayka.client.consumer.offsets.UNKNOWN_FOR_S", 0.2)
    batches = opened("skip")
    assert process(batches) == {"events": (0, 5), "other": (0, 5)}
    list_offsets, deleted = TopicOffsets.list_offsets, []

    def late(self: TopicOffsets, timestamps: Any) -> Any:
        if not deleted:
            deleted.append("other")
            cluster.admin().delete_topic("other")
        return list_offsets(self, timestamps)

    monkeypatch.setattr(TopicOffsets, "list_offsets", late)
    assert process(batches) == {"events": (5, 5)}


def test_no_topic_at_all_is_refused(cluster: Cluster) -> None:
    """Nothing would be read, for ever."""
    names: Iterator[str] = iter(())
    with pytest.raises(RaykaError, match="give at least one topic") as refused:
        TopicOffsets(cluster.admin(), names).topic_ids()
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_new_stream_needs_all_its_topics(cluster: Cluster, opened: Open) -> None:
    cluster.admin().delete_topic("other")
    with pytest.raises(RaykaError, match="other does not exist"):
        opened("skip")
