"""Partitions that are set aside as stray, and come back."""

from __future__ import annotations

import contextlib
import errno
import uuid
from pathlib import Path

import pytest

from rayka.config import LogConfig
from rayka.errors import RaykaError
from rayka.storage.directory.disk_state import State
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.log.log import Log
from tests.support.faulty_files import FaultyFiles
from tests.support.full_disk import FullDisk
from tests.support.logs import NOW_MS, ORDERS, append, read_values
from tests.support.memory_disk import memory_path as memory_path

TOPIC_ID = uuid.UUID("0c706bbf-b9a6-483a-9aa2-a53a5dd0570a")


def start(path: Path, files: RealFiles) -> LogDirectory:
    """The directory, none of whose partitions is open yet."""
    return LogDirectory.open(str(path), files, now_ms=NOW_MS)


def open_log(directory: LogDirectory, topic_id: uuid.UUID = TOPIC_ID) -> Log:
    """The log of `orders-0`."""
    return directory.open_log(ORDERS, topic_id, LogConfig(), now_ms=NOW_MS)


def deleted_up_to(directory: LogDirectory, offset: int) -> Log:
    """A log of six records, of which the first ones were deleted."""
    log = open_log(directory)
    directory.opened()
    for number in range(6):
        append(log, b"%d" % number)
    log.delete_records(offset)
    directory.write_log_starts([log])
    return log


def kept(log: Log) -> list[int]:
    """The offsets that a reader gets."""
    log.update_high_watermark(log.log_end_offset)
    return list(read_values(log))


@pytest.mark.parametrize("how", ["open", "not open", "topic made anew"])
def test_deleted_records_do_not_come_back_with_the_files(tmp_path: Path, how: str) -> None:
    directory = start(tmp_path, RealFiles())
    log = deleted_up_to(directory, 4)
    if how == "not open":
        directory.close([log], now_ms=NOW_MS)
        directory = start(tmp_path, RealFiles())
    if how == "topic made anew":
        directory.set_aside(ORDERS)
        other = open_log(directory, uuid.UUID(int=9))
        append(other, b"other")
        assert kept(other) == [0]
    directory.set_aside(ORDERS)
    directory.release()
    directory = start(tmp_path, RealFiles())
    assert kept(open_log(directory)) == [4, 5]
    directory.release()
    assert kept(open_log(start(tmp_path, RealFiles()))) == [4, 5]


def test_files_are_set_aside_on_a_full_disk_too(tmp_path: Path) -> None:
    files = FullDisk()
    directory = start(tmp_path, files)
    deleted_up_to(directory, 4)
    files.is_full = True
    stray = directory.set_aside(ORDERS)
    assert directory.stray_partitions == [stray]
    files.is_full = False
    assert kept(open_log(directory))[-1] == 5


def test_deleted_records_do_not_come_back_where_one_call_to_the_disk_fails(tmp_path: Path) -> None:
    """Neither while the files are set aside nor while they come back."""
    number, is_reached = 0, True
    while is_reached:
        number += 1
        path = tmp_path / str(number)
        files = FaultyFiles()
        directory = start(path, files)
        deleted_up_to(directory, 4)
        files.calls, files.fail_at = 0, number
        with contextlib.suppress(RaykaError):
            directory.set_aside(ORDERS)
            open_log(directory)
        is_reached = files.calls >= number
        directory.release()
        assert kept(open_log(start(path, RealFiles()))) == [4, 5], number
    assert number > 20


def test_what_could_not_be_taken_back_leaves_its_offsets_to_no_other_topic(tmp_path: Path) -> None:
    number, is_reached = 0, True
    while is_reached:
        number += 1
        path = tmp_path / str(number)
        files = FaultyFiles(error=errno.EMFILE)
        directory = start(path, files)
        deleted_up_to(directory, 4)
        directory.set_aside(ORDERS)
        files.calls, files.fail_at = 0, number
        with contextlib.suppress(RaykaError):
            open_log(directory).release()
        is_reached, files.fail_at = files.calls >= number, 0
        directory.probe()
        directory.delete_unopened(ORDERS, TOPIC_ID, "deleted")
        other = open_log(directory, uuid.UUID(int=9))
        append(other, b"other")
        assert kept(other) == [0], number
        directory.release()
        assert kept(open_log(start(path, RealFiles()), uuid.UUID(int=9))) == [0], number
    assert number > 20


class ForeignDirectory(RealFiles):
    """The directory of `orders-0` belongs to another user: it can be renamed, and nothing can be made in it."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        self._check(path, is_change=create and not self.exists(path))
        return super().open(path, create=create, read_only=read_only)

    def remove_if_present(self, path: str) -> None:
        self._check(path, is_change=True)
        super().remove_if_present(path)

    def _check(self, path: str, *, is_change: bool) -> None:
        if is_change and Path(path).parent.name == str(ORDERS):
            raise PermissionError(errno.EACCES, "Permission denied", path)


def test_files_of_another_user_are_set_aside_and_the_directory_stays_online(tmp_path: Path) -> None:
    directory = start(tmp_path, RealFiles())
    directory.close([deleted_up_to(directory, 4)], now_ms=NOW_MS)
    directory = start(tmp_path, ForeignDirectory())
    stray = directory.set_aside(ORDERS)
    assert directory.stray_partitions == [stray]
    assert directory.disk.state is State.ONLINE
