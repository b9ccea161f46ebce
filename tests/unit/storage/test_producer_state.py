"""What idempotent producers rely on: no duplicate, no gap, no zombie (KIP-98, KIP-360)."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.storage.log.appends import AppendInfo
from rayka.storage.log.log import Log
from rayka.types import AbortedTransaction
from tests.support.faulty_files import FaultyFiles
from tests.support.logs import NOW_MS, append, batch, open_log, read_values

MAX_SEQUENCE = (1 << 31) - 1


def send(log: Log, sequence: int, *values: bytes, epoch: int = 0, producer_id: int = 9, **how: bool) -> AppendInfo:
    """One batch of an idempotent producer; in a transaction, as a coordinator lets it in."""
    data = batch(*(values or (b"x",)), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **how)
    info = log.append_as_leader(data, 0, NOW_MS, origin_is_client=not how.get("is_transactional"))
    log.update_high_watermark(log.log_end_offset)
    return info


def mark(
    log: Log, control_type: ControlType, *, epoch: int = 0, producer_id: int = 9, coordinator_epoch: int = 0
) -> int:
    """The end of a transaction."""
    marker = build_end_transaction_marker(
        control_type,
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        now_ms=NOW_MS,
    )
    info = log.append_as_leader(marker, 0, NOW_MS, origin_is_client=False)
    log.update_high_watermark(log.log_end_offset)
    return info.base_offset


def refusal(log: Log, sequence: int, epoch: int = 0) -> ErrorCode:
    """The error of a batch that is refused; nothing is appended."""
    before = log.log_end_offset
    with pytest.raises(RaykaError) as refused:
        send(log, sequence, epoch=epoch)
    assert log.log_end_offset == before
    return refused.value.code


def test_the_last_five_batches_are_known_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    sent = [send(log, sequence, b"a", b"b") for sequence in range(0, 14, 2)]
    for again, first in zip(range(4, 14, 2), sent[2:], strict=True):
        info = send(log, again, b"a", b"b")
        assert (info.is_duplicate, info.base_offset, info.last_offset) == (True, first.base_offset, first.last_offset)
    for forgotten in (0, 2):
        assert refusal(log, forgotten) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(read_values(log)) == 14


@pytest.mark.parametrize("stops", [(), ("kill",), ("clean",), ("kill", "clean")])
def test_a_repeat_is_answered_with_the_time_at_which_the_batch_was_appended(
    tmp_path: Path, stops: tuple[str, ...]
) -> None:
    config = {"message_timestamp_type": "LogAppendTime"}
    log = open_log(tmp_path, **config)
    sent = [batch(b"x", producer_id=9, producer_epoch=0, base_sequence=sequence) for sequence in (0, 1)]
    for number, data in enumerate(sent):
        log.append_as_leader(bytearray(data), 0, NOW_MS + number)
    for stop in stops:
        if stop == "clean":
            log.close(NOW_MS + 1)
        log = open_log(tmp_path, clean_shutdown=stop == "clean", now_ms=NOW_MS + 2, **config)
    for number, data in enumerate(sent):
        repeated = log.append_as_leader(bytearray(data), 0, NOW_MS + 3)
        assert (repeated.is_duplicate, repeated.log_append_time_ms) == (True, NOW_MS + number)


def test_gaps_and_partial_repeats_are_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, b"a", b"b")
    assert refusal(log, 3) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(log, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(log, 0) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 2).base_offset == 2


def test_sequences_wrap_to_zero(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, MAX_SEQUENCE - 1, b"a", b"b", b"c")
    assert send(log, MAX_SEQUENCE - 1, b"a", b"b", b"c").is_duplicate
    assert refusal(log, 2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 1).base_offset == 3
    other = open_log(tmp_path / "other")
    send(other, MAX_SEQUENCE)
    assert refusal(other, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(other, 0).base_offset == 1


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0)
    assert refusal(log, 1, epoch=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 0, epoch=1).base_offset == 1
    assert refusal(log, 1, epoch=0) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_producer_that_is_not_known_may_begin_anywhere(tmp_path: Path) -> None:
    assert send(open_log(tmp_path), 77).base_offset == 0


def test_batches_of_one_append_follow_each_other(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    two = batch(b"a", producer_id=9, producer_epoch=0, base_sequence=0)
    gap = two + batch(b"b", producer_id=9, producer_epoch=0, base_sequence=5)
    with pytest.raises(RaykaError) as refused:
        log.append_as_leader(gap, 0, NOW_MS)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.append_as_leader(two + batch(b"b", producer_id=9, producer_epoch=0, base_sequence=1), 0, NOW_MS)
    assert send(log, 1).is_duplicate
    assert send(log, 2).base_offset == 2


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("same_boot", [True, False])
def test_a_restart_forgets_nothing_that_matters(tmp_path: Path, clean: bool, same_boot: bool) -> None:
    log = open_log(tmp_path, segment_bytes=400)
    for sequence in range(8):
        send(log, sequence)
        send(log, sequence, producer_id=10, epoch=3)
    if clean:
        log.close(NOW_MS)
    again = open_log(tmp_path, segment_bytes=400, clean_shutdown=clean, same_boot=same_boot)
    assert send(again, 7).base_offset == 14
    assert send(again, 8).base_offset == 16
    assert send(again, 8, producer_id=10, epoch=3).base_offset == 17
    assert refusal(again, 12) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("stop", ["killed", "stopped"])
@pytest.mark.parametrize("sent", range(1, 16))
def test_each_of_the_last_five_batches_is_known_again_after_a_restart(tmp_path: Path, stop: str, sent: int) -> None:
    """Whether the last snapshot of the producers was taken before, between or after them."""
    log = open_log(tmp_path, internal_segment_bytes=400)
    first = [send(log, sequence, producer_id=11).base_offset for sequence in range(2)]
    offsets = [send(log, sequence).base_offset for sequence in range(sent)]
    log.close(NOW_MS) if stop == "stopped" else log.release()
    again = open_log(tmp_path, internal_segment_bytes=400, clean_shutdown=stop == "stopped")
    for sequence in range(max(0, sent - 5), sent):
        info = send(again, sequence)
        assert (info.is_duplicate, info.base_offset) == (True, offsets[sequence])
    assert [send(again, sequence, producer_id=11).base_offset for sequence in range(2)] == first


@pytest.mark.parametrize("stop", ["killed", "stopped"])
def test_a_producer_of_old_records_is_known_again_after_a_restart(tmp_path: Path, stop: str) -> None:
    """A backfill sends records that are a year old; the producer is as new as any other."""
    old = batch(b"x", timestamp=NOW_MS - 365 * 86_400_000, producer_id=9, producer_epoch=0, base_sequence=0)
    log = open_log(tmp_path)
    log.append_as_leader(bytearray(old), 0, NOW_MS)
    log.remove_expired_producers(NOW_MS + 1000)
    log.close(NOW_MS) if stop == "stopped" else log.release()
    again = open_log(tmp_path, clean_shutdown=stop == "stopped", now_ms=NOW_MS + 1000)
    assert again.append_as_leader(bytearray(old), 0, NOW_MS + 1000).is_duplicate


def test_a_producer_expires_while_the_broker_is_down(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0)
    log.close(NOW_MS)
    again = open_log(tmp_path, clean_shutdown=True, now_ms=NOW_MS + 86_400_000)
    assert send(again, 5).base_offset == 1


def test_producers_expire(tmp_path: Path) -> None:
    log = open_log(tmp_path, producer_id_expiration_ms=1000)
    send(log, 0)
    log.remove_expired_producers(NOW_MS + 999)
    assert refusal(log, 5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.remove_expired_producers(NOW_MS + 1000)
    assert send(log, 5).base_offset == 1


def test_truncation_restores_the_producer_state(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    for sequence in range(10):
        send(log, sequence)
    log.truncate_to(4)
    assert refusal(log, 9) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 4).base_offset == 4


def test_the_last_stable_offset_waits_for_open_transactions(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, producer_id=1)
    send(log, 0, is_transactional=True)
    send(log, 0, producer_id=11, is_transactional=True)
    send(log, 1, producer_id=1)
    assert (log.last_stable_offset, log.high_watermark) == (1, 4)
    with pytest.raises(RaykaError) as refused:
        send(log, 1)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    assert mark(log, ControlType.ABORT) == 4
    assert log.last_stable_offset == 2
    mark(log, ControlType.COMMIT, producer_id=11)
    assert log.last_stable_offset == log.high_watermark == 6
    assert log.aborted_transactions(0, log.read(0, 1, 6)) == (AbortedTransaction(9, 1),)
    assert log.aborted_transactions(5, log.read(5, 1, 6)) == ()
    with pytest.raises(RaykaError) as refused:
        mark(log, ControlType.ABORT, coordinator_epoch=-1)
    assert refused.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_only_a_batch_of_an_open_transaction_is_transactional(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    transactional = batch(b"x", producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    with pytest.raises(RaykaError) as refused:
        log.append_as_leader(transactional, 0, NOW_MS)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    assert (log.log_end_offset, log.last_stable_offset) == (0, 0)
    send(log, 0, is_transactional=True)
    next_one = batch(b"y", producer_id=9, producer_epoch=0, base_sequence=1, is_transactional=True)
    assert log.append_as_leader(next_one, 0, NOW_MS).base_offset == 1


@pytest.mark.parametrize("clean", [True, False])
def test_transactions_outlast_a_restart(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path, segment_bytes=400)
    for sequence in range(3):
        send(log, sequence, is_transactional=True)
    mark(log, ControlType.ABORT)
    send(log, 3, is_transactional=True)
    index = next(tmp_path.glob("*.txnindex")).read_bytes()
    if clean:
        log.close(NOW_MS)
    again = open_log(tmp_path, segment_bytes=400, clean_shutdown=clean)
    again.update_high_watermark(again.log_end_offset)
    assert again.last_stable_offset == 4
    assert again.aborted_transactions(0, again.read(0, 1, 5)) == (AbortedTransaction(9, 0),)
    assert [path.read_bytes() for path in tmp_path.glob("*.txnindex")] == [index]
    mark(again, ControlType.COMMIT)
    assert again.last_stable_offset == again.log_end_offset


@pytest.mark.parametrize("restarts", [True, False])
def test_a_reader_is_told_only_of_the_aborted_transactions_that_it_may_meet(tmp_path: Path, restarts: bool) -> None:
    how = {"segment_bytes": 2000, "index_interval_bytes": 200}
    log = open_log(tmp_path, **how)
    for sequence in range(100):
        send(log, sequence, is_transactional=True)
        mark(log, ControlType.ABORT)
    if restarts:
        log.close(NOW_MS)
        log = open_log(tmp_path, **how, clean_shutdown=True)
        log.update_high_watermark(log.log_end_offset)
    for offset in range(0, 200, 2):
        records = log.read(offset, 300, log.last_stable_offset)
        told = log.aborted_transactions(offset, records)
        assert told[0] == AbortedTransaction(9, offset)
        assert len(told) < 8


def test_a_reader_of_a_log_without_aborted_transactions_opens_no_file_for_them(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=200)
    for _ in range(50):
        append(log, b"value")
    log.close(NOW_MS)
    files = FaultyFiles()
    log = open_log(tmp_path, segment_bytes=200, clean_shutdown=True, files=files)
    log.update_high_watermark(log.log_end_offset)
    records = log.read(0, 100, 50)
    log.aborted_transactions(0, records)
    before = files.calls
    assert log.aborted_transactions(0, records) == ()
    assert files.calls == before
