"""The commands and queries of share groups, for the tables of `groups.spec`. A refused request is answered here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from rayka.coordinator.clock import Now
from rayka.coordinator.groups.describe import describe_share
from rayka.coordinator.groups.share.requests import (
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatResponse,
    ShareGroupPartitionsRequest,
    ShareGroupPartitionsResponse,
    ShareGroupStateDeletedResponse,
    ShareGroupStateInitializedResponse,
)
from rayka.coordinator.result import Result
from rayka.coordinator.spec import Command
from rayka.errors import RaykaError

if TYPE_CHECKING:
    from rayka.coordinator.groups.coordinator import GroupCoordinator

R = TypeVar("R")


def _command(
    response_type: Callable[..., R], command: Callable[[GroupCoordinator, Any, Now], Result[R]]
) -> Command[GroupCoordinator]:
    def run(core: GroupCoordinator, request: Any, now: Now) -> Result[R]:
        try:
            return command(core, request, now)
        except RaykaError as refused:
            return Result(response_type(refused.code, refused.message))

    return run


heartbeat = _command(ShareGroupHeartbeatResponse, lambda core, request, now: core.share.heartbeat(request, now))
state_initialized = _command(
    ShareGroupStateInitializedResponse, lambda core, request, now: core.share.state_initialized(request, now)
)
state_deleted = _command(
    ShareGroupStateDeletedResponse, lambda core, request, now: core.share_offsets.state_deleted(request, now)
)
alter_offsets = _command(
    AlterShareGroupOffsetsResponse, lambda core, request, now: core.share_offsets.alter(request, now)
)
delete_offsets = _command(
    DeleteShareGroupOffsetsResponse, lambda core, request, now: core.share_offsets.delete(request, now)
)


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
