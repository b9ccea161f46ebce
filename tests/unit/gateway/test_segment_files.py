"""Reading segments that others write, rename, replace, truncate and delete."""

from __future__ import annotations

import _thread
import concurrent.futures.thread
import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rayka.gateway.server import segment_files
from rayka.gateway.server.segment_files import SegmentFile, SegmentFiles, SegmentGone
from rayka.testing import wait_until
from rayka.types import FileSlice
from tests.support.descriptors import open_files


def read(files: SegmentFiles, path: Path, position: int, size: int) -> bytes:
    file = files.open(FileSlice(str(path), position, size))
    target = bytearray(size)
    if file.read_cached(memoryview(target), position) == size:
        return bytes(target)
    return file.read(size, position)


def test_reads_what_is_appended_after_it_was_opened(tmp_path: Path) -> None:
    path, files = tmp_path / "a.log", SegmentFiles()
    path.write_bytes(b"0123")
    assert read(files, path, 1, 2) == b"12"
    with path.open("ab") as log:
        log.write(b"456789")
    assert read(files, path, 3, 5) == b"34567"
    files.close()


@pytest.mark.parametrize("loss", ["deleted", "renamed", "directory renamed", "directory gone"])
def test_a_segment_that_went_away_is_read_through_its_descriptor(tmp_path: Path, loss: str) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    path, files = directory / "a.log", SegmentFiles()
    path.write_bytes(b"0123")
    assert read(files, path, 0, 4) == b"0123"
    match loss:
        case "deleted":
            path.unlink()
        case "renamed":
            path.rename(directory / "a.log.deleted")
        case "directory renamed":
            directory.rename(tmp_path / "t-0.delete")
        case _:
            shutil.rmtree(directory)
    assert read(files, path, 1, 3) == b"123"
    files.close()


def test_a_file_that_is_being_closed_is_not_given_to_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would read from whatever file gets the number of the descriptor next."""
    (tmp_path / "a.log").write_bytes(b"right")
    (tmp_path / "b.log").write_bytes(b"wrong")
    source, files = FileSlice(str(tmp_path / "a.log"), 0, 5), SegmentFiles()
    opened: list[SegmentFile] = []

    def close(descriptor: int) -> None:
        if not opened:
            opening = threading.Thread(target=lambda: opened.append(files.open(source)))
            opening.start()
            opening.join()
        os.close(descriptor)

    monkeypatch.setattr(segment_files, "os", SimpleNamespace(**vars(os) | {"close": close}))
    files.open(source)
    files.close()  # with the last reference
    other = os.open(tmp_path / "b.log", os.O_RDONLY)
    assert opened[0].read(5, 0) == b"right"
    os.close(other)
    files.close()


def test_another_file_at_the_same_path_is_opened_anew(tmp_path: Path) -> None:
    path, files = tmp_path / "a.log", SegmentFiles()
    path.write_bytes(b"old")
    assert read(files, path, 0, 3) == b"old"
    (tmp_path / "a.log.swap").write_bytes(b"new")
    (tmp_path / "a.log.swap").rename(path)
    assert read(files, path, 0, 3) == b"new"
    files.close()


def test_a_segment_never_seen_or_too_short_is_gone(tmp_path: Path) -> None:
    path, files = tmp_path / "a.log", SegmentFiles()
    with pytest.raises(SegmentGone):
        read(files, path, 0, 1)
    path.write_bytes(b"0123")
    with pytest.raises(SegmentGone):
        read(files, path, 2, 3)
    files.close()


def test_descriptors_are_bounded_and_given_back(tmp_path: Path) -> None:
    files = SegmentFiles(max_open_files=4)
    for number in [*range(20), 19, 18, 3]:
        path = tmp_path / f"{number}.log"
        path.write_bytes(b"%02d" % number)
        assert read(files, path, 0, 2) == b"%02d" % number
    assert open_files(tmp_path) == 4
    files.close()
    assert open_files(tmp_path) == 0


def test_the_disk_gets_the_blocks_of_deleted_segments_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention and compaction delete segments that were read, and nothing may be read again for days."""
    monkeypatch.setattr(segment_files, "_LOOK_S", 0)
    files = SegmentFiles()
    paths = [tmp_path / f"{number}.log" for number in range(3)]
    for path in paths:
        path.write_bytes(b"0123")
        assert read(files, path, 0, 4) == b"0123"
    paths[0].unlink()
    paths[1].rename(tmp_path / "1.log.deleted")
    files.drop_deleted()
    wait_until(lambda: open_files(tmp_path) == 2, 60, "the deleted file is closed")
    assert read(files, paths[1], 0, 4) == b"0123"
    files.close()


def test_opening_segments_drops_those_that_were_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = SegmentFiles()
    first, second = tmp_path / "1.log", tmp_path / "2.log"
    first.write_bytes(b"first")
    second.write_bytes(b"second")
    assert read(files, first, 0, 5) == b"first"
    first.unlink()
    monkeypatch.setattr(segment_files, "_LOOK_S", 0)
    assert read(files, second, 0, 6) == b"second"
    wait_until(lambda: open_files(tmp_path) == 1, 60, "the deleted file is closed")
    files.close()


def test_a_file_that_a_file_system_lost_is_dropped_and_no_others_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system whose server lost a file says so of its descriptors too."""
    files, status = SegmentFiles(), os.fstat
    lost, other = tmp_path / "1.log", tmp_path / "2.log"
    for path in (lost, other):
        path.write_bytes(b"0123")
    assert read(files, lost, 0, 4) == b"0123"

    def fail_for_lost(descriptor: int) -> os.stat_result:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(lost):
            raise OSError(errno.ESTALE, "Stale file handle")
        return status(descriptor)

    monkeypatch.setattr(os, "fstat", fail_for_lost)
    monkeypatch.setattr(segment_files, "_LOOK_S", 0)
    assert read(files, other, 0, 4) == b"0123"
    wait_until(lambda: open_files(tmp_path) == 1, 60, "the lost file is closed")
    files.close()


def test_a_file_in_use_stays_open_without_the_cache(tmp_path: Path) -> None:
    files = SegmentFiles(max_open_files=1)
    first, second = tmp_path / "1.log", tmp_path / "2.log"
    first.write_bytes(b"first")
    second.write_bytes(b"second")
    in_use = files.open(FileSlice(str(first), 0, 5))
    assert read(files, second, 0, 6) == b"second"
    assert open_files(tmp_path) == 2
    assert in_use.read(5, 0) == b"first"
    files.close()
    del in_use
    assert open_files(tmp_path) == 0


def test_many_responses_that_wait_for_their_clients_have_a_segment_open_once(tmp_path: Path) -> None:
    """Else each client that takes nothing of its response has a descriptor for each of a thousand partitions."""
    files = SegmentFiles(max_open_files=2)
    slices = [FileSlice(str(tmp_path / f"{number}.log"), 0, 4) for number in range(10)]
    for each in slices:
        Path(each.path).write_bytes(b"0123")
    responses = [[files.open(each) for each in slices] for _ in range(5)]
    assert open_files(tmp_path) == len(slices)
    assert all(file.read(4, 0) == b"0123" for response in responses for file in response)
    responses.clear()
    assert open_files(tmp_path) == 2
    files.close()
    assert open_files(tmp_path) == 0


def test_a_file_that_was_cut_short_is_gone(tmp_path: Path) -> None:
    path, files = tmp_path / "a.log", SegmentFiles()
    path.write_bytes(b"0123456789")
    file = files.open(FileSlice(str(path), 2, 8))
    path.write_bytes(b"0123")
    with pytest.raises(SegmentGone):
        file.read(8, 2)


def test_the_last_descriptor_of_a_deleted_file_is_closed_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To give the blocks of a large file free takes the system a while, in which the loop would stand still."""
    closed: dict[int, threading.Thread] = {}
    undisturbed = os.close

    def close(descriptor: int) -> None:
        closed[descriptor] = threading.current_thread()
        undisturbed(descriptor)

    for is_deleted in (False, True):
        path = tmp_path / f"{is_deleted}.log"
        path.write_bytes(b"0123")
        file = SegmentFile(str(path))
        if is_deleted:
            path.unlink()
        descriptor = file.descriptor
        monkeypatch.setattr(os, "close", close)
        del file
        wait_until(lambda: descriptor in closed, 60, "the file is closed")  # noqa: B023
        monkeypatch.setattr(os, "close", undisturbed)
        assert (closed.pop(descriptor) is threading.main_thread()) is not is_deleted


def test_a_descriptor_for_which_no_thread_can_be_started_is_closed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's executor keeps such a call for a thread that starts later. By then another file may have the number."""
    closed: list[int] = []

    def close(descriptor: int) -> None:
        closed.append(descriptor)
        os.close(descriptor)

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    def deleted_file(name: str) -> SegmentFile:
        (tmp_path / name).write_bytes(b"0123")
        file = SegmentFile(str(tmp_path / name))
        (tmp_path / name).unlink()
        return file

    monkeypatch.setattr(segment_files, "os", SimpleNamespace(**vars(os) | {"close": close}))
    first, second = deleted_file("1.log"), deleted_file("2.log")
    descriptors = [first.descriptor, second.descriptor]
    with monkeypatch.context() as limited:
        limited.setattr(_thread, "start_new_thread", no_thread)
        del first
    assert closed == descriptors[:1]
    del second
    wait_until(lambda: len(closed) == 2, 30, "the second file is closed")
    assert closed == descriptors


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Files are closed only when the second event is set. The first one says that one is being closed."""
    has_begun, may_end = threading.Event(), threading.Event()

    def close(descriptor: int) -> None:
        has_begun.set()
        may_end.wait(60)
        os.close(descriptor)

    monkeypatch.setattr(segment_files, "os", SimpleNamespace(**vars(os) | {"close": close}))
    yield has_begun, may_end
    may_end.set()


def deleted_files(directory: Path, count: int) -> list[SegmentFile]:
    files = []
    for number in range(count):
        path = directory / f"{number}.log"
        path.write_bytes(b"0123")
        files.append(SegmentFile(str(path)))
        path.unlink()
    return files


def test_one_thread_closes_the_files_of_a_deleted_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_disk: tuple[threading.Event, threading.Event]
) -> None:
    has_begun, may_end = slow_disk
    files, started = deleted_files(tmp_path, 50), []
    start = _thread.start_new_thread
    monkeypatch.setattr(_thread, "start_new_thread", lambda *call: started.append(start(*call)))
    files.pop()
    assert has_begun.wait(30)
    files.clear()
    assert len(started) == 1
    may_end.set()
    wait_until(lambda: not open_files(tmp_path), 30, "all files are closed")


def test_a_process_forked_while_a_file_is_closed_closes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_disk: tuple[threading.Event, threading.Event]
) -> None:
    has_begun, _ = slow_disk
    files = deleted_files(tmp_path, 2)
    files.pop()
    assert has_begun.wait(30)
    child = os.fork()
    if not child:
        is_open = True
        try:
            signal.alarm(60)
            monkeypatch.setattr(segment_files, "os", os)
            descriptor = files[0].descriptor
            files.clear()
            deadline_s = time.monotonic() + 30
            while (is_open := Path(f"/proc/self/fd/{descriptor}").exists()) and time.monotonic() < deadline_s:
                time.sleep(0.01)
        finally:
            os._exit(is_open)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_deleted_file_can_be_dropped_while_an_executor_takes_a_call(tmp_path: Path) -> None:
    """Executors hold a lock of the process then, and Python's collector may come."""
    path = tmp_path / "0.log"
    path.write_bytes(b"0123")
    files = [SegmentFile(str(path))]
    descriptor = files[0].descriptor
    path.unlink()
    is_dropped = threading.Event()

    def drop() -> None:
        with concurrent.futures.thread._global_shutdown_lock:
            files.clear()
        is_dropped.set()

    threading.Thread(target=drop, daemon=True).start()
    assert is_dropped.wait(30)
    wait_until(lambda: not Path(f"/proc/self/fd/{descriptor}").exists(), 30, "the file is closed")


def test_a_small_slice_is_read_from_an_open_file_only(tmp_path: Path) -> None:
    path, files = tmp_path / "a.log", SegmentFiles()
    path.write_bytes(b"0123456789")
    target = bytearray(4)
    here = FileSlice(str(path), 2, 4, path.stat().st_ino)
    assert not files.read_small(here, memoryview(target))
    files.open(here)
    assert files.read_small(here, memoryview(target))
    assert target == b"2345"
    assert not files.read_small(here._replace(position=8), memoryview(target)), "the file ends before that"
    assert not files.read_small(here._replace(inode=here.inode + 1), memoryview(target)), "another file has the name"
    files.close()


def test_a_system_that_takes_no_advice_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a sandbox."""

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    (tmp_path / "a.log").write_bytes(b"0123")
    file = SegmentFile(str(tmp_path / "a.log"))
    monkeypatch.setattr(os, "posix_fadvise", refuse)
    file.read_ahead(0, 4)
    assert file.read(4, 0) == b"0123"
