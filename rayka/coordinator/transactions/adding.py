"""Which partitions may be added to a transaction, and which are in it."""

from __future__ import annotations

from rayka.coordinator.transactions.metadata import MAX_EPOCH, TransactionMetadata
from rayka.coordinator.transactions.requests import AddPartitionsRequest, AddPartitionsResponse
from rayka.errors import ErrorCode
from rayka.types import NO_PRODUCER_ID

NONE = ErrorCode.NONE


def check_addition(metadata: TransactionMetadata | None, request: AddPartitionsRequest) -> ErrorCode:
    """Whether a producer may add partitions, or ask for them.

    With a new id, of which only its EndTxn has told it, it waits for the markers of the old one.
    """
    if not request.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if metadata is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producer = request.producer_id, request.producer_epoch
    if metadata.next_producer_id != NO_PRODUCER_ID and producer == metadata.next_producer:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if metadata.producer_id != request.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if metadata.producer_epoch != request.producer_epoch or request.producer_epoch == MAX_EPOCH:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.CONCURRENT_TRANSACTIONS if metadata.state.is_prepared else NONE


def verified(metadata: TransactionMetadata, request: AddPartitionsRequest) -> AddPartitionsResponse:
    """TRANSACTION_ABORTABLE for each partition that is not in the open transaction; without one there are none."""
    return AddPartitionsResponse(
        tuple(
            NONE if partition in metadata.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for partition in request.partitions
        )
    )
