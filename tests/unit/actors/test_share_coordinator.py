"""The share coordinator on the coordinators' shell: its log is kept short, and loads to the same state."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from rayka.actors.coordinator.context import CoordinatorContext
from rayka.actors.coordinator.log import CoordinatorLog
from rayka.config import BrokerConfig
from rayka.coordinator.request import Request
from rayka.coordinator.shares.coordinator import ShareCoordinator
from rayka.coordinator.shares.requests import (
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    StateBatch,
    WriteShareGroupStateRequest,
)
from rayka.coordinator.shares.spec import SHARES
from rayka.coordinator.spec import CoordinatorConfigs
from rayka.coordinator.topics import TopicMetadata, Topics
from rayka.errors import ErrorCode
from tests.unit.actors.test_coordinator_log import open_partition
from tests.unit.coordinator.shares.shell import TOPIC_ID

SETTINGS = {
    "share.coordinator.snapshot.update.records.per.snapshot": "5",
    "share.coordinator.state.topic.prune.interval.ms": "20",
    "share.coordinator.cold.partition.snapshot.interval.ms": "20",
}
TOPICS = Topics([TopicMetadata(TOPIC_ID, "t", 2)], 1)
DEADLINE_S = 60.0


async def loaded(log: CoordinatorLog) -> CoordinatorContext[ShareCoordinator]:
    """A coordinator that has loaded the log."""
    configs = CoordinatorConfigs(BrokerConfig.parse(SETTINGS))
    context = CoordinatorContext(SHARES, log, lambda: TOPICS, lambda: configs)
    await context.load()
    return context


async def ask(context: CoordinatorContext[ShareCoordinator], request: Request[Any]) -> Any:
    """The response to a request."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    context.execute(request, answer.set_result)
    response = await asyncio.wait_for(answer, DEADLINE_S)
    assert response.error is ErrorCode.NONE
    return response


def test_a_log_is_kept_short_and_loads_to_the_same_state(tmp_path: Path) -> None:
    async def check() -> None:
        partition, server = open_partition(tmp_path)
        context = await loaded(CoordinatorLog(partition, server))
        for number in (0, 1):
            await ask(context, InitializeShareGroupStateRequest("g", TOPIC_ID, number, 1, 0))
        for offset in range(40):
            batch = StateBatch(offset, offset, 2, 1)
            await ask(context, WriteShareGroupStateRequest("g", TOPIC_ID, 0, 1, 0, offset, 1, (batch,)))

        async with asyncio.timeout(DEADLINE_S):
            while partition.log.log_start_offset < 30:
                await asyncio.sleep(0.005)
        before = [await ask(context, ReadShareGroupStateRequest("g", TOPIC_ID, number, 0)) for number in (0, 1)]
        context.resign()
        again = await loaded(CoordinatorLog(partition, server))
        after = [await ask(again, ReadShareGroupStateRequest("g", TOPIC_ID, number, 0)) for number in (0, 1)]
        assert after == before
        assert before[0].start_offset == 39
        again.resign()

    asyncio.run(check())
