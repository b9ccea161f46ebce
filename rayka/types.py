"""Identifiers and values that cross the boundaries between packages.

Everything here is immutable and knows nothing of files, sockets or Ray. The named tuples travel over
the local channel as msgpack arrays, in the order of their fields.
"""

from __future__ import annotations

import enum
import uuid
from typing import NamedTuple

NO_OFFSET = -1
NO_TIMESTAMP = -1
NO_LEADER = -1
NO_LEADER_EPOCH = -1
NO_PRODUCER_ID = -1
ALL_ACKS = -1
"""The `acks` of an append that is answered when all in-sync replicas have it."""
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1


_MOST_DIGITS = 19
"""No number of Kafka has more: 64 bits with a sign."""


def is_number(text: str) -> bool:
    """Whether a user's text is a number from 0 that `int` takes; `str.isdigit` is true of `²` too."""
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


class TopicPartition(NamedTuple):
    """One partition of one topic; prints as its directory name, `orders-2`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """A partition of one topic, and of no other that gets its name later."""

    topic_id: uuid.UUID
    topic_partition: TopicPartition

    def __str__(self) -> str:
        return str(self.topic_partition)


class SharePartitionKey(NamedTuple):
    """One partition of a topic as one share group sees it (KIP-932)."""

    group_id: str
    topic_id: uuid.UUID
    partition: int


class IsolationLevel(enum.IntEnum):
    """Which records a reader may see (KIP-98)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class TimestampType(enum.IntEnum):
    """Who set a record's timestamp: bit 3 of the batch attributes."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class OffsetSpec(enum.IntEnum):
    """The timestamps with a meaning of their own in ListOffsets."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


class FileSlice(NamedTuple):
    """Record bytes where they lie: `size` bytes from `position` of the segment at `path`."""

    path: str
    position: int
    size: int
    inode: int = 0
    """The number of the file, which tells it from another that got its name; 0 if it does not matter."""


class AbortedTransaction(NamedTuple):
    """A transaction whose records a read_committed reader must leave out."""

    producer_id: int
    first_offset: int


class AppendRequest(NamedTuple):
    """Record batches for one partition, as they came from the producer.

    `records` is writable: the leader stamps base offset and leader epoch in place.
    `leader_epoch` is the epoch in which the sender believes. A leader in any other epoch refuses the append;
    -1 stands for the leader's own, whatever it is. With a `topic_id` (16 bytes) the batches are for that topic and no
    other of its name, whose epochs may be the same.
    """

    topic_partition: TopicPartition
    records: memoryview
    leader_epoch: int = NO_LEADER_EPOCH
    topic_id: bytes | None = None


class AppendParams(NamedTuple):
    """What a produce request says of all its batches.

    With `acks` -1 the leader answers when all in-sync replicas have the batches, or REQUEST_TIMED_OUT after
    `timeout_ms`. With 0 nobody reads the answer. Only the admin client may write to internal topics.
    The `transactional_id` of a producer with transactions, and what the version of its request lets the leader do.
    """

    acks: int
    timeout_ms: int
    internal_topics_allowed: bool = False
    transactional_id: str | None = None
    transaction_support: int = 0


class OpenedJournal(NamedTuple):
    """Where a put journal is, and how many bytes a record in it may have."""

    path: str
    max_record_bytes: int


class TransactionSupport(enum.IntEnum):
    """What the version of a request says of its client's transactions (KIP-890)."""

    VERIFY = 0
    """The client adds partitions by itself; the leader verifies that it did."""
    ABORTABLE_ERRORS = 1
    """As before; the client knows TRANSACTION_ABORTABLE."""
    ADD_PARTITIONS = 2
    """The leader adds the partition."""


class VerificationRequest(NamedTuple):
    """Asks a transaction coordinator whether the transaction of a producer has these partitions (KIP-890).

    With `TransactionSupport.ADD_PARTITIONS` the coordinator adds those that are missing.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    support: TransactionSupport


class TxnMarker(NamedTuple):
    """The end of one producer's transaction, to be written to the partitions."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_committed: bool
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


class ActiveProducer(NamedTuple):
    """What a partition remembers of a producer. The start offset of its open transaction is -1 if it has none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class ActiveProducers(NamedTuple):
    """The producers of one partition, or an `ErrorCode` value."""

    error: int
    producers: tuple[ActiveProducer, ...] = ()


class RecordError(NamedTuple):
    """Why the leader rejects one record of a batch (KIP-467). `batch_index` counts the batch's records from 0."""

    batch_index: int
    message: str | None = None


class AppendResult(NamedTuple):
    """The leader's answer to one append. `error` is an `ErrorCode` value."""

    error: int
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    log_start_offset: int = NO_OFFSET
    error_message: str | None = None
    record_errors: tuple[RecordError, ...] = ()


class FetchPartition(NamedTuple):
    """What a reader asks of one partition; `topic_id` (16 bytes) if it wants that topic and no other of its name."""

    topic_partition: TopicPartition
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = NO_LEADER_EPOCH
    last_fetched_epoch: int = NO_LEADER_EPOCH
    topic_id: bytes | None = None


class FetchResult(NamedTuple):
    """The leader's answer for one partition. Offsets are -1 where the error leaves them unknown.

    `records` is a slice of a segment file for a reader on the same node, bytes for one elsewhere, and
    None where there is nothing to read. `has_more`: a limit, or the end of a segment, has ended the records; so there
    are enough, whatever number of bytes the reader would wait for.
    """

    error: int
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None
    records: FileSlice | bytes | None = None
    has_more: bool = False

    @property
    def size(self) -> int:
        """Bytes of records in this answer."""
        if self.records is None:
            return 0
        return self.records.size if isinstance(self.records, FileSlice) else len(self.records)


class OffsetQuery(NamedTuple):
    """A look-up by timestamp (milliseconds since the epoch) or `OffsetSpec`.

    With `max_offsets` it asks for up to that many offsets at which segments begin, instead of one (ListOffsets 0).
    """

    topic_partition: TopicPartition
    timestamp: int
    current_leader_epoch: int = NO_LEADER_EPOCH
    max_offsets: int | None = None


class OffsetAnswer(NamedTuple):
    """The offset found, -1 if no record is at or after the timestamp asked for.

    `offsets`, in descending order, answer a query that asks for those of segments.
    """

    error: int
    offset: int = NO_OFFSET
    timestamp: int = NO_TIMESTAMP
    leader_epoch: int = NO_LEADER_EPOCH
    offsets: tuple[int, ...] = ()


class EpochQuery(NamedTuple):
    """Asks where `leader_epoch` ended (KIP-101)."""

    topic_partition: TopicPartition
    leader_epoch: int
    current_leader_epoch: int = NO_LEADER_EPOCH


class EpochEndOffset(NamedTuple):
    """The largest epoch not above the one asked for, and its exclusive end offset."""

    error: int
    leader_epoch: int = NO_LEADER_EPOCH
    end_offset: int = NO_OFFSET


class DeleteRecordsResult(NamedTuple):
    """The log start offset after the deletion."""

    error: int
    low_watermark: int = NO_OFFSET


class ReplicaDescription(NamedTuple):
    """One replica's share of a log directory (bytes), for DescribeLogDirs."""

    topic_partition: TopicPartition
    size: int
    offset_lag: int = 0
    is_future: bool = False


class LogDirDescription(NamedTuple):
    """One log directory; sizes in bytes. `strays` are the paths of partitions that the metadata does not know."""

    error: int
    path: str
    replicas: tuple[ReplicaDescription, ...] = ()
    total_bytes: int = -1
    usable_bytes: int = -1
    strays: tuple[str, ...] = ()
