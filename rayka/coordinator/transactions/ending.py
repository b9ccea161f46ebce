"""What EndTxn may do in each state, and how repeated requests are recognized (KIP-890).

With transaction version 2 the epoch tells one transaction from the next: a request with the epoch before is a repeat,
and one with the present epoch belongs to a transaction that has not been ended. The version is that of the request,
as a client may change it between two transactions, when the level of the feature changes.
"""

from __future__ import annotations

from typing import NamedTuple

from rayka.coordinator.transactions.metadata import FIRST_WITH_EPOCH_BUMP, MAX_EPOCH, TransactionMetadata
from rayka.coordinator.transactions.requests import EndTxnRequest
from rayka.coordinator.transactions.state import COMPLETE_ABORT, COMPLETE_COMMIT, EMPTY, ONGOING, PREPARE_COMMIT
from rayka.errors import ErrorCode, RaykaError

_OUTCOMES = {True: COMPLETE_COMMIT, False: COMPLETE_ABORT}


class Repeat(NamedTuple):
    """Whether the request was carried out before: the epoch was bumped since, or the producer id replaced."""

    of_epoch: bool = False
    of_producer_id: bool = False

    @classmethod
    def of(cls, metadata: TransactionMetadata, request: EndTxnRequest) -> Repeat:
        """An older client's request can't be told from that for its next transaction.

        If the last transaction was one of an older client, its end has bumped no epoch: a new producer has.
        """
        if min(request.transaction_version, metadata.client_transaction_version) < FIRST_WITH_EPOCH_BUMP:
            return cls()
        same_id = metadata.producer_id == request.producer_id
        was_replaced = metadata.previous_producer_id == request.producer_id and metadata.producer_epoch == 0
        return cls(
            metadata.producer_epoch == request.producer_epoch + 1,
            not same_id and was_replaced and request.producer_epoch == MAX_EPOCH - 1,
        )


def _has_epoch_bump(request: EndTxnRequest) -> bool:
    return request.transaction_version >= FIRST_WITH_EPOCH_BUMP


def begins_to_end(metadata: TransactionMetadata, request: EndTxnRequest) -> bool:
    """Whether the outcome is to be decided now; False for the repeat of a request that has been carried out.

    Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS while markers are written, and
    INVALID_TXN_STATE. With an epoch for each transaction, those of the next one wait for the markers too (KAFKA-18464).
    """
    producer = request.producer_id, request.producer_epoch
    if metadata.state.is_prepared and _has_epoch_bump(request) and producer == metadata.next_producer:
        raise RaykaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    repeat = Repeat.of(metadata, request)
    _check_producer(metadata, request, repeat)
    is_repeat = any(repeat)
    if metadata.state is ONGOING:
        return True
    if metadata.state.is_prepared:
        has_outcome = (metadata.state is PREPARE_COMMIT) is request.is_committed
        if has_outcome or (is_repeat and request.is_committed):
            raise RaykaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        raise RaykaError(ErrorCode.INVALID_TXN_STATE)
    return _begins_when_idle(metadata, request, is_repeat=is_repeat)


def _check_producer(metadata: TransactionMetadata, request: EndTxnRequest, repeat: Repeat) -> None:
    if metadata.producer_id != request.producer_id and not repeat.of_producer_id:
        raise RaykaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    has_epoch = metadata.producer_epoch == request.producer_epoch
    if not _has_epoch_bump(request) or metadata.state in (ONGOING, EMPTY):
        is_valid = has_epoch
    elif metadata.state.is_prepared:
        is_valid = repeat.of_epoch
    else:
        is_valid = any(repeat) or has_epoch
    if not is_valid or request.producer_epoch == MAX_EPOCH:
        raise RaykaError(ErrorCode.PRODUCER_FENCED)


def _begins_when_idle(metadata: TransactionMetadata, request: EndTxnRequest, *, is_repeat: bool) -> bool:
    """No transaction is open: a repeat gets the answer again, and with version 2 an abort of nothing is allowed.

    What looks like the repeat of a commit after an abort is the first one, too late: the coordinator has aborted the
    transaction itself (KAFKA-20785). If that has used up the epochs, the abort that follows gives a new producer id.
    """
    has_outcome = metadata.state is _OUTCOMES[request.is_committed]
    if has_outcome and (is_repeat or not _has_epoch_bump(request)):
        return metadata.producer_epoch == MAX_EPOCH
    if _has_epoch_bump(request) and not is_repeat and not request.is_committed:
        return True
    if is_repeat and request.is_committed:
        raise RaykaError(ErrorCode.PRODUCER_FENCED)
    raise RaykaError(ErrorCode.INVALID_TXN_STATE)
