"""The bytes of `__share_group_state`: those that Apache Kafka 4.4.0 wrote come out again as they were, and load.

`kafka_records.json` has the records (key and value in hex) of a broker with 5 updates per snapshot: a share group that
acknowledged records of two partitions, and whose offsets of a third were altered and then deleted.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayka.coordinator.codec import ZERO_UUID
from rayka.coordinator.shares.coordinator import ShareCoordinator
from rayka.coordinator.shares.records import ShareStateRecord, ShareUpdateKey, ShareUpdateValue, decode, encode
from rayka.coordinator.shares.requests import StateBatch
from rayka.coordinator.shares.settings import ShareCoordinatorSettings

KAFKA_RECORDS = [
    (bytes.fromhex(key), None if value is None else bytes.fromhex(value))
    for key, value in json.loads((Path(__file__).parent / "kafka_records.json").read_text())
]


def test_records_of_kafka_are_written_back_unchanged() -> None:
    for key, value in KAFKA_RECORDS:
        record = decode(key, value)
        assert record is not None
        assert encode(record) == (key, value)


def test_a_log_of_kafka_loads() -> None:
    core = ShareCoordinator(ShareCoordinatorSettings())
    for offset, (key, value) in enumerate(KAFKA_RECORDS):
        record = decode(key, value)
        assert record is not None
        core.replay(record, offset)
    core.validate_state()
    states = {key.partition: state for key, state in core.states.items()}
    assert {number: (state.start_offset, state.state_batches) for number, state in states.items()} == {
        0: (93, (StateBatch(93, 95, 0, 1),)),
        1: (93, (StateBatch(93, 95, 0, 1),)),
    }
    assert {state.snapshot_epoch for state in states.values()} == {2}


def test_a_reader_that_does_not_know_delays_reads_the_rest() -> None:
    """Kafka skips tagged fields that it does not know, and so does our codec."""
    delayed = StateBatch(5, 9, 0, 2, 1_700_000_000_000)
    value = ShareUpdateValue(1, 2, 5, (delayed, StateBatch(10, 10, 2, 1)), 1)
    record = ShareStateRecord(ShareUpdateKey("g", ZERO_UUID, 0), value)
    key, encoded = encode(record)
    assert decode(key, encoded) == record
    assert encoded is not None
    without = encode(record._replace(value=value._replace(state_batches=(delayed._replace(available_at=0),) * 2)))
    tagged_field = bytes.fromhex("01 904e 08") + (1_700_000_000_000).to_bytes(8)
    assert tagged_field in encoded
    assert tagged_field not in (without[1] or b"")


def test_records_from_the_future_are_refused() -> None:
    key, value = encode(ShareStateRecord(ShareUpdateKey("g", ZERO_UUID, 0), ShareUpdateValue(0, 0, 0)))
    assert value is not None
    with pytest.raises(ValueError, match="version 1"):
        decode(key, b"\0\1" + value[2:])
    assert decode(b"\0\7" + key[2:], value) is None
