"""Metadata records: the facts that the controller writes down, and their bytes.

Everything that the cluster knows about itself is a sequence of these records. A record says what is now
so (a leader, an epoch, a value), never how to compute it, so that applying one twice changes nothing.

A record travels as the msgpack array `[version, kind, {field: value}]`. A reader leaves out fields that
it does not know and takes the default for fields that are missing; a version above the one it knows
means that the record can't be understood without the new field, and is refused.
"""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack

from rayka.errors import ErrorCode, RaykaError

FORMAT_VERSION = 1
_UUID_EXTENSION = 1


class ResourceType(enum.IntEnum):
    """What a configuration belongs to, with the protocol's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """The owner of a set of configs. A BROKER with an empty name means all brokers."""

    type: ResourceType
    name: str


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The identity of the cluster; the first record of a metadata log."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class FeatureLevelRecord:
    """The finalized level of a feature such as `transaction.version` (KIP-584); 0 removes it."""

    name: str
    feature_level: int


@dataclass(frozen=True, slots=True)
class RegisterBrokerRecord:
    """A node of the cluster with the address that clients are told. `node_id` is Ray's."""

    broker_id: int
    broker_epoch: int
    node_id: str
    host: str
    port: int
    rack: str | None = None
    fenced: bool = False
    directory_ids: tuple[str, ...] = ()
    log_dirs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerFencingRecord:
    """A broker was found dead (fenced) or alive again."""

    broker_id: int
    broker_epoch: int
    fenced: bool


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRecord:
    """A broker is gone for good."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class RegisterActorRecord:
    """A PartitionReplica actor came up: `epoch` counts its starts, `incarnation` names this one."""

    name: str
    broker_id: int
    log_dir: str
    epoch: int
    incarnation: str = ""
    online: bool = True


@dataclass(frozen=True, slots=True)
class ActorChangeRecord:
    """An actor was found dead, or serving again in the same epoch."""

    name: str
    epoch: int
    online: bool


@dataclass(frozen=True, slots=True)
class UnregisterActorRecord:
    """An actor without replicas was retired."""

    name: str


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic begins to exist; its partitions follow."""

    name: str
    topic_id: uuid.UUID
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition begins to exist. `actors[i]` holds replica `replicas[i]`."""

    topic_id: uuid.UUID
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    actors: tuple[str, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0


@dataclass(frozen=True, slots=True)
class PartitionChangeRecord:
    """What changed about a partition; None means unchanged. `leader` -1 means that there is none."""

    topic_id: uuid.UUID
    partition: int
    partition_epoch: int
    leader: int | None = None
    leader_epoch: int | None = None
    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    actors: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    """A topic with all its partitions and configs is gone."""

    topic_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """A dynamic config of a resource; a value of None removes it."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord:
    """All producer ids below `next_producer_id` are given away (KIP-730)."""

    next_producer_id: int
    broker_id: int = -1


@dataclass(frozen=True, slots=True)
class IdFloorsRecord:
    """Broker ids and epochs below these were given away; part of a snapshot, since their brokers may be gone."""

    next_broker_id: int
    next_broker_epoch: int


MetadataRecord = (
    ClusterRecord
    | FeatureLevelRecord
    | RegisterBrokerRecord
    | BrokerFencingRecord
    | UnregisterBrokerRecord
    | RegisterActorRecord
    | ActorChangeRecord
    | UnregisterActorRecord
    | TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | ConfigRecord
    | ProducerIdsRecord
    | IdFloorsRecord
)

KINDS: Mapping[str, type[MetadataRecord]] = {
    "cluster": ClusterRecord,
    "feature-level": FeatureLevelRecord,
    "register-broker": RegisterBrokerRecord,
    "broker-fencing": BrokerFencingRecord,
    "unregister-broker": UnregisterBrokerRecord,
    "register-actor": RegisterActorRecord,
    "actor-change": ActorChangeRecord,
    "unregister-actor": UnregisterActorRecord,
    "topic": TopicRecord,
    "partition": PartitionRecord,
    "partition-change": PartitionChangeRecord,
    "remove-topic": RemoveTopicRecord,
    "config": ConfigRecord,
    "producer-ids": ProducerIdsRecord,
    "id-floors": IdFloorsRecord,
}
_KIND_OF = {record_type: kind for kind, record_type in KINDS.items()}
_FIELDS = {record_type: tuple(field.name for field in dataclasses.fields(record_type)) for record_type in _KIND_OF}


def encode(record: MetadataRecord) -> bytes:
    """The bytes of one record."""
    return _pack(_as_array(record))


def decode(data: bytes | memoryview) -> MetadataRecord:
    """The record that `encode` wrote. Raises CORRUPT_MESSAGE or UNSUPPORTED_VERSION."""
    return _from_array(_unpack(data))


def encode_all(records: Iterable[MetadataRecord]) -> bytes:
    """The bytes of a batch of records, which is applied as a whole."""
    return _pack([_as_array(record) for record in records])


def decode_all(data: bytes | memoryview) -> tuple[MetadataRecord, ...]:
    """The batch that `encode_all` wrote. Raises CORRUPT_MESSAGE or UNSUPPORTED_VERSION."""
    batch = _unpack(data)
    if not isinstance(batch, tuple):
        raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"a batch of metadata records is an array, not {batch!r}")
    return tuple(_from_array(item) for item in batch)


def _as_array(record: MetadataRecord) -> list[object]:
    record_type = type(record)
    return [FORMAT_VERSION, _KIND_OF[record_type], {name: getattr(record, name) for name in _FIELDS[record_type]}]


def _from_array(value: object) -> MetadataRecord:
    match value:
        case (int(version), str(), dict()) if version > FORMAT_VERSION:
            raise RaykaError(ErrorCode.UNSUPPORTED_VERSION, f"metadata record of version {version}: {value!r}")
        case (int(), str(kind), dict(fields)) if kind in KINDS:
            return _build(KINDS[kind], fields)
        case (int(), str(kind), dict()):
            raise RaykaError(ErrorCode.UNSUPPORTED_VERSION, f"unknown kind of metadata record: {kind}")
    raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"not a metadata record: {value!r}")


def _build(record_type: type[MetadataRecord], fields: Mapping[str, Any]) -> MetadataRecord:
    known = {name: fields[name] for name in _FIELDS[record_type] if name in fields}
    try:
        return record_type(**known)
    except TypeError as error:
        raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"metadata record lacks a field: {error}") from error


def _pack(value: object) -> bytes:
    data: bytes = msgpack.packb(value, default=_pack_uuid)
    return data


def _pack_uuid(value: object) -> msgpack.ExtType:
    if isinstance(value, uuid.UUID):
        return msgpack.ExtType(_UUID_EXTENSION, value.bytes)
    raise TypeError(f"{value!r} can't be part of a metadata record")


def _unpack_extension(code: int, data: bytes) -> object:
    return uuid.UUID(bytes=bytes(data)) if code == _UUID_EXTENSION else msgpack.ExtType(code, data)


_UNPACK: Callable[..., object] = msgpack.unpackb


def _unpack(data: bytes | memoryview) -> object:
    try:
        return _UNPACK(data, use_list=False, ext_hook=_unpack_extension)
    except ValueError as error:
        raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"metadata record can't be read: {error}") from error
