"""The settings of share coordinators, as values. Their definitions are in `rayka.config.shares`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rayka.config.definition import ConfigValue, values_of
from rayka.config.shares import SHARE_COORDINATOR_CONFIGS


@dataclass(frozen=True, slots=True)
class ShareCoordinatorSettings:
    """What the core uses; times in milliseconds."""

    updates_per_snapshot: int = 500
    cold_snapshot_interval_ms: int = 300_000
    prune_interval_ms: int = 300_000

    @classmethod
    def parse(cls, configs: Mapping[str, ConfigValue]) -> ShareCoordinatorSettings:
        """The settings from typed broker settings, with defaults for those that are missing."""
        value = values_of(configs, SHARE_COORDINATOR_CONFIGS)
        return cls(
            updates_per_snapshot=value("share.coordinator.snapshot.update.records.per.snapshot"),
            cold_snapshot_interval_ms=value("share.coordinator.cold.partition.snapshot.interval.ms"),
            prune_interval_ms=value("share.coordinator.state.topic.prune.interval.ms"),
        )
