"""Configs of topics and brokers: what is described, what can be altered, what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource

from tests.clients.adapters.confluent import Confluent
from tests.clients.conftest import CLIENTS
from tests.clients.record import Record, Refused

ADMINS = [name for name in CLIENTS if name != "kcat"]
TOPIC, BROKER = ConfigResource.Type.TOPIC, ConfigResource.Type.BROKER
SET, DELETE = AlterConfigOpType.SET, AlterConfigOpType.DELETE
APPEND, SUBTRACT = AlterConfigOpType.APPEND, AlterConfigOpType.SUBTRACT
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_CONFIG = 40

DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "index.interval.bytes": "4096",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def test_topic_defaults_are_kafkas(confluent: Confluent, topic: str) -> None:
    entries = confluent.config_entries(TOPIC, topic)

    assert {name: entries[name].value for name in DEFAULTS if name in entries} == DEFAULTS
    assert ConfigSource.DYNAMIC_TOPIC_CONFIG not in {ConfigSource(entry.source) for entry in entries.values()}


@pytest.mark.parametrize("client", ADMINS, indirect=True)
def test_an_altered_config_is_described_and_obeyed(client: Any, topic: str, confluent: Confluent) -> None:
    client.alter_topic_configs(topic, {"max.message.bytes": "2000"})

    assert client.topic_configs(topic)["max.message.bytes"] == "2000"
    entry = confluent.config_entries(TOPIC, topic)["max.message.bytes"]
    assert ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert not entry.is_default
    with pytest.raises(Refused):
        confluent.produce(topic, [Record(None, b"x" * 3000)])


def test_incremental_alterations(confluent: Confluent, topic: str) -> None:
    def alter(operation: AlterConfigOpType, value: str | None, name: str = "cleanup.policy") -> str:
        confluent.alter_incrementally(TOPIC, topic, {name: value}, operation)
        return confluent.topic_configs(topic)[name]

    assert alter(SET, "30000", "retention.ms") == "30000"
    assert sorted(alter(APPEND, "compact").split(",")) == ["compact", "delete"]
    assert alter(SUBTRACT, "delete") == "compact"
    assert alter(DELETE, None) == "delete"
    assert confluent.topic_configs(topic)["retention.ms"] == "30000"
    assert alter(DELETE, None, "retention.ms") == DEFAULTS["retention.ms"]


def test_the_old_alter_configs_resets_configs_that_it_does_not_name(clients: Callable[[str], Any], topic: str) -> None:
    client = clients("aiokafka")
    client.alter_topic_configs(topic, {"retention.ms": "1000", "segment.ms": "2000"})
    client.alter_topic_configs(topic, {"segment.ms": "3000"})

    configs = client.topic_configs(topic)
    assert (configs["retention.ms"], configs["segment.ms"]) == (DEFAULTS["retention.ms"], "3000")


def test_validate_only_alters_nothing(confluent: Confluent, topic: str) -> None:
    confluent.alter_incrementally(TOPIC, topic, {"retention.ms": "1"}, SET, validate_only=True)

    assert confluent.topic_configs(topic)["retention.ms"] == DEFAULTS["retention.ms"]


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize(
    ("name", "value", "operation", "text"),
    [
        ("no.such.config", "1", SET, "Unknown topic config name: no.such.config"),
        ("segment.bytes", "many", SET, "Invalid value many for configuration segment.bytes: Not a number of type INT"),
        ("min.insync.replicas", "0", SET, "Value must be at least 1"),
        ("message.timestamp.type", "Yesterday", SET, "String must be one of: CreateTime, LogAppendTime"),
        ("retention.ms", "1", APPEND, "Can't APPEND to key retention.ms because its type is not LIST."),
    ],
)
def test_topic_configs_that_cannot_be_altered(
    confluent: Confluent,
    topic: str,
    name: str,
    value: str,
    operation: AlterConfigOpType,
    text: str,
    validate_only: bool,
) -> None:
    before = confluent.topic_configs(topic)

    with pytest.raises(Refused) as refusal:
        confluent.alter_incrementally(TOPIC, topic, {name: value}, operation, validate_only=validate_only)

    assert refusal.value.code == INVALID_CONFIG
    assert text in refusal.value.message
    assert confluent.topic_configs(topic) == before


def test_configs_of_an_unknown_topic(confluent: Confluent, topic_name: str) -> None:
    with pytest.raises(Refused) as described:
        confluent.config_entries(TOPIC, topic_name)
    with pytest.raises(Refused) as altered:
        confluent.alter_incrementally(TOPIC, topic_name, {"retention.ms": "1"}, SET)

    assert (described.value.code, altered.value.code) == (UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION)


def test_broker_configs_are_described(confluent: Confluent, broker_id: int) -> None:
    entries = confluent.config_entries(BROKER, str(broker_id))

    for name in ("num.partitions", "log.retention.hours", "message.max.bytes", "auto.create.topics.enable", "log.dirs"):
        assert name in entries
    assert entries["log.dirs"].is_read_only
    assert not entries["message.max.bytes"].is_read_only
    assert entries["message.max.bytes"].value == DEFAULTS["max.message.bytes"]


def await_value(confluent: Confluent, kind: ConfigResource.Type, name: str, key: str, value: str) -> ConfigEntry:
    """Asks again until the broker has seen what its controller decided."""
    deadline = time.monotonic() + 60
    while (entry := confluent.config_entries(kind, name)[key]).value != value:
        assert time.monotonic() < deadline, f"{key} is {entry.value}, not {value}"
    return entry


def test_a_dynamic_broker_config_is_the_default_of_topics(confluent: Confluent, topic: str, broker_id: int) -> None:
    key, broker = "log.index.interval.bytes", str(broker_id)
    confluent.alter_incrementally(BROKER, broker, {key: "8192"}, SET)
    try:
        entry = await_value(confluent, BROKER, broker, key, "8192")
        assert ConfigSource(entry.source) is ConfigSource.DYNAMIC_BROKER_CONFIG
        assert confluent.topic_configs(topic)["index.interval.bytes"] == "8192"
    finally:
        confluent.alter_incrementally(BROKER, broker, {key: None}, DELETE)
    await_value(confluent, TOPIC, topic, "index.interval.bytes", DEFAULTS["index.interval.bytes"])


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("log.dirs", "/elsewhere", "Cannot update these configs dynamically: "),
        (
            "message.max.bytes",
            "none",
            "Invalid value none for configuration message.max.bytes: Not a number of type INT",
        ),
    ],
)
def test_broker_configs_that_cannot_be_altered(
    confluent: Confluent, broker_id: int, name: str, value: str, text: str
) -> None:
    with pytest.raises(Refused) as refusal:
        confluent.alter_incrementally(BROKER, str(broker_id), {name: value}, SET)

    assert text in refusal.value.message
