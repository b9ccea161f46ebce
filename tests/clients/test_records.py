"""Sizes, numbers and timestamps of records survive the way through the broker."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.conftest import CLIENTS
from tests.clients.record import Record, Refused

HOUR_MS = 3_600_000
SETS_TIMESTAMPS = [name for name in CLIENTS if name != "kcat"]


@pytest.mark.parametrize("client", CLIENTS, indirect=True)
def test_records_of_one_mebibyte(client: Any, new_topic: Callable[..., str]) -> None:
    topic = new_topic(**{"max.message.bytes": "4000000"})
    records = [Record(b"%d" % number, os.urandom(512).hex().encode() * 1024) for number in range(3)]

    client.produce(topic, records)

    assert [record.content for record in client.fetch(topic, count=3)] == [record.content for record in records]


@pytest.mark.parametrize("client", CLIENTS, indirect=True)
def test_100_000_small_records_keep_their_order(client: Any, topic: str) -> None:
    records = [Record(None, b"record %d" % number) for number in range(100_000)]

    client.produce(topic, records)
    got = client.fetch(topic, count=len(records))

    assert [record.value for record in got] == [record.value for record in records]
    assert [record.offset for record in got] == list(range(len(records)))


@pytest.mark.parametrize("client", SETS_TIMESTAMPS, indirect=True)
def test_create_time_is_the_timestamp_of_the_producer(client: Any, topic: str) -> None:
    now = int(time.time() * 1000)
    timestamps = [now - 5 * HOUR_MS, now, now - HOUR_MS, 1]

    client.produce(topic, [Record(None, b"v", timestamp=timestamp) for timestamp in timestamps])

    assert [record.timestamp for record in client.fetch(topic, count=4)] == timestamps


@pytest.mark.parametrize("client", SETS_TIMESTAMPS, indirect=True)
def test_log_append_time_is_the_brokers_clock(client: Any, new_topic: Callable[..., str]) -> None:
    topic = new_topic(**{"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)

    client.produce(topic, [Record(None, b"v", timestamp=1), Record(None, b"v", timestamp=2)])
    after = int(time.time() * 1000)

    assert all(before <= (record.timestamp or 0) <= after for record in client.fetch(topic, count=2))


@pytest.mark.parametrize(
    ("configs", "age_ms", "accepted"),
    [
        ({}, -2 * HOUR_MS, False),
        ({}, 1000 * HOUR_MS, True),
        ({"message.timestamp.after.max.ms": str(3 * HOUR_MS)}, -2 * HOUR_MS, True),
        ({"message.timestamp.before.max.ms": str(HOUR_MS)}, 2 * HOUR_MS, False),
        ({"message.timestamp.type": "LogAppendTime"}, -2 * HOUR_MS, True),
    ],
)
def test_timestamps_out_of_bounds_are_refused(
    confluent: Any, new_topic: Callable[..., str], configs: dict[str, str], age_ms: int, accepted: bool
) -> None:
    topic = new_topic(**configs)
    record = Record(None, b"v", timestamp=int(time.time() * 1000) - age_ms)

    if accepted:
        assert confluent.produce(topic, [record]) == [0]
    else:
        with pytest.raises(Refused) as refusal:
            confluent.produce(topic, [record])
        assert refusal.value.code == 32
