"""The records of `__share_group_state`: a snapshot of a share-partition, and updates that apply to the last snapshot.

Source: the message definitions of Kafka's share-coordinator module, 4.4. A record that is delayed has rayka's own
tagged field in its state batch (KIP-482). Readers skip tagged fields they do not know, so Kafka reads these records too
and delivers without the delay; without delays they are Kafka's, byte for byte.
"""

from __future__ import annotations

import functools
import uuid
from typing import Any, NamedTuple, TypeAlias

from rayka.coordinator.codec import INT8, INT16, INT32, INT64, STRING, UUID, VERSION, Array, ByteReader, Field, Schema
from rayka.coordinator.shares.requests import UNINITIALIZED_COUNT, StateBatch
from rayka.types import SharePartitionKey

_SNAPSHOT = 0
_UPDATE = 1
_KEYS_REMEMBERED = 10_000
_AVAILABLE_AT_TAG = 10_000
"""Far from the tags that Kafka gives out, which count from 0."""


class ShareSnapshotKey(NamedTuple):
    """A share-partition whose whole state a record has."""

    group_id: str
    topic_id: uuid.UUID
    partition: int


class ShareSnapshotValue(NamedTuple):
    """The whole state. `snapshot_epoch` counts the snapshots of the share-partition; timestamps in milliseconds.

    `create_timestamp` is when the state was last changed by a snapshot, `write_timestamp` when this one was written:
    a snapshot that only moves the state of a quiet share-partition forward in the log has the former of the one before.
    """

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    create_timestamp: int
    write_timestamp: int
    state_batches: tuple[StateBatch, ...] = ()
    delivery_complete_count: int = UNINITIALIZED_COUNT


class ShareUpdateKey(NamedTuple):
    """A share-partition whose state a record changes."""

    group_id: str
    topic_id: uuid.UUID
    partition: int


class ShareUpdateValue(NamedTuple):
    """What has changed since the snapshot of `snapshot_epoch`."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    state_batches: tuple[StateBatch, ...] = ()
    delivery_complete_count: int = UNINITIALIZED_COUNT


class ShareStateRecord(NamedTuple):
    """One record. A snapshot without a value deletes the share-partition."""

    key: ShareSnapshotKey | ShareUpdateKey
    value: ShareSnapshotValue | ShareUpdateValue | None = None

    @property
    def share_partition(self) -> SharePartitionKey:
        """The share-partition that the record is about."""
        return SharePartitionKey(*self.key)


_Key: TypeAlias = type[ShareSnapshotKey] | type[ShareUpdateKey]


def _key(cls: _Key) -> Schema[Any]:
    return Schema(cls, Field("group_id", STRING), Field("topic_id", UUID), Field("partition", INT32))


_BATCHES = Array(
    Schema(
        StateBatch,
        Field("first_offset", INT64),
        Field("last_offset", INT64),
        Field("delivery_state", INT8),
        Field("delivery_count", INT16),
        Field("available_at", INT64, tag=_AVAILABLE_AT_TAG, default=0),
    )
)
_COUNT = Field("delivery_complete_count", INT32, tag=0, default=UNINITIALIZED_COUNT)
_SNAPSHOT_VALUE: Schema[Any] = Schema(
    ShareSnapshotValue,
    Field("snapshot_epoch", INT32),
    Field("state_epoch", INT32),
    Field("leader_epoch", INT32),
    Field("start_offset", INT64),
    _COUNT,
    Field("create_timestamp", INT64),
    Field("write_timestamp", INT64),
    Field("state_batches", _BATCHES),
)
_UPDATE_VALUE: Schema[Any] = Schema(
    ShareUpdateValue,
    Field("snapshot_epoch", INT32),
    Field("leader_epoch", INT32),
    Field("start_offset", INT64),
    _COUNT,
    Field("state_batches", _BATCHES),
)
_FORMATS: dict[int, tuple[_Key, Schema[Any], Schema[Any]]] = {
    _SNAPSHOT: (ShareSnapshotKey, _key(ShareSnapshotKey), _SNAPSHOT_VALUE),
    _UPDATE: (ShareUpdateKey, _key(ShareUpdateKey), _UPDATE_VALUE),
}
_TYPES: dict[_Key, int] = {cls: number for number, (cls, _, _) in _FORMATS.items()}


def encode(record: ShareStateRecord) -> tuple[bytes, bytes | None]:
    """The key and value bytes of a record; the value of a tombstone is None."""
    key = _encode_key(record.key)
    if record.value is None:
        return key, None
    value = bytearray(VERSION.pack(0))
    _FORMATS[_TYPES[type(record.key)]][2].write(value, record.value, 0, flexible=True)
    return key, bytes(value)


@functools.lru_cache(maxsize=_KEYS_REMEMBERED, typed=True)
def _encode_key(key: ShareSnapshotKey | ShareUpdateKey) -> bytes:
    """Cached, since the same keys are written repeatedly; by type, since keys of two types may be equal."""
    number = _TYPES[type(key)]
    encoded = bytearray(VERSION.pack(number))
    _FORMATS[number][1].write(encoded, key, 0, flexible=False)
    return bytes(encoded)


def decode(key: bytes, value: bytes | None) -> ShareStateRecord | None:
    """The record of these bytes; None for a type of record that is not known.

    Raises ValueError for bytes that are not a record of share state, or of a version from the future.
    """
    reader = ByteReader(key)
    form = _FORMATS.get(reader.unpack(VERSION))
    if form is None:
        return None
    _, keys, values = form
    decoded = keys.read(reader, 0, flexible=False)
    return ShareStateRecord(decoded, None if value is None else _decode_value(values, value))


def _decode_value(schema: Schema[Any], value: bytes) -> Any:
    reader = ByteReader(value)
    version = reader.unpack(VERSION)
    if version != 0:
        raise ValueError(f"version {version} of a record of share state is not known; the highest is 0")
    return schema.read(reader, version, flexible=True)
