"""Finds the dataclasses of one version of one API, and makes its readers and writers when first asked.

kio has a module for each version; importing one takes milliseconds, so it waits for the first request.
"""

from __future__ import annotations

import enum
import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rayka.gateway.wire.codec import ReadField, WriteField, entity_reader, entity_writer


class ApiKey(enum.IntEnum):
    """The APIs served, by Kafka's names and numbers."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92

    @property
    def title(self) -> str:
        """Kafka's name for it, `ListOffsets`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


# What kio leaves out: the versions that Kafka 4 dropped, and those that are newer than kio.
LEGACY_VERSIONS: dict[ApiKey, frozenset[int]] = {
    ApiKey.LIST_OFFSETS: frozenset({0}),
    ApiKey.OFFSET_COMMIT: frozenset({0, 1}),
    ApiKey.OFFSET_FETCH: frozenset({0}),
    ApiKey.API_VERSIONS: frozenset({5}),
    ApiKey.CREATE_TOPICS: frozenset({0, 1}),
    ApiKey.DELETE_TOPICS: frozenset({0}),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: frozenset({0, 1}),
    ApiKey.DESCRIBE_CONFIGS: frozenset({0}),
    ApiKey.DESCRIBE_LOG_DIRS: frozenset({0}),
    ApiKey.DELETE_GROUPS: frozenset({3}),
    ApiKey.TXN_OFFSET_COMMIT: frozenset({6}),
}


class ResponseTypes:
    """The response classes of one version. Each is called with every field that any version has; those
    that this version lacks are left out, and so is a nested struct that it lacks."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Callable[..., Any]:
        cls = getattr(self._module, name, None)
        build = _lenient(cls) if isinstance(cls, type) else _absent
        setattr(self, name, build)
        return build


def _lenient(cls: type) -> Callable[..., Any]:
    names = frozenset(cls.__dict__["__dataclass_fields__"])

    def build(**values: Any) -> Any:
        if values.keys() <= names:
            return cls(**values)
        return cls(**{name: value for name, value in values.items() if name in names})

    return build


def _absent(**_values: Any) -> None:
    return None


class MessageSchema:
    """One version of one API: its classes, the reader of its requests, the writer of its responses."""

    def __init__(self, key: ApiKey, version: int) -> None:
        requests, responses = _modules(key, version)
        self.request: type = getattr(requests, f"{key.title}Request")
        self.response: type = getattr(responses, f"{key.title}Response")
        self.types = ResponseTypes(responses)
        self.read: ReadField = entity_reader(self.request)
        self.write: WriteField = entity_writer(self.response)


def _modules(key: ApiKey, version: int) -> tuple[ModuleType, ModuleType]:
    name = key.name.lower()
    if version in LEGACY_VERSIONS.get(key, ()):
        module = importlib.import_module(f"rayka.gateway.wire.versions.{name}_v{version}")
        return module, module
    package = f"kio.schema.{name}.v{version}"
    return importlib.import_module(f"{package}.request"), importlib.import_module(f"{package}.response")


@functools.cache
def schema(key: ApiKey, version: int) -> MessageSchema:
    """The schema of a version that the API table has."""
    return MessageSchema(key, version)
