"""A producer whose transaction the coordinator aborts in the last epoch of its id (KAFKA-20090)."""

from __future__ import annotations

from rayka.coordinator.transactions.metadata import MAX_EPOCH, TransactionMetadata
from rayka.coordinator.transactions.records import TransactionRecord
from rayka.coordinator.transactions.requests import ProducerIdResponse
from rayka.errors import ErrorCode
from tests.unit.coordinator.transactions.test_transaction_coordinator import ORDERS, Shell

NONE = ErrorCode.NONE


def in_last_epoch() -> tuple[Shell, ProducerIdResponse]:
    """A producer with an open transaction in the last epoch."""
    shell = Shell(TransactionRecord("t", TransactionMetadata(7, MAX_EPOCH - 2, 60_000, 0)))
    last = shell.init()
    assert last == ProducerIdResponse(NONE, 7, MAX_EPOCH - 1)
    assert shell.add(last, ORDERS, transaction_version=2) == (NONE,)
    return shell, last


def loaded_again(shell: Shell) -> Shell:
    """The next coordinator, which knows what is in the log."""
    return Shell(TransactionRecord("t", shell.core.transactions["t"]))


def test_a_producer_goes_on_with_a_new_id_after_a_timeout() -> None:
    """It was taken for one that is fenced. It gets its answer again, also from the next coordinator."""
    shell, last = in_last_epoch()
    shell.pass_time(60_000)
    assert shell.end(last, commits=False, version=2).error is ErrorCode.CONCURRENT_TRANSACTIONS
    shell.write_markers()
    shell = loaded_again(shell)
    assert shell.end(last, commits=True, version=2).error is ErrorCode.PRODUCER_FENCED
    after = shell.end(last, commits=False, version=2)
    assert after == ProducerIdResponse(NONE, 501, 0)
    (markers,) = shell.write_markers()
    assert (markers.producer_id, markers.producer_epoch, markers.partitions) == (7, MAX_EPOCH, ())
    shell = loaded_again(shell)
    assert shell.end(last, commits=False, version=2) == after
    assert shell.end(last, commits=True, version=2).error is ErrorCode.PRODUCER_FENCED
    assert shell.add(after, ORDERS, transaction_version=2) == (NONE,)
    assert shell.end(last, commits=False, version=2).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_producer_that_was_replaced_gets_no_new_id() -> None:
    shell, last = in_last_epoch()
    shell.init()
    shell.write_markers()
    successor = shell.init()
    assert successor == ProducerIdResponse(NONE, 500, 0)
    assert shell.end(last, commits=False, version=2).error is ErrorCode.PRODUCER_FENCED
    shell.add(successor, ORDERS, transaction_version=2)
    assert shell.end(last, commits=False, version=2).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_successor_has_precedence_over_a_producer_that_gets_a_new_id() -> None:
    shell, last = in_last_epoch()
    shell.init()
    shell.write_markers()
    after = shell.end(last, commits=False, version=2)
    shell.write_markers()
    assert shell.init() == ProducerIdResponse(NONE, after.producer_id, 1)
    assert shell.add(after, ORDERS, transaction_version=2) == (ErrorCode.PRODUCER_FENCED,)
    assert shell.end(last, commits=False, version=2).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
