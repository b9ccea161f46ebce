"""The settings of groups: Kafka's names and defaults, and the bounds of what one group can set."""

from __future__ import annotations

import pytest

from rayka.config.groups import GROUP_CONFIGS, GROUP_COORDINATOR_CONFIGS, broker_synonym, checked_group_config
from rayka.coordinator.groups.settings import GroupSettings, MigrationPolicy
from rayka.errors import ErrorCode, RaykaError


def test_settings_agree_with_their_definitions() -> None:
    assert GroupSettings.parse({}) == GroupSettings()
    settings = GroupSettings.parse(
        {
            "group.initial.rebalance.delay.ms": 0,
            "group.consumer.migration.policy": "UPGRADE",
            "offsets.retention.minutes": 1,
        }
    )
    assert settings.initial_rebalance_delay_ms == 0
    assert settings.migration_policy is MigrationPolicy.UPGRADE
    assert settings.offsets_retention_ms == 60_000


@pytest.mark.parametrize("name", sorted(GROUP_COORDINATOR_CONFIGS))
def test_every_default_is_valid(name: str) -> None:
    assert GROUP_COORDINATOR_CONFIGS[name].default_value is not None


@pytest.mark.parametrize("name", sorted(GROUP_CONFIGS))
def test_a_groups_configs_have_the_brokers_defaults(name: str) -> None:
    assert GROUP_CONFIGS[name].default == GROUP_COORDINATOR_CONFIGS[broker_synonym(name)].default


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("consumer.session.timeout.ms", "45000", 45000),
        ("consumer.session.timeout.ms", "60000", 60000),
        ("consumer.session.timeout.ms", "60001", None),
        ("consumer.session.timeout.ms", "44999", None),
        ("consumer.heartbeat.interval.ms", "15000", 15000),
        ("consumer.heartbeat.interval.ms", "1000", None),
        ("consumer.assignment.interval.ms", "0", 0),
        ("consumer.assignment.interval.ms", "-1", None),
        ("consumer.session.timeout.ms", "soon", None),
        ("consumer.unknown", "1", None),
    ],
)
def test_a_group_stays_within_the_brokers_bounds(name: str, text: str, value: int | None) -> None:
    if value is not None:
        assert checked_group_config(name, text, {}) == value
        return
    with pytest.raises(RaykaError) as caught:
        checked_group_config(name, text, {})
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert name in caught.value.message


def test_the_broker_can_widen_the_bounds() -> None:
    assert (
        checked_group_config("consumer.session.timeout.ms", "1000", {"group.consumer.min.session.timeout.ms": 500})
        == 1000
    )
