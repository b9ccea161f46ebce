"""Creating topics and partitions, and deleting topics. Codes and messages were compared with Apache Kafka 4.4."""

from __future__ import annotations

import uuid

import pytest

from rayka.config import ConfigSource
from rayka.errors import ErrorCode
from rayka.metadata.commands import NewPartitions, NewTopic
from rayka.metadata.records import ConfigResource, ResourceType
from tests.unit.metadata.cluster import Cluster, alteration, errors


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster({"num.partitions": "4"})
    cluster.add_broker()
    return cluster


def test_a_topic_gets_the_defaults_and_the_response_tells_all(cluster: Cluster) -> None:
    (result,) = cluster.create(NewTopic("orders", configs={"retention.ms": "1000"}))
    topic = cluster.image.topics["orders"]
    assert result.error is ErrorCode.NONE
    assert (result.topic_id, result.num_partitions, result.replication_factor) == (topic.topic_id, 4, 1)
    assert {entry.name: entry.value for entry in result.configs}["retention.ms"] == "1000"
    assert {entry.name: entry.source for entry in result.configs}["segment.ms"] is ConfigSource.DEFAULT_CONFIG
    assert [partition.partition for partition in topic.partitions] == [0, 1, 2, 3]
    assert all(partition.leader == 1 and partition.leader_epoch == 0 for partition in topic.partitions)
    assert cluster.image.topic_configs("orders") == {"retention.ms": "1000"}
    assert cluster.image.topic_by_id(topic.topic_id) is topic


@pytest.mark.parametrize(
    ("topic", "error", "message"),
    [
        (NewTopic(""), "INVALID_TOPIC_EXCEPTION", "Topic name is invalid: the empty string is not allowed"),
        (NewTopic("."), "INVALID_TOPIC_EXCEPTION", "Topic name is invalid: '.' is not allowed"),
        (NewTopic(".."), "INVALID_TOPIC_EXCEPTION", "Topic name is invalid: '..' is not allowed"),
        (
            NewTopic("a" * 250),
            "INVALID_TOPIC_EXCEPTION",
            f"Topic name is invalid: the length of '{'a' * 250}' is longer than the max allowed length 249",
        ),
        (
            NewTopic("a b"),
            "INVALID_TOPIC_EXCEPTION",
            "Topic name is invalid: 'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' "
            "and '-'",
        ),
        (
            NewTopic("__cluster_metadata"),
            "INVALID_REQUEST",
            "Creation of internal topic __cluster_metadata is prohibited.",
        ),
        (NewTopic("taken"), "TOPIC_ALREADY_EXISTS", "Topic 'taken' already exists."),
        (NewTopic("dot_ted"), "INVALID_TOPIC_EXCEPTION", "Topic 'dot_ted' collides with existing topic: dot.ted"),
        (
            NewTopic("t", 0, 1),
            "INVALID_PARTITIONS",
            "Number of partitions was set to an invalid non-positive value.",
        ),
        (
            NewTopic("t", 1, 0),
            "INVALID_REPLICATION_FACTOR",
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            NewTopic("t", 1, 2),
            "INVALID_REPLICATION_FACTOR",
            "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be reached "
            "because only 1 broker(s) are registered.",
        ),
        (
            NewTopic("t", 20_000, 1),
            "POLICY_VIOLATION",
            "Excessively large number of partitions per request.",
        ),
        (
            NewTopic("t", 1, -1, {0: [1]}),
            "INVALID_REQUEST",
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        ),
        (
            NewTopic("t", -1, 1, {0: [1]}),
            "INVALID_REQUEST",
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        ),
        (
            NewTopic("t", assignments={0: []}),
            "INVALID_REPLICA_ASSIGNMENT",
            "The manual partition assignment includes an empty replica list.",
        ),
        (
            NewTopic("t", assignments={0: [7]}),
            "INVALID_REPLICA_ASSIGNMENT",
            "The manual partition assignment includes broker 7, but no such broker is registered.",
        ),
        (
            NewTopic("t", assignments={0: [1, 1]}),
            "INVALID_REPLICA_ASSIGNMENT",
            "The manual partition assignment includes the broker 1 more than once.",
        ),
        (
            NewTopic("t", assignments={1: [1]}),
            "INVALID_REPLICA_ASSIGNMENT",
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            NewTopic("t", configs={"retention.ms": "abc"}),
            "INVALID_CONFIG",
            "Invalid value abc for configuration retention.ms: Not a number of type LONG",
        ),
        (NewTopic("t", configs={"foo": "1"}), "INVALID_CONFIG", "Unknown topic config name: foo"),
        (
            NewTopic("t", configs={"retention.ms": None}),
            "INVALID_CONFIG",
            "Null value not supported for topic configs: retention.ms",
        ),
    ],
    ids=lambda value: value.name[:10] if isinstance(value, NewTopic) else None,
)
def test_invalid_requests_get_kafkas_error_messages(
    cluster: Cluster, topic: NewTopic, error: str, message: str
) -> None:
    cluster.create(NewTopic("taken"), NewTopic("dot.ted"))
    before = cluster.image
    assert errors(cluster.create(topic)) == [(error, message)]
    assert cluster.image is before


def test_the_longest_name_is_allowed(cluster: Cluster) -> None:
    assert errors(cluster.create(NewTopic("a" * 249))) == [("NONE", None)]


def test_names_with_the_same_dashes_do_not_collide(cluster: Cluster) -> None:
    results = cluster.create(NewTopic("a.b"), NewTopic("a-b"), NewTopic("ab"), NewTopic("a_b"))
    assert [result.error.name for result in results] == ["NONE", "NONE", "NONE", "INVALID_TOPIC_EXCEPTION"]


def test_topics_of_one_request_stand_alone(cluster: Cluster) -> None:
    results = cluster.create(NewTopic("twice"), NewTopic("twice"), NewTopic("once"), NewTopic("bad", 0, 1))
    assert [result.error.name for result in results] == [
        "INVALID_REQUEST",
        "INVALID_REQUEST",
        "NONE",
        "INVALID_PARTITIONS",
    ]
    assert set(cluster.image.topics) == {"once"}


def test_validation_alone_creates_nothing(cluster: Cluster) -> None:
    (result,) = cluster.create(NewTopic("orders", 3), validate_only=True)
    assert (result.error, result.num_partitions) == (ErrorCode.NONE, 3)
    assert not cluster.image.topics


def test_an_assignment_is_taken_as_it_is() -> None:
    cluster = Cluster()
    for _ in range(3):
        cluster.add_broker()
    cluster.create(NewTopic("orders", assignments={0: [2, 1], 1: [3, 2]}))
    topic = cluster.image.topics["orders"]
    assert [partition.replicas for partition in topic.partitions] == [(2, 1), (3, 2)]
    assert [partition.leader for partition in topic.partitions] == [2, 3]


def test_a_replica_on_a_broker_that_is_down_starts_out_of_sync() -> None:
    cluster = Cluster()
    cluster.add_broker()
    cluster.add_broker()
    cluster.run(cluster.controller.broker_died(1))
    cluster.create(NewTopic("orders", assignments={0: [1, 2]}))
    partition = cluster.partition("orders")
    assert (partition.replicas, partition.isr, partition.leader) == ((1, 2), (2,), 2)
    (result,) = cluster.create(NewTopic("lost", assignments={0: [1]}))
    assert result.error is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_without_brokers_no_topic() -> None:
    (result,) = Cluster().create(NewTopic("orders"))
    assert result.error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "All brokers are currently fenced" in str(result.error_message)


def test_kafkas_internal_topics_are_marked(cluster: Cluster) -> None:
    cluster.create(NewTopic("__consumer_offsets"), NewTopic("__other"))
    assert [topic.is_internal for topic in cluster.image.topics.values()] == [True, False]


@pytest.mark.parametrize("name", ["__transaction_state", "__consumer_offsets", "__share_group_state"])
def test_commits_survive_a_power_cut_where_the_user_wants_that(cluster: Cluster, name: str) -> None:
    """As docs/operations.md says: the topic has the default of the broker, and one of its own where that is set."""
    cluster.create(NewTopic(name))
    assert "flush.messages" not in cluster.image.topic_configs(name)
    change = alteration(ResourceType.TOPIC, name, ("flush.messages", 0, "1"))
    (result,) = cluster.run(cluster.controller.incremental_alter_configs([change], False))
    assert result.error is ErrorCode.NONE
    assert cluster.image.topic_configs(name)["flush.messages"] == "1"


def test_what_names_the_segments_in_the_remote_store_survives_a_power_cut(cluster: Cluster) -> None:
    """Local files are deleted as soon as it says that they are copied."""
    cluster.create(NewTopic("__remote_log_metadata"))
    assert cluster.image.topic_configs("__remote_log_metadata")["flush.messages"] == "1"


def test_partitions_are_added_behind_the_present_ones(cluster: Cluster) -> None:
    cluster.create(NewTopic("orders", 2))
    before = cluster.image.topics["orders"].partitions
    request = NewPartitions("orders", 4)
    assert errors(cluster.run(cluster.controller.create_partitions([request], False))) == [("NONE", None)]
    after = cluster.image.topics["orders"].partitions
    assert after[:2] == before
    assert [partition.partition for partition in after] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "name", ["__consumer_offsets", "__transaction_state", "__share_group_state", "__remote_log_metadata"]
)
def test_no_partition_is_added_to_a_topic_whose_records_are_found_by_their_number(cluster: Cluster, name: str) -> None:
    """Every group would lose its offsets, and every segment in the remote store its name."""
    cluster.create(NewTopic(name))
    before = cluster.image.topics[name].partitions
    message = f"The number of partitions of the topic {name} cannot be changed."
    result = cluster.run(cluster.controller.create_partitions([NewPartitions(name, len(before) + 1)], False))
    assert errors(result) == [("INVALID_TOPIC_EXCEPTION", message)]
    assert cluster.image.topics[name].partitions == before


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (
            NewPartitions("orders", 1),
            "INVALID_PARTITIONS",
            "The topic orders currently has 2 partition(s); 1 would not be an increase.",
        ),
        (NewPartitions("orders", 2), "INVALID_PARTITIONS", "Topic already has 2 partition(s)."),
        (
            NewPartitions("nope", 2),
            "UNKNOWN_TOPIC_OR_PARTITION",
            "This server does not host this topic-partition.",
        ),
        (
            NewPartitions("orders", 4, [[1]]),
            "INVALID_REPLICA_ASSIGNMENT",
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (
            NewPartitions("orders", 3, [[5]]),
            "INVALID_REPLICA_ASSIGNMENT",
            "The manual partition assignment includes broker 5, but no such broker is registered.",
        ),
        (
            NewPartitions("orders", 30_000),
            "POLICY_VIOLATION",
            "Excessively large number of additional partitions per request.",
        ),
    ],
)
def test_bad_partition_counts_are_refused(cluster: Cluster, request_: NewPartitions, error: str, message: str) -> None:
    cluster.create(NewTopic("orders", 2))
    before = cluster.image
    assert errors(cluster.run(cluster.controller.create_partitions([request_], False))) == [(error, message)]
    assert cluster.image is before


def test_a_topic_is_deleted_by_name_or_by_id_with_its_configs(cluster: Cluster) -> None:
    first, second = cluster.create(NewTopic("one", configs={"retention.ms": "1"}), NewTopic("two"))
    assert second.topic_id is not None
    results = cluster.run(cluster.controller.delete_topics(["one", second.topic_id]))
    assert [(result.name, result.topic_id) for result in results] == [
        ("one", first.topic_id),
        ("two", second.topic_id),
    ]
    assert not cluster.image.topics
    assert not cluster.image.topic_names_by_id
    assert set(cluster.image.configs) == {ConfigResource(ResourceType.BROKER, "")}


def test_a_topic_of_the_same_name_is_another_topic(cluster: Cluster) -> None:
    (first,) = cluster.create(NewTopic("one", configs={"retention.ms": "1"}))
    cluster.run(cluster.controller.delete_topics(["one"]))
    (second,) = cluster.create(NewTopic("one"))
    assert first.topic_id != second.topic_id
    assert cluster.image.topic_configs("one") == {}


def test_deleting_an_unknown_topic_is_an_error(cluster: Cluster) -> None:
    cluster.create(NewTopic("one"))
    topic_id = cluster.image.topics["one"].topic_id
    unknown = uuid.UUID(int=99)
    results = cluster.run(cluster.controller.delete_topics(["nope", unknown, "one", topic_id]))
    assert errors(results) == [
        ("UNKNOWN_TOPIC_OR_PARTITION", "This server does not host this topic-partition."),
        ("UNKNOWN_TOPIC_ID", "This server does not host this topic ID."),
        ("NONE", None),
        ("INVALID_REQUEST", "The provided topic name maps to an ID that was already supplied."),
    ]


def test_deletion_can_be_disabled() -> None:
    cluster = Cluster({"delete.topic.enable": "false"})
    cluster.add_broker()
    cluster.create(NewTopic("one"))
    (result,) = cluster.run(cluster.controller.delete_topics(["one"]))
    assert result.error is ErrorCode.TOPIC_DELETION_DISABLED
    assert "one" in cluster.image.topics


@pytest.mark.parametrize(
    ("request_configs", "num_partitions", "expected"),
    [({}, -1, ("compact", 50)), ({"cleanup.policy": "compact,delete"}, 3, ("compact,delete", 3))],
)
def test_the_offsets_topic_has_its_own_settings_however_it_is_created(
    cluster: Cluster, request_configs: dict[str, str | None], num_partitions: int, expected: tuple[str, int]
) -> None:
    """As the coordinator, an auto-creating client or CreateTopics does it; what a request says explicitly counts."""
    cluster.create(NewTopic("__consumer_offsets", num_partitions, configs=request_configs))
    topic, configs = cluster.image.topics["__consumer_offsets"], cluster.image.topic_configs("__consumer_offsets")
    assert (configs["cleanup.policy"], len(topic.partitions)) == expected
    assert (configs["segment.bytes"], configs["compression.type"]) == ("104857600", "producer")
    assert all(len(partition.replicas) == 1 for partition in topic.partitions), "there is one broker"
