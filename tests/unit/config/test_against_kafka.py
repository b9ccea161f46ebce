"""Our settings against those of Apache Kafka 4.4, as its own ConfigDef lists them (kafka-4.4-configs.csv)."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from rayka.config import BROKER_CONFIGS, TOPIC_CONFIGS, ConfigDef, LogConfig
from rayka.config.ignored import IGNORED_CONFIGS, reason_ignored
from rayka.config.log import resolve

OURS = {
    "partition.actors.per.node",
    "warm.partition.actors",
    "gateways.per.node",
    "group.consumer.unsettled.heartbeat.interval.ms",
    "group.initial.rebalance.quiet.ms",
    "group.share.unsettled.heartbeat.interval.ms",
    "rsm.config.url",
    "rsm.config.storage.s3.endpoint.url",
    "rsm.config.storage.s3.region",
    "rsm.config.storage.aws.access.key.id",
    "rsm.config.storage.aws.secret.access.key",
    "rsm.config.chunk.size",
    "rsm.config.fetch.chunk.cache.size",
    "rlmm.config.remote.log.metadata.topic.num.partitions",
    "rlmm.config.remote.log.metadata.topic.replication.factor",
    "rlmm.config.remote.log.metadata.topic.min.isr",
    "rlmm.config.remote.log.metadata.topic.retention.ms",
}

DELIBERATE = {
    ("listeners", "default"): "rayka listens on loopback unless told otherwise",
    ("listeners", "update"): "the gateways' port is chosen when they start",
    ("log.dir", "default"): "not Kafka's own directory",
    ("node.id", "default"): "the controller hands out ids, so none need be given",
    ("node.id", "validator"): "-1 asks for an id",
    ("broker.id", "validator"): "-1 asks for an id, and nothing lies below it",
    ("max.connections.per.ip.overrides", "validator"): "Kafka checks it outside of its definition",
    ("log.roll.ms", "validator"): "Kafka checks it outside of its definition",
    ("log.roll.jitter.ms", "validator"): "Kafka checks it outside of its definition",
    ("group.consumer.assignors", "validator"): "rayka has no assignors but its own",
    ("group.share.assignors", "validator"): "rayka has no assignors but its own",
    ("group.consumer.migration.policy", "validator"): "the same check, written differently",
}


def facts(scope: str) -> dict[str, dict[str, str]]:
    path = Path(__file__).with_name("kafka-4.4-configs.csv")
    with path.open(newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file) if row["scope"] == scope}


KAFKA = {"topic": facts("topic"), "broker": facts("broker")}
BOTH = [
    pytest.param(scope, definition, id=f"{scope}-{name}")
    for scope, definitions in (("topic", TOPIC_CONFIGS), ("broker", BROKER_CONFIGS))
    for name, definition in definitions.items()
    if name in KAFKA[scope]
]


def described(definition: ConfigDef) -> dict[str, str]:
    """Our definition in the terms of the file."""
    if definition.name.endswith("gzip.level"):
        validator = "[1,...,9] or -1"
    elif definition.valid_values:
        validator = f"[{', '.join(definition.valid_values)}]"
    elif definition.name.endswith("throttled.replicas"):
        validator = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
    elif definition.lower is not None:
        validator = f"[{definition.lower},...{'' if definition.upper is None else f',{definition.upper}'}]"
    else:
        validator = "" if definition.check is None else "check"
    return {
        "type": definition.type.name.lower(),
        "default": "" if definition.default is None else definition.default or '""',
        "validator": validator,
        "update": "" if definition.read_only else "dynamic",
    }


@pytest.mark.parametrize(("scope", "definition"), BOTH)
def test_type_default_bounds_and_update_mode_are_kafkas(scope: str, definition: ConfigDef) -> None:
    kafka = KAFKA[scope][definition.name]
    ours = described(definition)
    if scope == "topic":
        ours["update"] = ""
    different = {aspect for aspect, value in ours.items() if kafka[aspect] != value}
    assert different == {aspect for name, aspect in DELIBERATE if name == definition.name}, (ours, kafka)


def test_every_topic_config_of_kafka_is_known_and_no_other() -> None:
    assert set(TOPIC_CONFIGS) == set(KAFKA["topic"])


def test_every_broker_setting_is_kafkas_or_listed_as_our_own() -> None:
    assert set(BROKER_CONFIGS) - set(KAFKA["broker"]) == OURS


def test_every_broker_setting_of_kafka_is_honoured_or_ignored_for_a_reason() -> None:
    without = [name for name in KAFKA["broker"] if name not in BROKER_CONFIGS and not reason_ignored(name)]
    assert without == []


def test_no_setting_is_both_honoured_and_ignored_by_name() -> None:
    named = {pattern for patterns in IGNORED_CONFIGS.values() for pattern in patterns}
    assert named.isdisjoint(BROKER_CONFIGS)


def test_the_defaults_of_log_config_are_those_of_the_definitions() -> None:
    config = LogConfig()
    for name in TOPIC_CONFIGS:
        assert getattr(config, name.replace(".", "_")) == resolve(name, {}, {}), name


def test_the_defaults_of_a_topic_and_of_the_broker_agree() -> None:
    for definition in TOPIC_CONFIGS.values():
        values = [
            synonym.convert(definition, default)
            for synonym in definition.synonyms
            if (default := BROKER_CONFIGS[synonym.name].default) is not None
        ]
        assert not values or values[0] == definition.default_value, definition.name
