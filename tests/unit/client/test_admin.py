"""What a program that administers a cluster relies on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rayka.client.admin.admin import Admin, AsyncAdmin
from rayka.client.cluster import Cluster
from rayka.config import ConfigSource
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import NewTopic
from rayka.metadata.records import ConfigResource, ResourceType
from rayka.types import OffsetSpec, TopicPartition
from tests.support.client_connection import LocalConnection


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    """The admin of this test's cluster."""
    return cluster.admin()


def test_topics_are_created_listed_and_deleted(admin: Admin) -> None:
    created = admin.create_topic(
        "orders", partitions=4, configs={"retention.ms": 60_000, "cleanup.policy": ["compact"]}
    )
    assert created.num_partitions == 4
    admin.create_topics(["defaults", NewTopic("more", 2, 1)])
    assert admin.list_topics() == ["defaults", "more", "orders"]
    (orders,) = admin.describe_topics(["orders"])
    assert [partition.partition for partition in orders.partitions] == [0, 1, 2, 3]
    assert orders.topic_id == created.topic_id
    assert all(partition.leader == 1 for partition in orders.partitions)
    admin.delete_topic("orders")
    admin.delete_topics(["more", "defaults"])
    assert admin.list_topics() == []


def test_partitions_are_added(admin: Admin) -> None:
    admin.create_topic("orders", partitions=1)
    admin.create_partitions({"orders": 3}, validate_only=True)
    assert len(admin.describe_topics()[0].partitions) == 1
    admin.create_partitions({"orders": 3})
    assert len(admin.describe_topics()[0].partitions) == 3


def test_validation_creates_nothing(admin: Admin) -> None:
    admin.create_topic("orders", validate_only=True)
    assert admin.list_topics() == []


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        (lambda admin: admin.create_topic("orders"), ErrorCode.TOPIC_ALREADY_EXISTS, "can't create orders"),
        (lambda admin: admin.create_topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "a/b"),
        (lambda admin: admin.create_topic("n", partitions=0), ErrorCode.INVALID_PARTITIONS, "n"),
        (lambda admin: admin.create_topic("n", configs={"x": "1"}), ErrorCode.INVALID_CONFIG, "x"),
        (lambda admin: admin.create_topic("n", configs={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG, "soon"),
        (lambda admin: admin.delete_topic("n"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "can't delete n"),
        (lambda admin: admin.create_partitions({"orders": 1}), ErrorCode.INVALID_PARTITIONS, "orders"),
        (lambda admin: admin.describe_topics(["n"]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic n does not exist"),
        (lambda admin: admin.describe_topics("orders"), ErrorCode.INVALID_REQUEST, "names must be a list"),
        (lambda admin: admin.describe_configs("n"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic n"),
        (lambda admin: admin.describe_configs(9), ErrorCode.INVALID_REQUEST, "there is no broker 9"),
        (lambda admin: admin.alter_configs("orders", {"segment.bytes": 1}), ErrorCode.INVALID_CONFIG, "segment.bytes"),
        (lambda admin: admin.delete_records({("orders", 0): 5}), ErrorCode.OFFSET_OUT_OF_RANGE, "orders-0 before 5"),
        (lambda admin: admin.delete_records({"ts": 1}), ErrorCode.INVALID_REQUEST, r"TopicPartition\(.*, not 'ts'"),
        (lambda admin: admin.list_offsets({"orders": 1}), ErrorCode.INVALID_REQUEST, r"TopicPartition\(.*'orders'"),
        (
            lambda admin: admin.delete_records({("n", 0): -1}),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "topic n does not exist",
        ),
    ],
)
def test_errors_name_what_was_wrong(admin: Admin, call: Callable[[Admin], Any], code: ErrorCode, message: str) -> None:
    admin.create_topic("orders", partitions=2)
    with pytest.raises(RaykaError, match=message) as caught:
        call(admin)
    assert caught.value.code is code


def test_some_of_several_may_fail(admin: Admin) -> None:
    admin.create_topic("orders")
    results = admin.create_topics(["orders", "invoices"], raise_errors=False)
    assert [result.error for result in results] == [ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NONE]
    assert admin.list_topics() == ["invoices", "orders"]


def test_settings_of_a_topic(admin: Admin) -> None:
    admin.create_topic("orders", configs={"retention.ms": "60000"})
    retention = admin.describe_configs("orders", ["retention.ms"])["retention.ms"]
    assert (retention.value, retention.source) == ("60000", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    admin.alter_configs("orders", {"retention.ms": None, "max.message.bytes": 2000, "preallocate": True})
    configs = admin.describe_configs("orders")
    assert configs["retention.ms"].source is ConfigSource.DEFAULT_CONFIG
    assert (configs["max.message.bytes"].value, configs["preallocate"].value) == ("2000", "true")
    admin.alter_configs("orders", {"max.message.bytes": 1}, validate_only=True)
    assert admin.describe_configs("orders")["max.message.bytes"].value == "2000"


def test_settings_of_brokers(admin: Admin) -> None:
    everyone = ConfigResource(ResourceType.BROKER, "")
    admin.alter_configs(everyone, {"log.retention.ms": 1000})
    admin.alter_configs(1, {"log.retention.ms": 2000})
    assert admin.describe_configs(everyone)["log.retention.ms"].value == "1000"
    assert admin.describe_configs(1)["log.retention.ms"].value == "2000"


def test_offsets_and_deletion_of_records(admin: Admin, cluster: Cluster) -> None:
    orders = TopicPartition("orders", 0)
    with cluster.producer() as producer:
        for number in range(10):
            producer.send("orders", b"", timestamp_ms=1000 + number).get(5)
    offsets = [admin.list_offsets({orders: at})[orders].offset for at in (OffsetSpec.EARLIEST, OffsetSpec.LATEST, 1004)]
    assert offsets == [0, 10, 4]
    assert admin.list_offsets({orders: 9999})[orders].offset == -1
    assert admin.delete_records({orders: 3}) == {orders: 3}
    assert admin.delete_records({("orders", 0): -1}) == {orders: 10}


def test_an_unknown_partition_has_no_offsets(admin: Admin) -> None:
    with pytest.raises(RaykaError, match="topic missing does not exist"):
        admin.list_offsets({("missing", 0): OffsetSpec.LATEST}, timeout_ms=50)


def test_the_cluster_and_its_directories(admin: Admin) -> None:
    admin.create_topic("orders", partitions=2)
    cluster = admin.describe_cluster()
    assert (cluster.cluster_id, [broker.broker_id for broker in cluster.brokers]) == ("local-cluster", [1])
    (directory,) = admin.describe_log_dirs()
    assert {replica.topic_partition for replica in directory.replicas} == {("orders", 0), ("orders", 1)}


def test_the_asynchronous_form(connection: LocalConnection) -> None:
    async def program() -> list[str]:
        admin = AsyncAdmin(connection.broker)
        await admin.create_topic("orders")
        return await admin.list_topics()

    assert connection.loop.run(program()) == ["orders"]


def test_blocking_methods_explain_themselves() -> None:
    assert Admin.create_topic.__doc__ == AsyncAdmin.create_topic.__doc__
    assert Admin.create_topic.__name__ == "create_topic"


def test_settings_of_a_group_are_read_as_they_are_set(cluster: Cluster) -> None:
    admin, billing = cluster.admin(), ConfigResource(ResourceType.GROUP, "billing")
    default = admin.describe_configs(billing)["consumer.session.timeout.ms"].value
    admin.alter_configs(billing, {"consumer.session.timeout.ms": 50_000})
    found = admin.describe_configs(billing, ["consumer.session.timeout.ms"])
    assert {name: entry.value for name, entry in found.items()} == {"consumer.session.timeout.ms": "50000"}
    other = admin.describe_configs(ConfigResource(ResourceType.GROUP, "other"))
    assert other["consumer.session.timeout.ms"].value == default != "50000"
    with pytest.raises(RaykaError, match="must not be empty"):
        admin.describe_configs(ConfigResource(ResourceType.GROUP, ""))
