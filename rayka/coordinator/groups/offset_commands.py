"""The commands and queries about committed offsets, for the tables of `groups.spec`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from rayka.coordinator.clock import Now
from rayka.coordinator.groups.classic.group import ClassicGroup
from rayka.coordinator.groups.offset_rules import CommitCheck
from rayka.coordinator.groups.requests import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
)
from rayka.coordinator.result import ProducerIdAndEpoch, Result
from rayka.errors import ErrorCode

if TYPE_CHECKING:
    from rayka.coordinator.groups.coordinator import GroupCoordinator

NONE = ErrorCode.NONE


def commit(
    core: GroupCoordinator, request: OffsetCommitRequest, now: Now, is_transactional: bool = False
) -> Result[OffsetCommitResponse]:
    """OffsetCommit, and with the rules for transactions what `txn_commit` needs."""
    check = _check(core, request, now, is_transactional)
    return core.state.offsets.commit(request, check, now.wall_ms, is_transactional)


def txn_commit(core: GroupCoordinator, request: TxnOffsetCommitRequest, now: Now) -> Result[OffsetCommitResponse]:
    """TxnOffsetCommit; its records belong to its producer's transaction."""
    plain = OffsetCommitRequest(
        request.group_id, request.offsets, request.generation_id, request.member_id, request.group_instance_id
    )
    result = commit(core, plain, now, is_transactional=True)
    return dataclasses.replace(result, producer=ProducerIdAndEpoch(request.producer_id, request.producer_epoch))


def _check(core: GroupCoordinator, request: OffsetCommitRequest, now: Now, is_transactional: bool) -> CommitCheck:
    group = core.state.groups.get(request.group_id)
    if group is None:
        if request.generation_id_or_member_epoch < 0:
            return CommitCheck()
        names_epoch = request.knows_member_epochs and not is_transactional
        return CommitCheck(ErrorCode.GROUP_ID_NOT_FOUND if names_epoch else ErrorCode.ILLEGAL_GENERATION)
    check = core.state.rules(group).commit(request, is_transactional)
    if check.error is NONE and isinstance(group, ClassicGroup):
        core.classic.committed(group, request.member_id, now)
    return check


def fetch(core: GroupCoordinator, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """OffsetFetch of one group. The response leaves when all that was committed so far is durable."""
    group = core.state.groups.get(request.group_id)
    error = NONE if group is None else core.state.rules(group).fetch(request.member_id, request.member_epoch)
    if error is not NONE:
        return OffsetFetchResponse(request.group_id, error)
    return core.state.offsets.fetch(request, core.state.topics)


def delete(core: GroupCoordinator, request: OffsetDeleteRequest, now: Now) -> Result[OffsetDeleteResponse]:
    """OffsetDelete."""
    if not request.group_id:
        return Result(OffsetDeleteResponse(ErrorCode.INVALID_GROUP_ID))
    group = core.state.groups.get(request.group_id)
    if group is None:
        return Result(OffsetDeleteResponse(ErrorCode.GROUP_ID_NOT_FOUND))
    return core.state.offsets.delete(request, core.state.rules(group))
