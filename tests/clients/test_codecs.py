"""Whatever one client writes with any codec, every other client reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.adapters.confluent import Confluent
from tests.clients.conftest import CLIENTS, unique
from tests.clients.record import CODECS, SAMPLES, Record


def nothing(record: Record) -> bool:
    return record.key is None and record.value is None


def null_header(record: Record) -> bool:
    return any(value is None for _, value in record.headers)


# what a library refuses to write, or its command line cannot express; all of them must read all of it
CANNOT_WRITE: dict[str, tuple[Callable[[Record], bool], ...]] = {
    "kafka-python": (nothing, null_header),
    "aiokafka": (nothing,),
    "kcat": (nothing,),
    "kafkajs": (null_header,),
}


def samples_for(producer: str) -> list[Record]:
    return [record for record in SAMPLES if not any(beyond(record) for beyond in CANNOT_WRITE.get(producer, ()))]


@pytest.fixture(scope="module")
def written(clients: Callable[[str], Any], confluent: Confluent) -> Callable[[str, str], str]:
    """`written(producer, codec)` is the topic that has this producer's samples; it is written once."""
    topics: dict[tuple[str, str], str] = {}

    def write(producer: str, codec: str) -> str:
        if (producer, codec) not in topics:
            name = unique(f"codec-{producer}-{codec}")
            confluent.create_topic(name)
            clients(producer).produce(name, samples_for(producer), codec=codec)
            topics[producer, codec] = name
        return topics[producer, codec]

    return write


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("producer", CLIENTS)
@pytest.mark.parametrize("consumer", CLIENTS)
def test_every_client_reads_the_records_of_every_client(
    written: Callable[[str, str], str], clients: Callable[[str], Any], producer: str, consumer: str, codec: str
) -> None:
    topic = written(producer, codec)
    expected = samples_for(producer)

    got = clients(consumer).fetch(topic, count=len(expected))

    assert [record.content for record in got] == [record.content for record in expected]
    assert [record.offset for record in got] == list(range(len(expected)))
