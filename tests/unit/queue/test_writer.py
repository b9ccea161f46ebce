"""Which items a writer of a queue waits for, and whose errors it raises."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rayka.client.producer.batch import BatchFuture, ProducerBatch
from rayka.client.settings import ProducerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.queue.writer import QueueWriter
from rayka.types import TopicPartition

REFUSED = RaykaError(ErrorCode.INVALID_RECORD, "refused")


class SplittingProducer:
    """Sends each item as a batch of its own. Some of them fail."""

    def __init__(self, *refused: bytes) -> None:
        self.refused = refused

    def send(self, topic: str, value: bytes) -> BatchFuture:
        batch = ProducerBatch(TopicPartition(topic, 0), ProducerConfig())
        batch.complete(0, -1, REFUSED if value in self.refused else None)
        return BatchFuture(batch)

    def send_batch(self, topic: str, partition: None, values: Sequence[bytes]) -> list[BatchFuture]:
        return [self.send(topic, value) for value in values]


@pytest.mark.parametrize("put_ahead", [1, 2])
def test_behind_an_item_that_failed_the_errors_of_others_are_raised_too(put_ahead: int) -> None:
    writer = QueueWriter(SplittingProducer(b"0", b"3"), "queue", put_ahead)  # type: ignore[arg-type]
    with pytest.raises(RaykaError, match="refused"):
        writer.put_all([b"0", b"1", b"2", b"3"])
    with pytest.raises(RaykaError, match="refused"):
        writer.flush()
    writer.flush()
