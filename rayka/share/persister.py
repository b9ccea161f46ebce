"""The durable state of share-partitions, as their leaders see it: the share coordinator is behind a `Persister`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rayka.errors import ErrorCode, RaykaError
from rayka.types import NO_OFFSET, SharePartitionKey


class PersistedBatch(NamedTuple):
    """Records of which the same is known. `delivery_state` is the number of a `RecordState`.

    Available records are delivered from `available_ms` on, a time of the leader's clock; 0: at once.
    """

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int
    available_ms: int = 0


@dataclass(frozen=True, slots=True)
class PersistedState:
    """What is persisted of a share-partition. `start_offset` -1: the group has not begun to read it."""

    state_epoch: int = 0
    start_offset: int = NO_OFFSET
    state_batches: tuple[PersistedBatch, ...] = ()


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """A change to the persisted state: batches replace what was known of their offsets."""

    state_epoch: int
    start_offset: int
    delivery_complete_count: int
    state_batches: tuple[PersistedBatch, ...]


class Persister(Protocol):
    """Reads and writes durable state. Both raise RaykaError; the codes are those of the share coordinator."""

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> PersistedState:
        """The state, for a leader in this epoch; writes of earlier leaders are refused from then on."""

    async def write(self, key: SharePartitionKey, leader_epoch: int, update: StateUpdate) -> None:
        """Returns when the update is durable."""


def persister_error(error: RaykaError) -> RaykaError:
    """The error for a client when its acknowledgement could not be persisted, as Kafka maps them.

    REQUEST_TIMED_OUT: the coordinator did not answer.
    """
    match error.code:
        case (
            ErrorCode.NOT_COORDINATOR
            | ErrorCode.COORDINATOR_NOT_AVAILABLE
            | ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            | ErrorCode.REQUEST_TIMED_OUT
        ):
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.GROUP_ID_NOT_FOUND | ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        case ErrorCode.FENCED_LEADER_EPOCH | ErrorCode.FENCED_STATE_EPOCH:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        case _:
            code = ErrorCode.UNKNOWN_SERVER_ERROR
    return RaykaError(code, error.message)
