"""After a flush that failed the system shows bytes that are not on the device: nothing acknowledged rests on them."""

from __future__ import annotations

import errno
import logging
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from rayka.config import LogConfig
from rayka.errors import RaykaError
from rayka.storage.directory import boot_record
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import Buffer
from rayka.storage.log.log import Log
from rayka.types import TopicPartition
from tests.support.forgetful_system import ForgetfulSystem
from tests.support.logs import NOW_MS, ORDERS, append, read_values
from tests.support.memory_disk import memory_path as memory_path

PAYMENTS = TopicPartition("payments", 0)
CONFIG = LogConfig(flush_messages=1, index_interval_bytes=0)
LONG = b"flushed" * 4096
"""So long that only who checks the log reads it to its end."""


@pytest.fixture(name="files")
def forgetful_system() -> ForgetfulSystem:
    return ForgetfulSystem()


def start(path: Path, files: RealFiles, *topic_partitions: TopicPartition) -> tuple[LogDirectory, list[Log]]:
    directory = LogDirectory.open(str(path), files, now_ms=NOW_MS)
    logs = [directory.open_log(each, None, CONFIG, now_ms=NOW_MS) for each in topic_partitions]
    directory.opened()
    return directory, logs


def kill(directory: LogDirectory, logs: list[Log]) -> None:
    for log in logs:
        log.release()
    directory.release()


def fail_to_flush(files: ForgetfulSystem, log: Log) -> None:
    files.fails = True
    with pytest.raises(RaykaError, match="Flush failed"):
        log.flush()


def after_power_cut(path: Path, files: ForgetfulSystem, monkeypatch: pytest.MonkeyPatch) -> dict[int, bytes | None]:
    files.cut_power()
    monkeypatch.setattr(boot_record, "_read_boot_id", lambda _: "another boot")
    (log,) = start(path, files, ORDERS)[1]
    log.update_high_watermark(log.log_end_offset)
    return read_values(log)


def test_a_flush_after_a_restart_covers_what_one_before_it_could_not_write(
    tmp_path: Path, files: ForgetfulSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, logs = start(tmp_path, files, ORDERS)
    append(logs[0], b"flushed")
    logs[0].flush()
    append(logs[0], b"in doubt")
    fail_to_flush(files, logs[0])
    kill(directory, logs)
    directory, logs = start(tmp_path, files, ORDERS)
    append(logs[0], b"acknowledged")
    logs[0].flush()
    directory.checkpoint(logs)
    kill(directory, logs)
    assert list(after_power_cut(tmp_path, files, monkeypatch).values()) == [b"flushed", b"in doubt", b"acknowledged"]


def test_what_was_checked_is_written_again_and_not_what_the_device_has(
    tmp_path: Path, files: ForgetfulSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may drop from memory what it takes for written, and read something else from the device."""
    directory, logs = start(tmp_path, files, ORDERS)
    append(logs[0], LONG)
    logs[0].flush()
    append(logs[0], b"in doubt")
    logs[0].roll(NOW_MS)
    fail_to_flush(files, logs[0])
    kill(directory, logs)
    files.evicts = True
    directory, logs = start(tmp_path, files, ORDERS)
    append(logs[0], b"acknowledged")
    logs[0].flush()
    directory.checkpoint(logs)
    kill(directory, logs)
    assert list(after_power_cut(tmp_path, files, monkeypatch).values()) == [LONG, b"in doubt", b"acknowledged"]


class FullSystem(ForgetfulSystem):
    """With the flush that fails it has no room for more files."""

    is_full = False

    def write_file(self, path: str, data: Buffer, *, sync: bool = False) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write_file(path, data, sync=sync)


def test_a_flush_that_fails_on_a_full_disk_is_noted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note needs no room: the record of the boot gets another name."""
    files = FullSystem()
    directory, logs = start(tmp_path, files, ORDERS)
    append(logs[0], b"in doubt")
    files.is_full = True
    fail_to_flush(files, logs[0])
    kill(directory, logs)
    files.is_full = False
    kill(*start(tmp_path, files, PAYMENTS))
    directory, logs = start(tmp_path, files, ORDERS, PAYMENTS)
    append(logs[0], b"acknowledged")
    logs[0].flush()
    directory.checkpoint(logs)
    kill(directory, logs)
    later = LogDirectory.open(str(tmp_path), files, now_ms=NOW_MS)
    assert later._boot.is_same_boot, "everything was written again"
    later.release()
    assert list(after_power_cut(tmp_path, files, monkeypatch).values()) == [b"in doubt", b"acknowledged"]


def test_a_partition_that_is_opened_later_is_written_again_too(
    tmp_path: Path, files: ForgetfulSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, logs = start(tmp_path, files, ORDERS)
    append(logs[0], b"in doubt")
    fail_to_flush(files, logs[0])
    kill(directory, logs)
    kill(*start(tmp_path, files, PAYMENTS))
    directory, logs = start(tmp_path, files, ORDERS, PAYMENTS)
    append(logs[0], b"acknowledged")
    logs[0].flush()
    directory.checkpoint(logs)
    kill(directory, logs)
    assert list(after_power_cut(tmp_path, files, monkeypatch).values()) == [b"in doubt", b"acknowledged"]


def test_a_stop_whose_flush_fails_is_noted(
    tmp_path: Path, files: ForgetfulSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, logs = start(tmp_path, files, ORDERS)
    append(logs[0], b"in doubt")
    files.fails = True
    with pytest.raises(RaykaError, match="Flush failed"):
        directory.close(logs, now_ms=NOW_MS)
    kill(directory, logs)
    directory, logs = start(tmp_path, files, ORDERS)
    append(logs[0], b"acknowledged")
    directory.close(logs, now_ms=NOW_MS)
    assert list(after_power_cut(tmp_path, files, monkeypatch).values()) == [b"in doubt", b"acknowledged"]


def test_the_note_is_gone_when_every_log_was_written_again(tmp_path: Path, files: ForgetfulSystem) -> None:
    directory, logs = start(tmp_path, files, ORDERS)
    append(logs[0], b"in doubt")
    fail_to_flush(files, logs[0])
    kill(directory, logs)
    directory, logs = start(tmp_path, files, ORDERS)
    assert not directory._boot.is_same_boot
    kill(directory, logs)
    assert LogDirectory.open(str(tmp_path), files, now_ms=NOW_MS)._boot.is_same_boot


class Interleaved(ForgetfulSystem):
    """While a file of this name is written, or what it replaces is removed, a flush fails in another thread."""

    def __init__(self, moment: str) -> None:
        super().__init__()
        self._moment = moment
        self.directory: LogDirectory | None = None
        self.thread = threading.Thread()

    def _reach(self, moment: str, path: str) -> None:
        if moment == self._moment and boot_record.BOOT_ID_FILE in path and self.directory is not None:
            error = OSError(errno.EIO, os.strerror(errno.EIO))
            self.thread = threading.Thread(target=self.directory.disk.flush_failed, args=(error,))
            self.directory = None
            self.thread.start()
            self.thread.join(0.2)  # as far as it gets: to its end, or to the lock

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        self._reach("open", path)
        return super().open(path, create=create, read_only=read_only)

    def rename(self, source: str, target: str) -> None:
        self._reach("rename", target)
        super().rename(source, target)

    def remove_if_present(self, path: str) -> None:
        self._reach("remove", path)
        super().remove_if_present(path)


@pytest.mark.parametrize("moment", ["open", "rename", "remove"])
def test_the_note_stays_when_the_record_is_written_at_the_same_time(tmp_path: Path, moment: str) -> None:
    files = Interleaved(moment)
    directory, logs = start(tmp_path, files, ORDERS)
    files.directory = directory
    directory._begin_writing()
    files.thread.join()
    kill(directory, logs)
    later = LogDirectory.open(str(tmp_path), RealFiles(), now_ms=NOW_MS)
    assert later._boot.is_flush_failed
    later.release()


def test_the_note_stays_when_the_record_is_written_afterwards(tmp_path: Path, files: ForgetfulSystem) -> None:
    """A probe that had begun before writes it."""
    directory, logs = start(tmp_path, files, ORDERS)
    append(logs[0], b"in doubt")
    fail_to_flush(files, logs[0])
    directory._begin_writing()
    kill(directory, logs)
    later = LogDirectory.open(str(tmp_path), files, now_ms=NOW_MS)
    assert later._boot.is_flush_failed
    later.release()


class ReadOnlySystem(RealFiles):
    """The kernel makes it read-only, as after a write that the device refused."""

    is_read_only = False

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        self._check(not read_only)
        return super().open(path, create=create, read_only=read_only)

    def rename(self, source: str, target: str) -> None:
        self._check(True)
        super().rename(source, target)

    def _check(self, changes: bool) -> None:
        if changes and self.is_read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_note_that_a_read_only_file_system_does_not_take_is_logged_with_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = ReadOnlySystem()
    directory, logs = start(tmp_path, files, ORDERS)
    append(logs[0], b"in doubt")
    files.is_read_only = True
    for _ in range(2):
        with caplog.at_level(logging.ERROR), pytest.raises(RaykaError, match="Read-only file system"):
            logs[0].flush()
    kill(directory, logs)
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{tmp_path}/boot-id can't note ([Errno 30] Read-only file system) that records may not be on the disk: "
        "delete this file, or reboot, before the next start"
    )


class RefusingSystem(RealFiles):
    """The device refuses a write or a new file, and the file system gives up what it had not written yet."""

    fails = False

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        if self.fails and create and path.endswith(".log"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().open(path, create=create, read_only=read_only)

    def write(self, descriptor: int, buffer: Buffer, position: int) -> int:
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().write(descriptor, buffer, position)


@pytest.mark.parametrize("refused", ["write", "new segment"])
def test_after_an_append_that_the_device_refused_the_next_start_checks_what_the_system_had_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    monkeypatch.setattr("rayka.storage.segments.index.WRITE_BYTES", 8)  # indexes that a start relies on
    monkeypatch.setattr("rayka.storage.log.recovery.CHECKED_BYTES", 100)
    files = RefusingSystem()
    directory, logs = start(tmp_path, files, ORDERS)
    for _ in range(6):
        append(logs[0], LONG)
    if refused == "new segment":
        logs[0].configure(replace(CONFIG, segment_bytes=6 * len(LONG)))
    files.fails = True
    with pytest.raises(RaykaError, match="Input/output error"):
        append(logs[0], LONG)
    kill(directory, logs)
    with Path(logs[0].segments[0].path).open("r+b") as segment:
        segment.seek(len(LONG) // 2)
        segment.write(bytes(4096))
    assert start(tmp_path, RealFiles(), ORDERS)[1][0].log_end_offset == 0


def test_of_two_flushes_at_a_time_none_counts_when_one_failed(tmp_path: Path, files: ForgetfulSystem) -> None:
    """The system tells only one of them that bytes were lost."""
    log = start(tmp_path, files, ORDERS)[1][0]
    append(log, b"in doubt")
    failing, other = log.begin_flush(), log.begin_flush()
    files.fails = True
    failing.run()
    other.run()
    assert (failing.error is None, other.error) == (False, None)
    with pytest.raises(RaykaError):
        log.finish_flush(other)
    assert log.recovery_point == 0
