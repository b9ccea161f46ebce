"""The settings of group coordinators, as values. Their definitions are in `rayka.config.groups`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rayka.config.definition import INT_MAX, ConfigValue, values_of
from rayka.config.groups import GROUP_COORDINATOR_CONFIGS
from rayka.config.shares import SHARE_GROUP_BROKER_CONFIGS

_DEFINITIONS = {**GROUP_COORDINATOR_CONFIGS, **SHARE_GROUP_BROKER_CONFIGS}

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""How long a member that is new to a classic group may wait for its first rebalance."""


class MigrationPolicy(enum.Enum):
    """Which conversions between classic and consumer groups with members are allowed (KIP-848)."""

    DISABLED = "disabled"
    DOWNGRADE = "downgrade"
    UPGRADE = "upgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        """Whether a classic group may become a consumer group."""
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        """Whether a consumer group may become a classic group."""
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


@dataclass(frozen=True, slots=True)
class ModernGroupSettings:
    """What can be set for one consumer group or share group; times in milliseconds."""

    session_timeout_ms: int = 45000
    heartbeat_interval_ms: int = 5000
    assignment_interval_ms: int = 1000


class SettingsByGroup:
    """The settings of all groups of one protocol, `consumer` or `share`: the broker's, and over them those of groups.

    Both may change while groups run; a member learns of it with its next heartbeat (KIP-848).
    """

    def __init__(self, protocol: str, broker: ModernGroupSettings) -> None:
        self._protocol = protocol
        self._broker = broker
        self._groups: dict[str, ModernGroupSettings] = {}

    def of(self, group_id: str) -> ModernGroupSettings:
        """The settings of a group."""
        return self._groups.get(group_id, self._broker)

    def configure(self, broker: ModernGroupSettings, groups: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace all settings: the broker's, and the configs of single groups by group id and name."""
        self._broker = broker
        self._groups = {group_id: self._over_broker(configs) for group_id, configs in groups.items() if configs}

    def _over_broker(self, configs: Mapping[str, Any]) -> ModernGroupSettings:
        return ModernGroupSettings(
            configs.get(f"{self._protocol}.session.timeout.ms", self._broker.session_timeout_ms),
            configs.get(f"{self._protocol}.heartbeat.interval.ms", self._broker.heartbeat_interval_ms),
            configs.get(f"{self._protocol}.assignment.interval.ms", self._broker.assignment_interval_ms),
        )


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """All settings that the core uses."""

    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1800000
    initial_rebalance_delay_ms: int = 3000
    initial_rebalance_quiet_ms: int = 50
    max_size: int = INT_MAX
    consumer: ModernGroupSettings = ModernGroupSettings()
    unsettled_heartbeat_interval_ms: int = 500
    consumer_max_size: int = INT_MAX
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    share: ModernGroupSettings = ModernGroupSettings()
    share_max_size: int = 200
    share_unsettled_heartbeat_interval_ms: int = 500
    share_initialize_retry_interval_ms: int = 30000
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 10080 * 60 * 1000
    offsets_retention_check_interval_ms: int = 600000

    @classmethod
    def parse(cls, configs: Mapping[str, ConfigValue]) -> GroupSettings:
        """The settings from typed broker settings, with defaults for those that are missing."""

        value = values_of(configs, _DEFINITIONS)

        def modern(protocol: str) -> ModernGroupSettings:
            names = ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
            return ModernGroupSettings(*(value(f"group.{protocol}.{name}") for name in names))

        return cls(
            min_session_timeout_ms=value("group.min.session.timeout.ms"),
            max_session_timeout_ms=value("group.max.session.timeout.ms"),
            initial_rebalance_delay_ms=value("group.initial.rebalance.delay.ms"),
            initial_rebalance_quiet_ms=value("group.initial.rebalance.quiet.ms"),
            max_size=value("group.max.size"),
            consumer=modern("consumer"),
            unsettled_heartbeat_interval_ms=value("group.consumer.unsettled.heartbeat.interval.ms"),
            consumer_max_size=value("group.consumer.max.size"),
            consumer_assignors=tuple(value("group.consumer.assignors")),
            migration_policy=MigrationPolicy(value("group.consumer.migration.policy").lower()),
            share=modern("share"),
            share_max_size=value("group.share.max.size"),
            share_unsettled_heartbeat_interval_ms=value("group.share.unsettled.heartbeat.interval.ms"),
            share_initialize_retry_interval_ms=value("group.share.initialize.retry.interval.ms"),
            offset_metadata_max_bytes=value("offset.metadata.max.bytes"),
            offsets_retention_ms=value("offsets.retention.minutes") * 60 * 1000,
            offsets_retention_check_interval_ms=value("offsets.retention.check.interval.ms"),
        )
