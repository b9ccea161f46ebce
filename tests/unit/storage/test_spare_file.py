"""A roll takes a file that was made ahead, and nothing but the log is left behind."""

from __future__ import annotations

from pathlib import Path

from rayka.storage.files import RealFiles
from rayka.storage.log.log import Log
from rayka.storage.segments.spare import FILE_NAME
from tests.support.logs import NOW_MS, append, open_log, read_values


class CountedFiles(RealFiles):
    """Notes the files that were made."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        if create and not Path(path).exists():
            self.made.append(Path(path).name)
        return super().open(path, create=create, read_only=read_only)


def flush(log: Log) -> None:
    job = log.begin_flush()
    job.run()
    log.finish_flush(job)


def log_with_spare(directory: Path, files: RealFiles | None = None) -> Log:
    log = open_log(directory, files=files, segment_bytes=200)
    while len(log.segments) < 2:
        append(log, b"x" * 50)
    flush(log)
    assert (directory / FILE_NAME).exists()
    return log


def test_a_roll_after_a_flush_makes_no_file(tmp_path: Path) -> None:
    files = CountedFiles()
    log = log_with_spare(tmp_path, files)
    files.made.clear()
    values = read_values(log)
    while len(log.segments) < 3:
        values[append(log, b"y" * 50)] = b"y" * 50
    assert files.made == []
    assert not (tmp_path / FILE_NAME).exists()
    assert read_values(log) == values
    while len(log.segments) < 4:  # without a flush in between
        values[append(log, b"z" * 50)] = b"z" * 50
    assert files.made == [Path(log.segments[-1].path).name]
    log.close(0)
    assert read_values(open_log(tmp_path, high_watermark=len(values))) == values


def test_nothing_is_left_by_a_close_or_after_a_crash(tmp_path: Path) -> None:
    log = log_with_spare(tmp_path)
    values = read_values(log)
    log.release()
    again = open_log(tmp_path, segment_bytes=200, high_watermark=len(values))
    assert not (tmp_path / FILE_NAME).exists()
    assert read_values(again) == values
    flush(again)
    again.close(0)
    assert not (tmp_path / FILE_NAME).exists()


def test_a_spare_file_that_somebody_removed_is_made_by_the_roll(tmp_path: Path) -> None:
    log = log_with_spare(tmp_path)
    (tmp_path / FILE_NAME).unlink()
    while len(log.segments) < 3:
        append(log, b"y" * 50)
    assert Path(log.segments[-1].path).exists()


def test_a_roll_uses_no_spare_file_twice(tmp_path: Path) -> None:
    log = log_with_spare(tmp_path)
    while len(log.segments) < 5:
        append(log, b"y" * 50)
        flush(log)
    inodes = {Path(segment.path).stat().st_ino for segment in log.segments}
    assert len(inodes) == len(log.segments)


def test_the_first_roll_of_a_log_makes_no_file_either(tmp_path: Path) -> None:
    """Once half of the segment is full, or half of its time is over, the file can be made ahead."""
    files = CountedFiles()
    log = open_log(tmp_path, files=files, segment_bytes=400)
    assert not log.needs_spare(NOW_MS)
    append(log, b"x" * 50)
    assert not log.needs_spare(NOW_MS)
    assert log.needs_spare(NOW_MS + log.config.segment_ms)
    append(log, b"x" * 50)
    assert log.needs_spare(NOW_MS)
    log.make_spare()
    assert not log.needs_spare(NOW_MS)
    files.made.clear()
    while len(log.segments) < 2:
        append(log, b"x" * 50)
    assert files.made == []


def test_each_roll_is_reported_to_the_group_commit(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=200)
    rolls: list[int] = []
    log.when_rolled(lambda: rolls.append(len(log.segments)))
    while len(log.segments) < 4:
        append(log, b"x" * 50)
    log.roll(NOW_MS)
    assert rolls == [2, 3, 4, 5]
    log.roll(NOW_MS)
    assert len(rolls) == 4, "an empty segment stays"
