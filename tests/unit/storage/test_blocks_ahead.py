"""A log that grows fast gets blocks of the file system ahead, and nobody sees it but who asks for them."""

from __future__ import annotations

import asyncio
import errno
import os
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from rayka.actors.replica.disk import DiskThread
from rayka.actors.replica.maintenance import LogUpkeep
from rayka.actors.replica.server import ReplicaServer
from rayka.config import BrokerConfig, LogConfig
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage import fallocate
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.fallocate import is_ext4
from rayka.storage.files import RealFiles
from rayka.storage.log.log import Log
from rayka.storage.segments.blocks_ahead import FAST_MS, IDLE_MS, STEP_BYTES
from tests.support.logs import NOW_MS, ORDERS, append, open_log, read_values

VALUE = bytes(900_000)
LARGE = 1 << 30


class NotedFiles(RealFiles):
    """Notes up to which position blocks were set aside and how logs were cut.

    `error` is what setting aside raises, `cut_error` what cutting does.
    """

    def __init__(self, error: int = 0) -> None:
        self.ends: list[int] = []
        self.cuts: list[int] = []
        self.cut_error = 0
        self._error = error

    def set_blocks_aside(self, descriptor: int, position: int, size: int) -> bool:  # type: ignore[override]
        if self._error:
            raise OSError(self._error, os.strerror(self._error))
        self.ends.append(position + size)
        return True

    def truncate(self, descriptor: int, size: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".log"):
            if self.cut_error:
                raise OSError(self.cut_error, os.strerror(self.cut_error))
            self.cuts.append(size)
        super().truncate(descriptor, size)


def open_large(directory: Path, files: RealFiles, **how: object) -> Log:
    return open_log(directory, files=files, **{"segment_bytes": LARGE, **how})


def grow(log: Log, size: int, *, ms_between: int = 0, now_ms: int = NOW_MS) -> int:
    """Append until the log has `size` bytes; the time after that."""
    while log.size < size:
        append(log, VALUE, now_ms=now_ms)
        now_ms += ms_between
    return now_ms


def test_a_log_that_grows_fast_always_has_blocks_for_the_next_append(tmp_path: Path) -> None:
    files = NotedFiles()
    log = open_large(tmp_path, files)
    grow(log, STEP_BYTES + len(VALUE))
    while log.size < 4 * STEP_BYTES:
        append(log, VALUE)
        assert log.size <= files.ends[-1] <= log.size + STEP_BYTES
    assert len(files.ends) == 3
    assert os.stat(log.segments[-1].path).st_size == log.size
    assert len(read_values(log)) == log.log_end_offset


def test_a_slow_log_gets_no_blocks(tmp_path: Path) -> None:
    files = NotedFiles()
    appends_a_step = STEP_BYTES // len(VALUE)
    grow(open_large(tmp_path, files), 4 * STEP_BYTES, ms_between=FAST_MS // appends_a_step + 100)
    assert files.ends == []


def test_no_blocks_are_set_aside_behind_the_end_of_a_segment(tmp_path: Path) -> None:
    files = NotedFiles()
    segment_bytes = STEP_BYTES + STEP_BYTES // 2
    log = open_large(tmp_path, files, segment_bytes=segment_bytes)
    grow(log, 4 * STEP_BYTES)
    assert max(files.ends) <= segment_bytes


def test_the_flush_after_a_roll_gives_back_what_was_not_needed(tmp_path: Path) -> None:
    """The roll itself would wait while the segment is written to the device, and so would all appends."""
    files = NotedFiles()
    log = open_large(tmp_path, files)
    grow(log, 2 * STEP_BYTES)
    size = log.size
    log.roll(NOW_MS)
    assert files.cuts == []
    log.flush()
    assert files.cuts == [size]
    append(log, VALUE)
    log.roll(NOW_MS)
    log.flush()
    assert files.cuts == [size, log.segments[1].size], "a log that was fast is fast in its next segment too"


def test_a_log_that_became_slow_gives_its_blocks_back_when_it_is_flushed(tmp_path: Path) -> None:
    files = NotedFiles()
    log = open_large(tmp_path, files)
    now_ms = grow(log, 2 * STEP_BYTES)
    assert not log.has_idle_blocks(now_ms + IDLE_MS)
    assert log.has_idle_blocks(now_ms + IDLE_MS + 1)
    log.flush()
    log.give_back_blocks(now_ms + IDLE_MS + 1)
    assert files.cuts == [], "a cut waits for a flush of the same file that is under way"
    assert not log.has_idle_blocks(now_ms + IDLE_MS + 2)
    log.flush()
    assert files.cuts == [log.size]
    assert not log.has_idle_blocks(now_ms + 3 * IDLE_MS)
    append(log, b"last")
    log.flush()
    assert len(files.cuts) == 1
    assert read_values(log)[log.log_end_offset - 1] == b"last"


def test_blocks_are_not_given_back_while_the_end_of_the_log_waits_to_be_written(tmp_path: Path) -> None:
    """The system may write it to the device at any time, and a cut would wait for that."""
    files = NotedFiles()
    log = open_large(tmp_path, files)
    now_ms = grow(log, 2 * STEP_BYTES)
    log.give_back_blocks(now_ms + IDLE_MS + 1)
    job = log.begin_flush()
    job.run()
    append(log, b"last")
    log.finish_flush(job)
    assert files.cuts == []
    assert log.has_idle_blocks(now_ms + 2 * IDLE_MS + 2), "it is tried again, but not at once"
    log.flush()
    assert files.cuts == [log.size]
    assert read_values(log)[log.log_end_offset - 1] == b"last"


def test_a_log_that_becomes_fast_again_keeps_its_blocks(tmp_path: Path) -> None:
    files = NotedFiles()
    log = open_large(tmp_path, files)
    now_ms = grow(log, 2 * STEP_BYTES)
    log.give_back_blocks(now_ms + IDLE_MS + 1)
    grow(log, 5 * STEP_BYTES, now_ms=now_ms + IDLE_MS + 2)
    log.flush()
    assert files.cuts == []


def test_a_log_that_used_its_blocks_up_slowly_has_none(tmp_path: Path) -> None:
    log = open_large(tmp_path, NotedFiles())
    now_ms = grow(log, 2 * STEP_BYTES)
    now_ms = grow(log, 4 * STEP_BYTES, now_ms=now_ms + FAST_MS, ms_between=FAST_MS)
    assert not log.has_idle_blocks(now_ms + 2 * IDLE_MS)


def test_the_upkeep_gives_the_blocks_of_a_slow_log_back(tmp_path: Path) -> None:
    async def test() -> None:
        files, thread, replicas = NotedFiles(), DiskThread(), Replicas()
        directory = LogDirectory.open(str(tmp_path), files, now_ms=0)
        log = directory.open_log(ORDERS, uuid.uuid4(), LogConfig(segment_bytes=LARGE), now_ms=0)
        grow(log, 2 * STEP_BYTES)
        replicas.add(Partition(log, log.topic_id))
        server = ReplicaServer(replicas, directory, thread)
        settings = BrokerConfig.parse({"log.flush.scheduler.interval.ms": "1"})
        upkeep = LogUpkeep(replicas, directory, thread, server, settings)
        upkeep.start()
        async with asyncio.timeout(60):
            while not files.cuts:
                await asyncio.sleep(0.001)
        assert files.cuts == [log.size]
        await upkeep.stop()
        await server.stop()
        thread.stop()

    asyncio.run(test())


def test_a_clean_stop_gives_all_blocks_back(tmp_path: Path) -> None:
    files = NotedFiles()
    log = open_large(tmp_path, files)
    grow(log, 2 * STEP_BYTES)
    log.close(NOW_MS)
    assert files.cuts[-1] == log.size


def test_a_released_log_touches_nothing(tmp_path: Path) -> None:
    log = open_large(tmp_path, NotedFiles())
    now_ms = grow(log, 2 * STEP_BYTES)
    log.release()
    assert not log.has_idle_blocks(now_ms + IDLE_MS + 1)


def test_a_preallocated_log_stays_as_it_is(tmp_path: Path) -> None:
    files = NotedFiles()
    log = open_large(tmp_path, files, preallocate=True)
    now_ms = grow(log, 2 * STEP_BYTES)
    assert files.ends == []
    assert not log.has_idle_blocks(now_ms + IDLE_MS + 1)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EOPNOTSUPP, errno.EIO])
def test_an_append_needs_no_blocks_ahead_and_keeps_none_where_there_are_too_few(tmp_path: Path, error: int) -> None:
    """On a disk that is nearly full, ext4 gives a file all that is left before it says that it is not enough."""
    files = NotedFiles(error)
    log = open_large(tmp_path, files)
    now_ms = grow(log, 2 * STEP_BYTES)
    assert len(files.cuts) == 1
    assert len(read_values(log)) == log.log_end_offset
    assert not log.has_idle_blocks(now_ms + IDLE_MS + 1)
    log.roll(NOW_MS)
    assert len(files.cuts) == 1


def test_blocks_that_could_not_be_given_back_are_given_back_by_the_roll(tmp_path: Path) -> None:
    files = NotedFiles(errno.ENOSPC)
    files.cut_error = errno.EIO
    log = open_large(tmp_path, files)
    grow(log, 2 * STEP_BYTES)
    files.cut_error = 0
    size = log.size
    log.roll(NOW_MS)
    assert files.cuts == [size]
    assert len(read_values(log)) == log.log_end_offset


def test_blocks_behind_the_end_neither_make_the_file_longer_nor_survive_a_cut(tmp_path: Path) -> None:
    files = RealFiles()
    path = tmp_path / "log"
    descriptor = files.open(str(path), create=True)
    try:
        files.write_fully(descriptor, b"x" * 5000, 0)
        is_done = files.set_blocks_aside(descriptor, 5000, STEP_BYTES)
        assert is_done == (is_ext4(descriptor) and free_bytes(tmp_path) > 100 * STEP_BYTES)
        assert os.stat(path).st_size == 5000
        assert (os.stat(path).st_blocks * 512 >= STEP_BYTES) == is_done
        files.truncate(descriptor, 5000)
        assert os.stat(path).st_blocks * 512 < STEP_BYTES
        assert path.read_bytes() == b"x" * 5000
        if is_done:
            with pytest.raises(OSError, match="Invalid argument"):
                files.set_blocks_aside(descriptor, 0, 0)
    finally:
        files.close(descriptor)


def test_blocks_ahead_leave_a_nearly_full_disk_to_those_that_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last 8 MB of a disk for each fast log would refuse the appends of all others for seconds."""
    files, free_blocks = RealFiles(), 100 * STEP_BYTES // 4096
    monkeypatch.setattr(fallocate, "is_ext4", lambda _: True)
    monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_bavail=free_blocks - 1, f_frsize=4096))
    path = tmp_path / "log"
    descriptor = files.open(str(path), create=True)
    try:
        assert not files.set_blocks_aside(descriptor, 0, STEP_BYTES)
        assert os.stat(path).st_blocks == 0
        assert files.set_blocks_aside(descriptor, 0, STEP_BYTES // 2)
    finally:
        files.close(descriptor)


def free_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def test_a_log_on_a_real_disk_recovers_after_a_crash_and_gives_its_blocks_back(tmp_path: Path) -> None:
    log = open_large(tmp_path, RealFiles())
    grow(log, 2 * STEP_BYTES + len(VALUE))
    values, path = read_values(log), log.segments[-1].path
    log.release()
    again = open_large(tmp_path, RealFiles(), high_watermark=log.log_end_offset)
    assert read_values(again) == values
    assert os.stat(path).st_size == again.size
    again.close(NOW_MS)
    assert os.stat(path).st_blocks * 512 < again.size + len(VALUE)
