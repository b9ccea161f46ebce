"""The settings of share coordinators, as values. Their definitions are in `rayka.config.shares`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rayka.config.definition import ConfigValue
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

        def value(name: str) -> Any:
            name = f"share.coordinator.{name}"
            return configs.get(name, SHARE_COORDINATOR_CONFIGS[name].default_value)

        return cls(
            updates_per_snapshot=value("snapshot.update.records.per.snapshot"),
            cold_snapshot_interval_ms=value("cold.partition.snapshot.interval.ms"),
            prune_interval_ms=value("state.topic.prune.interval.ms"),
        )
