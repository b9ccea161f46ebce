"""After a flush that failed the system shows bytes that are not on the device: nothing acknowledged rests on them."""

from __future__ import annotations

import errno
import os
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
