"""The records of `__transaction_state` are Kafka's, byte for byte."""

from __future__ import annotations

import pytest

from rayka.coordinator.transactions.metadata import TransactionMetadata
from rayka.coordinator.transactions.records import TransactionRecord, decode, encode
from rayka.coordinator.transactions.state import TransactionState
from rayka.types import TopicPartition

OPEN = TransactionMetadata(
    producer_id=4,
    producer_epoch=1,
    timeout_ms=60_000,
    last_update_ms=1_001,
    state=TransactionState.ONGOING,
    previous_producer_id=4,
    partitions=frozenset({TopicPartition("a", 1), TopicPartition("a", 0)}),
    start_ms=1_000,
    client_transaction_version=2,
)
OPEN_BYTES = bytes.fromhex(
    "0001"  # version
    "0000000000000004 0001 0000ea60 01"  # producer id and epoch, timeout, status
    "02 02 61 03 00000000 00000001 00"  # one topic, two partitions
    "00000000000003e9 00000000000003e8"  # last update, start
    "02 00 08 0000000000000004 02 02 0002"  # tags: previous producer id, client transaction version
)


def test_an_open_transaction_is_written_as_kafka_writes_it() -> None:
    key, value = encode(TransactionRecord("tx", OPEN))
    assert key == b"\0\0\0\x02tx"
    assert value == OPEN_BYTES


def test_what_was_written_is_read() -> None:
    empty = TransactionMetadata(4, 0, 60_000, 1_001)
    for record in (TransactionRecord("tx", OPEN), TransactionRecord("tx", empty), TransactionRecord("tx", None)):
        assert decode(*encode(record)) == record


def test_version_0_is_read() -> None:
    value = bytes.fromhex("0000 0000000000000004 0001 0000ea60 00 ffffffff 00000000000003e9 ffffffffffffffff")
    record = decode(b"\0\0\0\x02tx", value)
    assert record == TransactionRecord("tx", TransactionMetadata(4, 1, 60_000, 1_001))


def test_later_tags_are_skipped() -> None:
    value = OPEN_BYTES[:-15] + bytes.fromhex("03 00 08 0000000000000004 02 02 0002 03 02 0007")
    assert decode(b"\0\0\0\x02tx", value) == TransactionRecord("tx", OPEN)


def test_records_of_the_future_are_refused_and_other_keys_ignored() -> None:
    with pytest.raises(ValueError, match="version 2"):
        decode(b"\0\0\0\x02tx", b"\0\x02")
    assert decode(b"\0\x07\0\x02tx", b"") is None
