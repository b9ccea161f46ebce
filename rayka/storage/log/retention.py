"""Deleting the old segments of a log: by time, by size, and below the log start offset.

Segments go from the oldest on and never past the high watermark; an empty active segment stays. With tiered storage
`local.retention.ms` and `local.retention.bytes` count, and only copied segments go (KIP-405); the limits of the whole
log are applied in the remote store, by `rayka.storage.remote.retention`.
Source: the log storage engine document and `retention.ms`, `retention.bytes`, `cleanup.policy`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rayka.config.log import LogConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.files import storing
from rayka.storage.log.appends import LogAppends
from rayka.storage.log.deletion import Removal, SegmentDeletion
from rayka.storage.log.leader_epochs import EpochEntry
from rayka.storage.segments.segment import Segment
from rayka.types import NO_OFFSET

Predicate = Callable[[Segment, int], bool]
"""(segment, its exclusive end offset) -> whether it may go."""


@dataclass(frozen=True, slots=True)
class DeletableSegments:
    """The oldest segments of a log, which may be deleted for as long as the log has this config."""

    segments: tuple[Segment, ...]
    config: LogConfig


class LogRetention(LogAppends):
    """The part of `Log` that deletes segments and records."""

    @storing
    def delete_records(self, offset: int) -> int:
        """Move the log start offset up to `offset`, at most to the high watermark; the new log start offset.

        Raises OFFSET_OUT_OF_RANGE above the high watermark. Segments below are deleted with the next retention.
        """
        if offset > self.high_watermark:
            raise RaykaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} is above the high watermark {self.high_watermark} of {self.topic_partition}",
            )
        self._advance_log_start_offset(offset)
        return self.log_start_offset

    def _advance_log_start_offset(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self._epochs.truncate_from_start(offset)
            self.log_start_offset = offset
            self.local_log_start_offset = max(self.local_log_start_offset, offset)

    @storing
    def take_up_remote(self, log_start_offset: int, copied_offset: int) -> None:
        """Take note of what is in the remote store: the first offset that can be read there, and the last one."""
        self._advance_log_start_offset(log_start_offset)
        self.copied_offset = copied_offset

    @storing
    def restore_epochs(self, entries: Sequence[EpochEntry]) -> None:
        """Take note of leader epochs before the first one that is known: the checkpoint that had them was damaged."""
        self._epochs.prepend(entries)

    @storing
    def deletable_segments(self, now_ms: int) -> DeletableSegments:
        """The segments that retention or the log start offset allows to be deleted. Any thread may call it."""
        config = self.config
        segments = deletable(
            self._segments.all,
            config,
            now_ms,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            log_end_offset=self.log_end_offset,
            copied_offset=self.copied_offset,
        )
        return DeletableSegments(segments, config)

    @storing
    def end_segments(self, deletable: DeletableSegments, now_ms: int) -> DeletableSegments:
        """Make ready to delete segments that `deletable_segments` gave: roll if the active one is among them.

        Returns those that may be deleted once `write_snapshots` has written the producers' state at their end. If the
        disk takes no new segment, the active one stays, and to delete the others makes room.
        """
        if self._segments.active in deletable.segments:
            deletable = self.deletable_segments(now_ms)
            if len(deletable.segments) == len(self._segments):
                with contextlib.suppress(RaykaError):
                    self.roll(now_ms)
        return deletable

    @storing
    def delete_segments(self, deletable: DeletableSegments, now_ms: int) -> SegmentDeletion | None:
        """Delete segments that `end_segments` gave. Their files are left to the deletion, for any thread to run.

        None if nothing is deleted. Segments stay if the log has another config by now: its retention may be longer, and
        what was copied may be deleted here alone. They stay while the state of the producers after them is in no file:
        a crash would lose the sequences that only these segments tell, and retries would be written twice.
        """
        if deletable.config != self.config:
            return None
        segments = self._without_unwritten_producers(self._without_replaced(deletable.segments))
        if not segments:
            return None
        following = self._segments.all[len(segments)]
        if self.config.is_copied:
            self.local_log_start_offset = max(self.local_log_start_offset, following.base_offset)
        else:
            self._advance_log_start_offset(following.base_offset)
        deletion = self._local.delete_segments(segments, now_ms)
        snapshots = self._producers.forget_snapshots(segment.base_offset for segment in segments)
        if self._high_watermark_place[0] in segments:
            self._high_watermark_place = self._local.place_of(self.high_watermark)
        return deletion._replace(paths=deletion.paths + snapshots)

    def _without_replaced(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        """Those before the segments that are being replaced."""
        is_replaced = (segments.index(segment) for segment in self._replacing if segment in segments)
        return segments[: min(is_replaced, default=len(segments))]

    def _without_unwritten_producers(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        everything = self._segments.all
        count = len(segments) if segments == everything[: len(segments)] else 0
        while count and (count == len(everything) or self._producers.is_unwritten(everything[count].base_offset)):
            count -= 1
        return segments[:count]

    @storing
    def delete_old_segments(self, now_ms: int) -> Removal | None:
        """Delete the segments that retention and the log start offset allow to be deleted, and rename their files.

        The removal is due after `file.delete.delay.ms`.
        """
        deletable = self.end_segments(self.deletable_segments(now_ms), now_ms)
        if deletable.segments:
            self.write_snapshots()
        deletion = self.delete_segments(deletable, now_ms)
        removal = None if deletion is None else deletion.rename(self._files)
        self.write_epochs()
        return removal


def deletable(
    segments: tuple[Segment, ...],
    config: LogConfig,
    now_ms: int,
    *,
    log_start_offset: int,
    high_watermark: int,
    log_end_offset: int,
    copied_offset: int = NO_OFFSET,
) -> tuple[Segment, ...]:
    """The oldest segments that some rule allows to be deleted."""
    is_copied = config.is_copied
    rules = [_below(log_start_offset, segments[-1])]
    if "delete" in config.cleanup_policy:
        rules += [
            _older_than(config.effective_local_retention_ms if is_copied else config.retention_ms, now_ms),
            _beyond(
                config.effective_local_retention_bytes if is_copied else config.retention_bytes,
                sum(segment.size for segment in segments),
            ),
        ]
    limit = min(high_watermark, max(copied_offset + 1, log_start_offset)) if is_copied else high_watermark
    candidates = list(_candidates(segments, limit, log_end_offset))
    return max((_prefix(candidates, rule) for rule in rules), key=len)


def _candidates(segments: tuple[Segment, ...], limit: int, log_end_offset: int) -> Iterator[tuple[Segment, int]]:
    ends = [*(following.base_offset for following in segments[1:]), log_end_offset]
    for segment, end_offset in zip(segments, ends, strict=True):
        if limit < end_offset or (segment is segments[-1] and not segment.size):
            return
        yield segment, end_offset


def _prefix(candidates: list[tuple[Segment, int]], may_go: Predicate) -> tuple[Segment, ...]:
    gone = []
    for segment, end_offset in candidates:
        if not may_go(segment, end_offset):
            break
        gone.append(segment)
    return tuple(gone)


def _below(log_start_offset: int, active: Segment) -> Predicate:
    return lambda segment, end_offset: end_offset <= log_start_offset and segment is not active


def _older_than(retention_ms: int, now_ms: int) -> Predicate:
    return lambda segment, _: 0 <= retention_ms < now_ms - segment.last_changed_ms()


def _beyond(retention_bytes: int, size: int) -> Predicate:
    surplus = size - retention_bytes if retention_bytes >= 0 else -1

    def may_go(segment: Segment, _: int) -> bool:
        nonlocal surplus
        surplus -= segment.size
        return surplus >= 0

    return may_go
