"""The cluster, its log directories, and records deleted by offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import OFFSET_END

from tests.clients.adapters.confluent import TIMEOUT_S, Confluent
from tests.clients.adapters.kafka_python import KafkaPython
from tests.clients.conftest import CLIENTS
from tests.clients.record import Record, Refused

ADMINS = [name for name in CLIENTS if name != "kcat"]
OFFSET_OUT_OF_RANGE = 1


def test_the_cluster_describes_itself(confluent: Confluent, bootstrap: str, broker_id: int) -> None:
    described = confluent.admin.describe_cluster(request_timeout=TIMEOUT_S).result()

    assert described.cluster_id
    assert [node.id for node in described.nodes] == [broker_id]
    assert f"{described.controller.host}:{described.controller.port}" == bootstrap
    assert confluent.admin.list_topics(timeout=TIMEOUT_S).cluster_id == described.cluster_id


def test_log_directories_tell_the_size_of_partitions(
    clients: Callable[[str], Any], confluent: Confluent, new_topic: Callable[..., str], broker_id: int
) -> None:
    topic = new_topic(2)
    confluent.produce(topic, [Record(None, b"x" * 1000) for _ in range(100)])
    client: KafkaPython = clients("kafka-python")
    with client.admin() as admin:
        (broker,) = admin.describe_log_dirs({topic: [0, 1]})

    assert broker["broker"] == broker_id
    for log_dir in broker["log_dirs"]:
        assert log_dir["error_code"] == 0
        assert log_dir["total_bytes"] > log_dir["usable_bytes"] > 0
    described = [entry for log_dir in broker["log_dirs"] for entry in log_dir["topics"]]
    assert {entry["name"] for entry in described} == {topic}
    sizes = {place["partition_index"]: place["partition_size"] for entry in described for place in entry["partitions"]}
    assert sizes.keys() == {0, 1}
    assert sizes[0] > 100_000
    assert sizes[1] == 0


@pytest.mark.parametrize("client", ADMINS, indirect=True)
def test_deleted_records_are_gone_for_every_reader(client: Any, confluent: Confluent, topic: str) -> None:
    confluent.produce(topic, [Record(None, b"%d" % number) for number in range(10)])

    client.delete_records(topic, 4)

    assert client.offsets(topic) == (4, 10)
    assert [record.offset for record in client.fetch(topic, offset=4, count=6)] == list(range(4, 10))
    with pytest.raises(Refused):
        client.fetch(topic, offset=3, count=1)


def test_all_records_can_be_deleted(confluent: Confluent, topic: str) -> None:
    confluent.produce(topic, [Record(None, b"%d" % number) for number in range(10)])

    assert confluent.delete_records(topic, OFFSET_END) == 10
    assert confluent.offsets(topic) == (10, 10)
    assert confluent.produce(topic, [Record(None, b"next")]) == [10]


def test_records_that_are_not_there_cannot_be_deleted(confluent: Confluent, topic: str) -> None:
    confluent.produce(topic, [Record(None, b"v")])

    with pytest.raises(Refused) as refusal:
        confluent.delete_records(topic, 2)

    assert refusal.value.code == OFFSET_OUT_OF_RANGE
    assert confluent.offsets(topic) == (0, 1)
