"""A thousand groups with five thousand members on one coordinator: nobody's session ends, and rest costs nothing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from benchmarks import many_groups
from rayka.testing import BrokerProcess, cpu_s, wait_until

SETTINGS = (
    "offsets.topic.num.partitions=1",
    "group.initial.rebalance.delay.ms=0",
    "group.consumer.min.session.timeout.ms=10000",
    "group.consumer.session.timeout.ms=10000",
)
BEATING_S = 12.0
"""Longer than a session."""
REST_S = 3.0
MOST_CPU, MOST_CPU_AT_REST = 0.8, 0.06
"""Cores, of the coordinator's process: 0.3 for 1,700 heartbeats a second, and 0.01 whether there are groups or not."""


@pytest.mark.alone
def test_no_session_expires_under_load_and_empty_groups_use_no_cpu(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, SETTINGS) as broker:
        (coordinator,) = broker.await_found("ray::PartitionActor")

        async def live(members: many_groups.Members) -> None:
            await members.join()
            began, began_s = time.monotonic(), cpu_s([coordinator])
            await members.beat(BEATING_S)
            assert (cpu_s([coordinator]) - began_s) / (time.monotonic() - began) < MOST_CPU
            assert members.errors == {}
            assert members.beats > many_groups.GROUPS * many_groups.SIZE * (BEATING_S // many_groups.HEARTBEAT_S - 1)
            assert members.slowest_s < many_groups.HEARTBEAT_S

        asyncio.run(many_groups.with_members(broker.bootstrap, many_groups.GROUPS, live))

        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})

        def empty() -> int:
            return len(admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(20).valid)

        wait_until(lambda: empty() == many_groups.GROUPS, 30, "all sessions are over")
        assert many_groups.resting(lambda: cpu_s([coordinator]), REST_S) < MOST_CPU_AT_REST
