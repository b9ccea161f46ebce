"""Topics are created, described, grown and deleted, or refused with Kafka's reason."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import ConfigResource, NewTopic
from kafka import KafkaAdminClient

from tests.clients.adapters.confluent import TIMEOUT_S, Confluent, done
from tests.clients.adapters.kafka_python import KafkaPython
from tests.clients.conftest import CLIENTS
from tests.clients.record import Record, Refused

ADMINS = [name for name in CLIENTS if name != "kcat"]
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TOPIC = 17
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_REPLICA_ASSIGNMENT = 39
INVALID_CONFIG = 40


@pytest.fixture
def kafka_python(clients: Callable[[str], Any]) -> KafkaPython:
    client: KafkaPython = clients("kafka-python")
    return client


@pytest.mark.parametrize("client", ADMINS, indirect=True)
def test_a_topics_life(client: Any, topic_name: str, confluent: Confluent) -> None:
    client.create_topic(topic_name, 3, {"retention.ms": "86400000"})
    assert topic_name in client.topics()
    assert client.partition_count(topic_name) == 3
    assert client.topic_configs(topic_name)["retention.ms"] == "86400000"

    client.create_partitions(topic_name, 5)
    assert client.partition_count(topic_name) == 5
    assert confluent.produce(topic_name, [Record(None, b"v")], partition=4) == [0]

    client.delete_topic(topic_name)
    assert topic_name not in client.topics()


@pytest.mark.parametrize("client", ADMINS, indirect=True)
def test_a_topic_that_exists_is_not_created_again(client: Any, topic: str) -> None:
    with pytest.raises(Refused) as refusal:
        client.create_topic(topic)

    assert refusal.value.code == TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("client", ADMINS, indirect=True)
def test_a_topic_made_again_is_empty(client: Any, topic: str, confluent: Confluent) -> None:
    confluent.produce(topic, [Record(None, b"old")])
    client.delete_topic(topic)
    client.create_topic(topic)

    assert confluent.produce(topic, [Record(None, b"new")]) == [0]
    assert [record.value for record in client.fetch(topic, count=1)] == [b"new"]


@pytest.mark.parametrize(
    ("name", "options", "code", "text"),
    [
        ("a b", {}, INVALID_TOPIC, ""),
        (".", {}, INVALID_TOPIC, ""),
        ("..", {}, INVALID_TOPIC, ""),
        ("x" * 250, {}, INVALID_TOPIC, ""),
        (None, {"num_partitions": 0}, INVALID_PARTITIONS, "partitions"),
        (None, {"replication_factor": 99}, INVALID_REPLICATION_FACTOR, "99"),
        (None, {"replication_factor": 0}, INVALID_REPLICATION_FACTOR, ""),
        (None, {"assignments": {0: [4711]}}, INVALID_REPLICA_ASSIGNMENT, ""),
        (None, {"assignments": {1: ["here"]}}, INVALID_REPLICA_ASSIGNMENT, ""),
        (None, {"configs": {"no.such.config": "1"}}, INVALID_CONFIG, "Unknown topic config name: no.such.config"),
        (
            None,
            {"configs": {"retention.ms": "soon"}},
            INVALID_CONFIG,
            "Invalid value soon for configuration retention.ms: Not a number of type LONG",
        ),
        (
            None,
            {"configs": {"max.message.bytes": "-1"}},
            INVALID_CONFIG,
            "Invalid value -1 for configuration max.message.bytes: Value must be at least 0",
        ),
        (
            None,
            {"configs": {"cleanup.policy": "burn"}},
            INVALID_CONFIG,
            "Invalid value burn for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        (
            None,
            {"configs": {"compression.type": "brotli"}},
            INVALID_CONFIG,
            "Invalid value brotli for configuration compression.type: String must be one of: ",
        ),
        (None, {"configs": {"min.cleanable.dirty.ratio": "1.5"}}, INVALID_CONFIG, "Value must be no more than 1"),
        (None, {"configs": {"preallocate": "perhaps"}}, INVALID_CONFIG, "Expected value to be either true or false"),
    ],
)
def test_topics_that_cannot_be_created(
    kafka_python: KafkaPython,
    topic_name: str,
    broker_id: int,
    name: str | None,
    options: dict[str, Any],
    code: int,
    text: str,
) -> None:
    if "assignments" in options:
        places = {p: [broker_id if b == "here" else b for b in ids] for p, ids in options["assignments"].items()}
        options = {"assignments": places}
    with kafka_python.admin() as admin:
        answer = admin.create_topics({name or topic_name: options}, raise_errors=False)

    (refused,) = answer["topics"]
    assert (refused["error_code"], text in (refused["error_message"] or "")) == (code, True), refused
    assert (name or topic_name) not in kafka_python.topics()


def test_one_bad_topic_does_not_affect_the_others(kafka_python: KafkaPython, topic_name: str) -> None:
    with kafka_python.admin() as admin:
        answer = admin.create_topics({"a b": {}, topic_name: {}}, raise_errors=False)

    assert {topic["name"]: topic["error_code"] for topic in answer["topics"]} == {"a b": INVALID_TOPIC, topic_name: 0}
    assert topic_name in kafka_python.topics()


def test_validate_only_creates_nothing(confluent: Confluent, topic: str, topic_name: str) -> None:
    confluent.create_topic(topic_name + "-new", 3, validate_only=True)
    confluent.create_partitions(topic, 7, validate_only=True)
    with pytest.raises(Refused) as refusal:
        confluent.create_topic(topic_name + "-new", 3, {"retention.ms": "x"}, validate_only=True)

    assert refusal.value.code == INVALID_CONFIG
    assert topic_name + "-new" not in confluent.topics()
    assert confluent.partition_count(topic) == 1


@pytest.mark.parametrize(
    ("total", "code", "text"),
    [
        (1, INVALID_PARTITIONS, ""),
        (2, INVALID_PARTITIONS, ""),
        (0, INVALID_PARTITIONS, ""),
    ],
)
def test_partitions_are_only_added(
    kafka_python: KafkaPython, new_topic: Callable[..., str], total: int, code: int, text: str
) -> None:
    topic = new_topic(2)
    with kafka_python.admin() as admin:
        answer = admin.create_partitions({topic: total}, raise_errors=False)

    (result,) = answer.results
    assert result.error_code == code
    assert result.error_message


@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python", "aiokafka", "java"], indirect=True)
def test_unknown_topics_can_be_neither_grown_nor_deleted(client: Any, topic_name: str) -> None:
    for refused in (lambda: client.create_partitions(topic_name, 3), lambda: client.delete_topic(topic_name)):
        with pytest.raises(Refused) as refusal:
            refused()
        assert refusal.value.code == UNKNOWN_TOPIC_OR_PARTITION


def test_broker_defaults_for_partitions_and_replication(
    kafka_python: KafkaPython, confluent: Confluent, topic_name: str, broker_id: int
) -> None:
    with kafka_python.admin() as admin:
        admin.create_topics([topic_name])

    default = confluent.config_entries(ConfigResource.Type.BROKER, str(broker_id))["num.partitions"].value
    assert confluent.partition_count(topic_name) == int(default)


def test_the_response_describes_the_created_topic(kafka_python: KafkaPython, topic_name: str) -> None:
    options = {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "1000"}}
    with kafka_python.admin() as admin:
        (created,) = admin.create_topics({topic_name: options})["topics"]

    assert (created["num_partitions"], created["replication_factor"]) == (2, 1)
    assert created["configs"]["retention.ms"]["value"] == "1000"
    assert created["configs"]["retention.bytes"]["value"] == "-1"


def test_assignments_are_kept(confluent: Confluent, topic_name: str, broker_id: int) -> None:
    done(confluent.admin.create_topics([NewTopic(topic_name, 2, replica_assignment=[[broker_id], [broker_id]])]))

    described = done(confluent.admin.describe_topics(TopicCollection([topic_name]), request_timeout=TIMEOUT_S))
    for partition in described.partitions:
        assert partition.leader.id == broker_id
        assert [node.id for node in partition.replicas] == [broker_id]
        assert [node.id for node in partition.isr] == [broker_id]


def test_a_topic_is_found_by_its_id(kafka_python: KafkaPython, topic: str) -> None:
    with kafka_python.admin() as admin:
        (by_name,) = admin.describe_topics([topic])
        (by_id,) = admin.describe_topics([uuid.UUID(by_name["topic_id"])])

        assert by_id["name"] == topic
        delete_and_create(admin, topic)
        (again,) = admin.describe_topics([topic])
        assert again["topic_id"] != by_name["topic_id"]


def delete_and_create(admin: KafkaAdminClient, topic: str) -> None:
    admin.delete_topics([topic])
    admin.create_topics([topic], wait_for_metadata=True)


def test_a_topic_is_deleted_by_its_id(kafka_python: KafkaPython, topic: str) -> None:
    with kafka_python.admin() as admin:
        (described,) = admin.describe_topics([topic])
        admin.delete_topics([uuid.UUID(described["topic_id"])])
        assert topic not in admin.list_topics()


def test_partitions_are_described_page_by_page(kafka_python: KafkaPython, new_topic: Callable[..., str]) -> None:
    topic = new_topic(7)
    with kafka_python.admin() as admin:
        answer = admin.describe_topic_partitions([topic], response_partition_limit=3)

    (described,) = answer["topics"]
    assert [partition["partition_index"] for partition in described["partitions"]] == [0, 1, 2]
    assert answer["next_cursor"]["topic_name"] == topic
    assert answer["next_cursor"]["partition_index"] == 3
