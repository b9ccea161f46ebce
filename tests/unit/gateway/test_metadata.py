"""What the cluster is, in every version of each API."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from rayka.errors import ErrorCode
from rayka.gateway.api import APIS
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import NewTopic
from rayka.metadata.records import FeatureLevelRecord
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.asking import create, make, run
from tests.unit.gateway.wire_client import WireClient, versions


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.API_VERSIONS))
def test_api_versions(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        request = make(
            key, version, "ApiVersionsRequest", client_software_name="py-test", client_software_version="1.0"
        )
        response = await client.call(key, version, request)
        assert response.error_code == 0
        rows = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
        assert rows == {int(api.key): (api.min_version, api.max_version) for api in APIS.values()}
        assert (rows[0], rows[1], rows[18]) == ((0, 13), (0, 18), (0, 5))

    run(tmp_path, check)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_api_versions_tells_finalized_features(version: int, tmp_path: Path) -> None:
    key = ApiKey.API_VERSIONS

    async def check(client: WireClient, broker: LocalBroker) -> None:
        broker.core.replay([FeatureLevelRecord("some.version", 2)])
        request = make(key, version, "ApiVersionsRequest", client_software_name="x", client_software_version="1")
        response = await client.call(key, version, request)
        supported = {one.name: (one.min_version, one.max_version) for one in response.supported_features}
        (finalized,) = response.finalized_features
        assert supported == {"some.version": (1, 2), "share.version": (1, 1), "transaction.version": (1, 2)}
        assert (finalized.name, finalized.max_version_level) == ("some.version", 2)
        assert response.finalized_features_epoch == broker.image.version

    run(tmp_path, check)


def test_api_versions_refuses_bad_names_and_misrouted_clients(tmp_path: Path) -> None:
    key = ApiKey.API_VERSIONS

    async def check(client: WireClient, broker: LocalBroker) -> None:
        for name, cluster_id, node_id, error in (
            ("", None, -1, ErrorCode.INVALID_REQUEST),
            ("-x-", None, -1, ErrorCode.INVALID_REQUEST),
            ("x", "another", 1, ErrorCode.REBOOTSTRAP_REQUIRED),
            ("x", "local-cluster", 77, ErrorCode.REBOOTSTRAP_REQUIRED),
            ("x", "local-cluster", 1, ErrorCode.NONE),
        ):
            request = make(
                key, 5, "ApiVersionsRequest",
                client_software_name=name, client_software_version="1", cluster_id=cluster_id, node_id=node_id,
            )  # fmt: skip
            assert (await client.call(key, 5, request)).error_code == error

    run(tmp_path, check)


def metadata_request(version: int, topics: list[Any] | None, **values: Any) -> Any:
    entries = None
    if topics is not None:
        entries = tuple(
            make(ApiKey.METADATA, version, "MetadataRequestTopic", topic_id=topic, name=None)
            if isinstance(topic, uuid.UUID)
            else make(ApiKey.METADATA, version, "MetadataRequestTopic", topic_id=None, name=topic)
            for topic in topics
        )
    defaults: dict[str, Any] = {
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    }
    return make(ApiKey.METADATA, version, "MetadataRequest", topics=entries, **{**defaults, **values})


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.METADATA))
def test_metadata(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 2), NewTopic("b", 1))
        response = await client.call(key, version, metadata_request(version, ["a", "gone"]))
        (node,) = response.brokers
        assert (node.node_id, node.host) == (1, "127.0.0.1")
        assert getattr(response, "cluster_id", "local-cluster") in ("local-cluster", None)
        assert getattr(response, "controller_id", 1) == 1
        known, gone = response.topics
        assert (known.name, known.error_code, len(known.partitions)) == ("a", 0, 2)
        assert [(p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes) for p in known.partitions] == [
            (0, 1, (1,), (1,)), (1, 1, (1,), (1,)),
        ]  # fmt: skip
        assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if version >= 10:
            assert known.topic_id == broker.image.topics["a"].topic_id
        every = await client.call(key, version, metadata_request(version, None if version else []))
        assert [topic.name for topic in every.topics] == ["a", "b"]
        if version >= 1:
            assert (await client.call(key, version, metadata_request(version, []))).topics == ()

    run(tmp_path, check, auto_create_topics_enable="false")


@pytest.mark.parametrize("version", [1, 13])
def test_metadata_answers_a_repeated_topic_once(version: int, tmp_path: Path) -> None:
    """A small request would become a response that is as much larger as its topic has partitions."""

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 3))
        names = ["a", "gone"] * 1000
        response = await client.call(ApiKey.METADATA, version, metadata_request(version, names))
        assert [topic.name for topic in response.topics] == ["a", "gone"]
        if version >= 12:
            ids = [broker.image.topics["a"].topic_id, uuid.UUID(int=5)] * 1000
            response = await client.call(ApiKey.METADATA, version, metadata_request(version, ids))
            assert [topic.name for topic in response.topics] == ["a", None]

    run(tmp_path, check, auto_create_topics_enable="false")


@pytest.mark.parametrize("version", [12, 13])
def test_metadata_by_id_and_operations(version: int, tmp_path: Path) -> None:
    key = ApiKey.METADATA

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a"))
        topic_id, unknown = broker.image.topics["a"].topic_id, uuid.uuid4()
        request = metadata_request(version, [topic_id, unknown], include_topic_authorized_operations=True)
        found, missing = (await client.call(key, version, request)).topics
        assert (found.name, found.error_code) == ("a", 0)
        assert found.topic_authorized_operations == 0b110111111000
        assert (missing.name, missing.topic_id, missing.error_code) == (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID)

    run(tmp_path, check)


@pytest.mark.parametrize(
    ("version", "allowed", "enabled", "created"),
    [(1, False, "true", True), (4, True, "true", True), (4, False, "true", False), (12, True, "false", False)],
)
def test_metadata_creates_topics_where_client_and_settings_allow_it(
    version: int, allowed: bool, enabled: str, created: bool, tmp_path: Path
) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        request = metadata_request(version, ["new", "bad name", "new"], allow_auto_topic_creation=allowed)
        new, bad = (await client.call(ApiKey.METADATA, version, request)).topics
        assert ("new" in broker.image.topics) is created
        assert new.error_code == (0 if created else 3)
        assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        if created:
            assert len(new.partitions) == 3

    run(tmp_path, check, auto_create_topics_enable=enabled, num_partitions="3")


def test_an_internal_topic_is_internal_before_it_is_there(tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        request = metadata_request(8, ["__consumer_offsets", "orders"])
        internal, other = (await client.call(ApiKey.METADATA, 8, request)).topics
        assert (internal.error_code, internal.is_internal) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True)
        assert (other.error_code, other.is_internal) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False)

    run(tmp_path, check)


def test_metadata_creates_the_offsets_topic_with_its_own_settings(tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        request = metadata_request(8, ["__consumer_offsets"], allow_auto_topic_creation=True)
        (topic,) = (await client.call(ApiKey.METADATA, 8, request)).topics
        assert (topic.error_code, topic.is_internal, len(topic.partitions)) == (0, True, 7)
        configs = broker.image.topic_configs("__consumer_offsets")
        assert (configs["cleanup.policy"], configs["segment.bytes"]) == ("compact", "1048576")

    settings = {"offsets_topic_num_partitions": "7", "offsets_topic_segment_bytes": "1048576"}
    run(tmp_path, check, num_partitions="3", **settings)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.DESCRIBE_CLUSTER))
def test_describe_cluster(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        for endpoint_type, error in ((1, 0), (2, 114), (9, 115)):
            request = make(
                key, version, "DescribeClusterRequest",
                include_cluster_authorized_operations=True, endpoint_type=endpoint_type, include_fenced_brokers=True,
            )  # fmt: skip
            response = await client.call(key, version, request)
            expected = error if version >= 1 else 0
            assert response.error_code == expected
            if not expected:
                assert (response.cluster_id, response.controller_id) == ("local-cluster", 1)
                assert [one.broker_id for one in response.brokers] == [1]
                assert response.cluster_authorized_operations == 0b1111110100000

    run(tmp_path, check)


def test_describe_topic_partitions_continues_at_its_cursor(tmp_path: Path) -> None:
    key = ApiKey.DESCRIBE_TOPIC_PARTITIONS

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("b", 3), NewTopic("a", 2), NewTopic("c", 1))

        async def ask(names: list[str], limit: int, cursor: Any = None) -> tuple[list[tuple[str, list[int], int]], Any]:
            topics = tuple(make(key, 0, "TopicRequest", name=name) for name in names)
            request = make(
                key, 0, "DescribeTopicPartitionsRequest",
                topics=topics, response_partition_limit=limit, cursor=cursor,
            )  # fmt: skip
            response = await client.call(key, 0, request)
            found = [
                (topic.name, [partition.partition_index for partition in topic.partitions], int(topic.error_code))
                for topic in response.topics
            ]
            return found, response.next_cursor

        assert (await ask([], 2000))[0] == [("a", [0, 1], 0), ("b", [0, 1, 2], 0), ("c", [0], 0)]
        assert (await ask(["c", "gone"], 2000))[0] == [("c", [0], 0), ("gone", [], 3)]
        seen, cursor = await ask([], 4)
        assert seen == [("a", [0, 1], 0), ("b", [0, 1], 0)]
        assert (cursor.topic_name, cursor.partition_index) == ("b", 2)
        on = make(key, 0, "Cursor", topic_name="b", partition_index=2)
        assert await ask([], 4, on) == ([("b", [2], 0), ("c", [0], 0)], None)
        _, cursor = await ask([], 2)
        assert (cursor.topic_name, cursor.partition_index) == ("b", 0)
        assert (await ask([], 0))[0] == [("a", [0], 0)]

    run(tmp_path, check)
