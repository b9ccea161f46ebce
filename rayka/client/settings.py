"""The settings of producers and consumers: Kafka's names (with underscores, or dots), defaults and bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeAlias, TypedDict, TypeVar

from rayka.client.producer.partitioner import Partitioner
from rayka.config.definition import INT_MAX
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.compression import LEVELS, Codec
from rayka.types import IsolationLevel

Serializer: TypeAlias = Callable[[Any], bytes | None]
Deserializer: TypeAlias = Callable[[bytes], Any]

MAX_IN_FLIGHT = 5
"""Batches of one producer whose sequences a partition remembers: more could not be told from duplicates."""

_ACKS: Mapping[Any, int] = {"all": -1, -1: -1, "-1": -1, 0: 0, "0": 0, 1: 1, "1": 1}
_RESET = ("earliest", "latest", "none")

S = TypeVar("S", bound="ProducerConfig | ConsumerConfig")


def invalid(name: str, value: object, reason: str) -> RaykaError:
    """The error for an invalid setting."""
    return RaykaError(ErrorCode.INVALID_CONFIG, f"Invalid value {value!r} for {name}: {reason}")


def configure(cls: type[S], options: Mapping[str, Any]) -> S:
    """The settings from keyword arguments. Raises INVALID_CONFIG for an unknown name or a bad value."""
    known = {field.name for field in fields(cls)}
    given = {name.replace(".", "_"): value for name, value in options.items()}
    unknown = sorted(given.keys() - known)
    if unknown:
        raise RaykaError(
            ErrorCode.INVALID_CONFIG, f"Unknown setting {', '.join(unknown)}; known are {', '.join(sorted(known))}"
        )
    return cls(**given)


def require_at_least(settings: object, minimum: int, *names: str) -> None:
    """Raises INVALID_CONFIG for a setting of these that is not a number, or a smaller one."""
    for name in names:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= minimum:
            raise invalid(name, value, f"it must be a number, at least {minimum}")


def require_int32(settings: object, *names: str) -> None:
    """Raises INVALID_CONFIG for a time of these that is longer than one of Kafka's clients can be, such as infinity."""
    for name in names:
        if (value := getattr(settings, name)) > INT_MAX:
            raise invalid(name, value, f"it must be at most {INT_MAX}")


def _require_callable(settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and not callable(value):
            raise invalid(name, value, "it must be callable")


class OpenTransaction(NamedTuple):
    """The open transaction of a producer, for other producers that send in it too."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class ProducerOptions(TypedDict, total=False):
    """The keyword arguments of a producer: the settings of `ProducerConfig`."""

    acks: int | str
    enable_idempotence: bool | None
    transactional_id: str | None
    transaction_timeout_ms: int
    joins: OpenTransaction | None
    compression_type: str | None
    compression_level: int | None
    linger_ms: float
    batch_size: int
    buffer_memory: int
    max_block_ms: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    retries: int
    retry_backoff_ms: int
    max_in_flight: int
    partitioner: Partitioner | type[Any] | None
    key_serializer: Serializer | None
    value_serializer: Serializer | None


class ConsumerOptions(TypedDict, total=False):
    """The keyword arguments of a consumer: the settings of `ConsumerConfig`."""

    auto_offset_reset: str
    isolation_level: str
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    retry_backoff_ms: int
    consumer_timeout_ms: float | None
    check_crcs: bool
    key_deserializer: Deserializer | None
    value_deserializer: Deserializer | None


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """A producer's settings. Times in ms, sizes in bytes.

    acks: 0, 1 or "all". With "all" the producer is idempotent unless `enable_idempotence` is False.
    transactional_id, transaction_timeout_ms: with an id the producer sends in transactions. A transaction that is open
        for longer than the timeout is aborted. A new producer with the same id fences the earlier one.
    joins: the producer sends in this open transaction of another producer, which ends it. Each producer that sends in
        a transaction must have its own partitions.
    compression_type, compression_level: None, "gzip" (levels 1 to 9), "snappy", "lz4" (1 to 17) or "zstd" (up to 22).
    linger_ms: how long a batch waits for more records. With 0 it is sent at once. While `max_in_flight` batches of a
        partition are in flight, new records gather in one batch.
    buffer_memory, max_block_ms: how many bytes may wait to be acknowledged, and how long `send` waits for room.
    delivery_timeout_ms: how long after `send` a record fails if it is not acknowledged.
    key_serializer, value_serializer: turn the arguments of `send` into bytes; None stays null.
    partitioner: `(key_bytes, all_partitions, available_partitions) -> partition`, or a class of such;
        by default Kafka's: murmur2 of the key, sticky without one.
    """

    acks: int | str = "all"
    enable_idempotence: bool | None = None
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    joins: OpenTransaction | None = None
    compression_type: str | None = None
    compression_level: int | None = None
    linger_ms: float = 0
    batch_size: int = 65_536
    buffer_memory: int = 33_554_432
    max_block_ms: int = 60_000
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    retries: int = INT_MAX
    retry_backoff_ms: int = 100
    max_in_flight: int = MAX_IN_FLIGHT
    partitioner: Partitioner | type[Any] | None = None
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None

    def __post_init__(self) -> None:
        if self.acks not in _ACKS:
            raise invalid("acks", self.acks, 'it must be 0, 1 or "all"')
        require_at_least(self, 0, "linger_ms", "max_block_ms", "retries", "retry_backoff_ms", "batch_size")
        require_at_least(
            self,
            1,
            "buffer_memory",
            "delivery_timeout_ms",
            "request_timeout_ms",
            "max_in_flight",
            "transaction_timeout_ms",
        )
        require_int32(self, "delivery_timeout_ms", "request_timeout_ms", "transaction_timeout_ms")
        _require_callable(self, "partitioner", "key_serializer", "value_serializer")
        if self.compression_type not in (None, "none", *(codec.name.lower() for codec in Codec)):
            raise invalid("compression_type", self.compression_type, "it must be gzip, snappy, lz4, zstd or None")
        level, levels = self.compression_level, LEVELS.get(self.codec)
        if not (level is None or levels is None or (isinstance(level, int) and level in levels)):
            raise invalid("compression_level", level, f"{self.compression_type} has no such level")
        if self.enable_idempotence and self.required_acks != -1:
            raise invalid("acks", self.acks, 'an idempotent producer needs "all"')
        if self.transactional_id is not None and not (self.transactional_id and self.is_idempotent):
            raise invalid("transactional_id", self.transactional_id, "it needs a text and an idempotent producer")
        if self.joins is not None and not (self.transactional_id is None and self.is_idempotent):
            raise invalid("joins", self.joins, "it needs an idempotent producer without a transactional_id")
        if self.is_idempotent and self.max_in_flight > MAX_IN_FLIGHT:
            raise invalid("max_in_flight", self.max_in_flight, f"an idempotent producer has at most {MAX_IN_FLIGHT}")

    @property
    def required_acks(self) -> int:
        """`acks` as the protocol has it: -1 for all."""
        return _ACKS[self.acks]

    @property
    def is_idempotent(self) -> bool:
        """Whether batches carry a producer id and sequences: by default with acks=all."""
        return self.required_acks == -1 if self.enable_idempotence is None else self.enable_idempotence

    @property
    def codec(self) -> Codec:
        """The compression codec."""
        return Codec.NONE if self.compression_type is None else Codec[self.compression_type.upper()]


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """A consumer's settings. Times in ms, sizes in bytes.

    auto_offset_reset: where to start without a position, or if its records were deleted: "earliest", "latest", or
        "none" to raise OFFSET_OUT_OF_RANGE.
    isolation_level: "read_uncommitted" or "read_committed".
    fetch_min_bytes, fetch_max_wait_ms: how many bytes a fetch waits for, and how long.
    fetch_max_bytes: limit of one response, and of all prefetched records in memory. A response has its first batch
        also if that is larger, as in Kafka. What is prefetched may exceed the limit by what a response has of one
        partition; Kafka's consumer has no limit for all responses.
    max_partition_fetch_bytes: limit of one partition in a response, and a quarter of the limit for `poll_table`
        and `poll_batches`, or a twenty-fourth for `poll_table` when it reads large batches from the leader's files.
    max_poll_records: limit of one `poll` that names no other.
    key_deserializer, value_deserializer: turn bytes into keys and values; null stays None.
    consumer_timeout_ms: iteration ends when there was no record for this long; None: never.
    """

    auto_offset_reset: str = "latest"
    isolation_level: str = "read_uncommitted"
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 52_428_800
    max_partition_fetch_bytes: int = 1_048_576
    max_poll_records: int = 500
    retry_backoff_ms: int = 100
    consumer_timeout_ms: float | None = None
    check_crcs: bool = True
    key_deserializer: Deserializer | None = None
    value_deserializer: Deserializer | None = None

    def __post_init__(self) -> None:
        if self.auto_offset_reset not in _RESET:
            raise invalid("auto_offset_reset", self.auto_offset_reset, f"it must be one of {', '.join(_RESET)}")
        if self.isolation_level not in ("read_uncommitted", "read_committed"):
            raise invalid("isolation_level", self.isolation_level, "it must be read_uncommitted or read_committed")
        require_at_least(self, 0, "fetch_min_bytes", "fetch_max_wait_ms", "retry_backoff_ms")
        require_at_least(self, 1, "fetch_max_bytes", "max_partition_fetch_bytes", "max_poll_records")
        if self.consumer_timeout_ms is not None:
            require_at_least(self, 0, "consumer_timeout_ms")
        _require_callable(self, "key_deserializer", "value_deserializer")

    @property
    def isolation(self) -> IsolationLevel:
        """The isolation level as the protocol has it."""
        return IsolationLevel[self.isolation_level.upper()]
