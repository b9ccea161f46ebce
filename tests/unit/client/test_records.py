"""What a consumer makes of the bytes of a fetch answer."""

from __future__ import annotations

import pytest

from rayka.client.records import Chunk, ConsumerRecord
from rayka.client.settings import ConsumerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.batch import read_header
from rayka.storage.control import ControlType, build_end_transaction_marker
from rayka.storage.records import Record, build_batch, rebuild_batch
from rayka.types import AbortedTransaction, TopicPartition

EVENTS = TopicPartition("events", 3)


def batch(base_offset: int, count: int, producer_id: int = -1) -> bytes:
    """A batch of numbered records, of a transaction if there is a producer."""
    records = [Record(0, 1000 + number, None, b"%d" % (base_offset + number)) for number in range(count)]
    epoch, is_transactional = (0, True) if producer_id >= 0 else (-1, False)
    return bytes(
        build_batch(
            records,
            base_offset=base_offset,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0 if is_transactional else -1,
            is_transactional=is_transactional,
        )
    )


def marker(offset: int, producer_id: int, control_type: ControlType) -> bytes:
    """The end of a transaction."""
    return bytes(
        build_end_transaction_marker(
            control_type, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, now_ms=0, base_offset=offset
        )
    )


def offsets(data: bytes, fetch_offset: int = 0, aborted: tuple[AbortedTransaction, ...] | None = None) -> list[int]:
    """The offsets of the records that a reader gets."""
    chunk = Chunk(EVENTS, fetch_offset, data, aborted, ConsumerConfig())
    taken: list[ConsumerRecord] = []
    while records := chunk.take(3):
        taken += records
    return [record.offset for record in taken]


def test_a_fetch_in_the_middle_of_a_batch() -> None:
    assert offsets(batch(10, 5) + batch(15, 2), fetch_offset=13) == [13, 14, 15, 16]


def test_a_truncated_last_batch_is_left_for_the_next_fetch() -> None:
    data = batch(0, 5) + batch(5, 5)
    for cut in (1, 30, 70):
        chunk = Chunk(EVENTS, 0, data[:-cut], None, ConsumerConfig())
        assert chunk.next_offset == 5
        assert len(chunk.batches.data) == len(batch(0, 5))
        assert offsets(data[:-cut]) == [0, 1, 2, 3, 4]


def test_a_first_batch_that_is_truncated_is_an_error() -> None:
    with pytest.raises(RaykaError, match="the batch at offset 7 of events-3 is larger than max_partition_fetch_bytes"):
        offsets(batch(7, 5)[:-1], fetch_offset=7)


def test_control_batches_are_never_seen() -> None:
    data = batch(0, 2, producer_id=1) + marker(2, 1, ControlType.COMMIT) + batch(3, 1)
    assert offsets(data) == offsets(data, aborted=()) == [0, 1, 3]
    assert Chunk(EVENTS, 0, data[: -len(batch(3, 1))], None, ConsumerConfig()).next_offset == 3


def test_aborted_transactions_are_left_out_under_read_committed() -> None:
    data = b"".join(
        (
            batch(0, 2, producer_id=1),
            batch(2, 2, producer_id=2),
            batch(4, 1),
            marker(5, 1, ControlType.ABORT),
            batch(6, 1, producer_id=1),
            marker(7, 2, ControlType.COMMIT),
            marker(8, 1, ControlType.COMMIT),
        )
    )
    assert offsets(data, aborted=(AbortedTransaction(1, 0),)) == [2, 3, 4, 6]
    assert offsets(data, aborted=None) == [0, 1, 2, 3, 4, 6]


def test_compaction_leaves_gaps_that_are_passed_over() -> None:
    whole = batch(0, 10)
    kept = [Record(offset, 1000, None, b"") for offset in (2, 5)]
    data = bytes(rebuild_batch(read_header(whole), kept))
    assert offsets(data) == [2, 5]
    assert offsets(data, fetch_offset=3) == [5]
    assert Chunk(EVENTS, 0, data, None, ConsumerConfig()).next_offset == 10


def test_a_flipped_bit_is_found() -> None:
    data = bytearray(batch(0, 5))
    data[-1] ^= 1
    with pytest.raises(RaykaError) as caught:
        offsets(bytes(data))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
