"""What a command gives back, and how its effects reach the durable state.

A command reads the state and returns a `Result`. Its records are not applied yet. The caller appends them to the
partition's log and then calls `GroupCoordinator.commit(result)`, which replays them and carries out what may only
happen once they are in the log; or, if the append failed, `GroupCoordinator.rollback(result, error)`, which answers
instead. One or the other must come before the next command. Answers leave when the records are durable.

A request that has to wait (a join until all members are there, a sync until the leader has assigned) is answered with
`Pending`; the answer comes as a completion of a later result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from rayka.coordinator.groups.records import Record
from rayka.errors import ErrorCode

R = TypeVar("R")


class Pending(NamedTuple):
    """The request waits; its answer will be the completion with this handle."""

    handle: int


class Completion(NamedTuple):
    """The answer to a request that waited."""

    handle: int
    response: Any


@dataclass(frozen=True, slots=True)
class Result(Generic[R]):
    """Records to append, the answer, and the answers to requests that waited until now.

    `on_commit` changes soft state and may complete further requests; `on_rollback` gives the answers for an append
    that failed. Both are for the coordinator's own use.
    """

    response: R | Pending
    records: tuple[Record, ...] = ()
    completions: tuple[Completion, ...] = ()
    on_commit: Callable[[], None] | None = field(default=None, repr=False)
    on_rollback: Callable[[ErrorCode], Result[R]] | None = field(default=None, repr=False)


NOBODY = 0
"""A handle that no request has."""


@dataclass(slots=True)
class Outcome:
    """Gathers what a command brings about on its way through a group.

    Records without rollbacks only note what has happened anyway (everybody has left); the answers stand without them.
    """

    records: list[Record] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    commits: list[Callable[[], None]] = field(default_factory=list)
    rollbacks: list[Callable[[ErrorCode, Outcome], None]] = field(default_factory=list)

    def complete(self, handle: int, response: Any) -> None:
        """Answers the request with this handle."""
        self.completions.append(Completion(handle, response))

    def result(self, handle: int) -> Result[Any]:
        """The result for the request with `handle`: its own answer if it has one by now."""
        own = next((completion for completion in self.completions if completion.handle == handle), None)
        others = tuple(completion for completion in self.completions if completion is not own)
        return self._result(Pending(handle) if own is None else own.response, others, handle)

    def notice(self) -> Result[None]:
        """The result of something that nobody asked for."""
        return self._result(None, tuple(self.completions), NOBODY)

    def _result(self, response: Any, others: tuple[Completion, ...], handle: int) -> Result[Any]:
        if not self.records:
            return Result(response, completions=others)
        return Result(
            response,
            tuple(self.records),
            others,
            self._commit if self.commits else None,
            lambda error: self._rollback(error, handle) if self.rollbacks else Result(response, completions=others),
        )

    def _commit(self) -> None:
        for commit in self.commits:
            commit()

    def _rollback(self, error: ErrorCode, handle: int) -> Result[Any]:
        outcome = Outcome()
        for rollback in self.rollbacks:
            rollback(error, outcome)
        return outcome.result(handle)


APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def append_error(error: ErrorCode) -> ErrorCode:
    """What a group's client is told when an append failed with `error`, as Kafka translates it."""
    return APPEND_ERRORS.get(error, error)
