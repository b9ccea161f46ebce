"""The settings of a transaction coordinator, by Kafka's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rayka.config.definition import ConfigValue, values_of
from rayka.config.transactions import TRANSACTION_COORDINATOR_CONFIGS


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Times in milliseconds."""

    max_timeout_ms: int
    expiration_ms: int
    remove_expired_interval_ms: int
    is_two_phase_commit_enabled: bool

    @classmethod
    def parse(cls, configs: Mapping[str, ConfigValue]) -> TransactionSettings:
        """From the broker's settings; those that are missing have their defaults."""

        get = values_of(configs, TRANSACTION_COORDINATOR_CONFIGS)
        return cls(
            max_timeout_ms=get("transaction.max.timeout.ms"),
            expiration_ms=get("transactional.id.expiration.ms"),
            remove_expired_interval_ms=get("transaction.remove.expired.transaction.cleanup.interval.ms"),
            is_two_phase_commit_enabled=get("transaction.two.phase.commit.enable"),
        )
