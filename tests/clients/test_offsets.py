"""Offsets by time, and at both ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec
from kafka import TopicPartition as KafkaPythonPartition
from kafka.admin import OffsetSpec as KafkaPythonOffsetSpec

from tests.clients.adapters.confluent import TIMEOUT_S, Confluent, done
from tests.clients.conftest import CLIENTS
from tests.clients.record import Record

START_MS = int(time.time() * 1000) - 1_000_000
# two batches; within the first one time goes back
TIMES_MS = ((0, 3000, 1000, 2000), (5000, 4000))


@pytest.fixture(scope="module")
def timed(confluent: Confluent) -> str:
    topic = f"timed-{time.time_ns()}"
    confluent.create_topic(topic, 2)
    for batch in TIMES_MS:
        confluent.produce(topic, [Record(None, b"v", timestamp=START_MS + offset_ms) for offset_ms in batch])
    return topic


@pytest.mark.parametrize("client", CLIENTS, indirect=True)
def test_earliest_and_latest(client: Any, timed: str) -> None:
    assert client.offsets(timed, 0) == (0, 6)
    assert client.offsets(timed, 1) == (0, 0)


@pytest.mark.parametrize(
    ("time_ms", "offset"), [(-1000, 0), (0, 0), (1, 1), (1000, 1), (3000, 1), (3001, 4), (4500, 4), (5001, None)]
)
@pytest.mark.parametrize("client", CLIENTS, indirect=True)
def test_the_first_record_at_or_after_a_time(client: Any, timed: str, time_ms: int, offset: int | None) -> None:
    assert client.offset_for_time(timed, START_MS + time_ms) == offset


@pytest.mark.parametrize("client", CLIENTS, indirect=True)
def test_no_time_is_found_in_an_empty_partition(client: Any, timed: str) -> None:
    assert client.offset_for_time(timed, 0, 1) is None


def by_confluent(clients: Callable[[str], Any], topic: str) -> int:
    admin = clients("confluent-kafka").admin
    result = done(admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.max_timestamp()}, request_timeout=TIMEOUT_S))
    return int(result.offset)


def by_kafka_python(clients: Callable[[str], Any], topic: str) -> int:
    where = KafkaPythonPartition(topic, 0)
    with clients("kafka-python").admin() as admin:
        return int(admin.list_partition_offsets({where: KafkaPythonOffsetSpec.MAX_TIMESTAMP})[where].offset)


def by_java(clients: Callable[[str], Any], topic: str) -> int:
    return int(clients("java").call("offset_of_max_timestamp", topic=topic, partition=0))


@pytest.mark.parametrize("ask", [by_confluent, by_kafka_python, by_java])
def test_the_record_of_the_latest_time(
    clients: Callable[[str], Any], timed: str, ask: Callable[[Callable[[str], Any], str], int]
) -> None:
    assert ask(clients, timed) == 4
