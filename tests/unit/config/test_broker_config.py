"""Broker settings: typed values, rules between them, listeners, dynamic changes, and the logs' configs."""

from __future__ import annotations

import contextlib
import pickle

import pytest

from rayka.config import (
    TOPIC_CONFIGS,
    BrokerConfig,
    Endpoint,
    LogConfig,
    check_broker_configs,
    check_topic_configs,
)
from rayka.errors import ErrorCode, RaykaError

HOUR_MS = 3_600_000


def test_values_are_typed_and_defaults_are_kafkas() -> None:
    config = BrokerConfig.parse({"num.partitions": "4", "log.dirs": "/a,/b"})
    assert config["num.partitions"] == 4
    assert config["socket.request.max.bytes"] == 104_857_600
    assert config["auto.create.topics.enable"] is True
    assert config.log_dirs == ("/a", "/b")


def test_ignored_names_differ_from_unknown_names() -> None:
    config = BrokerConfig.parse({"num.io.threads": "8", "num.partitons": "4"})
    assert config.ignored == ("num.io.threads",)
    assert config.unknown == ("num.partitons",)


def test_a_pickled_config_is_the_same() -> None:
    config = BrokerConfig.parse({"num.partitions": "4"}).with_dynamic({"max.connections": "10"})
    copy = pickle.loads(pickle.dumps(config))
    assert dict(copy) == dict(config)
    assert copy.static == {"num.partitions": "4"}


def test_dynamic_settings_lie_over_static_ones_and_go_again() -> None:
    config = BrokerConfig.parse({"message.max.bytes": "1000"}).with_dynamic({"message.max.bytes": "2000"})
    assert config["message.max.bytes"] == 2000
    assert config.with_dynamic({})["message.max.bytes"] == 1000


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ({"num.partitions": "0"}, "Value must be at least 1"),
        ({"queued.max.request.bytes": "10"}, "larger or equal to socket.request.max.bytes"),
        ({"node.id": "1", "broker.id": "2"}, "must be equal"),
        ({"log.retention.ms": "0"}, "log.retention.ms must be unlimited"),
        ({"max.connections.per.ip.overrides": "host"}, "not of the form host:limit"),
        ({"max.connections.per.ip.overrides": f"10.0.0.1:{'9' * 5000}"}, "not of the form host:limit"),
        ({"listeners": "localhost:9092"}, "not of the form NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://:99999"}, "not of the form NAME://HOST:PORT"),
        ({"listeners": "SASL_SSL://:9092"}, "uses SASL_SSL"),
        ({"listeners": "INSIDE://:9092", "listener.security.protocol.map": "INSIDE:SSL"}, "uses SSL"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "nonroutable"),
        ({"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}, "does not serve ACLs"),
    ],
)
def test_settings_in_conflict_are_refused_with_the_reason(texts: dict[str, str], reason: str) -> None:
    with pytest.raises(RaykaError) as caught:
        BrokerConfig.parse(texts)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert reason in caught.value.message


def test_listeners_of_a_kraft_file_are_those_for_clients() -> None:
    config = BrokerConfig.parse(
        {
            "listeners": "INSIDE://[::1]:9092,CONTROLLER://:9093",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "advertised.listeners": "INSIDE://broker.example.org:19092",
        }
    )
    assert config.listeners == (Endpoint("INSIDE", "::1", 9092),)
    assert config.advertised_listeners == (Endpoint("INSIDE", "broker.example.org", 19092),)


def test_the_default_listener_is_on_loopback() -> None:
    config = BrokerConfig.parse({})
    assert config.listeners == config.advertised_listeners == (Endpoint("PLAINTEXT", "127.0.0.1", 9092),)


@pytest.mark.parametrize(
    ("broker", "topic", "retention_ms"),
    [
        ({}, {}, 168 * HOUR_MS),
        ({"log.retention.hours": "1"}, {}, HOUR_MS),
        ({"log.retention.hours": "-1"}, {}, -1),
        ({"log.retention.minutes": "5", "log.retention.hours": "1"}, {}, 300_000),
        ({"log.retention.ms": "7", "log.retention.minutes": "5"}, {}, 7),
        ({"log.retention.ms": "-5"}, {}, -1),
        ({"log.retention.ms": "7"}, {"retention.ms": "9"}, 9),
    ],
)
def test_a_log_takes_the_topics_value_then_the_brokers(
    broker: dict[str, str], topic: dict[str, str], retention_ms: int
) -> None:
    assert LogConfig.resolve(broker, topic).retention_ms == retention_ms
    assert BrokerConfig.parse(broker).log_config(topic).retention_ms == retention_ms


def test_other_configs_of_a_log_follow_the_same_way() -> None:
    config = LogConfig.resolve(
        {"log.roll.hours": "2", "log.flush.scheduler.interval.ms": "50", "message.max.bytes": "77"},
        {"cleanup.policy": "compact,delete", "segment.bytes": "1048576"},
    )
    assert (config.segment_ms, config.flush_ms, config.max_message_bytes) == (2 * HOUR_MS, 50, 77)
    assert (config.cleanup_policy, config.segment_bytes) == (("compact", "delete"), 1_048_576)


def test_the_internal_segment_size_has_no_lower_bound() -> None:
    assert LogConfig.resolve({}, {"internal.segment.bytes": "100"}).segment_size == 100
    assert LogConfig().segment_size == 1 << 30


def test_configs_that_contradict_each_other_are_refused() -> None:
    broker = {"log.cleaner.max.compaction.lag.ms": "5"}
    with pytest.raises(RaykaError, match=r"min\.compaction\.lag\.ms \(10\) > max\.compaction\.lag\.ms \(5\)"):
        check_topic_configs({"min.compaction.lag.ms": "10"}, broker)


def test_an_unknown_name_is_reported_before_a_bad_value() -> None:
    with pytest.raises(RaykaError, match="Unknown topic config name: foo"):
        check_topic_configs({"retention.ms": "abc", "foo": "1"}, {})


@pytest.mark.parametrize(
    ("configs", "code"),
    [
        ({"num.partitions": "3"}, ErrorCode.INVALID_REQUEST),
        ({"foo": "3"}, ErrorCode.INVALID_CONFIG),
        ({"message.max.bytes": "x"}, ErrorCode.INVALID_CONFIG),
        ({"log.retention.ms": "0"}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_settings_that_are_fixed_at_run_time_are_refused(configs: dict[str, str], code: ErrorCode) -> None:
    with pytest.raises(RaykaError) as caught:
        check_broker_configs(configs, {}, per_broker=True)
    assert caught.value.code is code


TEXTS = ("-9223372036854775808", "-2", "-1", "0", "1", "14", "1024", "2147483647", "9223372036854775807", "0.5", "true")


@pytest.mark.parametrize("name", sorted({each.name for one in TOPIC_CONFIGS.values() for each in one.synonyms}))
def test_a_broker_takes_only_values_that_logs_can_have(name: str) -> None:
    """Or else no partition could be served any more: each actor would fail with the value, again and again."""
    taken = 0
    for text in TEXTS:
        with contextlib.suppress(RaykaError):
            config = BrokerConfig.parse({name: text})
            taken += 1
            try:
                config.log_config({})
            except RaykaError:
                pytest.fail(f"{name}={text} is taken")
    if not name.endswith((".policy", ".type")):
        assert taken
