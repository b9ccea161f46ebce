"""Which items a writer of a queue waits for, and whose errors it raises."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from rayka.client.producer.batch import BatchFuture, ProducerBatch
from rayka.client.settings import ProducerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.queue import connected
from rayka.queue.writer import QueueWriter
from rayka.testing import wait_until
from rayka.types import TopicPartition

REFUSED = RaykaError(ErrorCode.INVALID_RECORD, "refused")


class SplittingProducer:
    """Sends each item as a batch of its own. Some of them fail."""

    def __init__(self, *refused: bytes) -> None:
        self.refused = refused

    def send(self, topic: str, value: bytes) -> BatchFuture:
        batch = ProducerBatch(TopicPartition(topic, 0), ProducerConfig(), 0)
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


class Slow:
    """The future of an item whose acknowledgement takes long."""

    def __init__(self) -> None:
        self.asked = 0
        self.acknowledged = threading.Event()

    def get(self) -> None:
        self.asked += 1
        assert self.acknowledged.wait(30)


def test_a_thread_waits_for_items_for_which_another_one_waits_already() -> None:
    slow = Slow()
    writer = QueueWriter(SimpleNamespace(send=lambda topic, value: slow), "queue", 1)  # type: ignore[arg-type]
    writer.put(b"0")
    threads = [threading.Thread(target=writer.flush, daemon=True) for _ in range(2)]
    for number, thread in enumerate(threads, 1):
        thread.start()
        wait_until(lambda n=number, t=thread: slow.asked == n or not t.is_alive(), 30, "it waits")
    assert slow.asked == 2
    slow.acknowledged.set()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


def test_a_program_that_ends_before_its_items_are_in_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class UnreachableProducer:
        def flush(self, *, timeout_ms: float) -> None:
            raise RaykaError(ErrorCode.REQUEST_TIMED_OUT, f"7 bytes are not sent after {timeout_ms} ms")

    monkeypatch.setattr(connected, "_producers", {"cluster": UnreachableProducer()})
    connected._flush()
    assert "7 bytes are not sent" in caplog.text
