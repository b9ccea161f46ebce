"""The options of `spark.read.format("rayka")`, named as those of Spark's Kafka source.

Names do not depend on upper and lower case. An option that this source does not have is refused, never ignored.
Source: the table of options in Spark's "Structured Streaming + Kafka Integration Guide".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.plan import Position, Positions, Timestamp
from rayka.types import IsolationLevel, OffsetSpec, is_number

Query = Literal["batch", "streaming"]
T = TypeVar("T")

_BOTH = (
    "kafka.bootstrap.servers",
    "kafka.isolation.level",
    "kafka.request.timeout.ms",
    "kafka.max.partition.fetch.bytes",
    "kafka.security.protocol",
    "assign",
    "subscribe",
    "subscribePattern",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingOffsets",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
_BATCH = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_STREAMING = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_NAMES: Mapping[Query, Mapping[str, str]] = {
    "batch": {name.lower(): name for name in _BOTH + _BATCH},
    "streaming": {name.lower(): name for name in _BOTH + _STREAMING},
}
_CHOICES = ("assign", "subscribe", "subscribePattern")
_FLAGS = {"true": True, "false": False}
_ISOLATION = {
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
    "read_committed": IsolationLevel.READ_COMMITTED,
}
_GROUP = "no consumer group takes part in a query: its offsets are in Spark's checkpoint"
_BYTES = "keys and values are read as bytes: decode them in the DataFrame"
_REASONS = {
    "groupidprefix": _GROUP,
    "kafka.group.id": _GROUP,
    "kafka.enable.auto.commit": _GROUP,
    "kafka.auto.offset.reset": "startingOffsets says where a query begins",
    "kafka.key.deserializer": _BYTES,
    "kafka.value.deserializer": _BYTES,
}
"""Why options that programs for Spark's Kafka source may have are not here."""
_TIME_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
DEFAULT_TIMEOUT_MS = 60_000
DEFAULT_TRIGGER_DELAY_S = 15 * 60.0
DEFAULT_RETRY_INTERVAL_MS = 1_000
DEFAULT_FETCH_BYTES = 8 << 20
_MOST = 2**63 - 1
_MOST_BYTES = 2**31 - 1
"""Kafka's protocol has 32 bits for it."""


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Topics by name, or those in whose name `pattern` is found, or single partitions: exactly one of the three."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None

    @property
    def names(self) -> frozenset[str]:
        """The topics that are named; none with a pattern."""
        return frozenset(self.assigned or self.topics)


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Where and how to fetch; travels with every task. `timeout_s` is how long failures in a row may last."""

    bootstrap_servers: str
    isolation: IsolationLevel
    fail_on_data_loss: bool
    timeout_s: float
    fetch_bytes: int


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query reads. `bootstrap_servers` None stands for the broker that `rayka up` started here last.

    `offset_retries` bounds how often offsets are looked up again; None: until `timeout_ms` are over.
    """

    choice: TopicChoice
    starting: Positions
    ending: Positions = "latest"
    bootstrap_servers: str | None = None
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    fail_on_data_loss: bool = True
    include_headers: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int = 1
    max_trigger_delay_s: float = DEFAULT_TRIGGER_DELAY_S
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    poll_timeout_ms: int = DEFAULT_TIMEOUT_MS
    offset_retries: int | None = None
    retry_interval_ms: int = DEFAULT_RETRY_INTERVAL_MS
    fetch_bytes: int = DEFAULT_FETCH_BYTES


def parse_options(options: Mapping[str, str], query: Query) -> SourceOptions:
    """The options of a batch or streaming query. Raises INVALID_REQUEST and says which option is wrong."""
    given = _Options(options, query)
    given.require("kafka.security.protocol", {"PLAINTEXT": None})
    timeout_ms = given.positive("kafka.request.timeout.ms") or DEFAULT_TIMEOUT_MS
    limits, delay_s = _trigger_limits(given), given.duration_s("maxTriggerDelay")
    return SourceOptions(
        choice=_choice(given),
        starting=_starting(given, query),
        ending=_ending(given),
        bootstrap_servers=given.text("kafka.bootstrap.servers"),
        isolation=given.require("kafka.isolation.level", _ISOLATION) or IsolationLevel.READ_UNCOMMITTED,
        fail_on_data_loss=given.require("failOnDataLoss", _FLAGS) is not False,
        include_headers=given.require("includeHeaders", _FLAGS) is True,
        min_partitions=given.positive("minPartitions"),
        max_records_per_partition=given.positive("maxRecordsPerPartition"),
        max_offsets_per_trigger=limits[1],
        min_offsets_per_trigger=limits[0],
        max_trigger_delay_s=DEFAULT_TRIGGER_DELAY_S if delay_s is None else delay_s,
        timeout_ms=timeout_ms,
        poll_timeout_ms=given.positive("kafkaConsumer.pollTimeoutMs") or timeout_ms,
        offset_retries=given.number("fetchOffset.numRetries"),
        retry_interval_ms=given.positive("fetchOffset.retryIntervalMs") or DEFAULT_RETRY_INTERVAL_MS,
        fetch_bytes=given.positive("kafka.max.partition.fetch.bytes", _MOST_BYTES) or DEFAULT_FETCH_BYTES,
    )


class _Options:
    """The options that a user gave. Every method raises INVALID_REQUEST for a value that is not valid."""

    def __init__(self, options: Mapping[str, str], query: Query) -> None:
        names = _NAMES[query]
        for name in options:
            if name.lower() not in names:
                raise _unknown(name)
        self._options = {names[name.lower()]: value.strip() for name, value in options.items()}

    def text(self, name: str) -> str | None:
        """The value, None if the option was not given."""
        return self._options.get(name)

    def require(self, name: str, values: Mapping[str, T]) -> T | None:
        """What the value stands for; upper and lower case are the same."""
        text = self.text(name)
        by_name = {key.lower(): value for key, value in values.items()}
        if text is not None and text.lower() not in by_name:
            raise invalid(f"Option {name}={text!r} is not valid: use {' or '.join(values)}")
        return None if text is None else by_name[text.lower()]

    def positive(self, name: str, most: int = _MOST) -> int | None:
        """A number from 1 to `most`."""
        return self.number(name, 1, most)

    def number(self, name: str, least: int = 0, most: int = _MOST) -> int | None:
        """A number from `least` to `most`."""
        text = self.text(name)
        if text is not None and not (is_number(text) and least <= int(text) <= most):
            raise invalid(f"Option {name}={text!r} is not valid: use a number from {least} to {most}")
        return None if text is None else int(text)

    def duration_s(self, name: str) -> float | None:
        """A time with its unit, such as 15m; in seconds."""
        text = self.text(name)
        found = re.fullmatch(r"(\d+) *([a-z]+)", (text or "").lower())
        if text is not None and (found is None or found[2] not in _TIME_UNITS_S):
            raise invalid(
                f"Option {name}={text!r} is not valid: use a time such as 15m, with {', '.join(_TIME_UNITS_S)}"
            )
        return None if found is None else int(found[1]) * _TIME_UNITS_S[found[2]]

    def timestamp(self, name: str) -> int | None:
        """Milliseconds since the epoch."""
        text = self.text(name)
        if text is not None and not is_number(text):
            raise invalid(f"Option {name}={text!r} is not valid: use milliseconds since 1970")
        return None if text is None else int(text)

    def per_partition(self, name: str, parse: Callable[[int], Position]) -> dict[str, dict[int, Position]] | None:
        """JSON such as {"topicA": {"0": 23, "1": -1}}, each number made a position."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return {
                topic: {int(partition): parse(_whole(number)) for partition, number in numbers.items()}
                for topic, numbers in json.loads(text).items()
            }
        except (ValueError, AttributeError) as error:
            example = '{"topicA": {"0": 23, "1": 45}}'
            raise invalid(f"Option {name}={text!r} is not valid: use JSON such as {example} ({error})") from None


def invalid(message: str) -> RaykaError:
    """The error for an option that is not valid."""
    return RaykaError(ErrorCode.INVALID_REQUEST, message)


def _unknown(name: str) -> RaykaError:
    """Spark gives names in lower case, so one that is known is written as Spark's documentation has it."""
    for query, names in _NAMES.items():
        if name.lower() in names:
            return invalid(f"Option {names[name.lower()]} is not supported: it is one of {query} queries only")
    reason = _REASONS.get(name.lower(), "the source rayka does not have it")
    return invalid(f"Option {name} is not supported: {reason}")


def _whole(number: Any) -> int:
    if not isinstance(number, int) or isinstance(number, bool):
        raise ValueError(f"{number!r} is not a whole number")
    return number


def _choice(given: _Options) -> TopicChoice:
    chosen = [name for name in _CHOICES if given.text(name) is not None]
    if len(chosen) != 1:
        raise invalid(f"Give exactly one of the options {', '.join(_CHOICES)}; given: {', '.join(chosen) or 'none'}")
    text = given.text(chosen[0]) or ""
    if not text:
        raise invalid(f"Option {chosen[0]} is empty")
    if chosen[0] == "subscribePattern":
        return TopicChoice(pattern=text)
    if chosen[0] == "assign":
        return TopicChoice(assigned=_assigned(text))
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not topics:
        raise invalid(f"Option subscribe={text!r} is not valid: it names no topic")
    return TopicChoice(topics=topics)


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    try:
        assigned = {topic: tuple(map(_whole, partitions)) for topic, partitions in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        example = '{"topicA": [0, 1]}'
        raise invalid(f"Option assign={text!r} is not valid: use JSON such as {example} ({error})") from None
    if not any(assigned.values()):
        raise invalid(f"Option assign={text!r} is not valid: it names no partition")
    return assigned


def _trigger_limits(given: _Options) -> tuple[int, int | None]:
    """The least and the most offsets of a batch."""
    least, most = given.positive("minOffsetsPerTrigger") or 1, given.positive("maxOffsetsPerTrigger")
    if most is not None and least > most:
        raise invalid(f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}")
    return least, most


def _starting(given: _Options, query: Query) -> Positions:
    """startingTimestamp goes before startingOffsetsByTimestamp, and that before startingOffsets."""
    strategies = {"error": True, "latest": False}
    required = given.require("startingOffsetsByTimestampStrategy", strategies) is not False
    for_all = given.timestamp("startingTimestamp")
    if for_all is not None:
        return Timestamp(for_all, required)
    times = given.per_partition("startingOffsetsByTimestamp", lambda ms: Timestamp(_time(ms), required))
    if times is not None:
        return times
    text = given.text("startingOffsets")
    if text is None:
        return "latest" if query == "streaming" else "earliest"
    positions: Positions = text.lower()
    if positions not in ("earliest", "latest"):
        positions = given.per_partition("startingOffsets", _offset) or {}
    if query == "batch" and _has(positions, "latest", OffsetSpec.LATEST):
        raise invalid("startingOffsets can't be the latest in a batch query: there is nothing after it")
    return positions


def _ending(given: _Options) -> Positions:
    """endingTimestamp goes before endingOffsetsByTimestamp, and that before endingOffsets."""
    for_all = given.timestamp("endingTimestamp")
    if for_all is not None:
        return Timestamp(for_all)
    times = given.per_partition("endingOffsetsByTimestamp", lambda ms: Timestamp(_time(ms)))
    if times is not None:
        return times
    text = given.text("endingOffsets")
    if text is None or text.lower() == "latest":
        return "latest"
    positions: Positions = "earliest"
    if text.lower() != "earliest":
        positions = given.per_partition("endingOffsets", _offset) or {}
    if _has(positions, "earliest", OffsetSpec.EARLIEST):
        raise invalid("endingOffsets can't be the earliest: there is nothing before it")
    return positions


def _time(ms: int) -> int:
    if ms < 0:
        raise ValueError(f"{ms} is not milliseconds since 1970")
    return ms


def _offset(number: int) -> Position:
    if number < OffsetSpec.EARLIEST:
        raise ValueError(f"{number} is neither an offset nor -1 (latest) nor -2 (earliest)")
    return number


def _has(positions: Positions, name: str, spec: OffsetSpec) -> bool:
    if isinstance(positions, Mapping):
        return any(position == spec for topic in positions.values() for position in topic.values())
    return positions == name
