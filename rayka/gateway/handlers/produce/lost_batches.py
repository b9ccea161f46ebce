"""Keeps the batches of an idempotent producer in order on a connection that outlives their leader.

In Kafka the leader's death ends the connection, so what was sent after a lost batch is lost with it. Here the
connection may end in another process, and batches that are already on their way would reach the leader's next start
without the lost one. The leader must refuse them with OUT_OF_ORDER_SEQUENCE_NUMBER, upon which librdkafka begins a new
epoch and sends everything again: a batch that was written, but whose answer was lost, would be there twice. Of a
producer that the leader does not know it would even accept them, and librdkafka takes that for an acknowledgement of
the lost batch too. Source: librdkafka, src/rdkafka_request.c, rd_kafka_handle_idempotent_Produce_error ("skipped
sequence numbers") and rd_kafka_handle_idempotent_Produce_success ("implicit ack").

So, after a batch was lost, later ones of its producer are refused until it is sent again.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from rayka.errors import ErrorCode
from rayka.types import AppendRequest, AppendResult, TopicPartition

EXPIRY_S: Final = 10.0
"""A producer that has given a batch up without a new epoch continues after this long."""
_MOST: Final = 1000
_PRODUCER: Final = struct.Struct(">43x q h i")
_SEQUENCES: Final = 1 << 31
_LOSSES: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT)
_HELD_BACK: Final = AppendResult(
    int(ErrorCode.NOT_LEADER_OR_FOLLOWER), error_message="an earlier batch of this producer did not reach the leader"
)


class _LostBatch(NamedTuple):
    """A batch that its leader did not take. `at_s`: when, by the loop's clock."""

    producer_epoch: int
    base_sequence: int
    at_s: float


class LostBatches:
    """The first batch of each producer and partition of a connection that the leader did not take. False if empty."""

    __slots__ = ("_lost",)

    def __init__(self) -> None:
        self._lost: dict[tuple[TopicPartition, int], _LostBatch] = {}

    def __bool__(self) -> bool:
        return bool(self._lost)

    def holds_back(self, request: AppendRequest, now_s: float) -> bool:
        """Whether the batch comes after a lost one. The lost batch itself, or a new epoch, ends that."""
        self._forget_expired(now_s)
        producer_id, epoch, sequence = _PRODUCER.unpack_from(request.records)
        key = request.topic_partition, producer_id
        lost = self._lost.get(key)
        if lost is None:
            return False
        if epoch != lost.producer_epoch or sequence == lost.base_sequence:
            del self._lost[key]
            return False
        return _follows(sequence, lost.base_sequence)

    def _forget_expired(self, now_s: float) -> None:
        self._lost = {key: lost for key, lost in self._lost.items() if now_s - lost.at_s < EXPIRY_S}

    def settle(self, request: AppendRequest, result: AppendResult, now_s: float) -> AppendResult:
        """The answer to a batch that was sent to its leader; a loss is noted."""
        if not self._lost and result.error not in _LOSSES:
            return result
        producer_id, epoch, sequence = _PRODUCER.unpack_from(request.records)
        key = request.topic_partition, producer_id
        lost = self._lost.get(key)
        if lost is not None and epoch == lost.producer_epoch and _follows(sequence, lost.base_sequence):
            return result if result.error in _LOSSES else _HELD_BACK
        if result.error in _LOSSES and producer_id >= 0 and len(self._lost) < _MOST:
            self._lost[key] = _LostBatch(epoch, sequence, now_s)
        return result

    @staticmethod
    def refusal() -> AppendResult:
        """The answer to a batch that is held back: retriable, and surely not written."""
        return _HELD_BACK


def _follows(sequence: int, earlier: int) -> bool:
    """Whether `sequence` comes after `earlier`; sequences wrap to 0."""
    return 0 < (sequence - earlier) % _SEQUENCES < _SEQUENCES // 2
