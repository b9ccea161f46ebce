"""The settings of one share group."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from rayka.config.definition import ConfigValue
from rayka.config.shares import BY_DURATION, duration_ms
from rayka.types import IsolationLevel, OffsetSpec


class AcquireMode(enum.IntEnum):
    """How many records a fetch acquires (`share.acquire.mode`).

    BATCH_OPTIMIZED acquires whole batches, the last one also if that is more than asked for. RECORD_LIMIT never
    acquires more than asked for.
    """

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


@dataclass(frozen=True, slots=True)
class ShareGroupConfig:
    """Defaults as Kafka's. `partition_max_record_locks` bounds the records in flight of each share-partition.

    Without a `dead_letter_topic` there is no dead-letter queue.
    """

    record_lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    partition_max_record_locks: int = 2000
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    auto_offset_reset: str = "latest"
    renew_acknowledge_enable: bool = True
    dead_letter_topic: str = ""
    dead_letter_copy_record: bool = False

    @classmethod
    def resolve(cls, broker: Mapping[str, ConfigValue], group: Mapping[str, str]) -> ShareGroupConfig:
        """The settings in force: those set for the group, over the broker's."""

        def number(name: str) -> int:
            value = group.get(name)
            return int(str(broker[f"group.{name}"])) if value is None else int(value)

        return cls(
            number("share.record.lock.duration.ms"),
            number("share.delivery.count.limit"),
            number("share.partition.max.record.locks"),
            IsolationLevel[group.get("share.isolation.level", "read_uncommitted").upper()],
            group.get("share.auto.offset.reset", "latest").lower(),
            group.get("share.renew.acknowledge.enable", "true").lower() == "true",
            group.get("errors.deadletterqueue.topic.name", ""),
            group.get("errors.deadletterqueue.copy.record.enable", "false").lower() == "true",
        )

    def reset_timestamp(self, now_ms: int) -> int:
        """The timestamp, or `OffsetSpec`, by which to find the offset at which the group starts to read a partition."""
        reset = self.auto_offset_reset
        if reset == "earliest":
            return OffsetSpec.EARLIEST
        if reset.startswith(BY_DURATION):
            return max(0, now_ms - duration_ms(reset.removeprefix(BY_DURATION)))
        return OffsetSpec.LATEST

    @property
    def throttled_delivery_count(self) -> int:
        """From this delivery count on records are delivered in ever smaller numbers, to isolate bad ones.

        Half of the limit, at least 2 (KIP-932).
        """
        return max(2, (self.delivery_count_limit + 1) // 2)
