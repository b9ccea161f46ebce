"""The settings of a queue, and what they are as settings of its topic and of its share group."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from rayka.errors import ErrorCode, RaykaError

DEAD_LETTER_PREFIX = "dlq."
MAX_ITEM_BYTES = 64 << 20
MOST_AHEAD = 500
_MOST_PUT_AHEAD = 10_000
_SEGMENT_BYTES = MAX_ITEM_BYTES
SHORTEST_LEASE_S, _LONGEST_LEASE_S = 15, 60
_ATTEMPTS = (2, 10)


class Lease(enum.StrEnum):
    """When the lease of an item ends, after which nobody gets the item again."""

    NEXT_GET = "next_get"
    TASK_DONE = "task_done"
    PROGRAM = "program"


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings of `rayka.Queue`; None leaves the queue as it is. Raises ValueError for one that can't be."""

    maxsize: int = 0
    lease: Lease = Lease.NEXT_GET
    lease_s: int | None = None
    max_attempts: int | None = None
    dead_letters: bool = False
    partitions: int = 1
    prefetch: int = MOST_AHEAD
    put_ahead: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.maxsize, bool) or not isinstance(self.maxsize, int):
            raise ValueError(f"maxsize must be a number of items, not {self.maxsize!r}")
        _require("lease_s", self.lease_s, SHORTEST_LEASE_S, _LONGEST_LEASE_S)
        _require("max_attempts", self.max_attempts, *_ATTEMPTS)
        _require("partitions", self.partitions, 1, 10_000)
        _require("prefetch", self.prefetch, 1, MOST_AHEAD)
        _require("put_ahead", self.put_ahead, 0, 0 if self.maxsize > 0 else _MOST_PUT_AHEAD)

    @property
    def may_use_journal(self) -> bool:
        """Whether puts may go through a journal: not if they wait for room, or for no acknowledgement."""
        return self.maxsize == 0 and self.put_ahead == 0

    def topic_configs(self) -> dict[str, int]:
        """Keep items until they are finished, however old they are, and then delete their segments at once.

        The next items use the same pages: memory that was in use a moment ago is several times as fast as other memory.
        """
        return {
            "retention.ms": -1,
            "retention.bytes": -1,
            "max.message.bytes": MAX_ITEM_BYTES,
            "segment.bytes": _SEGMENT_BYTES,
            "file.delete.delay.ms": 0,
        }

    def group_configs(self, name: str, max_record_locks: int) -> dict[str, str]:
        """The settings of the queue's share group, with the most record locks that the broker allows it."""
        configs = {"share.auto.offset.reset": "earliest", "share.partition.max.record.locks": str(max_record_locks)}
        if self.lease_s is not None:
            configs["share.record.lock.duration.ms"] = str(self.lease_s * 1000)
        if self.max_attempts is not None:
            configs["share.delivery.count.limit"] = str(self.max_attempts)
        if self.dead_letters:
            configs["errors.deadletterqueue.topic.name"] = DEAD_LETTER_PREFIX + name
            configs["errors.deadletterqueue.copy.record.enable"] = "true"
        return configs


def lease_of(name: str) -> Lease:
    """The lease with this name. Raises ValueError."""
    try:
        return Lease(name)
    except ValueError:
        raise ValueError(f"lease must be one of {', '.join(Lease)}, not {name!r}") from None


def require_item_fits(size: int) -> None:
    """Raises MESSAGE_TOO_LARGE."""
    if size > MAX_ITEM_BYTES - 1024:
        reason = f"An item of {size} bytes is too large for a queue; put an ObjectRef to it"
        raise RaykaError(ErrorCode.MESSAGE_TOO_LARGE, reason)


def _require(name: str, value: int | None, lowest: int, highest: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise ValueError(f"{name} must be a whole number from {lowest} to {highest}, not {value!r}")
