"""Settings, in every version of each API."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from rayka.errors import ErrorCode
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import NewTopic
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.asking import create, make, run
from tests.unit.gateway.scripted_broker import connect, feed, new_context, settle
from tests.unit.gateway.wire_client import WireClient, encode, request_frame, versions


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
        assert (every.error_code, every.error_message) == (0, "")
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


def describe_request(names: list[str]) -> Any:
    resources = tuple(
        make(
            ApiKey.DESCRIBE_CONFIGS, 4, "DescribeConfigsResource",
            resource_type=2, resource_name=name, configuration_keys=None,
        )
        for name in names
    )  # fmt: skip
    return make(
        ApiKey.DESCRIBE_CONFIGS, 4, "DescribeConfigsRequest",
        resources=resources, include_synonyms=True, include_documentation=True,
    )  # fmt: skip


def test_a_repeated_resource_is_described_once(tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a"))
        response = await client.call(ApiKey.DESCRIBE_CONFIGS, 4, describe_request(["a", "gone"] * 500))
        assert [result.resource_name for result in response.results] == ["a", "gone"]

    run(tmp_path, check)


def test_other_clients_are_served_while_many_topics_are_described(tmp_path: Path) -> None:
    async def main() -> None:
        broker = LocalBroker(str(tmp_path))
        broker.register("127.0.0.1", 9)
        names = [f"t{number}" for number in range(100)]
        await create(broker, *map(NewTopic, names))
        context = new_context(broker)
        connection, transport = connect(context)
        neighbour, neighbour_transport = connect(context)
        feed(connection, request_frame(ApiKey.DESCRIBE_CONFIGS, 4, encode(describe_request(names))))
        feed(neighbour, request_frame(ApiKey.API_VERSIONS, 0, b""))
        assert not transport.frames()
        assert neighbour_transport.correlation_ids() == [7]
        most_alive = 0
        while not transport.frames():
            await asyncio.sleep(0)
            alive = sum(type(one).__name__ == "DescribeConfigsResult" for one in gc.get_objects())
            most_alive = max(most_alive, alive)
        assert transport.correlation_ids() == [7]
        assert most_alive <= 10, "each turn writes what it describes: writing all at the end would take the last turn"
        connection.abort()
        neighbour.abort()
        await settle()
        broker.close()

    asyncio.run(main())


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


@pytest.mark.parametrize("version", [0, 1])
def test_configs_of_groups(version: int, tmp_path: Path) -> None:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS

    async def alter(client: WireClient, group: str, name: str, value: str) -> Any:
        config = make(key, version, "AlterableConfig", name=name, config_operation=0, value=value)
        resource = make(key, version, "AlterConfigsResource", resource_type=32, resource_name=group, configs=(config,))
        request = make(key, version, "IncrementalAlterConfigsRequest", resources=(resource,), validate_only=False)
        (result,) = (await client.call(key, version, request)).responses
        return result

    async def described(client: WireClient, group: str) -> Any:
        describe = ApiKey.DESCRIBE_CONFIGS
        resource = make(
            describe, 4, "DescribeConfigsResource", resource_type=32, resource_name=group, configuration_keys=None
        )
        request = make(
            describe, 4, "DescribeConfigsRequest",
            resources=(resource,), include_synonyms=False, include_documentation=False,
        )  # fmt: skip
        (result,) = (await client.call(describe, 4, request)).results
        return result

    async def check(client: WireClient, broker: LocalBroker) -> None:
        assert (await alter(client, "g", "consumer.session.timeout.ms", "50000")).error_code == 0
        entries = {entry.name: (entry.value, entry.config_source) for entry in (await described(client, "g")).configs}
        assert entries["consumer.session.timeout.ms"] == ("50000", 8)
        assert entries["consumer.heartbeat.interval.ms"] == ("5000", 5)
        assert (await described(client, "")).error_code == ErrorCode.INVALID_REQUEST
        for name, value in (
            ("consumer.session.timeout.ms", "1"),
            ("consumer.session.timeout.ms", "x"),
            ("no.such", "1"),
        ):
            assert (await alter(client, "g", name, value)).error_code == ErrorCode.INVALID_CONFIG
        assert (await alter(client, "", "consumer.session.timeout.ms", "50000")).error_code == ErrorCode.INVALID_REQUEST

    run(tmp_path, check)
