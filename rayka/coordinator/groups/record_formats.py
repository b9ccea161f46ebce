"""The bytes of the records of `__consumer_offsets`, as Kafka has them.

A record's key is an int16 with its type and the key's fields; its value is an int16 version and the value's fields, or
nothing (a tombstone: what the key names is gone). Every version is read; written is the one that Kafka 4.4 writes.

Source: the message definitions of Kafka's group-coordinator module, and the records that a 4.4.0 broker wrote.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from rayka.coordinator.codec import (
    BYTES,
    INT8,
    INT32,
    INT64,
    STRING,
    UUID,
    VERSION,
    ZERO_UUID,
    Array,
    ByteReader,
    Field,
    Nullable,
    Schema,
)
from rayka.coordinator.groups.records import (
    AssignedPartitions,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CoordinatorRecord,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    PartitionRacks,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    TargetPartitions,
    TopicInfo,
    TopicPartitionMetadata,
    TopicPartitionsInfo,
)

_KEYS_REMEMBERED = 10_000


class _Format(NamedTuple):
    """`versions`: the highest that is read; `written`: the one that is written; flexible from `flexible` on."""

    type: int
    key: Schema[Any]
    value: Schema[Any]
    versions: int = 0
    written: int = 0
    flexible: int = 0


def _group(cls: type[Any]) -> Schema[Any]:
    return Schema(cls, Field("group_id", STRING))


def _group_member(cls: type[Any]) -> Schema[Any]:
    return Schema(cls, Field("group_id", STRING), Field("member_id", STRING))


_OFFSET_COMMIT = _Format(
    1,
    Schema(OffsetCommitKey, Field("group", STRING), Field("topic", STRING), Field("partition", INT32)),
    Schema(
        OffsetCommitValue,
        Field("offset", INT64),
        Field("leader_epoch", INT32, since=3),
        Field("metadata", STRING),
        Field("commit_timestamp", INT64),
        Field("expire_timestamp", INT64, since=1, until=1),
        Field("topic_id", UUID, since=4, tag=0, default=ZERO_UUID),
    ),
    versions=4,
    written=4,
    flexible=4,
)
_GROUP_METADATA = _Format(
    2,
    Schema(GroupMetadataKey, Field("group", STRING)),
    Schema(
        GroupMetadataValue,
        Field("protocol_type", STRING),
        Field("generation", INT32),
        Field("protocol", STRING),
        Field("leader", STRING),
        Field("current_state_timestamp", INT64, since=2),
        Field(
            "members",
            Array(
                Schema(
                    MemberMetadata,
                    Field("member_id", STRING),
                    Field("group_instance_id", STRING, since=3),
                    Field("client_id", STRING),
                    Field("client_host", STRING),
                    Field("rebalance_timeout", INT32, since=1),
                    Field("session_timeout", INT32),
                    Field("subscription", BYTES),
                    Field("assignment", BYTES),
                )
            ),
        ),
    ),
    versions=4,
    written=3,
    flexible=4,
)
_PARTITION_METADATA = Schema(
    ConsumerGroupPartitionMetadataValue,
    Field(
        "topics",
        Array(
            Schema(
                TopicPartitionMetadata,
                Field("topic_id", UUID),
                Field("topic_name", STRING),
                Field("num_partitions", INT32),
                Field(
                    "partition_metadata",
                    Array(Schema(PartitionRacks, Field("partition", INT32), Field("racks", Array(STRING)))),
                ),
            )
        ),
    ),
)
_CLASSIC_MEMBER = Schema(
    ClassicMemberMetadata,
    Field("session_timeout_ms", INT32),
    Field("supported_protocols", Array(Schema(ClassicProtocol, Field("name", STRING), Field("metadata", BYTES)))),
)
_MEMBER_METADATA = Schema(
    ConsumerGroupMemberMetadataValue,
    Field("instance_id", STRING),
    Field("rack_id", STRING),
    Field("client_id", STRING),
    Field("client_host", STRING),
    Field("subscribed_topic_names", Array(STRING)),
    Field("subscribed_topic_regex", STRING),
    Field("rebalance_timeout_ms", INT32),
    Field("server_assignor", STRING),
    # Kafka leaves the tag out for an empty struct and spells null out.
    Field("classic_member_metadata", Nullable(_CLASSIC_MEMBER), tag=0, default=ClassicMemberMetadata(0, ())),
)
_TARGET_PARTITIONS = Schema(TargetPartitions, Field("topic_id", UUID), Field("partitions", Array(INT32)))
_ASSIGNED_PARTITIONS = Schema(
    AssignedPartitions,
    Field("topic_id", UUID),
    Field("partitions", Array(INT32)),
    Field("assignment_epochs", Array(INT32), tag=0),
)
_CURRENT_ASSIGNMENT = Schema(
    ConsumerGroupCurrentMemberAssignmentValue,
    Field("member_epoch", INT32),
    Field("previous_member_epoch", INT32),
    Field("state", INT8),
    Field("assigned_partitions", Array(_ASSIGNED_PARTITIONS)),
    Field("partitions_pending_revocation", Array(_ASSIGNED_PARTITIONS)),
)
_SHARE_PARTITIONS = Array(
    Schema(TopicPartitionsInfo, Field("topic_id", UUID), Field("topic_name", STRING), Field("partitions", Array(INT32)))
)

FORMATS: dict[type[Any], _Format] = {
    OffsetCommitKey: _OFFSET_COMMIT,
    GroupMetadataKey: _GROUP_METADATA,
    ConsumerGroupMetadataKey: _Format(
        3,
        _group(ConsumerGroupMetadataKey),
        Schema(ConsumerGroupMetadataValue, Field("epoch", INT32), Field("metadata_hash", INT64, tag=0, default=0)),
    ),
    ConsumerGroupPartitionMetadataKey: _Format(4, _group(ConsumerGroupPartitionMetadataKey), _PARTITION_METADATA),
    ConsumerGroupMemberMetadataKey: _Format(5, _group_member(ConsumerGroupMemberMetadataKey), _MEMBER_METADATA),
    ConsumerGroupTargetAssignmentMetadataKey: _Format(
        6,
        _group(ConsumerGroupTargetAssignmentMetadataKey),
        Schema(
            ConsumerGroupTargetAssignmentMetadataValue,
            Field("assignment_epoch", INT32),
            Field("assignment_timestamp", INT64, tag=0, default=0),
        ),
    ),
    ConsumerGroupTargetAssignmentMemberKey: _Format(
        7,
        _group_member(ConsumerGroupTargetAssignmentMemberKey),
        Schema(ConsumerGroupTargetAssignmentMemberValue, Field("topic_partitions", Array(_TARGET_PARTITIONS))),
    ),
    ConsumerGroupCurrentMemberAssignmentKey: _Format(
        8, _group_member(ConsumerGroupCurrentMemberAssignmentKey), _CURRENT_ASSIGNMENT
    ),
    ShareGroupMemberMetadataKey: _Format(
        10,
        _group_member(ShareGroupMemberMetadataKey),
        Schema(
            ShareGroupMemberMetadataValue,
            Field("rack_id", STRING),
            Field("client_id", STRING),
            Field("client_host", STRING),
            Field("subscribed_topic_names", Array(STRING)),
        ),
    ),
    ShareGroupMetadataKey: _Format(
        11,
        _group(ShareGroupMetadataKey),
        Schema(ShareGroupMetadataValue, Field("epoch", INT32), Field("metadata_hash", INT64)),
    ),
    ShareGroupTargetAssignmentMetadataKey: _Format(
        12,
        _group(ShareGroupTargetAssignmentMetadataKey),
        Schema(
            ShareGroupTargetAssignmentMetadataValue,
            Field("assignment_epoch", INT32),
            Field("assignment_timestamp", INT64, tag=0, default=0),
        ),
    ),
    ShareGroupTargetAssignmentMemberKey: _Format(
        13,
        _group_member(ShareGroupTargetAssignmentMemberKey),
        Schema(ShareGroupTargetAssignmentMemberValue, Field("topic_partitions", Array(_TARGET_PARTITIONS))),
    ),
    ShareGroupCurrentMemberAssignmentKey: _Format(
        14,
        _group_member(ShareGroupCurrentMemberAssignmentKey),
        Schema(
            ShareGroupCurrentMemberAssignmentValue,
            Field("member_epoch", INT32),
            Field("previous_member_epoch", INT32),
            Field("state", INT8),
            Field("assigned_partitions", Array(_TARGET_PARTITIONS)),
        ),
    ),
    ShareGroupStatePartitionMetadataKey: _Format(
        15,
        _group(ShareGroupStatePartitionMetadataKey),
        Schema(
            ShareGroupStatePartitionMetadataValue,
            Field("initializing_topics", _SHARE_PARTITIONS),
            Field("initialized_topics", _SHARE_PARTITIONS),
            Field(
                "deleting_topics",
                Array(Schema(TopicInfo, Field("topic_id", UUID), Field("topic_name", STRING))),
            ),
        ),
    ),
    ConsumerGroupRegularExpressionKey: _Format(
        16,
        Schema(ConsumerGroupRegularExpressionKey, Field("group_id", STRING), Field("regular_expression", STRING)),
        Schema(
            ConsumerGroupRegularExpressionValue,
            Field("topics", Array(STRING)),
            Field("version", INT64),
            Field("timestamp", INT64),
        ),
    ),
}
_BY_TYPE = {form.type: form for form in FORMATS.values()}
_BY_TYPE[0] = _OFFSET_COMMIT  # the oldest offset commits; same fields


def encode(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """The key and value bytes of a record; the value of a tombstone is None."""
    key = _encode_key(record.key)
    if record.value is None:
        return key, None
    form = FORMATS[type(record.key)]
    version = _written_version(form, record.value)
    value = bytearray(VERSION.pack(version))
    form.value.write(value, record.value, version, flexible=version >= form.flexible)
    return key, bytes(value)


@functools.lru_cache(maxsize=_KEYS_REMEMBERED, typed=True)
def _encode_key(key: Any) -> bytes:
    """Cached, since the same keys are written repeatedly; by type, since keys of two types may be equal."""
    form = FORMATS[type(key)]
    encoded = bytearray(VERSION.pack(form.type))
    form.key.write(encoded, key, 0, flexible=False)
    return bytes(encoded)


def _written_version(form: _Format, value: Any) -> int:
    """Only version 1 of an offset commit can say when it expires."""
    return 1 if form is _OFFSET_COMMIT and value.expire_timestamp != -1 else form.written


def decode(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    """The record of these bytes; None for a type that does not belong to classic, consumer or share groups.

    Raises ValueError for bytes that are not a coordinator record, or of a version from the future.
    """
    reader = ByteReader(key)
    form = _BY_TYPE.get(reader.unpack(VERSION))
    if form is None:
        return None
    decoded = form.key.read(reader, 0, flexible=False)
    return CoordinatorRecord(decoded, None if value is None else _decode_value(form, value))


def _decode_value(form: _Format, value: bytes) -> Any:
    reader = ByteReader(value)
    version = reader.unpack(VERSION)
    if not 0 <= version <= form.versions:
        raise ValueError(f"version {version} of record type {form.type} is not known; the highest is {form.versions}")
    return form.value.read(reader, version, flexible=version >= form.flexible)
