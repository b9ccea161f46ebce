"""Disks that refuse, take half, or forget: a log never answers for what it does not have."""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayka.config import LogConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.directory import disk_state
from rayka.storage.directory.disk_state import DiskState, State
from rayka.storage.directory.log_directory import PROBE_FILE, LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.storage.log.log import Log
from rayka.types import AbortedTransaction
from tests.support.descriptors import open_files
from tests.support.faulty_files import CrashingFiles, FaultyFiles, ShortWrites
from tests.support.logs import NOW_MS, ORDERS, append, batch, check_indexes, open_log, read_values
from tests.support.memory_disk import memory_path as memory_path

CONFIG = {"segment_bytes": 900, "index_interval_bytes": 50, "retention_bytes": 2000, "file_delete_delay_ms": 0}


def run(log: Log, acknowledged: dict[int, bytes], count: int = 24) -> None:
    """Work of every kind; what was acknowledged is noted as it happens."""
    for index in range(count):
        value = b"value %d" % index
        stamp = NOW_MS + index * 7 % 5
        info_offset = append(log, value, timestamp=stamp, producer_id=3, producer_epoch=0, base_sequence=index)
        acknowledged[info_offset] = value
        if index % 5 == 4:
            job = log.begin_flush()
            job.run()
            log.finish_flush(job)
        if index % 7 == 6:
            log.delete_old_segments(NOW_MS)
    log.close(NOW_MS)


def check(directory: Path, acknowledged: dict[int, bytes], **how: object) -> Log:
    """Opened with a sound disk, everything acknowledged above the log start is there."""
    log = open_log(directory, **CONFIG, **how)
    log.update_high_watermark(log.log_end_offset)
    read = read_values(log)
    expected = {offset: value for offset, value in acknowledged.items() if offset >= log.log_start_offset}
    assert {offset: value for offset, value in read.items() if offset in expected} == expected
    assert list(read) == list(range(log.log_start_offset, log.log_end_offset))
    assert append(log, b"next") == log.log_end_offset - 1
    log.close(NOW_MS)
    check_indexes(directory)
    return log


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """What fails inside fails with KAFKA_STORAGE_ERROR and no other way."""
    try:
        yield
    except RaykaError as failure:
        if failure.code is not ErrorCode.KAFKA_STORAGE_ERROR:
            raise


def calls_of_a_run(directory: Path) -> int:
    """How many calls of the file layer the work takes."""
    files = FaultyFiles()
    run(open_log(directory, files=files, **CONFIG), {})
    return files.calls


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("repeat", [1, 1 << 30], ids=["once", "for good"])
@pytest.mark.parametrize("same_boot", [True, False], ids=["same boot", "other boot"])
def test_a_failure_at_any_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, repeat: int, same_boot: bool
) -> None:
    """Every call fails in turn. The error is KAFKA_STORAGE_ERROR, and nothing acknowledged is lost.

    With calls that fail for good the files are as kill -9 leaves them between two calls.
    """
    monkeypatch.setattr("rayka.storage.segments.index.WRITE_BYTES", 16)
    monkeypatch.setattr("rayka.storage.log.recovery.CHECKED_BYTES", 50)
    for fail_at in range(1, calls_of_a_run(tmp_path / "dry") + 1):
        directory = tmp_path / str(fail_at)
        acknowledged: dict[int, bytes] = {}
        log = None
        with disk_errors():
            log = open_log(directory, files=FaultyFiles(fail_at, error, repeat), **CONFIG)
            run(log, acknowledged)
        if log is not None:
            log._local.release()
        check(directory, acknowledged, same_boot=same_boot)
        shutil.rmtree(directory)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOSPC])
def test_a_refused_append_leaves_the_log_as_it_was(tmp_path: Path, error: int) -> None:
    """A log that is used on after one failure gives no offset twice and leaves no gap."""
    for fail_at in range(1, 30):
        directory = tmp_path / str(fail_at)
        files, disk = FaultyFiles(), DiskState(str(directory))
        log = open_log(directory, files=files, disk=disk, **CONFIG)
        append(log, b"first")
        files.fail_at, files._error = files.calls + fail_at, error
        acknowledged = {0: b"first"}
        for index in range(20):
            before = (log.log_end_offset, log.size)
            value = b"value %d" % index
            with disk_errors():
                acknowledged[append(log, value)] = value
            disk.probe_succeeded()
            if value not in acknowledged.values():
                assert (log.log_end_offset, log.size) == before
        files.fail_at = 0
        log.update_high_watermark(log.log_end_offset)
        assert read_values(log) == acknowledged
        assert list(acknowledged) == list(range(len(acknowledged)))
        log.release()
        check(directory, acknowledged)
        shutil.rmtree(directory)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOSPC])
def test_a_refused_append_leaves_a_log_that_was_opened_again_as_it_was(tmp_path: Path, error: int) -> None:
    """The first appends after a restart read the indexes; a failure there gives no offset to two batches."""
    marker = build_end_transaction_marker(
        ControlType.ABORT, producer_id=3, producer_epoch=0, coordinator_epoch=0, now_ms=NOW_MS
    )
    for fail_at in range(1, 25):
        directory = tmp_path / str(fail_at)
        log = open_log(directory, **CONFIG)
        for index in range(3):
            append(log, b"first %d" % index)
        opening = batch(b"aborted", producer_id=3, producer_epoch=0, base_sequence=0, is_transactional=True)
        log.append_as_leader(opening, 0, NOW_MS, origin_is_client=False)
        log.close(NOW_MS)
        files, disk = FaultyFiles(), DiskState(str(directory))
        log = open_log(directory, files=files, disk=disk, clean_shutdown=True, **CONFIG)
        files.fail_at, files._error = files.calls + fail_at, error
        for records in (marker, batch(b"a" * 40), batch(b"b" * 41), batch(b"c" * 42), batch(b"d" * 43)):
            before = (log.log_end_offset, log.size)
            with disk_errors():
                log.append_as_leader(memoryview(bytearray(records)), 0, NOW_MS, origin_is_client=False)
                before = (log.log_end_offset, log.size)
            disk.probe_succeeded()
            assert (log.log_end_offset, log.size) == before
        files.fail_at = 0
        log.validate_state()
        shutil.rmtree(directory)


@pytest.mark.parametrize("most", [1, 7, 64])
def test_short_writes_are_carried_on(tmp_path: Path, most: int) -> None:
    acknowledged: dict[int, bytes] = {}
    run(open_log(tmp_path, files=ShortWrites(most), **CONFIG), acknowledged)
    check(tmp_path, acknowledged, clean_shutdown=True)


@pytest.mark.parametrize("seed", range(60))
def test_a_crash_of_the_machine_keeps_what_was_flushed(tmp_path: Path, seed: int) -> None:
    """Unsynced writes are lost, torn and reordered; what a finished flush covers is there, and no byte is wrong.

    Records are appended, and segments begun, between any two of a flush's begin, its work and its end.
    """
    chance = random.Random(seed)
    files = CrashingFiles()
    log = open_log(tmp_path, files=files, **{**CONFIG, "retention_bytes": -1})
    acknowledged = {}
    job, has_run = None, False
    for index in range(chance.randrange(1, 40)):
        value = b"value %d " % index * chance.randrange(1, 10)
        acknowledged[append(log, value, producer_id=3, producer_epoch=0, base_sequence=index)] = value
        if job is None and chance.random() < 0.25:
            job, has_run = log.begin_flush(), False
        if job is not None and not has_run and chance.random() < 0.5:
            job.run()
            has_run = True
        if job is not None and has_run and chance.random() < 0.3:
            log.finish_flush(job)
            job = None
    flushed = {offset: value for offset, value in acknowledged.items() if offset < log.recovery_point}
    recovery_point = log.recovery_point
    log.release()
    files.crash(chance)
    again = open_log(tmp_path, recovery_point=recovery_point, **CONFIG)
    again.update_high_watermark(again.log_end_offset)
    read = read_values(again)
    assert list(read) == list(range(len(read)))
    assert all(acknowledged[offset] == value for offset, value in read.items())
    assert {offset: read[offset] for offset in flushed} == flushed
    if read:
        last = batch(b"again", producer_id=3, producer_epoch=0, base_sequence=len(read) - 1)
        assert again.append_as_leader(last, 0, NOW_MS).is_duplicate
    assert append(again, b"on", producer_id=3, producer_epoch=0, base_sequence=len(read)) == len(read)
    again.release()
    check(tmp_path, flushed, recovery_point=recovery_point)


def after_power_cut(directory: Path, files: CrashingFiles, log: Log) -> dict[int, bytes | None]:
    """The records of the log as it is opened after losing everything that was not synced."""
    recovery_point = log.recovery_point
    log.release()
    files.lose_all()
    again = open_log(directory, recovery_point=recovery_point, **CONFIG)
    again.update_high_watermark(again.log_end_offset)
    return read_values(again)


def test_records_appended_between_the_begin_of_a_flush_and_a_roll_survive_a_power_cut(tmp_path: Path) -> None:
    files = CrashingFiles()
    log = open_log(tmp_path, files=files, **CONFIG)
    append(log, b"before the flush")
    job = log.begin_flush()
    append(log, b"during the flush")
    append(log, b"after the roll" * 50)
    assert len(list(tmp_path.glob("*.log"))) == 2
    job.run()
    log.finish_flush(job)
    assert log.recovery_point == 1
    log.flush()
    assert log.recovery_point == 3
    assert list(after_power_cut(tmp_path, files, log)) == [0, 1, 2]


def test_segments_that_were_never_flushed_before_a_kill_are_flushed_after_it(tmp_path: Path) -> None:
    files = CrashingFiles()
    log = open_log(tmp_path, files=files, **CONFIG)
    for index in range(20):
        append(log, b"value %d" % index)
    log.release()
    again = open_log(tmp_path, files=files, same_boot=True, **CONFIG)
    again.flush()
    assert again.recovery_point == 20
    assert list(after_power_cut(tmp_path, files, again)) == list(range(20))


def test_the_first_flush_of_a_new_partition_keeps_its_directory(tmp_path: Path) -> None:
    files = CrashingFiles()
    log = open_log(tmp_path / "orders-0", files=files, topic_id=uuid.UUID(int=7), **CONFIG)
    append(log, b"acknowledged after a flush")
    log.flush()
    assert after_power_cut(tmp_path / "orders-0", files, log) == {0: b"acknowledged after a flush"}
    assert open_log(tmp_path / "orders-0").topic_id == uuid.UUID(int=7)


def test_a_failed_flush_is_never_taken_for_done(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = open_log(tmp_path, files=files)
    append(log, b"a")
    job = log.begin_flush()
    files.fail_at = files.calls + 1
    job.run()
    with pytest.raises(RaykaError) as failed:
        log.finish_flush(job)
    assert failed.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.recovery_point == 0


def test_an_error_takes_the_directory_and_all_its_logs_offline(tmp_path: Path) -> None:
    files = FaultyFiles()
    directory = LogDirectory.open(str(tmp_path / "bad"), files, now_ms=NOW_MS)
    healthy = LogDirectory.open(str(tmp_path / "good"), RealFiles(), now_ms=NOW_MS)
    one = directory.open_log(ORDERS, None, LogConfig(), now_ms=NOW_MS)
    two = directory.open_log(ORDERS._replace(partition=1), None, LogConfig(), now_ms=NOW_MS)
    other = healthy.open_log(ORDERS, None, LogConfig(), now_ms=NOW_MS)
    append(two, b"a")
    files.fail_at = files.calls + 1
    for call in (
        lambda: append(one, b"a"),
        lambda: append(two, b"a"),
        lambda: two.read(0, 1, 1),
        lambda: two.begin_flush(),
        lambda: directory.checkpoint([one, two]),
        lambda: directory.open_log(ORDERS._replace(partition=2), None, LogConfig(), now_ms=NOW_MS),
        lambda: directory.close([one, two], now_ms=NOW_MS),
    ):
        with pytest.raises(RaykaError) as refused:
            call()
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert directory.disk.state is State.OFFLINE
    assert append(other, b"a") == 0
    assert healthy.disk.state is State.ONLINE


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
def test_a_full_disk_serves_reads_and_takes_appends_again_when_there_is_room(tmp_path: Path, error: int) -> None:
    files = FaultyFiles(error=error)
    directory = LogDirectory.open(str(tmp_path), files, now_ms=NOW_MS)
    log = directory.open_log(ORDERS, None, LogConfig(), now_ms=NOW_MS)
    directory.opened()
    append(log, b"before")
    files.fail_at = files.calls + 1
    with pytest.raises(RaykaError, match="KAFKA_STORAGE_ERROR"):
        append(log, b"refused")
    with pytest.raises(RaykaError, match="failing"):
        append(log, b"refused")
    assert read_values(log) == {0: b"before"}
    files.fail_at = files.calls + 1
    with pytest.raises(RaykaError, match="KAFKA_STORAGE_ERROR"):
        directory.probe()
    assert directory.disk.state is State.FAILING
    directory.probe()
    assert directory.disk.state is State.ONLINE
    assert append(log, b"after") == 1
    assert read_values(log) == {0: b"before", 1: b"after"}


class ForgettingFiles(FaultyFiles):
    """What is written to a probe can't be read back."""

    def read_file(self, path: str) -> bytes:
        data = super().read_file(path)
        return bytes(len(data) - 1) + b"x" if path.endswith(PROBE_FILE) else data


def test_a_disk_is_well_again_only_if_a_probe_was_written_flushed_and_read(tmp_path: Path) -> None:
    """Whichever of these steps finds no room, the disk takes no appends yet."""
    files = FaultyFiles(error=errno.ENOSPC)
    directory = LogDirectory.open(str(tmp_path), files, now_ms=NOW_MS)
    directory.opened()
    synced: list[int] = []
    sync = files.sync
    files.sync = lambda descriptor: (synced.append(descriptor), sync(descriptor))[1]  # type: ignore[method-assign]
    for step in range(1, 40):
        directory.disk.failed(OSError(errno.ENOSPC, "full"))
        files.fail_at = files.calls + step
        synced.clear()
        with disk_errors():
            directory.probe()
        if files.calls < files.fail_at:
            break
        assert directory.disk.state is State.FAILING, step
    assert step > 5
    assert directory.disk.state is State.ONLINE
    assert synced


def test_a_disk_that_reads_something_else_than_was_written_is_offline(tmp_path: Path) -> None:
    directory = LogDirectory.open(str(tmp_path), ForgettingFiles(), now_ms=NOW_MS)
    directory.disk.failed(OSError(errno.ENOSPC, "full"))
    with pytest.raises(RaykaError, match="KAFKA_STORAGE_ERROR"):
        directory.probe()
    assert directory.disk.state is State.OFFLINE


def test_retention_frees_a_full_disk(tmp_path: Path) -> None:
    """Old segments are deleted while nothing can be written; a rename that finds no room becomes a removal."""
    files = FaultyFiles(error=errno.ENOSPC)
    directory = LogDirectory.open(str(tmp_path), files, now_ms=NOW_MS)
    log = directory.open_log(ORDERS, None, LogConfig(internal_segment_bytes=200, retention_ms=-1), now_ms=NOW_MS)
    for _ in range(5):
        append(log, b"x" * 50)
    log.write_snapshots()
    files.fail_at, files._repeat = files.calls + 1, 1 << 40
    with pytest.raises(RaykaError, match="KAFKA_STORAGE_ERROR"):
        append(log, b"refused")
    log.delete_records(4)
    deletion = log.delete_segments(log.deletable_segments(NOW_MS), NOW_MS)
    assert deletion is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FaultyFiles, "remove", RealFiles.remove)
        directory.rename_deleted(deletion)
    assert len(list((tmp_path / "orders-0").glob("*.log*"))) == 1


def test_a_failed_flush_takes_even_a_full_disk_offline(tmp_path: Path) -> None:
    """The system may have thrown away what it could not write, and would call the next flush a success."""
    files, disk = FaultyFiles(error=errno.ENOSPC), DiskState(str(tmp_path))
    log = open_log(tmp_path, files=files, disk=disk)
    append(log, b"a")
    log.flush()
    append(log, b"b")
    job = log.begin_flush()
    files.fail_at = files.calls + 1
    job.run()
    with pytest.raises(RaykaError, match="Flush failed"):
        log.finish_flush(job)
    disk.probe_succeeded()
    assert disk.state is State.OFFLINE


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
def test_aborted_transactions_are_hidden_when_the_disk_was_full_at_their_end(tmp_path: Path, error: int) -> None:
    files, disk = FaultyFiles(error=error), DiskState(str(tmp_path))
    log = open_log(tmp_path, files=files, disk=disk, internal_segment_bytes=400)
    opening = batch(b"aborted", producer_id=3, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append_as_leader(opening, 0, NOW_MS, origin_is_client=False)
    files.fail_at = files.calls + 2  # the marker itself is written
    marker = build_end_transaction_marker(
        ControlType.ABORT, producer_id=3, producer_epoch=0, coordinator_epoch=0, now_ms=NOW_MS
    )
    with disk_errors():
        log.append_as_leader(marker, 0, NOW_MS, origin_is_client=False)
    with disk_errors():
        append(log, b"x" * 300)
    disk.probe_succeeded()
    append(log, b"x" * 300)
    assert len(list(tmp_path.glob("*.log"))) == 2
    for again in (log, open_log(tmp_path)):
        again.update_high_watermark(again.log_end_offset)
        assert again.aborted_transactions(0, again.read(0, 1, 2)) == (AbortedTransaction(3, 0),)


def test_a_failed_roll_leaves_no_descriptor_open(tmp_path: Path) -> None:
    files, disk = FaultyFiles(error=errno.ENOSPC), DiskState(str(tmp_path))
    log = open_log(tmp_path, files=files, disk=disk, internal_segment_bytes=400)
    append(log, b"x" * 300)
    before = open_files(tmp_path)
    for step in range(1, 12):
        files.fail_at = files.calls + step
        with disk_errors():
            append(log, b"x" * 300)
            break
        disk.probe_succeeded()
    assert step > 1
    assert open_files(tmp_path) <= before + 2  # the new active segment, the old one until its flush


def test_a_probe_that_ends_while_a_flush_fails_leaves_the_disk_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = DiskState("/data")
    disk.failed(OSError(errno.ENOSPC, "full"))
    flush = threading.Thread(target=disk.flush_failed, args=(OSError(errno.EIO, "flush"),))

    class Interrupted(dict):  # type: ignore[type-arg]
        """The flush fails just after the probe looked up what to change to."""

        def get(self, key: object, default: object = None) -> object:
            if flush.ident is None:
                flush.start()
                flush.join(timeout=0.2)  # as far as it gets: to its end, or to the lock
            return super().get(key, default)

    monkeypatch.setattr(disk_state, "TRANSITIONS", Interrupted(disk_state.TRANSITIONS))
    disk.probe_succeeded()
    flush.join()
    assert disk.state is State.OFFLINE
    assert not disk.takes_appends
