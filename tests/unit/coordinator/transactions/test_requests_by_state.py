"""Which answer EndTxn and AddPartitionsToTxn get in each state, by the epoch that the producer has (KIP-890).

Source: KIP-890, "EndTxn", and the answers of Kafka 4.4.
"""

from __future__ import annotations

import dataclasses

import pytest

from rayka.coordinator.transactions.adding import check_addition, verified
from rayka.coordinator.transactions.ending import begins_to_end
from rayka.coordinator.transactions.metadata import MAX_EPOCH, TransactionMetadata
from rayka.coordinator.transactions.requests import AddPartitionsRequest, EndTxnRequest
from rayka.coordinator.transactions.state import TransactionState
from rayka.errors import ErrorCode, RaykaError
from rayka.types import TopicPartition

NONE, FENCED, OTHER_ID = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING
WRONG_STATE, CONCURRENT = ErrorCode.INVALID_TXN_STATE, ErrorCode.CONCURRENT_TRANSACTIONS
ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 0)
LAST = MAX_EPOCH - 1
"""The last epoch of a producer; a transaction that begins in it ends in `MAX_EPOCH`."""

EMPTY = TransactionMetadata(7, 5, 1000, 0)
ONGOING = EMPTY.add_partitions(frozenset({ORDERS}), 2, 0)
COMMITTING = ONGOING.decide(is_committed=True, transaction_version=2, next_producer_id=-1, now_ms=0)
COMMITTED = COMMITTING.complete(0)
OLD_COMMITTING = ONGOING.decide(is_committed=True, transaction_version=0, next_producer_id=-1, now_ms=0)
OLD_COMMITTED = OLD_COMMITTING.complete(0)
ABORTING = ONGOING.fence(0)
ABORTED = dataclasses.replace(COMMITTED, state=TransactionState.COMPLETE_ABORT)
IN_LAST_EPOCH = dataclasses.replace(ONGOING, producer_epoch=LAST)
ROTATING = IN_LAST_EPOCH.decide(is_committed=True, transaction_version=2, next_producer_id=8, now_ms=0)
ROTATED = ROTATING.complete(0)
TIMED_OUT = IN_LAST_EPOCH.fence(0).complete(0)

BEGINS = True
"""The outcome is decided now."""
REPEATS = False
"""The request was carried out before, and is answered as it was then."""


@pytest.mark.parametrize(
    ("metadata", "producer", "on_commit", "on_abort"),
    [
        (EMPTY, (7, 5), WRONG_STATE, BEGINS),
        (EMPTY, (7, 4), FENCED, FENCED),
        (EMPTY, (8, 5), OTHER_ID, OTHER_ID),
        (ONGOING, (7, 5), BEGINS, BEGINS),
        (ONGOING, (7, 4), FENCED, FENCED),
        (ONGOING, (7, 6), FENCED, FENCED),
        (ONGOING, (8, 5), OTHER_ID, OTHER_ID),
        (COMMITTING, (7, 5), CONCURRENT, WRONG_STATE),
        (COMMITTING, (7, 6), CONCURRENT, CONCURRENT),  # the next transaction waits for the markers (KAFKA-18464)
        (COMMITTING, (7, 4), FENCED, FENCED),
        (COMMITTED, (7, 5), REPEATS, WRONG_STATE),
        (COMMITTED, (7, 6), WRONG_STATE, BEGINS),
        (COMMITTED, (7, 4), FENCED, FENCED),
        (COMMITTED, (7, 7), FENCED, FENCED),
        (COMMITTED, (8, 5), OTHER_ID, OTHER_ID),
        (ABORTING, (7, 5), CONCURRENT, CONCURRENT),  # the coordinator has aborted it meanwhile (KAFKA-20785)
        (ABORTED, (7, 5), FENCED, REPEATS),  # INVALID_TXN_STATE would be fatal for Kafka Streams (KAFKA-20785)
        (ABORTED, (7, 6), WRONG_STATE, BEGINS),
        (ROTATING, (7, LAST), CONCURRENT, WRONG_STATE),
        (ROTATING, (8, 0), CONCURRENT, CONCURRENT),  # as does that of the next producer id (KAFKA-18464)
        (ROTATING, (8, 1), OTHER_ID, OTHER_ID),
        (ROTATED, (7, LAST), REPEATS, WRONG_STATE),
        (ROTATED, (7, LAST - 1), OTHER_ID, OTHER_ID),
        (ROTATED, (9, LAST), OTHER_ID, OTHER_ID),
        (ROTATED, (8, 0), WRONG_STATE, BEGINS),
        (ROTATED, (8, LAST), FENCED, FENCED),
        (dataclasses.replace(OLD_COMMITTED, producer_epoch=0), (7, LAST), FENCED, FENCED),
        (dataclasses.replace(ROTATED, producer_epoch=1), (7, LAST), OTHER_ID, OTHER_ID),
        (TIMED_OUT, (7, LAST), FENCED, BEGINS),  # an abort of nothing, which gives it a new id (KAFKA-20090)
        (TIMED_OUT, (7, MAX_EPOCH), FENCED, FENCED),
    ],
)
def test_transactions_with_epochs_of_their_own(
    metadata: TransactionMetadata, producer: tuple[int, int], on_commit: bool | ErrorCode, on_abort: bool | ErrorCode
) -> None:
    assert [end(metadata, producer, commits, version=2) for commits in (True, False)] == [on_commit, on_abort]


@pytest.mark.parametrize(
    ("metadata", "producer", "on_commit", "on_abort"),
    [
        (EMPTY, (7, 5), WRONG_STATE, WRONG_STATE),
        (ONGOING, (7, 5), BEGINS, BEGINS),
        (ONGOING, (7, 4), FENCED, FENCED),
        (OLD_COMMITTING, (7, 5), CONCURRENT, WRONG_STATE),
        (OLD_COMMITTING, (7, 4), FENCED, FENCED),
        (OLD_COMMITTED, (7, 5), REPEATS, WRONG_STATE),
        (OLD_COMMITTED, (7, 4), FENCED, FENCED),
        (ROTATED, (7, LAST), OTHER_ID, OTHER_ID),
    ],
)
def test_transactions_of_older_clients(
    metadata: TransactionMetadata, producer: tuple[int, int], on_commit: bool | ErrorCode, on_abort: bool | ErrorCode
) -> None:
    assert [end(metadata, producer, commits, version=0) for commits in (True, False)] == [on_commit, on_abort]


def end(metadata: TransactionMetadata, producer: tuple[int, int], commits: bool, version: int) -> bool | ErrorCode:
    try:
        return begins_to_end(metadata, EndTxnRequest("t", *producer, commits, version))
    except RaykaError as refused:
        return refused.code


@pytest.mark.parametrize(
    ("metadata", "producer", "error"),
    [
        (None, (7, 5), OTHER_ID),
        (EMPTY, (7, 5), NONE),
        (EMPTY, (7, 4), FENCED),
        (EMPTY, (8, 5), OTHER_ID),
        (EMPTY, (-1, 0), OTHER_ID),
        (ONGOING, (7, 5), NONE),
        (COMMITTING, (7, 6), CONCURRENT),
        (COMMITTING, (7, 5), FENCED),
        (COMMITTED, (7, 6), NONE),
        (ROTATING, (8, 0), CONCURRENT),
        (ROTATING, (8, 1), OTHER_ID),
        (ROTATING, (9, 0), OTHER_ID),
        (ROTATED, (8, 0), NONE),
        (ROTATED, (7, LAST), OTHER_ID),
        (TIMED_OUT, (7, MAX_EPOCH), FENCED),
    ],
)
def test_partitions_are_added_by_the_producer_of_the_present_epoch(
    metadata: TransactionMetadata | None, producer: tuple[int, int], error: ErrorCode
) -> None:
    assert check_addition(metadata, AddPartitionsRequest("t", *producer, (ORDERS,))) is error
    assert check_addition(metadata, AddPartitionsRequest("", *producer, (ORDERS,))) is ErrorCode.INVALID_REQUEST


def test_partitions_are_verified_in_an_open_transaction_alone() -> None:
    request = AddPartitionsRequest("t", 7, 6, (ORDERS, PAYMENTS), is_verify_only=True)
    assert verified(ONGOING, request).errors == (NONE, ErrorCode.TRANSACTION_ABORTABLE)
    assert verified(COMMITTED, request).errors == (ErrorCode.TRANSACTION_ABORTABLE,) * 2
