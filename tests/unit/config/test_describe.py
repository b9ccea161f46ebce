"""Configs as DescribeConfigs shows them: value, source and the chain of places that give a value."""

from __future__ import annotations

from rayka.config import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    ConfigEntry,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    describe_broker,
    describe_default_broker,
    describe_group,
    describe_topic,
)
from rayka.config.definition import ConfigDef

TOPIC, BROKER = ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_BROKER_CONFIG
CLUSTER, STATIC, DEFAULT = (
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    ConfigSource.STATIC_BROKER_CONFIG,
    ConfigSource.DEFAULT_CONFIG,
)


def topic_entry(name: str, topic: dict[str, str], *places: dict[str, str]) -> ConfigEntry:
    static, cluster, broker = (*places, {}, {}, {})[:3]
    (entry,) = describe_topic(topic, static, cluster, broker, names=[name])
    return entry


def test_every_public_config_of_a_topic_is_shown_by_name() -> None:
    entries = describe_topic({}, {}, {})
    assert [entry.name for entry in entries] == sorted(set(TOPIC_CONFIGS) - {"internal.segment.bytes"})
    assert all(entry.source is DEFAULT and not entry.read_only and entry.documentation for entry in entries)
    assert all(entry.value == TOPIC_CONFIGS[entry.name].default for entry in entries)


def test_the_strongest_place_counts_and_the_others_follow() -> None:
    entry = topic_entry(
        "max.message.bytes",
        {"max.message.bytes": "1"},
        {"message.max.bytes": "4"},
        {"message.max.bytes": "3"},
        {"message.max.bytes": "2"},
    )
    assert (entry.value, entry.source, entry.type) == ("1", TOPIC, ConfigType.INT)
    assert entry.synonyms == (
        ConfigSynonym("max.message.bytes", "1", TOPIC),
        ConfigSynonym("message.max.bytes", "2", BROKER),
        ConfigSynonym("message.max.bytes", "3", CLUSTER),
        ConfigSynonym("message.max.bytes", "4", STATIC),
        ConfigSynonym("message.max.bytes", "1048588", DEFAULT),
    )


def test_a_setting_in_hours_gives_the_value_in_ms_but_is_no_synonym_as_in_kafka() -> None:
    assert topic_entry("retention.ms", {}).synonyms == ()
    entry = topic_entry("retention.ms", {}, {"log.retention.hours": "2"})
    assert (entry.value, entry.source, entry.synonyms) == ("7200000", DEFAULT, ())
    entry = topic_entry("retention.ms", {}, {"log.retention.hours": "2", "log.retention.ms": "5"})
    assert (entry.value, entry.synonyms) == ("5", (ConfigSynonym("log.retention.ms", "5", STATIC),))


def test_a_setting_that_does_nothing_says_so() -> None:
    assert BROKER_CONFIGS["num.io.threads"].doc.startswith("Not in use")
    assert BROKER_CONFIGS["num.recovery.threads.per.data.dir"].doc.startswith("Not in use")


def test_a_config_without_a_broker_setting_has_no_chain() -> None:
    entry = topic_entry("remote.storage.enable", {})
    assert (entry.value, entry.source, entry.synonyms) == ("false", DEFAULT, ())


def test_a_broker_shows_all_settings_and_which_are_read_only() -> None:
    entries = {entry.name: entry for entry in describe_broker({"num.partitions": "4"}, {}, {"max.connections": "9"})}
    assert set(entries) == set(BROKER_CONFIGS)
    partitions, connections = entries["num.partitions"], entries["max.connections"]
    assert (partitions.value, partitions.source, partitions.read_only) == ("4", STATIC, True)
    assert (connections.value, connections.source, connections.read_only) == ("9", BROKER, False)
    assert entries["log.retention.ms"].value is None
    assert entries["log.retention.ms"].synonyms == ()


def test_the_settings_of_all_brokers_are_those_that_were_changed() -> None:
    entries = describe_default_broker({"max.connections": "9"})
    assert [(entry.name, entry.value, entry.source) for entry in entries] == [("max.connections", "9", CLUSTER)]


def test_only_the_names_asked_for() -> None:
    entries = describe_broker({}, {}, {}, names=["num.partitions", "unheard.of"])
    assert [entry.name for entry in entries] == ["num.partitions"]


def test_a_group_shows_its_own_values_over_the_brokers() -> None:
    definitions = {
        name: ConfigDef(name, ConfigType.INT, "1", "Some time.")
        for name in ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms")
    }
    defaults = {"consumer.session.timeout.ms": "45000", "consumer.heartbeat.interval.ms": "5000"}
    heartbeat, session = describe_group(definitions, {"consumer.session.timeout.ms": "50000"}, defaults)
    assert (session.value, session.source) == ("50000", ConfigSource.GROUP_CONFIG)
    assert (heartbeat.value, heartbeat.source) == ("5000", DEFAULT)
