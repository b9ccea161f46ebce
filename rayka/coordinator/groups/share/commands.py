"""The commands and queries of share groups, for the tables of `groups.spec`. A refused request is answered here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from rayka.coordinator.clock import Now
from rayka.coordinator.groups.describe import describe_share
from rayka.coordinator.groups.share.requests import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupPartitionsRequest,
    ShareGroupPartitionsResponse,
    ShareGroupStateDeletedRequest,
    ShareGroupStateDeletedResponse,
    ShareGroupStateInitializedRequest,
    ShareGroupStateInitializedResponse,
)
from rayka.coordinator.result import Result
from rayka.errors import RaykaError

if TYPE_CHECKING:
    from rayka.coordinator.groups.coordinator import GroupCoordinator

R = TypeVar("R")


def _answered(
    response_type: Callable[..., R], command: Callable[[Any, Now], Result[R]], request: Any, now: Now
) -> Result[R]:
    try:
        return command(request, now)
    except RaykaError as refused:
        return Result(response_type(refused.code, refused.message))


def heartbeat(
    core: GroupCoordinator, request: ShareGroupHeartbeatRequest, now: Now
) -> Result[ShareGroupHeartbeatResponse]:
    """ShareGroupHeartbeat: join, stay or leave."""
    return _answered(ShareGroupHeartbeatResponse, core.share.heartbeat, request, now)


def state_initialized(
    core: GroupCoordinator, request: ShareGroupStateInitializedRequest, now: Now
) -> Result[ShareGroupStateInitializedResponse]:
    """Share-partitions have got state, or could not."""
    return _answered(ShareGroupStateInitializedResponse, core.share.state_initialized, request, now)


def state_deleted(
    core: GroupCoordinator, request: ShareGroupStateDeletedRequest, now: Now
) -> Result[ShareGroupStateDeletedResponse]:
    """Share-partitions have lost their state."""
    return _answered(ShareGroupStateDeletedResponse, core.share_offsets.state_deleted, request, now)


def alter_offsets(
    core: GroupCoordinator, request: AlterShareGroupOffsetsRequest, now: Now
) -> Result[AlterShareGroupOffsetsResponse]:
    """AlterShareGroupOffsets."""
    return _answered(AlterShareGroupOffsetsResponse, core.share_offsets.alter, request, now)


def delete_offsets(
    core: GroupCoordinator, request: DeleteShareGroupOffsetsRequest, now: Now
) -> Result[DeleteShareGroupOffsetsResponse]:
    """DeleteShareGroupOffsets."""
    return _answered(DeleteShareGroupOffsetsResponse, core.share_offsets.delete, request, now)


def partitions(core: GroupCoordinator, request: ShareGroupPartitionsRequest) -> ShareGroupPartitionsResponse:
    """Which share-partitions have state, for DescribeShareGroupOffsets."""
    try:
        return core.share_offsets.partitions(request)
    except RaykaError as refused:
        return ShareGroupPartitionsResponse(refused.code, refused.message)


def describe(core: GroupCoordinator, request: ShareGroupDescribeRequest) -> ShareGroupDescribeResponse:
    """ShareGroupDescribe."""
    groups, topics = core.state.groups, core.state.topics
    return ShareGroupDescribeResponse(
        tuple(describe_share(group_id, groups.get(group_id), topics) for group_id in request.group_ids)
    )
