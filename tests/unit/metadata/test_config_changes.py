"""Changing dynamic configs. Codes and messages were compared with Apache Kafka 4.4."""

from __future__ import annotations

import time

import pytest

from rayka.config import TOPIC_CONFIGS, ConfigDef, ConfigType, describe_broker
from rayka.metadata.commands import ConfigReplacement, NewTopic
from rayka.metadata.config_changes import MAX_VALUE_LENGTH
from rayka.metadata.controller import Controller
from rayka.metadata.records import ConfigResource, ResourceType
from tests.unit.metadata.cluster import Cluster, alteration

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, GROUP = ResourceType.TOPIC, ResourceType.BROKER, ResourceType.GROUP


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster({"log.cleanup.policy": "compact"})
    cluster.add_broker()
    cluster.create(NewTopic("orders", configs={"retention.ms": "1000"}))
    return cluster


def alter(
    cluster: Cluster, type_: ResourceType, name: str, *operations: tuple[str, int, str | None]
) -> tuple[str, str | None]:
    changes = [alteration(type_, name, *operations)]
    (result,) = cluster.run(cluster.controller.incremental_alter_configs(changes, False))
    return result.error.name, result.error_message


def test_single_configs_are_set_and_deleted(cluster: Cluster) -> None:
    assert alter(cluster, TOPIC, "orders", ("segment.ms", SET, "5"), ("retention.ms", DELETE, None)) == ("NONE", None)
    assert cluster.image.topic_configs("orders") == {"segment.ms": "5"}


def test_lists_grow_and_shrink_from_what_holds(cluster: Cluster) -> None:
    alter(cluster, TOPIC, "orders", ("cleanup.policy", APPEND, "delete"))
    assert cluster.image.topic_configs("orders")["cleanup.policy"] == "compact,delete"
    alter(cluster, TOPIC, "orders", ("cleanup.policy", APPEND, "delete"))
    assert cluster.image.topic_configs("orders")["cleanup.policy"] == "compact,delete"
    alter(cluster, TOPIC, "orders", ("cleanup.policy", SUBTRACT, "compact"))
    assert cluster.image.topic_configs("orders")["cleanup.policy"] == "delete"
    alter(cluster, TOPIC, "orders", ("cleanup.policy", APPEND, "compact,compact"))
    assert cluster.image.topic_configs("orders")["cleanup.policy"] == "delete,compact"


@pytest.mark.parametrize("broker", ["", "1"])
def test_a_default_that_no_log_can_have_is_refused(cluster: Cluster, broker: str) -> None:
    assert alter(cluster, BROKER, broker, ("log.flush.interval.ms", SET, "-1")) == (
        "INVALID_CONFIG",
        "Invalid value -1 for configuration flush.ms: Value must be at least 0",
    )
    assert alter(cluster, BROKER, broker, ("log.flush.interval.ms", SET, "0")) == ("NONE", None)


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
def test_changing_a_long_list_takes_as_long_as_changing_a_short_one(cluster: Cluster, operation: int) -> None:
    """A client may send as many items as a request has room for, and the controller does nothing else meanwhile."""
    name = "leader.replication.throttled.replicas"
    items = ",".join(f"{number}:1" for number in range(50_000))

    def seconds(present: int) -> float:
        alter(cluster, TOPIC, "orders", (name, SET, ",".join(f"{number}:0" for number in range(present))))
        begin = time.process_time()
        alter(cluster, TOPIC, "orders", (name, operation, items))
        return time.process_time() - begin

    short = min(seconds(10) for _ in range(3))
    assert min(seconds(4_000) for _ in range(2)) < 10 * short


@pytest.mark.parametrize(
    ("name", "operations", "error"),
    [
        (
            "orders",
            [("retention.ms", SET, "x")],
            ("INVALID_CONFIG", "Invalid value x for configuration retention.ms: Not a number of type LONG"),
        ),
        ("orders", [("foo", SET, "x")], ("INVALID_CONFIG", "Unknown topic config name: foo")),
        (
            "orders",
            [("retention.ms", APPEND, "5")],
            ("INVALID_CONFIG", "Can't APPEND to key retention.ms because its type is not LIST."),
        ),
        (
            "orders",
            [("retention.ms", SET, None)],
            ("INVALID_REQUEST", "Null value not supported for : retention.ms"),
        ),
        (
            "orders",
            [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)],
            ("INVALID_REQUEST", "Error due to duplicate config keys"),
        ),
        ("orders", [("retention.ms", 9, "1")], ("INVALID_REQUEST", "Unknown operations type 9")),
        (
            "orders",
            [("retention.ms", SET, "1" * (MAX_VALUE_LENGTH + 1))],
            (
                "INVALID_CONFIG",
                "The configuration value cannot be added because it exceeds the maximum value size of 32767 bytes.",
            ),
        ),
        (
            "orders",
            [("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "3")],
            (
                "INVALID_CONFIG",
                "conflict topic config setting min.compaction.lag.ms (9) > max.compaction.lag.ms (3)",
            ),
        ),
        ("nope", [], ("UNKNOWN_TOPIC_OR_PARTITION", "The topic 'nope' does not exist.")),
        ("", [], ("INVALID_REQUEST", "Default topic resources are not allowed.")),
    ],
)
def test_a_bad_change_of_a_topic_changes_nothing(
    cluster: Cluster, name: str, operations: list[tuple[str, int, str | None]], error: tuple[str, str]
) -> None:
    before = cluster.image
    assert alter(cluster, TOPIC, name, ("segment.ms", SET, "7"), *operations) == error
    assert cluster.image is before


def test_brokers_are_changed_one_or_all(cluster: Cluster) -> None:
    assert alter(cluster, BROKER, "", ("message.max.bytes", SET, "5"), ("max.connections", SET, "3"))[0] == "NONE"
    assert alter(cluster, BROKER, "1", ("message.max.bytes", SET, "6"))[0] == "NONE"
    assert cluster.image.broker_configs(1) == {
        "message.max.bytes": "6",
        "max.connections": "3",
        "min.insync.replicas": "1",
    }
    assert cluster.image.broker_configs(2) == {
        "message.max.bytes": "5",
        "max.connections": "3",
        "min.insync.replicas": "1",
    }


@pytest.mark.parametrize(
    ("name", "operation", "error"),
    [
        (
            "1",
            ("num.partitions", SET, "3"),
            ("INVALID_REQUEST", "Cannot update these configs dynamically: [num.partitions]"),
        ),
        ("1", ("foo", SET, "3"), ("INVALID_CONFIG", "Unknown broker config name: foo")),
        ("7", ("max.connections", SET, "3"), ("BROKER_ID_NOT_REGISTERED", "No broker with id 7 found.")),
        ("x", ("max.connections", SET, "3"), ("INVALID_REQUEST", "Node id must be an integer, but it is: x")),
        (
            "1" * 5000,
            ("max.connections", SET, "3"),
            ("INVALID_REQUEST", f"Node id must be an integer, but it is: {'1' * 5000}"),
        ),
        (
            "",
            ("max.connections", SET, "-1"),
            ("INVALID_CONFIG", "Invalid value -1 for configuration max.connections: Value must be at least 0"),
        ),
    ],
)
def test_a_bad_change_of_a_broker_changes_nothing(
    cluster: Cluster, name: str, operation: tuple[str, int, str], error: tuple[str, str]
) -> None:
    before = cluster.image
    assert alter(cluster, BROKER, name, operation) == error
    assert cluster.image is before


def test_defaults_changed_at_run_time_hold_for_new_topics(cluster: Cluster) -> None:
    alter(cluster, BROKER, "", ("message.max.bytes", SET, "4321"))
    (result,) = cluster.create(NewTopic("later"))
    assert {entry.name: entry.value for entry in result.configs}["max.message.bytes"] == "4321"


def test_a_replacement_removes_all_earlier_values(cluster: Cluster) -> None:
    resource = ConfigResource(TOPIC, "orders")
    cluster.run(cluster.controller.alter_configs([ConfigReplacement(resource, {"segment.ms": "5"})], False))
    assert cluster.image.topic_configs("orders") == {"segment.ms": "5"}
    cluster.run(cluster.controller.alter_configs([ConfigReplacement(resource, {})], False))
    assert cluster.image.topic_configs("orders") == {}


def test_validation_alone_changes_nothing(cluster: Cluster) -> None:
    before = cluster.image
    changes = [alteration(TOPIC, "orders", ("segment.ms", SET, "5"))]
    (result,) = cluster.run(cluster.controller.incremental_alter_configs(changes, True))
    assert result.error.name == "NONE"
    assert cluster.image is before


def test_a_change_to_the_present_value_writes_no_record(cluster: Cluster) -> None:
    changes = [alteration(TOPIC, "orders", ("retention.ms", SET, "1000"))]
    assert cluster.controller.incremental_alter_configs(changes, False).records == ()


def test_a_resource_named_twice_is_refused_both_times(cluster: Cluster) -> None:
    changes = [alteration(TOPIC, "orders", ("segment.ms", SET, value)) for value in ("5", "6")]
    results = cluster.run(cluster.controller.incremental_alter_configs(changes, False))
    assert [(result.error.name, result.error_message) for result in results] == [
        ("INVALID_REQUEST", "Each resource must appear at most once.")
    ] * 2


def test_groups_have_configs_where_the_controller_knows_them(cluster: Cluster) -> None:
    change = [alteration(GROUP, "readers", ("consumer.session.timeout.ms", SET, "50000"))]
    (refused,) = cluster.controller.incremental_alter_configs(change, False).response
    assert refused.error_message == "Unknown resource type GROUP"
    definition = ConfigDef("consumer.session.timeout.ms", ConfigType.INT, "45000", "A time.", lower=1)
    controller = Controller(cluster.image, {}, {definition.name: definition})
    result = controller.incremental_alter_configs(change, False)
    assert result.response[0].error.name == "NONE"
    controller.replay(result.records)
    assert controller.image.configs[ConfigResource(GROUP, "readers")] == {definition.name: "50000"}
    unknown = controller.incremental_alter_configs([alteration(GROUP, "readers", ("foo", SET, "1"))], False)
    assert unknown.response[0].error_message == "Unknown group config name: foo"


def test_every_default_can_be_set_explicitly(cluster: Cluster) -> None:
    for name, definition in TOPIC_CONFIGS.items():
        if definition.default is not None:
            assert alter(cluster, TOPIC, "orders", (name, SET, definition.default)) == ("NONE", None), name


def test_a_new_cluster_has_a_default_of_min_insync_replicas_that_stays_as_in_kafka(cluster: Cluster) -> None:
    assert Cluster({"min.insync.replicas": "2"}).image.default_broker_configs == {"min.insync.replicas": "2"}
    assert alter(cluster, BROKER, "", ("min.insync.replicas", SET, "2"))[0] == "NONE"
    assert alter(cluster, BROKER, "", ("min.insync.replicas", DELETE, None)) == (
        "INVALID_CONFIG",
        "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
    )
    assert alter(cluster, BROKER, "1", ("min.insync.replicas", SET, "2")) == (
        "INVALID_CONFIG",
        "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
    )


@pytest.mark.parametrize("name", ["background.threads", "num.io.threads", "num.network.threads", "log.cleaner.threads"])
def test_kafkas_dynamic_settings_that_do_nothing_here_are_checked_and_kept(cluster: Cluster, name: str) -> None:
    assert alter(cluster, BROKER, "", (name, SET, "12"))[0] == "NONE"
    assert cluster.image.default_broker_configs[name] == "12"
    assert alter(cluster, BROKER, "", (name, SET, "many"))[0] == "INVALID_CONFIG"


def test_sasl_settings_are_accepted_for_one_broker_and_kept_secret(cluster: Cluster) -> None:
    assert alter(cluster, BROKER, "1", ("sasl.jaas.config", SET, "secret"))[0] == "NONE"
    (entry,) = describe_broker({}, {}, cluster.image.own_broker_configs(1), ["sasl.jaas.config"])
    assert (entry.value, entry.is_sensitive) == (None, True)
