"""A transaction's first batch in a partition, while the coordinator is asked whether it may begin (KIP-890)."""

from __future__ import annotations

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import BatchHeader


class Verification:
    """Stands for the question. A marker that ends its transaction makes the answer worthless: see `ProducerState`.

    It remembers the lowest sequence that came: if the first batch of a producer is lost or fails, no later one may take
    its place.
    """

    __slots__ = ("last_seen_ms", "lowest_sequence", "producer_epoch")

    def __init__(self, producer_epoch: int, base_sequence: int, now_ms: int) -> None:
        self.producer_epoch = producer_epoch
        self.lowest_sequence = base_sequence
        self.last_seen_ms = now_ms

    def seen(self, producer_epoch: int, base_sequence: int, now_ms: int) -> None:
        """Another batch came that may be the first."""
        if producer_epoch > self.producer_epoch:
            self.producer_epoch, self.lowest_sequence = producer_epoch, base_sequence
        elif producer_epoch == self.producer_epoch:
            self.lowest_sequence = min(self.lowest_sequence, base_sequence)
        self.last_seen_ms = now_ms

    def check_sequence(self, header: BatchHeader) -> None:
        """Whether the batch may be the producer's first. Raises OUT_OF_ORDER_SEQUENCE_NUMBER."""
        if header.producer_epoch == self.producer_epoch and header.base_sequence > self.lowest_sequence:
            raise RaykaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Sequence {header.base_sequence} of producer {header.producer_id} came first, but"
                f" {self.lowest_sequence} was seen before",
            )
