"""The protocol that consumers embed in the classic one: what a member subscribes to, what the leader assigns.

Type `consumer`. The coordinator reads it to know a classic group's topics and to carry members over between the classic
and the consumer protocol (KIP-848). A value is an int16 version and fields that never changed their place.
"""

from __future__ import annotations

from typing import NamedTuple

from rayka.coordinator.codec import BYTES, INT32, STRING, VERSION, Array, ByteReader, Field, Schema

PROTOCOL_TYPE = "consumer"
HIGHEST_VERSION = 3


class TopicPartitions(NamedTuple):
    """Partitions of one topic."""

    topic: str
    partitions: tuple[int, ...]


class ConsumerProtocolSubscription(NamedTuple):
    """What a member subscribes to and, since version 1, what it owns (KIP-429, KIP-792, KIP-881)."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartitions, ...] = ()
    generation_id: int = -1
    rack_id: str | None = None


class ConsumerProtocolAssignment(NamedTuple):
    """What a member is to read."""

    assigned_partitions: tuple[TopicPartitions, ...]
    user_data: bytes | None = None


_TOPIC_PARTITIONS = Schema(TopicPartitions, Field("topic", STRING), Field("partitions", Array(INT32)))
_SUBSCRIPTION = Schema(
    ConsumerProtocolSubscription,
    Field("topics", Array(STRING)),
    Field("user_data", BYTES),
    Field("owned_partitions", Array(_TOPIC_PARTITIONS), since=1),
    Field("generation_id", INT32, since=2),
    Field("rack_id", STRING, since=3),
)
_ASSIGNMENT = Schema(
    ConsumerProtocolAssignment, Field("assigned_partitions", Array(_TOPIC_PARTITIONS)), Field("user_data", BYTES)
)


def version_of(data: bytes) -> int:
    """The version that `data` was written in. Raises ValueError if it has none."""
    version = ByteReader(data).unpack(VERSION)
    if version < 0:
        raise ValueError(f"version {version} of the consumer protocol is invalid")
    return version


def read_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """Raises ValueError if `data` is malformed. Unknown fields of later versions are ignored."""
    reader = ByteReader(data, 2)
    subscription = _SUBSCRIPTION.read(reader, min(version_of(data), HIGHEST_VERSION), flexible=False)
    _require_present((subscription.topics,), subscription.owned_partitions)
    return subscription


def read_topics(data: bytes) -> tuple[str, ...]:
    """The subscribed topics alone, which every version begins with. Raises ValueError if `data` is malformed."""
    version_of(data)
    topics: tuple[str, ...] = Array(STRING).read(ByteReader(data, 2), 0, flexible=False) or ()
    return topics


def read_assignment(data: bytes) -> ConsumerProtocolAssignment:
    """Empty data is an empty assignment. Raises ValueError if `data` is malformed."""
    if not data:
        return ConsumerProtocolAssignment(())
    reader = ByteReader(data, 2)
    assignment = _ASSIGNMENT.read(reader, min(version_of(data), HIGHEST_VERSION), flexible=False)
    _require_present((), assignment.assigned_partitions)
    return assignment


def _require_present(arrays: tuple[tuple[object, ...] | None, ...], topics: tuple[TopicPartitions, ...] | None) -> None:
    """Raises ValueError where there is null instead of an array or a topic's name."""
    for array in (*arrays, topics, *(topics or ())):
        if array is None or None in array:
            raise ValueError("an array or a topic's name is null")


def write_assignment(assignment: ConsumerProtocolAssignment, version: int = HIGHEST_VERSION) -> bytes:
    """The bytes of an assignment."""
    out = bytearray(VERSION.pack(version))
    _ASSIGNMENT.write(out, assignment, version, flexible=False)
    return bytes(out)
