"""The requests of share groups and their responses, free of versions (KIP-932). Times in milliseconds.

What a share group delivers is kept by share coordinators; this coordinator knows which share-partitions have state
there. A response with share-partitions in `to_initialize` or `to_delete` asks its receiver to do that at the share
coordinators, and to report it with a `ShareGroupStateInitializedRequest` or `ShareGroupStateDeletedRequest`.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import NamedTuple

from rayka.coordinator.groups.records import TargetPartitions
from rayka.coordinator.groups.requests import DescribedModernGroup, NamedPartitions
from rayka.coordinator.request import GroupRequest, GroupsRequest
from rayka.errors import ErrorCode

NONE = ErrorCode.NONE


class SharePartitionToInitialize(NamedTuple):
    """A share-partition, and where it starts; -1: the group's `share.auto.offset.reset` says where."""

    topic_id: uuid.UUID
    partition: int
    start_offset: int = -1


@dataclass(frozen=True, slots=True)
class ShareGroupHeartbeatResponse:
    """`assignment` None: as before. `to_initialize` are share-partitions to initialize with `state_epoch`."""

    error: ErrorCode = NONE
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[TargetPartitions, ...] | None = None
    state_epoch: int = 0
    to_initialize: tuple[SharePartitionToInitialize, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareGroupHeartbeatRequest(GroupRequest[ShareGroupHeartbeatResponse]):
    """A heartbeat of a share consumer; epoch 0 joins and -1 leaves. What has not changed since the last one is None."""

    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    subscribed_topic_names: tuple[str, ...] | None = None
    client_id: str = ""
    client_host: str = ""


@dataclass(frozen=True, slots=True)
class ShareGroupStateInitializedResponse:
    """The outcome."""

    error: ErrorCode = NONE
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class ShareGroupStateInitializedRequest(GroupRequest[ShareGroupStateInitializedResponse]):
    """Share-partitions have been initialized, or could not be."""

    group_id: str
    initialized: tuple[TargetPartitions, ...]
    failed: tuple[TargetPartitions, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareGroupStateDeletedResponse:
    """The outcome."""

    error: ErrorCode = NONE
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class ShareGroupStateDeletedRequest(GroupRequest[ShareGroupStateDeletedResponse]):
    """The share-partitions of topics have been deleted."""

    group_id: str
    topic_ids: tuple[uuid.UUID, ...]


@dataclass(frozen=True, slots=True)
class ShareGroupDescribeResponse:
    """In the order of the request."""

    groups: tuple[DescribedModernGroup, ...]


@dataclass(frozen=True, slots=True)
class ShareGroupDescribeRequest(GroupsRequest[ShareGroupDescribeResponse]):
    """Share groups to describe."""

    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShareGroupPartitionsResponse:
    """The share-partitions that have state."""

    error: ErrorCode = NONE
    error_message: str | None = None
    topics: tuple[NamedPartitions, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareGroupPartitionsRequest(GroupRequest[ShareGroupPartitionsResponse]):
    """Asks which share-partitions of a group have state."""

    group_id: str


class TopicStartOffsets(NamedTuple):
    """New start offsets of partitions of one topic, as (partition, offset)."""

    topic_name: str
    partitions: tuple[tuple[int, int], ...]


class AlteredTopic(NamedTuple):
    """The outcome for one topic, and for each of its partitions in the order of the request."""

    topic_id: uuid.UUID
    topic_name: str
    errors: tuple[ErrorCode, ...]


@dataclass(frozen=True, slots=True)
class AlterShareGroupOffsetsResponse:
    """`topics` in the order of the request, and the share-partitions to initialize with `state_epoch`."""

    error: ErrorCode = NONE
    error_message: str | None = None
    topics: tuple[AlteredTopic, ...] = ()
    state_epoch: int = 0
    to_initialize: tuple[SharePartitionToInitialize, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterShareGroupOffsetsRequest(GroupRequest[AlterShareGroupOffsetsResponse]):
    """New start offsets of a group without members."""

    group_id: str
    topics: tuple[TopicStartOffsets, ...]


class DeletedTopic(NamedTuple):
    """The outcome for one topic."""

    topic_id: uuid.UUID
    topic_name: str
    error: ErrorCode = NONE
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteShareGroupOffsetsResponse:
    """`topics` in the order of the request, and the share-partitions to delete."""

    error: ErrorCode = NONE
    error_message: str | None = None
    topics: tuple[DeletedTopic, ...] = ()
    to_delete: tuple[TargetPartitions, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteShareGroupOffsetsRequest(GroupRequest[DeleteShareGroupOffsetsResponse]):
    """Topics to forget in a group without members; None for all of them, before the group is deleted."""

    group_id: str
    topics: tuple[str, ...] | None
