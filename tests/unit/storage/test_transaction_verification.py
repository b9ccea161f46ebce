"""A delayed batch or marker never touches a later transaction (KIP-890, KIP-1228)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.files import RealFiles
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.storage.log.log import Log
from rayka.storage.producers.state import ProducerState
from rayka.storage.producers.verification import Verification
from tests.support.logs import NOW_MS, batch, open_log

PRODUCER = 0
"""The first id that a cluster gives."""


def begin(log: Log, epoch: int = 0, sequence: int = 0) -> Verification:
    verification = log.begin_verification(PRODUCER, epoch, sequence, NOW_MS)
    assert verification is not None
    return verification


def send(log: Log, verification: Verification | None, epoch: int = 0, sequence: int = 0) -> int:
    data = batch(b"v", producer_id=PRODUCER, producer_epoch=epoch, base_sequence=sequence, is_transactional=True)
    offset = log.append_as_leader(data, 0, NOW_MS, verification=verification).base_offset
    log.update_high_watermark(log.log_end_offset)
    return offset


def mark(log: Log, epoch: int = 0, version: int = 0) -> None:
    marker = build_end_transaction_marker(
        ControlType.COMMIT, producer_id=PRODUCER, producer_epoch=epoch, coordinator_epoch=0, now_ms=NOW_MS
    )
    log.append_as_leader(marker, 0, NOW_MS, origin_is_client=False, transaction_version=version)
    log.update_high_watermark(log.log_end_offset)


def refusal(log: Log, verification: Verification | None, epoch: int = 0, sequence: int = 0) -> ErrorCode:
    before = log.log_end_offset
    with pytest.raises(RaykaError) as refused:
        send(log, verification, epoch, sequence)
    assert log.log_end_offset == before
    return refused.value.code


def test_a_transaction_begins_with_a_verified_batch_and_goes_on_without(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert refusal(log, None) is ErrorCode.INVALID_TXN_STATE
    send(log, begin(log))
    assert log.begin_verification(PRODUCER, 0, 1, NOW_MS) is None
    send(log, None, sequence=1)
    assert log.last_stable_offset == 0
    mark(log)
    assert log.last_stable_offset == 3
    assert refusal(log, None, sequence=2) is ErrorCode.INVALID_TXN_STATE


def test_a_batch_that_was_verified_before_the_marker_comes_too_late(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    delayed = begin(log)
    mark(log)
    assert refusal(log, delayed) is ErrorCode.INVALID_TXN_STATE
    again = begin(log)
    assert refusal(log, delayed) is ErrorCode.INVALID_TXN_STATE
    send(log, again)


def test_no_later_batch_takes_the_place_of_a_producers_first(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log, sequence=0)
    assert refusal(log, begin(log, sequence=5), sequence=5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(log, begin(log, sequence=0))


def test_a_batch_that_overtakes_the_first_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    early = begin(log, sequence=5)
    first = begin(log, sequence=0)
    assert refusal(log, early, sequence=5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(log, first)


def test_each_epoch_has_a_first_batch_of_its_own(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log, sequence=0)
    early = begin(log, epoch=1, sequence=4)
    begin(log, epoch=0, sequence=2)
    first = begin(log, epoch=1, sequence=3)
    assert refusal(log, early, epoch=1, sequence=4) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(log, first, epoch=1, sequence=3)


def test_a_transaction_at_the_first_offset_is_open(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, begin(log))
    with pytest.raises(RaykaError) as refused:
        mark(log, epoch=0, version=2)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(RaykaError) as refused:
        log.append_as_leader(batch(b"v", producer_id=PRODUCER, producer_epoch=0, base_sequence=1), 0, NOW_MS)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    assert (
        log.append_as_leader(
            batch(b"v", producer_id=PRODUCER, producer_epoch=0, base_sequence=0, is_transactional=True), 0, NOW_MS
        ).base_offset
        == 0
    ), "a repeat of the first batch"
    assert log.log_end_offset == 1


def test_a_coordinator_writes_only_to_the_open_transaction_of_the_present_epoch(tmp_path: Path) -> None:
    """Its batches, such as offsets in a transaction, have no sequence."""
    log = open_log(tmp_path)
    stale = begin(log)
    mark(log, epoch=1, version=2)
    for verification in (stale, None):
        with pytest.raises(RaykaError) as refused:
            send_own(log, verification, epoch=0)
        assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(RaykaError) as refused:
        send_own(log, stale, epoch=1)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    send_own(log, begin(log, epoch=1), epoch=1)
    send_own(log, None, epoch=1)
    assert log.last_stable_offset == 1


def send_own(log: Log, verification: Verification | None, epoch: int) -> None:
    data = batch(b"v", producer_id=PRODUCER, producer_epoch=epoch, base_sequence=0, is_transactional=True)
    log.append_as_leader(data, 0, NOW_MS, origin_is_client=False, verification=verification)
    log.update_high_watermark(log.log_end_offset)


def test_a_delayed_marker_does_not_end_the_next_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, begin(log))
    mark(log, epoch=1, version=2)
    mark(log, epoch=1, version=2)
    send(log, begin(log, epoch=1), epoch=1)
    with pytest.raises(RaykaError) as refused:
        mark(log, epoch=1, version=2)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.last_stable_offset == 3
    mark(log, epoch=2, version=2)
    assert log.last_stable_offset == log.log_end_offset


def test_the_next_transaction_may_begin_while_the_marker_of_the_one_before_is_on_its_way(tmp_path: Path) -> None:
    """A client with transaction version 2 sends its next batch as soon as the outcome is decided."""
    log = open_log(tmp_path)
    send(log, begin(log))
    following = begin(log, epoch=1)
    mark(log, epoch=1, version=2)
    mark(log, epoch=1, version=2)
    assert send(log, following, epoch=1) == 3
    assert log.last_stable_offset == 3


def test_the_end_of_a_transaction_ends_its_verification(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    delayed = begin(log)
    mark(log, epoch=1, version=2)
    assert refusal(log, delayed) in (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH)
    delayed = begin(log, epoch=1)
    assert begin(log, epoch=9) is delayed, "somebody else used the producer id"
    mark(log, epoch=1, version=0)
    assert refusal(log, delayed, epoch=1) is ErrorCode.INVALID_TXN_STATE


def test_a_producer_of_which_nothing_comes_is_forgotten(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    verification = begin(log)
    log.remove_expired_producers(NOW_MS + 2 * 86_400_000)
    assert refusal(log, verification) is ErrorCode.INVALID_TXN_STATE
    refused = begin(log)
    log.end_verification(PRODUCER, refused)
    assert refusal(log, refused) is ErrorCode.INVALID_TXN_STATE


def test_a_producer_with_an_open_transaction_never_expires(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, begin(log))
    log.remove_expired_producers(NOW_MS + 365 * 86_400_000)
    assert log.last_stable_offset == 0
    mark(log, epoch=1, version=2)
    assert log.last_stable_offset == 2


def test_records_are_stable_when_the_marker_is_replicated(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, begin(log))
    marker = build_end_transaction_marker(
        ControlType.COMMIT, producer_id=PRODUCER, producer_epoch=1, coordinator_epoch=0, now_ms=NOW_MS
    )
    log.append_as_leader(marker, 0, NOW_MS, origin_is_client=False, transaction_version=2)
    assert log.last_stable_offset == 0
    send(log, begin(log, epoch=1), epoch=1)
    assert log.last_stable_offset == 2


def test_many_open_transactions_do_not_slow_down_readers(tmp_path: Path) -> None:
    """Each fetch asks for the last stable offset, also one of uncommitted records."""
    state = ProducerState(RealFiles(), str(tmp_path))
    state.ongoing = {offset: offset for offset in range(7, 100_007)}
    began_s = time.process_time()
    assert {state.first_unstable_offset for _ in range(2_000)} == {7}
    assert time.process_time() - began_s < 1
