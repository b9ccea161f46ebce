"""The requests of the consumer protocol (KIP-848) and their responses, free of versions. Times in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

from rayka.coordinator.groups.records import TargetPartitions
from rayka.coordinator.groups.requests import DescribedModernGroup
from rayka.coordinator.request import GroupRequest, GroupsRequest
from rayka.errors import ErrorCode

NONE = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatResponse:
    """`assignment` None: as before."""

    error: ErrorCode = NONE
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[TargetPartitions, ...] | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatRequest(GroupRequest[ConsumerGroupHeartbeatResponse]):
    """A heartbeat of the consumer protocol. A field that has not changed since the last one is None, the timeout -1.

    `member_id` is never empty: for version 0, whose new members have none, the handler makes one.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    topic_partitions: tuple[TargetPartitions, ...] | None = None
    client_id: str = ""
    client_host: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeResponse:
    """In the order of the request."""

    groups: tuple[DescribedModernGroup, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeRequest(GroupsRequest[ConsumerGroupDescribeResponse]):
    """Consumer groups to describe."""

    group_ids: tuple[str, ...]
