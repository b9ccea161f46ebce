"""All requests that one process of rayka sends to a partition's leader, and their answers.

They travel as msgpack that is checked against these types when it is read; a named tuple is an array, in the order of
its fields. A request that fails as a whole is answered with a `RaykaError`.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from rayka.errors import ErrorCode, RaykaError
from rayka.share.requests import InFlightRecords, ShareDepth, ShareFetchParams, ShareFetchPartition, ShareFetchResult
from rayka.types import (
    ActiveProducers,
    AppendParams,
    AppendResult,
    DeleteRecordsResult,
    EpochEndOffset,
    EpochQuery,
    FetchPartition,
    FetchResult,
    FileSlice,
    IsolationLevel,
    LogDirDescription,
    OffsetAnswer,
    OffsetQuery,
    OpenedJournal,
    TopicPartition,
    TxnMarker,
)


class AppendedRecords(NamedTuple):
    """Where one partition's batches are in the payload of an append: after those before it, `size` bytes.

    `topic_id` as in `AppendRequest`.
    """

    topic_partition: TopicPartition
    leader_epoch: int
    size: int
    topic_id: bytes | None = None


class AppendFrame(NamedTuple):
    """Append the batches in the payload. Answered with a result for each partition, in order."""

    params: AppendParams
    partitions: tuple[AppendedRecords, ...]


class ShareMemory(NamedTuple):
    """Map the memory file that the sender has under this descriptor. Answered when `AppendShared` may name it."""

    descriptor: int


class SharedRecords(NamedTuple):
    """One batch of `size` bytes: its header, and where in the sender's memory file the rest of it is.

    `topic_id` as in `AppendRequest`.
    """

    topic_partition: TopicPartition
    leader_epoch: int
    header: bytes
    position: int
    size: int
    topic_id: bytes | None = None


class AppendShared(NamedTuple):
    """As `AppendFrame`, with the records in memory that the sender has shared."""

    params: AppendParams
    partitions: tuple[SharedRecords, ...]


class FetchParams(NamedTuple):
    """What a leader is to read: wait up to `max_wait_s` seconds until there are `min_bytes`."""

    partitions: tuple[FetchPartition, ...]
    max_wait_s: float
    min_bytes: int
    max_bytes: int
    isolation: IsolationLevel


class CancelFetch(NamedTuple):
    """The answer to a fetch on this connection is not wanted any more; not answered itself."""

    correlation_id: int


class ListOffsets(NamedTuple):
    """Find offsets by timestamp or by `OffsetSpec`."""

    queries: tuple[OffsetQuery, ...]
    isolation: IsolationLevel


class FindEpochEnds(NamedTuple):
    """Find where leader epochs ended (KIP-101)."""

    queries: tuple[EpochQuery, ...]


class DeleteRecords(NamedTuple):
    """Move log start offsets up; -1 stands for the high watermark."""

    offsets: tuple[tuple[TopicPartition, int], ...]


@dataclass(frozen=True, slots=True)
class DescribeLogDir:
    """Describe the actor's log directory."""


class CheckRecords(NamedTuple):
    """Read records of the actor's that could not be read elsewhere. Answered with their size.

    What an error does to the log directory is decided there, as for every error of a disk.
    """

    records: FileSlice


class Coordinate(NamedTuple):
    """A request to the coordinator on one partition.

    `message` is encoded by the codec of its kind of coordinator, unless the coordinator is in this process.
    """

    coordinator: str
    partition: int
    message: Any


class ShareFetch(NamedTuple):
    """Acknowledge and acquire records for a member of a share group.

    With `is_wait` nothing is acquired: the answer comes when a fetch would have one.
    """

    params: ShareFetchParams
    partitions: tuple[ShareFetchPartition, ...]
    is_wait: bool = False


class ShareFetched(NamedTuple):
    """The answer. `lock_duration_ms` is that of the group. After `is_superseded` it is of no use to ask again: the
    member has sent another fetch, or its session has ended.
    """

    lock_duration_ms: int
    results: tuple[ShareFetchResult, ...]
    is_superseded: bool = False


class EndShareSession(NamedTuple):
    """A member has left, or was lost: give its records back. Answered with their number of partitions.

    Nothing happens if the member has come back in another session by now.
    """

    group_id: str
    member_id: str
    is_lost: bool
    session_id: str = ""


class ReturnShareRecords(NamedTuple):
    """A member gives back records that it has not delivered to its program; that does not count as a delivery.

    `offsets` are pairs of a first and a last one. Answered with their number of pairs when it is durable.
    """

    group_id: str
    member_id: str
    topic_partition: TopicPartition
    topic_id: bytes
    offsets: tuple[tuple[int, int], ...]


class MeasureShareDepth(NamedTuple):
    """Ask how many records a share group could acquire from a partition. `topic_id` is 16 bytes."""

    group_id: str
    topic_partition: TopicPartition
    topic_id: bytes


class DescribeShareRecords(NamedTuple):
    """Ask what a share group has in flight in a partition.

    `is_to_change`: if nobody reads the group, its persisted state is to be changed. The leader then forgets the state.
    """

    group_id: str
    topic_partition: TopicPartition
    is_to_change: bool = False


class DescribedShareRecords(NamedTuple):
    """The answer; not `is_loaded`: no member of the group reads here, so that only its durable state is known.

    `is_read`: a member of the group, or a queue that reads without being one, waits for records of this actor, holds
    some, or has asked it for records or renewed its locks within the duration of a lock.
    """

    is_loaded: bool
    records: tuple[InFlightRecords, ...] = ()
    is_read: bool = False


class WriteTxnMarkers(NamedTuple):
    """Write the ends of transactions. Answered with an `ErrorCode` value for each partition of each marker."""

    markers: tuple[TxnMarker, ...]


class DescribeProducers(NamedTuple):
    """Ask what partitions remember of their producers."""

    partitions: tuple[TopicPartition, ...]


class OpenJournal(NamedTuple):
    """Make a put journal for an idempotent producer without another use. `topic_id` is 16 bytes.

    `is_large`: for large records.
    """

    topic_partition: TopicPartition
    topic_id: bytes
    producer_id: int
    is_large: bool = False


class DrainJournals(NamedTuple):
    """Append what programs have written to the put journals of a partition. Answered when that is done."""

    topic_partition: TopicPartition


class PublishRange(NamedTuple):
    """Put the records of a range into Ray's object store, as tables with these columns.

    It is sent as a Ray call, and not in a frame, because the answer holds object refs.
    """

    topic_partition: TopicPartition
    start_offset: int
    end_offset: int
    columns: tuple[str, ...]
    isolation: IsolationLevel
    topic_id: uuid.UUID | None = None
    may_be_remote: bool = False
    """Whether the reader can fetch from the remote store what is there alone."""


ShareRequest: TypeAlias = ShareFetch | EndShareSession | ReturnShareRecords | MeasureShareDepth | DescribeShareRecords
LeaderRequest: TypeAlias = (
    ListOffsets
    | FindEpochEnds
    | DeleteRecords
    | DescribeLogDir
    | CheckRecords
    | Coordinate
    | ShareRequest
    | WriteTxnMarkers
    | DescribeProducers
    | OpenJournal
    | DrainJournals
)


class Operation(NamedTuple):
    """One kind of request: its number in a frame, its type and that of its answer."""

    number: int
    request: Any
    answer: Any


OPERATIONS: Final = (
    Operation(1, AppendFrame, tuple[AppendResult, ...]),
    Operation(2, FetchParams, tuple[FetchResult, ...]),
    Operation(3, CancelFetch, None),
    Operation(4, ListOffsets, tuple[OffsetAnswer, ...]),
    Operation(5, FindEpochEnds, tuple[EpochEndOffset, ...]),
    Operation(6, DeleteRecords, tuple[DeleteRecordsResult, ...]),
    Operation(7, DescribeLogDir, LogDirDescription),
    Operation(8, Coordinate, bytes),
    Operation(9, ShareFetch, ShareFetched),
    Operation(10, EndShareSession, int),
    Operation(11, WriteTxnMarkers, tuple[tuple[int, ...], ...]),
    Operation(12, DescribeProducers, tuple[ActiveProducers, ...]),
    Operation(13, ReturnShareRecords, int),
    Operation(14, MeasureShareDepth, ShareDepth),
    Operation(15, DescribeShareRecords, DescribedShareRecords),
    Operation(16, CheckRecords, int),
    Operation(17, ShareMemory, bool),
    Operation(18, AppendShared, tuple[AppendResult, ...]),
    Operation(19, OpenJournal, OpenedJournal),
    Operation(20, DrainJournals, bool),
)
NUMBERS: Final = {operation.request: operation.number for operation in OPERATIONS}


class Failure(NamedTuple):
    """A `RaykaError` on its way."""

    code: ErrorCode
    message: str


_REQUESTS: Final = {each.number: msgspec.msgpack.Decoder(each.request) for each in OPERATIONS}
_ANSWERS: Final = {each.number: msgspec.msgpack.Decoder(each.answer) for each in OPERATIONS}
_FAILURE: Final = msgspec.msgpack.Decoder(Failure)
_ENCODER: Final = msgspec.msgpack.Encoder()


def encode_value(value: object) -> bytes:
    """The bytes of a request or an answer. Raises INVALID_REQUEST for a value that does not fit."""
    try:
        return _ENCODER.encode(value)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"{type(value).__name__} can't be encoded: {error}") from error


def encode_failure(error: RaykaError) -> bytes:
    """The bytes of an error that answers a request."""
    return _ENCODER.encode(Failure(error.code, error.message))


def decode_request(number: int, data: memoryview) -> Any:
    """The request in a frame. Raises INVALID_REQUEST."""
    return _decode(_REQUESTS, number, data)


def decode_answer(number: int, data: memoryview) -> Any:
    """The answer in a frame. Raises INVALID_REQUEST."""
    return _decode(_ANSWERS, number, data)


def decode_failure(data: memoryview) -> RaykaError:
    """The error in a frame."""
    try:
        failure = _FAILURE.decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        return RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"malformed error: {error}")
    return RaykaError(failure.code, failure.message)


def _decode(decoders: dict[int, Any], number: int, data: memoryview) -> Any:
    decoder = decoders.get(number)
    if decoder is None:
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"there is no operation {number}")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"malformed request or answer {number}: {error}") from error
