"""The requests of transactions and their responses, free of versions. Times are in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from rayka.coordinator.request import Request
from rayka.errors import ErrorCode
from rayka.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

NONE = ErrorCode.NONE
R = TypeVar("R")


class TransactionRequest(Request[R]):
    """A request about one transactional id."""

    __slots__ = ()

    transactional_id: str

    @property
    def coordinator_key(self) -> str:
        """The transactional id."""
        return self.transactional_id


@dataclass(frozen=True, slots=True)
class ProducerIdResponse:
    """`needs_producer_id`: nothing was done; the request is to come again with a `new_producer_id`."""

    error: ErrorCode = NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    needs_producer_id: bool = False


@dataclass(frozen=True, slots=True)
class InitProducerIdRequest(TransactionRequest[ProducerIdResponse]):
    """A producer begins. With an id and epoch it continues after an error, unless another has replaced it (KIP-360).

    While its last transaction is being ended, the request waits up to `max_wait_ms`; then CONCURRENT_TRANSACTIONS.
    """

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    is_two_phase: bool = False
    keeps_prepared: bool = False
    new_producer_id: int = NO_PRODUCER_ID
    max_wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class EndTxnRequest(TransactionRequest[ProducerIdResponse]):
    """Commit or abort. The response has the producer id and epoch for the next transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_committed: bool
    transaction_version: int = 0
    new_producer_id: int = NO_PRODUCER_ID


@dataclass(frozen=True, slots=True)
class AddPartitionsResponse:
    """An error for each partition, in the order of the request."""

    errors: tuple[ErrorCode, ...]


@dataclass(frozen=True, slots=True)
class AddPartitionsRequest(TransactionRequest[AddPartitionsResponse]):
    """Add partitions to the transaction, or verify that they are in it.

    While the markers of the transaction before are written the request waits up to `max_wait_ms`; then
    CONCURRENT_TRANSACTIONS.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    is_verify_only: bool = False
    transaction_version: int = 0
    max_wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class MarkersWrittenResponse:
    """NONE also if the transaction had ended before."""

    error: ErrorCode = NONE


@dataclass(frozen=True, slots=True)
class MarkersWrittenRequest(TransactionRequest[MarkersWrittenResponse]):
    """The coordinator's own: all markers of this id and epoch are written."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class ListedTransaction(NamedTuple):
    """One transactional id."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class ListTransactionsResponse:
    """The transactional ids of one coordinator, and the filters that name no state."""

    unknown_states: tuple[str, ...] = ()
    transactions: tuple[ListedTransaction, ...] = ()


@dataclass(frozen=True, slots=True)
class ListTransactionsRequest(Request[ListTransactionsResponse]):
    """Asks one coordinator for its transactional ids. Filters that are empty, negative or None let everything pass.

    `duration_ms`: only transactions that have been open longer, as of `now_ms` (wall clock).
    Raises INVALID_REGULAR_EXPRESSION for a malformed `pattern`.
    """

    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    duration_ms: int = -1
    pattern: str | None = None
    now_ms: int = 0


class DescribedTransaction(NamedTuple):
    """A transactional id and its open transaction. The start is -1 if there is none."""

    transactional_id: str
    error: ErrorCode = NONE
    state: str = ""
    timeout_ms: int = 0
    start_ms: int = NO_TIMESTAMP
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeTransactionResponse:
    """The transactional id, or TRANSACTIONAL_ID_NOT_FOUND."""

    transaction: DescribedTransaction


@dataclass(frozen=True, slots=True)
class DescribeTransactionRequest(TransactionRequest[DescribeTransactionResponse]):
    """Describe one transactional id."""

    transactional_id: str
