"""Changing the dynamic configs of topics, brokers and groups.

The changes to one resource are applied together or not at all, and only if the resulting configs are valid
together. A value that stays the same gives no record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rayka.config import (
    BROKER_CONFIGS,
    TOPIC_CONFIGS,
    BrokerConfig,
    ConfigDef,
    ConfigType,
    check_broker_configs,
    check_topic_configs,
)
from rayka.config.groups import check_group_sessions, checked_group_config
from rayka.config.remote import check_remote_change
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import (
    AlterOperation,
    ConfigAlteration,
    ConfigOperation,
    ConfigReplacement,
    ConfigResult,
    ControllerResult,
)
from rayka.metadata.image import MetadataImage
from rayka.metadata.internal_topics import MIN_ISR
from rayka.metadata.records import ConfigRecord, ConfigResource, ResourceType

MAX_VALUE_LENGTH = 32_767
_MAX_ID_DIGITS = 10


@dataclass(frozen=True, slots=True)
class ConfigChanges:
    """The rules for one request: the image before it, the broker's settings, and the configs that groups have."""

    image: MetadataImage
    config: BrokerConfig
    group_configs: Mapping[str, ConfigDef]

    def apply(
        self, changes: Sequence[ConfigAlteration | ConfigReplacement], validate_only: bool
    ) -> ControllerResult[list[ConfigResult]]:
        """Change each resource independently of the others."""
        requested = Counter(change.resource for change in changes)
        records: list[ConfigRecord] = []
        results = []
        for change in changes:
            try:
                if requested[change.resource] > 1:
                    raise RaykaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                records += self._change(change)
                results.append(ConfigResult(change.resource))
            except RaykaError as error:
                results.append(ConfigResult(change.resource, error.code, error.message))
        return ControllerResult(() if validate_only else tuple(records), results)

    def _change(self, change: ConfigAlteration | ConfigReplacement) -> list[ConfigRecord]:
        resource = change.resource
        self._check_resource(resource)
        before = self.image.configs.get(resource, {})
        if isinstance(change, ConfigReplacement):
            after = _without_nulls(change.configs)
        else:
            after = self._altered(before, change)
        self._check_values(resource, before, after)
        return list(_difference(resource, before, after))

    def _check_resource(self, resource: ConfigResource) -> None:
        match resource.type:
            case ResourceType.TOPIC:
                if not resource.name:
                    raise RaykaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
                if resource.name not in self.image.topics:
                    raise RaykaError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource.name}' does not exist."
                    )
            case ResourceType.BROKER:
                self._check_broker(resource.name)
            case ResourceType.GROUP if self.group_configs:
                if not resource.name:
                    raise RaykaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
            case _:
                raise RaykaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.type.name}")

    def _check_broker(self, name: str) -> None:
        if not name:
            return
        if not (name.isascii() and name.isdigit() and len(name) <= _MAX_ID_DIGITS):
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
        if int(name) not in self.image.brokers:
            raise RaykaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No broker with id {name} found.")

    def _altered(self, before: Mapping[str, str], alteration: ConfigAlteration) -> dict[str, str]:
        names = Counter(operation.name for operation in alteration.operations)
        if any(count > 1 for count in names.values()):
            raise RaykaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        after = dict(before)
        for operation in alteration.operations:
            value = self._new_value(alteration.resource, before, operation)
            if value is None:
                after.pop(operation.name, None)
            else:
                after[operation.name] = value
        return after

    def _new_value(self, resource: ConfigResource, before: Mapping[str, str], change: ConfigOperation) -> str | None:
        """The value after one operation; None if there is none."""
        if change.operation == AlterOperation.DELETE:
            return None
        if change.operation not in set(AlterOperation):
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {change.operation}")
        if change.value is None:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {change.name}")
        if change.operation == AlterOperation.SET:
            return change.value
        operation = AlterOperation(change.operation)
        definition = self._definitions(resource).get(change.name)
        if definition is None or definition.type is not ConfigType.LIST:
            message = f"Can't {operation.name} to key {change.name} because its type is not LIST."
            raise RaykaError(ErrorCode.INVALID_CONFIG, message)
        present = _items(before[change.name] if change.name in before else self._inherited(definition))
        return ",".join(_combined(operation, present, _items(change.value)))

    def _inherited(self, definition: ConfigDef) -> str:
        """The value of a list that the resource has not set itself."""
        texts = self.config.texts
        names = [definition.name, *(synonym.name for synonym in definition.synonyms)]
        return next((texts[name] for name in names if name in texts), definition.default or "")

    def _definitions(self, resource: ConfigResource) -> Mapping[str, ConfigDef]:
        if resource.type is ResourceType.TOPIC:
            return TOPIC_CONFIGS
        return BROKER_CONFIGS if resource.type is ResourceType.BROKER else self.group_configs

    def _check_values(self, resource: ConfigResource, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        changed = {name: value for name, value in after.items() if before.get(name) != value}
        if any(len(value.encode()) > MAX_VALUE_LENGTH for value in changed.values()):
            raise RaykaError(
                ErrorCode.INVALID_CONFIG,
                "The configuration value cannot be added because it exceeds the maximum value size of "
                f"{MAX_VALUE_LENGTH} bytes.",
            )
        if resource.type is ResourceType.TOPIC:
            check_topic_configs(after, self.config.texts)
            check_remote_change(before, after)
        elif resource.type is ResourceType.BROKER:
            self._check_min_isr(resource, before, after)
            check_broker_configs(after, self.config.static, per_broker=bool(resource.name))
        else:
            check_group_configs(self.group_configs, after, self.config)

    def _check_min_isr(self, resource: ConfigResource, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """One value for all brokers, always there: which replicas may be elected depends on it (KIP-966)."""
        if resource.name and before.get(MIN_ISR) != after.get(MIN_ISR):
            message = f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled."
            raise RaykaError(ErrorCode.INVALID_CONFIG, message)
        if MIN_ISR in before and MIN_ISR not in after:
            message = f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled."
            raise RaykaError(ErrorCode.INVALID_CONFIG, message)


def check_group_configs(definitions: Mapping[str, ConfigDef], configs: Mapping[str, str], broker: BrokerConfig) -> None:
    """Raises INVALID_CONFIG for an unknown name, a value that is bad or outside the broker's bounds, or a conflict."""
    values = {}
    for name, text in configs.items():
        if name not in definitions:
            raise RaykaError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}")
        values[name] = checked_group_config(name, text, broker)
    check_group_sessions(values, broker)


def _without_nulls(configs: Mapping[str, str | None]) -> dict[str, str]:
    nulls = sorted(name for name, value in configs.items() if value is None)
    if nulls:
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")
    return {name: value for name, value in configs.items() if value is not None}


def _combined(operation: AlterOperation, present: list[str], items: list[str]) -> list[str]:
    if operation is AlterOperation.APPEND:
        known = set(present)
        return [*present, *(item for item in dict.fromkeys(items) if item not in known)]
    removed = set(items)
    return [item for item in present if item not in removed]


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _difference(
    resource: ConfigResource, before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[ConfigRecord]:
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            yield ConfigRecord(int(resource.type), resource.name, name, after.get(name))
