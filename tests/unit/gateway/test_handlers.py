"""Every other API in every version, through the wire, against the cores of storage and metadata."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.schema import ApiKey, schema
from rayka.metadata.commands import NewTopic
from rayka.storage.records import Record, build_batch
from rayka.types import AppendRequest, TopicPartition
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.wire_client import WireClient, connected, versions

SECOND = datetime.timedelta(seconds=1)
Check = Callable[[WireClient, LocalBroker], Coroutine[Any, Any, None]]


def run(directory: Path, check: Check, **configs: str) -> None:
    async def main() -> None:
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        async with connected(directory, settings) as (client, broker):
            await check(client, broker)

    asyncio.run(main())


def make(key: ApiKey, version: int, name: str, /, **values: Any) -> Any:
    """A request's class of this version with those of the values that it has."""
    import sys

    cls = getattr(sys.modules[schema(key, version).request.__module__], name)
    return cls(**{field: value for field, value in values.items() if field in cls.__dataclass_fields__})


async def create(broker: LocalBroker, *topics: NewTopic) -> None:
    results = await broker.controller.create_topics(list(topics), validate_only=False, timeout_ms=1000)
    assert all(result.error == ErrorCode.NONE for result in results)


def append(broker: LocalBroker, topic: str, *timestamps: int) -> None:
    """One batch for each timestamp."""
    for timestamp in timestamps:
        records = memoryview(build_batch([Record(0, timestamp, None, b"v", ())]))
        ((result, _),) = [broker.partitions.replicas.append(AppendRequest(TopicPartition(topic, 0), records), 0)]
        assert result.error == 0


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.API_VERSIONS))
def test_api_versions(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        request = make(
            key, version, "ApiVersionsRequest", client_software_name="py-test", client_software_version="1.0"
        )
        response = await client.call(key, version, request)
        assert response.error_code == 0
        rows = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
        assert rows[0] == (0, 13)
        assert rows[18] == (0, 5)
        assert 10 not in rows
        assert 17 not in rows

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
        new, bad, again = (await client.call(ApiKey.METADATA, version, request)).topics
        assert ("new" in broker.image.topics) is created
        assert new.error_code == again.error_code == (0 if created else 3)
        assert bad.error_code == (ErrorCode.INVALID_TOPIC_EXCEPTION if created else 3)
        if created:
            assert len(new.partitions) == 3

    run(tmp_path, check, auto_create_topics_enable=enabled, num_partitions="3")


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


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.LIST_OFFSETS))
def test_list_offsets(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def ask(client: WireClient, timestamp: int, *partitions: int, most: int = 5) -> list[Any]:
        entries = tuple(
            make(
                key, version, "ListOffsetsPartition",
                partition_index=partition, timestamp=timestamp, max_num_offsets=most, current_leader_epoch=-1,
            )
            for partition in partitions
        )  # fmt: skip
        topic = make(key, version, "ListOffsetsTopic", name="a", partitions=entries)
        request = make(
            key, version, "ListOffsetsRequest", replica_id=-1, isolation_level=0, topics=(topic,), timeout=SECOND
        )
        return list((await client.call(key, version, request)).topics[0].partitions)

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 1))
        append(broker, "a", 1000, 3000, 2000)
        latest, missing = await ask(client, -1, 0, 8)
        assert (latest.error_code, missing.error_code) == (0, 3)
        if version == 0:
            assert latest.old_style_offsets == (3, 0)
            assert (await ask(client, -1, 0, most=1))[0].old_style_offsets == (3,)
            assert (await ask(client, -2, 0))[0].old_style_offsets == (0,)
            assert (await ask(client, 3000, 0))[0].old_style_offsets == (1, 0)
            assert (await ask(client, 9999, 0))[0].old_style_offsets == (3, 0)
            return
        assert latest.offset == 3
        assert (missing.offset, missing.timestamp) == (-1, -1)
        assert [one.offset for one in await ask(client, -2, 0)] == [0]
        (by_time,) = await ask(client, 1500, 0)
        assert (by_time.offset, by_time.timestamp) == (1, 3000)
        assert [one.offset for one in await ask(client, 9999, 0)] == [-1]
        assert [one.error_code for one in await ask(client, -1, 0, 0)] == [42, 42]
        for timestamp, first, offset in ((-3, 7, 1), (-4, 8, 0), (-5, 9, -1), (-6, 11, -1)):
            (answer,) = await ask(client, timestamp, 0)
            assert (answer.error_code, answer.offset) == ((0, offset) if version >= first else (35, -1))

    run(tmp_path, check)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.OFFSET_FOR_LEADER_EPOCH))
def test_offset_for_leader_epoch(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 1))
        append(broker, "a", 1000, 2000)
        epoch = broker.image.topics["a"].partitions[0].leader_epoch
        partitions = tuple(
            make(
                key, version, "OffsetForLeaderPartition", partition=number, current_leader_epoch=-1, leader_epoch=epoch
            )
            for number in (0, 4)
        )
        topic = make(key, version, "OffsetForLeaderTopic", topic="a", partitions=partitions)
        request = make(key, version, "OffsetForLeaderEpochRequest", replica_id=-1, topics=(topic,))
        known, unknown = (await client.call(key, version, request)).topics[0].partitions
        assert (known.partition, known.error_code, known.end_offset) == (0, 0, 2)
        assert getattr(known, "leader_epoch", epoch) == epoch
        assert (unknown.partition, unknown.error_code) == (4, 3)

    run(tmp_path, check)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.INIT_PRODUCER_ID))
def test_init_producer_id(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        async def ask(transactional_id: str | None, producer_id: int = -1) -> Any:
            request = make(
                key, version, "InitProducerIdRequest",
                transactional_id=transactional_id, transaction_timeout=SECOND,
                producer_id=producer_id, producer_epoch=-1,
            )  # fmt: skip
            return await client.call(key, version, request)

        first, second = await ask(None), await ask(None)
        assert (first.error_code, first.producer_epoch) == (0, 0)
        assert second.producer_id > first.producer_id >= 0
        assert (await ask("tx")).error_code == ErrorCode.UNSUPPORTED_VERSION
        assert (await ask("")).error_code == ErrorCode.INVALID_REQUEST
        if version >= 3:
            assert (await ask(None, 5)).error_code == ErrorCode.INVALID_REQUEST

    run(tmp_path, check)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.DESCRIBE_CONFIGS))
def test_describe_configs(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def ask(client: WireClient, kind: int, name: str, keys: Any = None, extras: bool = True) -> Any:
        resource = make(
            key, version, "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=keys
        )
        request = make(
            key, version, "DescribeConfigsRequest",
            resources=(resource,), include_synonyms=extras, include_documentation=extras,
        )  # fmt: skip
        (result,) = (await client.call(key, version, request)).results
        assert (result.resource_type, result.resource_name) == (kind, name)
        return result

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", configs={"retention.ms": "5000"}))
        every = await ask(client, 2, "a")
        assert every.error_code == 0
        assert len(every.configs) > 20
        chosen = await ask(client, 2, "a", ("retention.ms", "cleanup.policy", "no.such"))
        entries = {entry.name: entry for entry in chosen.configs}
        assert set(entries) == {"retention.ms", "cleanup.policy"}
        assert (entries["retention.ms"].value, entries["cleanup.policy"].value) == ("5000", "delete")
        if version == 0:
            assert (entries["retention.ms"].is_default, entries["cleanup.policy"].is_default) == (False, True)
        else:
            assert (entries["retention.ms"].config_source, entries["cleanup.policy"].config_source) == (1, 5)
            assert entries["retention.ms"].synonyms[0].value == "5000"
            assert not (await ask(client, 2, "a", ("retention.ms",), extras=False)).configs[0].synonyms
        if version >= 3:
            assert (entries["retention.ms"].config_type, entries["cleanup.policy"].config_type) == (5, 7)
            assert entries["retention.ms"].documentation
        own = await ask(client, 4, "1", ("num.partitions",))
        assert [(entry.name, entry.value) for entry in own.configs] == [("num.partitions", "4")]
        assert (await ask(client, 4, "")).error_code == 0
        assert (await ask(client, 4, "99")).error_code == ErrorCode.INVALID_REQUEST
        assert (await ask(client, 2, "gone")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert "BROKER_LOGGER" in (await ask(client, 8, "1")).error_message
        assert (await ask(client, 77, "x")).error_code == ErrorCode.INVALID_REQUEST

    run(tmp_path, check, num_partitions="4")


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS))
def test_alter_configs(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def ask(
        client: WireClient, kind: int, name: str, *changes: tuple[str, int, str | None], dry: bool = False
    ) -> Any:
        configs = tuple(
            make(key, version, "AlterableConfig", name=config, config_operation=operation, value=value)
            for config, operation, value in changes
        )
        resource = make(key, version, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=configs)
        request = make(key, version, f"{key.title}Request", resources=(resource,), validate_only=dry)
        (result,) = (await client.call(key, version, request)).responses
        assert (result.resource_type, result.resource_name) == (kind, name)
        return result

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", configs={"segment.ms": "9000"}))
        assert (await ask(client, 2, "a", ("retention.ms", 0, "5000"), dry=True)).error_code == 0
        assert "retention.ms" not in broker.image.topic_configs("a")
        assert (await ask(client, 2, "a", ("retention.ms", 0, "5000"))).error_code == 0
        kept = {"segment.ms": "9000"} if key is ApiKey.INCREMENTAL_ALTER_CONFIGS else {}
        assert broker.image.topic_configs("a") == {"retention.ms": "5000", **kept}
        bad = await ask(client, 2, "a", ("retention.ms", 0, "soon"))
        assert bad.error_code == ErrorCode.INVALID_CONFIG
        assert "retention.ms" in bad.error_message
        twice = await ask(client, 2, "a", ("retention.ms", 0, "1"), ("retention.ms", 0, "2"))
        assert twice.error_code == ErrorCode.INVALID_REQUEST
        assert (
            await ask(client, 2, "gone", ("retention.ms", 0, "1"))
        ).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await ask(client, 99, "x")).error_code == ErrorCode.INVALID_REQUEST
        assert (await ask(client, 8, "1", ("root", 0, "DEBUG"))).error_code == ErrorCode.INVALID_REQUEST
        if key is ApiKey.INCREMENTAL_ALTER_CONFIGS:
            assert (await ask(client, 2, "a", ("segment.ms", 1, None))).error_code == 0
            assert broker.image.topic_configs("a") == {"retention.ms": "5000"}
            assert (await ask(client, 2, "a", ("retention.ms", 9, "1"))).error_code == ErrorCode.INVALID_REQUEST

    run(tmp_path, check)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.LIST_CONFIG_RESOURCES))
def test_list_config_resources(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a"), NewTopic("b"))
        response = await client.call(key, version, make(key, version, "ListConfigResourcesRequest", resource_types=()))
        if version == 0:
            assert response.config_resources == ()
            return
        found = [(resource.resource_type, resource.resource_name) for resource in response.config_resources]
        assert found == [(2, "a"), (2, "b"), (4, "1")]
        for kinds, error, count in (((4,), 0, 1), ((2,), 0, 2), ((3,), 35, 0)):
            request = make(key, version, "ListConfigResourcesRequest", resource_types=kinds)
            response = await client.call(key, version, request)
            assert (response.error_code, len(response.config_resources)) == (error, count)

    run(tmp_path, check)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.DELETE_RECORDS))
def test_delete_records(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 1))
        append(broker, "a", 1, 2, 3, 4)
        for partition, offset, expected in (
            (0, 2, (2, 0)), (0, 1, (2, 0)), (0, -1, (4, 0)), (0, 9, (-1, 1)), (0, -2, (-1, 1)), (7, 0, (-1, 3)),
        ):  # fmt: skip
            asked = make(key, version, "DeleteRecordsPartition", partition_index=partition, offset=offset)
            topic = make(key, version, "DeleteRecordsTopic", name="a", partitions=(asked,))
            request = make(key, version, "DeleteRecordsRequest", topics=(topic,), timeout=SECOND)
            (result,) = (await client.call(key, version, request)).topics[0].partitions
            assert (result.low_watermark, result.error_code) == expected

    run(tmp_path, check)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.DESCRIBE_LOG_DIRS))
def test_describe_log_dirs(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 2), NewTopic("b", 1))
        append(broker, "a", 1)
        (result,) = (await client.call(key, version, make(key, version, "DescribeLogDirsRequest", topics=None))).results
        assert (result.error_code, result.log_dir) == (0, str(tmp_path))
        sizes = {
            (topic.name, partition.partition_index): partition.partition_size
            for topic in result.topics
            for partition in topic.partitions
        }
        assert set(sizes) == {("a", 0), ("a", 1), ("b", 0)}
        assert sizes["a", 0] > 0 == sizes["b", 0]
        if version >= 4:
            assert result.total_bytes >= result.usable_bytes > 0
        asked = make(key, version, "DescribableLogDirTopic", topic="a", partitions=(1,))
        (result,) = (
            await client.call(key, version, make(key, version, "DescribeLogDirsRequest", topics=(asked,)))
        ).results
        (topic,) = result.topics
        assert [partition.partition_index for partition in topic.partitions] == [1]

    run(tmp_path, check)


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


def test_describe_topic_partitions_goes_on_at_its_cursor(tmp_path: Path) -> None:
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
