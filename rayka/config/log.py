"""The configs of one log: what the topic says, else what the broker says, else Kafka's default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from rayka.config.definition import LONG_MAX, ConfigValue
from rayka.config.remote import check_remote_configs
from rayka.config.topic import ARRAY_MAX, TOPIC_CONFIGS
from rayka.errors import ErrorCode, RaykaError

DAY_MS = 86_400_000
_AS_THE_LOG = -2


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Every topic config, typed; dots of the names are underscores here. Times in ms, sizes in bytes."""

    cleanup_policy: tuple[str, ...] = ("delete",)
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    file_delete_delay_ms: int = 60_000
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    preallocate: bool = False
    internal_segment_bytes: int | None = None
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    max_message_bytes: int = 1_048_588
    max_decompressed_message_bytes: int = ARRAY_MAX
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    min_cleanable_dirty_ratio: float = 0.5
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    follower_replication_throttled_replicas: tuple[str, ...] = ()
    errors_deadletterqueue_group_enable: bool = False
    remote_storage_enable: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    local_retention_ms: int = -2
    local_retention_bytes: int = -2
    remote_copy_lag_ms: int = 0
    remote_copy_lag_bytes: int = -1

    @property
    def segment_size(self) -> int:
        """The size in bytes at which a segment rolls."""
        return self.segment_bytes if self.internal_segment_bytes is None else self.internal_segment_bytes

    @property
    def is_copied(self) -> bool:
        """Whether closed segments are copied to the remote store, and local ones deleted when they are there."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def effective_local_retention_ms(self) -> int:
        """`local.retention.ms`, where -2 stands for `retention.ms`."""
        return self.retention_ms if self.local_retention_ms == _AS_THE_LOG else self.local_retention_ms

    @property
    def effective_local_retention_bytes(self) -> int:
        """`local.retention.bytes`, where -2 stands for `retention.bytes`."""
        return self.retention_bytes if self.local_retention_bytes == _AS_THE_LOG else self.local_retention_bytes

    @property
    def longest_segment_ms(self) -> int:
        """The age at which a segment rolls: records of a compacted topic must not be out of the cleaner's reach."""
        is_compacted = "compact" in self.cleanup_policy
        return min(self.segment_ms, self.max_compaction_lag_ms) if is_compacted else self.segment_ms

    @classmethod
    def resolve(cls, broker: Mapping[str, str], topic: Mapping[str, str]) -> LogConfig:
        """The configs of a topic's logs, from the texts of the broker's settings and the topic's own.

        Raises INVALID_CONFIG if a value is bad.
        """
        values: dict[str, Any] = {
            field: resolve(name, broker, topic)
            for field, name, sources in _NAMES
            if name in topic or not sources.isdisjoint(broker)
        }
        return cls(**values)


def _names() -> Iterator[tuple[str, str, frozenset[str]]]:
    """Each attribute with its config's name and the broker settings that it falls back to."""
    for field in fields(LogConfig):
        name = field.name.replace("_", ".")
        yield field.name, name, frozenset(synonym.name for synonym in TOPIC_CONFIGS[name].synonyms)


_NAMES = tuple(_names())


def resolve(name: str, broker: Mapping[str, str], topic: Mapping[str, str]) -> ConfigValue:
    """One config of a topic's logs. Raises INVALID_CONFIG if its value is bad."""
    definition = TOPIC_CONFIGS[name]
    if name in topic:
        return definition.parse(topic[name])
    for synonym in definition.synonyms:
        if synonym.name in broker:
            return synonym.convert(definition, broker[synonym.name])
    return definition.default_value


def check_topic_configs(configs: Mapping[str, str], broker: Mapping[str, str]) -> None:
    """Raises INVALID_CONFIG unless these can be a topic's configs on a broker with these settings."""
    for name in configs:
        if name not in TOPIC_CONFIGS:
            raise RaykaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    for name, value in configs.items():
        TOPIC_CONFIGS[name].parse(value)
    check_remote_configs(lambda name: resolve(name, broker, configs), broker)
    smallest = resolve("min.compaction.lag.ms", broker, configs)
    largest = resolve("max.compaction.lag.ms", broker, configs)
    if isinstance(smallest, int) and isinstance(largest, int) and smallest > largest:
        raise RaykaError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({smallest}) > max.compaction.lag.ms ({largest})",
        )
