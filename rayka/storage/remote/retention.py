"""Which segments to delete from the remote store, and where the log starts then (KIP-405).

Local retention is `rayka.storage.log.retention`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from rayka.config.log import LogConfig
from rayka.storage.log.leader_epochs import EpochEntry
from rayka.storage.log.log import Log
from rayka.storage.remote.remote_partition import RemotePartition
from rayka.storage.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState


class LocalState(NamedTuple):
    """What retention must know of the log. `local_bytes` are those of segments that are not in the store."""

    epochs: Sequence[EpochEntry]
    log_start_offset: int
    log_end_offset: int
    local_bytes: int
    local_start_offset: int = 0


class Expired(NamedTuple):
    """The log start offset goes up first, then the segments are deleted: readers are not led to what is gone."""

    log_start_offset: int
    segments: tuple[RemoteLogSegmentMetadata, ...]


def expired_of(log: Log, remote: RemotePartition, now_ms: int, copying: Collection[uuid.UUID]) -> Expired:
    """What retention deletes of a log's segments; all of them where the topic has no tiered storage any more.

    Where `remote.log.delete.on.disable` was taken back meanwhile, the rest goes as the log start offset rises.
    """
    if not log.config.remote_storage_enable and log.config.remote_log_delete_on_disable:
        gone = tuple(segment for segment in remote.segments if segment.segment_id not in copying)
        return Expired(log.local_log_start_offset, gone)
    local_bytes = sum(segment.size for segment in log.segments if segment.base_offset > log.copied_offset)
    local = LocalState(
        log.leader_epochs, log.log_start_offset, log.log_end_offset, local_bytes, log.local_log_start_offset
    )
    return expired(remote, log.config, now_ms, local, copying)


def expired(
    remote: RemotePartition, config: LogConfig, now_ms: int, local: LocalState, copying: Collection[uuid.UUID] = ()
) -> Expired:
    """What is to be deleted, except for the segments that are being copied right now."""
    lineage = remote.lineage(local.epochs)
    gone = _expired_prefix(lineage, config, now_ms, local)
    end_offset = gone[-1].end_offset + 1 if gone else local.log_start_offset
    missing = remote.missing_offsets(local.epochs, local.log_start_offset, local.local_start_offset)
    in_use = {segment.segment_id for segment in lineage} | set(copying)
    left_over = [
        segment
        for segment in remote.segments
        if segment.segment_id not in in_use
        and (_is_unread(segment, lineage, local) if remote.is_complete(segment) else _is_useless(segment, missing))
    ]
    return Expired(max(local.log_start_offset, end_offset), (*gone, *left_over))


def _expired_prefix(
    lineage: Sequence[RemoteLogSegmentMetadata], config: LogConfig, now_ms: int, local: LocalState
) -> tuple[RemoteLogSegmentMetadata, ...]:
    """The oldest segments, as many as the rule takes that takes most."""
    rules: list[Callable[[RemoteLogSegmentMetadata], bool]] = [
        lambda segment: segment.end_offset < local.log_start_offset,
        lambda segment: 0 <= config.retention_ms < now_ms - segment.max_timestamp and segment.max_timestamp >= 0,
    ]
    if config.retention_bytes >= 0:
        surplus = local.local_bytes + sum(segment.size for segment in lineage) - config.retention_bytes
        rules.append(_beyond(surplus))
    return max((_prefix(lineage, rule) for rule in rules), key=len)


def _beyond(surplus: int) -> Callable[[RemoteLogSegmentMetadata], bool]:
    def may_go(segment: RemoteLogSegmentMetadata) -> bool:
        nonlocal surplus
        surplus -= segment.size
        return surplus >= 0

    return may_go


def _prefix(
    lineage: Sequence[RemoteLogSegmentMetadata], may_go: Callable[[RemoteLogSegmentMetadata], bool]
) -> tuple[RemoteLogSegmentMetadata, ...]:
    count = next((number for number, segment in enumerate(lineage) if not may_go(segment)), len(lineage))
    return tuple(lineage[:count])


def _is_useless(segment: RemoteLogSegmentMetadata, missing: range) -> bool:
    """Whether an incomplete segment may be deleted.

    One that has records that are nowhere else was complete: `__remote_log_metadata` has lost the event that said so.
    """
    was_copied = segment.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED
    return was_copied or not missing or segment.end_offset < missing.start or segment.start_offset >= missing.stop


def _is_unread(
    segment: RemoteLogSegmentMetadata, lineage: Sequence[RemoteLogSegmentMetadata], local: LocalState
) -> bool:
    """Whether a complete segment is a second copy of the same records, or of leader epochs before the log's first one.

    A log that ends before the segment has lost records: then the segment stays for an operator to look at.
    """
    if local.log_end_offset <= segment.end_offset:
        return False
    first_epoch = local.epochs[0].epoch if local.epochs else 0
    is_copy = any(_covers(other, segment) for other in lineage)
    return is_copy or all(entry.epoch < first_epoch for entry in segment.leader_epochs)


def _covers(one: RemoteLogSegmentMetadata, other: RemoteLogSegmentMetadata) -> bool:
    return one.start_offset <= other.start_offset and other.end_offset <= one.end_offset
