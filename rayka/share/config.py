"""The settings of one share group."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from rayka.config.definition import ConfigValue
from rayka.config.shares import BY_DURATION, MAX_RETRY_DELAY_MS, duration_ms
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
    retry_backoff_ms: int = 0
    retry_backoff_max_ms: int = 0

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
            int(group.get("share.retry.backoff.ms", "0")),
            int(group.get("share.retry.backoff.max.ms", "0")),
        )

    def reset_timestamp(self, now_ms: int) -> int:
        """The timestamp, or `OffsetSpec`, by which to find the offset at which the group starts to read a partition."""
        reset = self.auto_offset_reset
        if reset == "earliest":
            return OffsetSpec.EARLIEST
        if reset.startswith(BY_DURATION):
            return max(0, now_ms - duration_ms(reset.removeprefix(BY_DURATION)))
        return OffsetSpec.LATEST

    def retry_delay_ms(self, delivery_count: int) -> int:
        """How long a record waits that was released after its `delivery_count`th delivery."""
        longest_ms = self.retry_backoff_max_ms or MAX_RETRY_DELAY_MS
        return min(self.retry_backoff_ms << max(0, delivery_count - 1), longest_ms)

    @property
    def throttled_delivery_count(self) -> int:
        """From this delivery count on records are delivered in ever smaller numbers, to isolate bad ones.

        Half of the limit, at least 2 (KIP-932).
        """
        return max(2, (self.delivery_count_limit + 1) // 2)
