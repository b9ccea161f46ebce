"""How a partition leader reads the delays that another leader has stored."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import pytest

from rayka.actors.share.persister import CoordinatorPersister
from rayka.config.shares import MAX_RETRY_DELAY_MS
from rayka.coordinator.shares.requests import ReadShareGroupStateResponse, StateBatch
from rayka.types import SharePartitionKey


class Stored:
    """A share coordinator whose only record is delayed until `available_at`."""

    def __init__(self, available_at: int) -> None:
        self.available_at = available_at

    async def execute(self, request: Any) -> Any:
        batch = StateBatch(0, 0, 0, 1, self.available_at)
        return ReadShareGroupStateResponse(state_epoch=1, start_offset=0, state_batches=(batch,))


def loaded(available_at: int) -> int:
    """Until when the record waits, by the clock of the leader that loads it."""
    key = SharePartitionKey("g", uuid.UUID(int=1), 0)
    (batch,) = asyncio.run(CoordinatorPersister(Stored(available_at)).read(key, 1)).state_batches
    return batch.available_ms


@pytest.mark.parametrize(
    ("delay_ms", "expected_ms"),
    [(3_600_000, 3_600_000), (-1000, -1000), (10 * MAX_RETRY_DELAY_MS, MAX_RETRY_DELAY_MS)],
)
def test_a_stored_delay_ends_at_its_time_of_day_and_is_known_when_it_has_passed(
    delay_ms: int, expected_ms: int
) -> None:
    available_ms = loaded(time.time_ns() // 1_000_000 + delay_ms)
    assert available_ms > 0
    assert available_ms - time.monotonic() * 1000 == pytest.approx(expected_ms, abs=30_000)


def test_a_record_without_a_delay_has_none() -> None:
    assert loaded(0) == 0
