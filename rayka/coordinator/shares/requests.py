"""The requests of the share coordinator and their responses: one share-partition each (KIP-932, state RPCs 83 to 87).

A response carries an `ErrorCode`, which is NONE if there is no error. Besides those of the shell
(COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, which the router raises) these are:
FENCED_STATE_EPOCH and FENCED_LEADER_EPOCH from a caller that is out of date, UNKNOWN_TOPIC_OR_PARTITION for a partition
that does not exist, and INVALID_REQUEST, also where the state was never initialized.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from rayka.coordinator.request import Request
from rayka.coordinator.shares.keys import coordinator_key
from rayka.errors import ErrorCode

R = TypeVar("R")
NONE = ErrorCode.NONE
UNINITIALIZED_OFFSET = -1
"""A start offset that is not known yet: the partition leader finds it by `share.auto.offset.reset`."""
UNINITIALIZED_COUNT = -1
"""A delivery complete count of a writer that does not know it (KIP-1226)."""
NO_EPOCH = -1
"""An epoch that the sender does not know, and that is not checked."""


class StateBatch(NamedTuple):
    """Records from `first_offset` to `last_offset` inclusive, all in one state and delivered as often.

    `delivery_state` is the id of a record state: 0 available, 2 acknowledged, 3 archiving, 4 archived. Available
    records are delivered from `available_at` on, in milliseconds since the epoch; 0: at once (rayka's own).
    """

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int
    available_at: int = 0


class StateRequest(Request[R], Generic[R]):
    """A request about one share-partition; its coordinator is found by group, topic id and partition."""

    __slots__ = ()

    group_id: str
    topic_id: uuid.UUID
    partition: int

    @property
    def coordinator_key(self) -> str:
        """`group:topicId:partition`, as Kafka writes it."""
        return coordinator_key(self.group_id, self.topic_id, self.partition)


@dataclass(frozen=True, slots=True)
class InitializeShareGroupStateResponse:
    """The outcome."""

    error: ErrorCode = NONE
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class InitializeShareGroupStateRequest(StateRequest[InitializeShareGroupStateResponse]):
    """Begin a share-partition at a start offset, without state batches; a larger state epoch resets it."""

    group_id: str
    topic_id: uuid.UUID
    partition: int
    state_epoch: int
    start_offset: int = UNINITIALIZED_OFFSET


@dataclass(frozen=True, slots=True)
class ReadShareGroupStateResponse:
    """The whole state."""

    error: ErrorCode = NONE
    error_message: str | None = None
    state_epoch: int = 0
    start_offset: int = UNINITIALIZED_OFFSET
    state_batches: tuple[StateBatch, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadShareGroupStateRequest(StateRequest[ReadShareGroupStateResponse]):
    """What a new partition leader reads; its leader epoch fences the leaders before it."""

    group_id: str
    topic_id: uuid.UUID
    partition: int
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class ReadShareGroupStateSummaryResponse:
    """The state without its batches. The leader epoch is that of the last writer or reader."""

    error: ErrorCode = NONE
    error_message: str | None = None
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = UNINITIALIZED_OFFSET
    delivery_complete_count: int = UNINITIALIZED_COUNT


@dataclass(frozen=True, slots=True)
class ReadShareGroupStateSummaryRequest(StateRequest[ReadShareGroupStateSummaryResponse]):
    """For tools that describe a group."""

    group_id: str
    topic_id: uuid.UUID
    partition: int
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class WriteShareGroupStateResponse:
    """The outcome; once it is NONE the state is durable."""

    error: ErrorCode = NONE
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class WriteShareGroupStateRequest(StateRequest[WriteShareGroupStateResponse]):
    """Changes of a share-partition. Where a batch differs from what is known of an offset, the higher delivery count
    holds, and of two equal ones the higher delivery state.

    `start_offset` -1 leaves it as it is. `delivery_complete_count` counts the terminal records from the start offset
    on (KIP-1226).
    """

    group_id: str
    topic_id: uuid.UUID
    partition: int
    state_epoch: int
    leader_epoch: int
    start_offset: int = UNINITIALIZED_OFFSET
    delivery_complete_count: int = UNINITIALIZED_COUNT
    state_batches: tuple[StateBatch, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteShareGroupStateResponse:
    """The outcome; state that is not there is deleted too."""

    error: ErrorCode = NONE
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteShareGroupStateRequest(StateRequest[DeleteShareGroupStateResponse]):
    """Forget a share-partition."""

    group_id: str
    topic_id: uuid.UUID
    partition: int
