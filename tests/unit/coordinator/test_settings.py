"""The settings of groups: Kafka's names and defaults, and the bounds of what one group can set."""

from __future__ import annotations

import pytest

from rayka.config import BROKER_CONFIGS, BrokerConfig
from rayka.config.definition import ConfigValue
from rayka.config.groups import GROUP_CONFIGS, GROUP_COORDINATOR_CONFIGS, broker_synonym, checked_group_config
from rayka.config.shares import duration_ms
from rayka.coordinator.groups.settings import GroupSettings, MigrationPolicy
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.config_changes import check_group_configs


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
    synonym = broker_synonym(name)
    assert synonym is None or GROUP_CONFIGS[name].default == BROKER_CONFIGS[synonym].default


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
        ("share.session.timeout.ms", "50000", 50000),
        ("share.session.timeout.ms", "60001", None),
        ("share.heartbeat.interval.ms", "4999", None),
        ("share.record.lock.duration.ms", "15000", 15000),
        ("share.record.lock.duration.ms", "60001", None),
        ("share.delivery.count.limit", "10", 10),
        ("share.delivery.count.limit", "11", None),
        ("share.partition.max.record.locks", "4000", 4000),
        ("share.partition.max.record.locks", "99", None),
        ("share.isolation.level", "read_committed", "read_committed"),
        ("share.isolation.level", "serializable", None),
        ("share.renew.acknowledge.enable", "false", False),
        ("share.auto.offset.reset", "earliest", "earliest"),
        ("share.auto.offset.reset", "by_duration:P1DT2H3M4.5S", "by_duration:P1DT2H3M4.5S"),
        ("share.auto.offset.reset", "by_duration:-PT1H", None),
        ("share.auto.offset.reset", "by_duration:", None),
        ("share.auto.offset.reset", "none", None),
        ("errors.deadletterqueue.topic.name", "dlq.t", "dlq.t"),
        ("errors.deadletterqueue.copy.record.enable", "true", True),
    ],
)
def test_a_group_stays_within_the_brokers_bounds(name: str, text: str, value: ConfigValue) -> None:
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


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"session.timeout.ms": "44999"}, "{}.session.timeout.ms must be greater than or equal to {}.min.session"),
        ({"heartbeat.interval.ms": "15001"}, "{}.heartbeat.interval.ms must be less than or equal to {}.max.heartbeat"),
        ({"max.session.timeout.ms": "1000"}, "{}.max.session.timeout.ms must be greater than or equal to {}.min"),
        (
            {"min.session.timeout.ms": "1000", "session.timeout.ms": "5000"},
            "{}.heartbeat.interval.ms must be less than {}.session.timeout.ms",
        ),
    ],
)
@pytest.mark.parametrize("protocol", ["group.consumer", "group.share"])
def test_timeouts_with_which_a_group_could_not_live_are_refused_at_the_start(
    protocol: str, configs: dict[str, str], message: str
) -> None:
    with pytest.raises(RaykaError, match=message.format(protocol, protocol)) as caught:
        BrokerConfig.parse({f"{protocol}.{name}": value for name, value in configs.items()})
    assert caught.value.code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize("protocol", ["consumer", "share"])
def test_the_members_of_a_group_cannot_be_made_to_expire_between_two_heartbeats(protocol: str) -> None:
    broker = BrokerConfig.parse({f"group.{protocol}.min.session.timeout.ms": "1000"})
    check_group_configs(GROUP_CONFIGS, {f"{protocol}.session.timeout.ms": "5001"}, broker)
    for configs in ({"session.timeout.ms": "5000"}, {"session.timeout.ms": "9000", "heartbeat.interval.ms": "9000"}):
        with pytest.raises(RaykaError, match=f"{protocol}.session.timeout.ms must be greater than {protocol}"):
            check_group_configs(GROUP_CONFIGS, {f"{protocol}.{name}": text for name, text in configs.items()}, broker)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("PT1H", 3_600_000), ("P1D", 86_400_000), ("PT0.5S", 500), ("P1DT1H1M1S", 90_061_000), ("pt0s", 0)],
)
def test_durations_are_read_as_in_java(text: str, milliseconds: int) -> None:
    assert duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "P", "PT", "1H", "P1H", "PT1D", "-PT1H", "PT-1H"])
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        duration_ms(text)
