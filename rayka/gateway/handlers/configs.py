"""DescribeConfigs 0-4, AlterConfigs 0-2, IncrementalAlterConfigs 0-1 and ListConfigResources 0-1."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from typing import Any, Final

from rayka.config.describe import (
    ConfigEntry,
    ConfigSource,
    describe_broker,
    describe_default_broker,
    describe_group,
    describe_topic,
    to_text,
)
from rayka.config.groups import GROUP_CONFIGS, group_defaults
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.responses import NO_THROTTLE
from rayka.gateway.server.request import Call, finish_frame, response_head
from rayka.gateway.wire.codec import entity_writer
from rayka.gateway.wire.reader import INT32
from rayka.metadata.commands import ConfigAlteration, ConfigOperation, ConfigReplacement, ConfigResult
from rayka.metadata.records import ConfigResource, ResourceType
from rayka.varint import encode_uvarint

_RESOURCES_IN_A_TURN: Final = 10
"""Describing one and writing it takes about a millisecond: other clients of the process would wait for all of them."""
_NO_THROTTLE: Final = INT32.pack(0)


async def handle_describe(call: Call) -> bytearray:
    """Every setting of the resources, or those asked for, with where each value comes from.

    A resource that the request repeats is described once: a small request would use up the memory.
    """
    asked = dict.fromkeys(call.request.resources)
    flexible = call.pending.api.is_flexible(call.version)
    out = response_head(call.pending.correlation_id, flexible)
    out += _NO_THROTTLE
    out += encode_uvarint(len(asked) + 1) if flexible else INT32.pack(len(asked))
    for number, resource in enumerate(asked, 1):
        result = _describe(call, resource)
        kind: type = type(result)
        entity_writer(kind)(out, result)
        if not number % _RESOURCES_IN_A_TURN:
            await asyncio.sleep(0)
    if flexible:
        out.append(0)
    return finish_frame(out)


def _describe(call: Call, resource: Any) -> Any:
    error, message = ErrorCode.NONE, ""
    entries: tuple[ConfigEntry, ...] = ()
    try:
        entries = _entries(call, resource.resource_type, resource.resource_name, resource.configuration_keys or None)
    except RaykaError as refusal:
        error, message = refusal.code, refusal.message
    return call.types.DescribeConfigsResult(
        error_code=error,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(_entry(call, entry) for entry in entries),
    )


def _entries(call: Call, kind: int, name: str, keys: Collection[str] | None) -> tuple[ConfigEntry, ...]:
    """Raises UNKNOWN_TOPIC_OR_PARTITION and INVALID_REQUEST."""
    broker, image = call.broker, call.broker.image
    own = image.own_broker_configs(broker.node_id)
    if kind == ResourceType.TOPIC:
        if name not in image.topics:
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic '{name}' does not exist")
        topic = image.topic_configs(name)
        return describe_topic(topic, broker.config.static, image.default_broker_configs, own, keys)
    if kind == ResourceType.BROKER:
        if not name:
            return describe_default_broker(image.default_broker_configs, keys)
        if name != str(broker.node_id):
            raise RaykaError(
                ErrorCode.INVALID_REQUEST,
                f"unexpected broker id, expected {broker.node_id} or an empty name, but received {name}",
            )
        return describe_broker(broker.config.static, image.default_broker_configs, own, keys)
    if kind == ResourceType.GROUP:
        return _group_entries(call, name, keys)
    raise RaykaError(ErrorCode.INVALID_REQUEST, f"configs of resource type {_type_name(kind)} are not supported")


def _group_entries(call: Call, name: str, keys: Collection[str] | None) -> tuple[ConfigEntry, ...]:
    """A group need not be there to have configs. Raises INVALID_REQUEST."""
    if not name:
        raise RaykaError(ErrorCode.INVALID_REQUEST, "the name of a group must not be empty")
    defaults = {own: to_text(value) or "" for own, value in group_defaults(call.broker.config).items()}
    own_configs = call.broker.image.configs.get(ConfigResource(ResourceType.GROUP, name), {})
    return describe_group(GROUP_CONFIGS, own_configs, defaults, keys)


def _type_name(kind: int) -> str:
    return ResourceType(kind).name if kind in set(ResourceType) else str(kind)


def _entry(call: Call, entry: ConfigEntry) -> Any:
    types = call.types
    synonyms = ()
    if call.field("include_synonyms", False):
        synonyms = tuple(
            types.DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in entry.synonyms
        )
    return types.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        is_default=entry.source == ConfigSource.DEFAULT_CONFIG,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=synonyms,
        config_type=entry.type,
        documentation=entry.documentation if call.field("include_documentation", False) else None,
    )


async def handle_alter(call: Call) -> Any:
    """Replace all dynamic settings of the resources."""
    changes: list[ConfigReplacement | ConfigResult] = []
    for asked in call.request.resources:
        resource = _resource(asked)
        names = [config.name for config in asked.configs]
        if resource is None:
            changes.append(_unknown_type(asked))
        elif len(set(names)) < len(names):
            message = "a setting stands twice in the request"
            changes.append(ConfigResult(resource, ErrorCode.INVALID_REQUEST, message))
        else:
            changes.append(ConfigReplacement(resource, {config.name: config.value for config in asked.configs}))
    sound = [change for change in changes if isinstance(change, ConfigReplacement)]
    try:
        results = await call.broker.controller.alter_configs(sound, call.request.validate_only) if sound else []
    except RaykaError as error:
        results = [ConfigResult(change.resource, error.code, error.message) for change in sound]
    return call.types.AlterConfigsResponse(
        throttle_time=NO_THROTTLE, responses=tuple(_results(call, changes, iter(results)))
    )


async def handle_incremental_alter(call: Call) -> Any:
    """Set, delete, append to or subtract from single settings (KIP-339)."""
    changes: list[ConfigAlteration | ConfigResult] = []
    for asked in call.request.resources:
        resource = _resource(asked)
        if resource is None:
            changes.append(_unknown_type(asked))
        else:
            operations = tuple(
                ConfigOperation(config.name, config.config_operation, config.value) for config in asked.configs
            )
            changes.append(ConfigAlteration(resource, operations))
    sound = [change for change in changes if isinstance(change, ConfigAlteration)]
    controller = call.broker.controller
    try:
        results = await controller.incremental_alter_configs(sound, call.request.validate_only) if sound else []
    except RaykaError as error:
        results = [ConfigResult(change.resource, error.code, error.message) for change in sound]
    return call.types.IncrementalAlterConfigsResponse(
        throttle_time=NO_THROTTLE, responses=tuple(_results(call, changes, iter(results)))
    )


def _resource(asked: Any) -> ConfigResource | None:
    """The resource, None if its type is none that Kafka has."""
    if asked.resource_type not in set(ResourceType):
        return None
    return ConfigResource(ResourceType(asked.resource_type), asked.resource_name)


def _unknown_type(asked: Any) -> ConfigResult:
    message = f"unknown resource type {asked.resource_type}"
    return ConfigResult(ConfigResource(asked.resource_type, asked.resource_name), ErrorCode.INVALID_REQUEST, message)


def _results(
    call: Call,
    changes: list[ConfigAlteration | ConfigResult] | list[ConfigReplacement | ConfigResult],
    results: Iterator[ConfigResult],
) -> Iterator[Any]:
    """In the order of the request: what was refused here, and what the controller says of the rest."""
    for change in changes:
        result = change if isinstance(change, ConfigResult) else next(results)
        yield call.types.AlterConfigsResourceResponse(
            error_code=result.error,
            error_message=result.error_message,
            resource_type=result.resource.type,
            resource_name=result.resource.name,
        )


async def handle_list_resources(call: Call) -> Any:
    """The resources that can have configs (KIP-1142). Version 0 lists client metrics, of which there are none."""
    wanted = {ResourceType.CLIENT_METRICS}
    error = ErrorCode.NONE
    if call.version >= 1:
        asked = set(call.request.resource_types)
        if asked <= set(ResourceType):
            wanted = {ResourceType(kind) for kind in asked or ResourceType}
        else:
            error, wanted = ErrorCode.UNSUPPORTED_VERSION, set()
    types = call.types
    return types.ListConfigResourcesResponse(
        throttle_time=NO_THROTTLE,
        error_code=error,
        config_resources=tuple(
            types.ConfigResource(resource_name=name, resource_type=kind)
            for kind in sorted(wanted)
            for name in _names(call, kind)
        ),
    )


def _names(call: Call, kind: ResourceType) -> list[str]:
    image = call.broker.image
    if kind is ResourceType.TOPIC:
        return list(image.topics)
    if kind is ResourceType.BROKER:
        return [str(broker_id) for broker_id in image.brokers]
    return [resource.name for resource in image.configs if resource.type is kind]
