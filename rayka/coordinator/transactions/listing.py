"""ListTransactions and DescribeTransactions (KIP-664, KIP-1152)."""

from __future__ import annotations

from collections.abc import Mapping

from rayka.coordinator.topics import compile_pattern
from rayka.coordinator.transactions.metadata import TransactionMetadata
from rayka.coordinator.transactions.requests import (
    DescribedTransaction,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from rayka.coordinator.transactions.state import DEAD, TransactionState
from rayka.errors import ErrorCode
from rayka.types import NO_TIMESTAMP

_STATES = {state.title: state for state in TransactionState}


def list_transactions(
    transactions: Mapping[str, TransactionMetadata], request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """The transactional ids that pass every filter. If every state filter is unknown, none does."""
    known = {_STATES[name] for name in request.states if name in _STATES}
    unknown = tuple(name for name in request.states if name not in _STATES)
    if unknown and not known:
        return ListTransactionsResponse(unknown)
    pattern = compile_pattern(request.pattern, "TransactionalIdPattern") if request.pattern else None
    listed = tuple(
        ListedTransaction(transactional_id, metadata.producer_id, metadata.state.title)
        for transactional_id, metadata in sorted(transactions.items())
        if _passes(metadata, known, request) and (pattern is None or pattern.fullmatch(transactional_id))
    )
    return ListTransactionsResponse(unknown, listed)


def _passes(metadata: TransactionMetadata, states: set[TransactionState], request: ListTransactionsRequest) -> bool:
    if metadata.state is DEAD or (states and metadata.state not in states):
        return False
    if request.producer_ids and metadata.producer_id not in request.producer_ids:
        return False
    if request.duration_ms < 0:
        return True
    return metadata.start_ms != NO_TIMESTAMP and request.now_ms - metadata.start_ms > request.duration_ms


def describe(transactional_id: str, metadata: TransactionMetadata | None) -> DescribedTransaction:
    """One transactional id."""
    if not transactional_id:
        return DescribedTransaction(transactional_id, ErrorCode.INVALID_REQUEST)
    if metadata is None:
        return DescribedTransaction(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return DescribedTransaction(
        transactional_id,
        ErrorCode.NONE,
        metadata.state.title,
        metadata.timeout_ms,
        metadata.start_ms,
        metadata.producer_id,
        metadata.producer_epoch,
        tuple(sorted(metadata.partitions)),
    )
