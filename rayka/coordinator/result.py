"""What a command returns, and how its effects reach the durable state.

A command reads the state and returns a `Result`. Nothing durable has changed yet. The shell appends the records,
replays them, and calls `commit(step, now)`; if the append failed it calls `rollback(step, error, now)` instead. One or
the other comes before the next command. Responses leave when the records are durable.

A request that has to wait (a join until all members have joined, a sync until the leader has assigned) is answered
with `Pending`; its response comes as a `Completion` of a later result. If that response is `Retry`, the request is
carried out again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from rayka.errors import ErrorCode

R = TypeVar("R")


class Pending(NamedTuple):
    """The request waits; its response will be the completion with this id."""

    request_id: int


class Completion(NamedTuple):
    """The response to a request that waited."""

    request_id: int
    response: Any


class Retry(NamedTuple):
    """Instead of a response: what the request waited for has happened, so it is carried out now."""

    request: Any


class ProducerIdAndEpoch(NamedTuple):
    """A producer with a transaction."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Result(Generic[R]):
    """Records to append, the response, and the responses to requests that waited until now.

    `step` is a value of the core's own: what follows once the records are in the log. Records that are not atomic are
    written in as many batches as they need; those that were written count even if a later batch fails.
    With a `producer` they belong to its transaction.
    """

    response: R | Pending
    records: tuple[Any, ...] = ()
    completions: tuple[Completion, ...] = ()
    step: object | None = None
    is_atomic: bool = True
    producer: ProducerIdAndEpoch | None = None


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
    """The error for the client when an append failed with `error`, as Kafka translates it."""
    return APPEND_ERRORS.get(error, error)
