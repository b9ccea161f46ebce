"""The settings of a share group."""

from __future__ import annotations

import pytest

from rayka.config import BrokerConfig
from rayka.share.config import ShareGroupConfig
from rayka.types import IsolationLevel, OffsetSpec


def test_defaults_match_kafka() -> None:
    resolved = ShareGroupConfig.resolve(BrokerConfig.parse({}), {})
    assert resolved == ShareGroupConfig()
    assert resolved == ShareGroupConfig(30_000, 5, 2000, IsolationLevel.READ_UNCOMMITTED, "latest", True)


def test_a_groups_settings_go_before_the_brokers() -> None:
    broker = BrokerConfig.parse({"group.share.record.lock.duration.ms": "20000"})
    group = {"share.delivery.count.limit": "3", "share.isolation.level": "read_committed"}
    resolved = ShareGroupConfig.resolve(broker, group)
    assert resolved == ShareGroupConfig(20_000, 3, 2000, IsolationLevel.READ_COMMITTED)


@pytest.mark.parametrize(
    ("reset", "timestamp"),
    [("latest", OffsetSpec.LATEST), ("earliest", OffsetSpec.EARLIEST), ("by_duration:PT1M", 40_000)],
)
def test_a_group_starts_where_its_reset_says(reset: str, timestamp: int) -> None:
    assert ShareGroupConfig(auto_offset_reset=reset).reset_timestamp(now_ms=100_000) == timestamp


@pytest.mark.parametrize(("limit", "throttled"), [(2, 2), (3, 2), (5, 3), (6, 3), (10, 5)])
def test_delivery_slows_down_from_half_of_the_limit_on(limit: int, throttled: int) -> None:
    assert ShareGroupConfig(delivery_count_limit=limit).throttled_delivery_count == throttled
