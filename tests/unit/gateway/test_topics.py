"""Creating and deleting topics, in every version of each API."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import NewTopic
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.asking import SECOND, create, make, run
from tests.unit.gateway.wire_client import WireClient, versions


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.CREATE_TOPICS))
def test_a_message_that_repeats_the_longest_name_is_cut_to_what_a_client_reads(
    key: ApiKey, version: int, tmp_path: Path
) -> None:
    """The other topics of the request are created, so it must have its answer."""
    long = "é" * 16_383

    async def check(client: WireClient, broker: LocalBroker) -> None:
        fields = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
        topics = tuple(make(key, version, "CreatableTopic", name=name, **fields) for name in ("good", long))
        values: dict[str, Any] = {"topics": topics, "timeout": SECOND, "validate_only": False}
        request = make(key, version, "CreateTopicsRequest", **values)
        good, bad = (await client.call(key, version, request)).topics
        assert (good.error_code, bad.error_code) == (ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION)
        assert bad.name == long
        assert len(getattr(bad, "error_message", "").encode()) <= 32_767

    run(tmp_path, check)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.CREATE_TOPICS))
def test_create_topics(key: ApiKey, version: int, tmp_path: Path) -> None:
    def topic(name: str, partitions: int = 2, **values: Any) -> Any:
        fields = {"num_partitions": partitions, "replication_factor": 1, "assignments": (), "configs": ()}
        return make(key, version, "CreatableTopic", name=name, **{**fields, **values})

    async def ask(client: WireClient, *topics: Any, validate_only: bool = False) -> list[Any]:
        request = make(key, version, "CreateTopicsRequest", topics=topics, timeout=SECOND, validate_only=validate_only)
        return list((await client.call(key, version, request)).topics)

    async def check(client: WireClient, broker: LocalBroker) -> None:
        config = make(key, version, "CreatableTopicConfig", name="retention.ms", value="5000")
        unknown = make(key, version, "CreatableTopicConfig", name="no.such", value="1")
        assigned = make(key, version, "CreatableReplicaAssignment", partition_index=0, broker_ids=(1,))
        results = await ask(
            client,
            topic("good", configs=(config,)),
            topic("twice"),
            topic("twice"),
            topic("bad/name"),
            topic("unknown", configs=(unknown,)),
            topic("assigned", -1, replication_factor=-1, assignments=(assigned,)),
            topic("assigned-twice", -1, replication_factor=-1, assignments=(assigned, assigned)),
            topic("wide", replication_factor=3),
        )
        assert [(result.name, ErrorCode(result.error_code).name) for result in results] == [
            ("good", "NONE"),
            ("twice", "INVALID_REQUEST"),
            ("twice", "INVALID_REQUEST"),
            ("bad/name", "INVALID_TOPIC_EXCEPTION"),
            ("unknown", "INVALID_CONFIG"),
            ("assigned", "NONE"),
            ("assigned-twice", "INVALID_REPLICA_ASSIGNMENT"),
            ("wide", "INVALID_REPLICATION_FACTOR"),
        ]
        assert set(broker.image.topics) == {"good", "assigned"}
        assert broker.image.topic_configs("good") == {"retention.ms": "5000"}
        if version >= 1:
            assert results[0].error_message is None
            assert "no.such" in results[4].error_message
            (validated,) = await ask(client, topic("other"), validate_only=True)
            assert validated.error_code == 0
            assert "other" not in broker.image.topics
        if version >= 5:
            assert (results[0].num_partitions, results[0].replication_factor) == (2, 1)
            assert ("retention.ms", "5000") in {(entry.name, entry.value) for entry in results[0].configs}
        if version >= 7:
            assert results[0].topic_id == broker.image.topics["good"].topic_id
        (again,) = await ask(client, topic("good"))
        assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS

    run(tmp_path, check)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.DELETE_TOPICS))
def test_delete_topics(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def ask(client: WireClient, *topics: Any) -> list[Any]:
        states = ()
        if version >= 6:
            states = tuple(
                make(key, version, "DeleteTopicState", name=None, topic_id=topic)
                if isinstance(topic, uuid.UUID)
                else make(key, version, "DeleteTopicState", name=topic, topic_id=None)
                for topic in topics
            )
        request = make(key, version, "DeleteTopicsRequest", topic_names=topics, topics=states, timeout=SECOND)
        return list((await client.call(key, version, request)).responses)

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a"), NewTopic("b"), NewTopic("c"))
        ids = {name: topic.topic_id for name, topic in broker.image.topics.items()}
        results = await ask(client, "a", "gone", "c", "c")
        assert [result.error_code for result in results] == [0, 3, 42, 42]
        assert set(broker.image.topics) == {"b", "c"}
        if version >= 6:
            assert results[0].topic_id == ids["a"]
            by_id, unknown = await ask(client, ids["b"], uuid.uuid4())
            assert (by_id.name, by_id.topic_id, by_id.error_code) == ("b", ids["b"], 0)
            assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID

    run(tmp_path, check)


@pytest.mark.parametrize(("version", "error"), [(0, 42), (3, 73), (6, 73)])
def test_delete_topics_when_it_is_disabled(version: int, error: int, tmp_path: Path) -> None:
    key = ApiKey.DELETE_TOPICS

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a"))
        states = (make(key, 6, "DeleteTopicState", name="a", topic_id=None),) if version == 6 else ()
        request = make(key, version, "DeleteTopicsRequest", topic_names=("a",), topics=states, timeout=SECOND)
        (result,) = (await client.call(key, version, request)).responses
        assert result.error_code == error

    run(tmp_path, check, delete_topic_enable="false")


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.CREATE_PARTITIONS))
def test_create_partitions(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 1))
        for validate_only, count in ((True, 1), (False, 3)):
            topics = tuple(
                make(key, version, "CreatePartitionsTopic", name=name, count=3, assignments=None)
                for name in ("a", "gone", "twice", "twice")
            )
            request = make(
                key, version, "CreatePartitionsRequest", topics=topics, timeout=SECOND, validate_only=validate_only
            )
            results = (await client.call(key, version, request)).results
            assert [result.error_code for result in results] == [0, 3, 42, 42]
            assert len(broker.image.topics["a"].partitions) == count

    run(tmp_path, check)


@pytest.mark.parametrize("key", [ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS])
def test_a_controller_that_is_away_is_an_error_of_every_item(key: ApiKey, tmp_path: Path) -> None:
    async def away(*_: Any, **__: Any) -> Any:
        raise RaykaError(ErrorCode.NOT_CONTROLLER, "the controller is away")

    async def check(client: WireClient, broker: LocalBroker) -> None:
        for method in ("create_topics", "delete_topics", "create_partitions"):
            setattr(broker.controller, method, away)
        version = 1
        if key is ApiKey.CREATE_TOPICS:
            topic = make(
                key, version, "CreatableTopic",
                name="a", num_partitions=1, replication_factor=1, assignments=(), configs=(),
            )  # fmt: skip
            request = make(key, version, "CreateTopicsRequest", topics=(topic,), timeout=SECOND, validate_only=False)
            results = (await client.call(key, version, request)).topics
        elif key is ApiKey.DELETE_TOPICS:
            request = make(key, version, "DeleteTopicsRequest", topic_names=("a",), timeout=SECOND)
            results = (await client.call(key, version, request)).responses
        else:
            topic = make(key, version, "CreatePartitionsTopic", name="a", count=3, assignments=None)
            request = make(
                key, version, "CreatePartitionsRequest", topics=(topic,), timeout=SECOND, validate_only=False
            )
            results = (await client.call(key, version, request)).results
        assert [result.error_code for result in results] == [ErrorCode.NOT_CONTROLLER]

    run(tmp_path, check)
