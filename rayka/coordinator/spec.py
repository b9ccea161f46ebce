"""What defines a kind of coordinator: its topic, its core, its records, and the requests that it serves.

The shell in `actors/coordinator` runs any core that this describes. A core is a state machine without I/O:

    replay(every record of the log) -> on_loaded(now) -> [ command(request, now) -> commit | rollback ]* -> unload()

Deadlines: after each step the shell asks `next_deadline()`, and at that time calls `expire(now)` until it returns None,
treating each result like that of a command. Deadlines use the monotonic clock (`clock.Now.ms`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from rayka.config.definition import ConfigValue
from rayka.coordinator.clock import Now
from rayka.coordinator.request import Request, response_type
from rayka.coordinator.result import Completion, Result
from rayka.coordinator.topics import Topics
from rayka.errors import ErrorCode


class CoordinatorConfigs(NamedTuple):
    """The configs that are in force: the broker's, and the dynamic ones of single groups by group id and name."""

    broker: Mapping[str, ConfigValue]
    groups: Mapping[str, Mapping[str, ConfigValue]] = {}


class Coordinator(Protocol):
    """The core of a coordinator: the state of one partition of its topic."""

    def replay(self, record: Any, record_offset: int, producer_id: int) -> None:
        """Apply a record of the log; one with a producer id counts when its transaction commits."""

    def end_transaction(self, producer_id: int, is_committed: bool) -> None:
        """Apply a transaction marker of the log."""

    def on_loaded(self, now: Now) -> None:
        """The log has been replayed: start sessions and deadlines."""

    def on_new_metadata_image(self, topics: Topics) -> Result[None]:
        """Take the new topics of the cluster."""

    def on_new_configs(self, configs: CoordinatorConfigs) -> None:
        """Take configs that have changed."""

    def unload(self, error: ErrorCode) -> tuple[Completion, ...]:
        """End all deadlines and answer all who wait. No command comes after this."""

    def commit(self, step: Any, now: Now) -> tuple[Completion, ...]:
        """Carry out the step of a result whose records have been replayed."""

    def rollback(self, step: Any, error: ErrorCode, now: Now) -> Result[Any] | None:
        """The records could not be appended: what to answer instead, without records. None: the responses stand."""

    def next_deadline(self) -> int | None:
        """When `expire` has something to do, as `Now.ms`; None if nothing is waited for."""

    def expire(self, now: Now) -> Result[None] | None:
        """Do what is due until there is something to append or to answer; None: nothing more is due."""

    def first_needed_offset(self) -> int | None:
        """Where the records that count begin, for a log that is not compacted; None: nothing may be deleted."""

    def validate_state(self) -> None:
        """Check what must always hold. Raises AssertionError."""


C = TypeVar("C", bound=Coordinator)

Command: TypeAlias = Callable[[C, Any, Now], Result[Any]]
Query: TypeAlias = Callable[[C, Any], Any]


@dataclass(frozen=True)
class CoordinatorSpec(Generic[C]):
    """One kind of coordinator.

    `num_partitions_config` names the setting for the size of its topic. `decode` returns None for records to ignore and
    raises ValueError for malformed ones.
    Router, shell and codec read `commands` and `queries`: methods of the core by the type of their request.
    `is_compacted`: of the records of one key only the newest counts. Otherwise all count from the core's
    `first_needed_offset` on.
    `take_effects` gives what the core wants done outside of its partition once its log is durable.
    """

    name: str
    topic: str
    num_partitions_config: str
    create: Callable[[CoordinatorConfigs], C]
    encode: Callable[[Any], tuple[bytes, bytes | None]]
    decode: Callable[[bytes, bytes | None], Any]
    commands: Mapping[type[Request[Any]], Command[C]]
    queries: Mapping[type[Request[Any]], Query[C]]
    is_compacted: bool = True
    take_effects: Callable[[C], Sequence[Any]] | None = None

    def message_types(self) -> Iterator[type[Any]]:
        """All requests and responses, each once."""
        requests = (*self.commands, *self.queries)
        yield from requests
        yield from dict.fromkeys(response_type(request) for request in requests)


def java_hash(text: str) -> int:
    """Java's String.hashCode, as a signed 32-bit integer."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@functools.lru_cache(maxsize=10_000)
def partition_for(coordinator_key: str, num_partitions: int) -> int:
    """The partition of the coordinator's topic that a group id or transactional id hashes to."""
    value = java_hash(coordinator_key)
    return (0 if value == -(1 << 31) else abs(value)) % num_partitions
