"""The settings of one share group."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from rayka.types import IsolationLevel


class AcquireMode(enum.IntEnum):
    """How many records a fetch acquires (`share.acquire.mode`).

    BATCH_OPTIMIZED acquires whole batches, the last one also if that is more than asked for. RECORD_LIMIT never
    acquires more than asked for.
    """

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


LATEST: Final = "latest"


@dataclass(frozen=True, slots=True)
class ShareGroupConfig:
    """Defaults as Kafka's. `partition_max_record_locks` bounds the records in flight of each share-partition."""

    record_lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    partition_max_record_locks: int = 2000
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    auto_offset_reset: str = LATEST

    @property
    def throttled_delivery_count(self) -> int:
        """From this delivery count on records are delivered in ever smaller numbers, to isolate bad ones.

        Half of the limit, at least 2 (KIP-932).
        """
        return max(2, (self.delivery_count_limit + 1) // 2)
