"""Segments whose offsets are too far apart for their indexes, as old log cleaners left them, are split when opened."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from rayka.storage.files import RealFiles
from rayka.storage.format.batch import stamp
from rayka.storage.log.log import Log
from tests.support.logs import NOW_MS, batch, check_indexes, directory_bytes, open_log, read_values
from tests.support.power_cut import PowerCut, PowerLost

FAR = 1 << 31
OFFSETS = (0, 5, FAR - 1, FAR, FAR + 7, 3 * FAR)
CLOSED, ACTIVE = 4 * FAR, 4 * FAR + 9
CONFIG = {"cleanup_policy": ("compact",), "retention_ms": -1, "index_interval_bytes": 100}
VALUES = {offset: b"%d " % offset + bytes(80) for offset in (*OFFSETS, CLOSED, ACTIVE)}


def write_segment(directory: Path, *offsets: int, base_offset: int) -> Path:
    data = b""
    for offset in offsets:
        records = batch(VALUES[offset], timestamp=NOW_MS + offset % 1_000)
        stamp(records, 0, offset, 0)
        data += bytes(records)
    path = directory / f"{base_offset:020d}.log"
    path.write_bytes(data)
    return path


def overflowed(directory: Path) -> Path:
    """A log whose first segment has offsets that are three times too far apart."""
    directory.mkdir(parents=True)
    write_segment(directory, *OFFSETS, base_offset=0)
    write_segment(directory, CLOSED, base_offset=CLOSED)
    write_segment(directory, ACTIVE, base_offset=ACTIVE)
    return directory


def read(log: Log) -> dict[int, bytes | None]:
    log.update_high_watermark(log.log_end_offset)
    return read_values(log)


def test_an_overflowed_segment_is_split_where_its_offsets_no_longer_fit(tmp_path: Path) -> None:
    for clean_shutdown in (True, False):
        directory = overflowed(tmp_path / str(clean_shutdown))

        log = open_log(directory, clean_shutdown=clean_shutdown, **CONFIG)

        assert [segment.base_offset for segment in log.segments] == [0, FAR, 3 * FAR, CLOSED, ACTIVE]
        assert read(log) == VALUES
        log.validate_state()
        check_indexes(directory)
        log.close(now_ms=NOW_MS)
        before = directory_bytes(directory)
        open_log(directory, clean_shutdown=True, **CONFIG).close(now_ms=NOW_MS)
        assert directory_bytes(directory) == before


def test_segments_that_are_far_apart_and_fit_are_left_alone(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, 5, FAR - 1, base_offset=0)
    inode = write_segment(tmp_path, ACTIVE, base_offset=ACTIVE).with_name(f"{0:020d}.log").stat().st_ino

    log = open_log(tmp_path, clean_shutdown=True, **CONFIG)

    assert [segment.base_offset for segment in log.segments] == [0, ACTIVE]
    assert (tmp_path / f"{0:020d}.log").stat().st_ino == inode


def test_damage_in_an_overflowed_segment_loses_the_records_after_it(tmp_path: Path) -> None:
    directory = overflowed(tmp_path / "log")
    path = directory / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    log = open_log(directory, clean_shutdown=False, **CONFIG)

    assert [*read(log)][:5] == list(OFFSETS[:5])
    check_indexes(directory)


def test_a_crash_while_an_unfinished_split_is_given_up_doubles_nothing(tmp_path: Path) -> None:
    whole = overflowed(tmp_path / "whole")
    for suffix in (".index", ".timeindex"):
        (whole / f"{0:020d}{suffix}").touch()
    for offsets, suffix in ((OFFSETS[:3], ".cleaned"), (OFFSETS[3:5], ".swap"), (OFFSETS[5:], ".swap")):
        path = write_segment(tmp_path, *offsets, base_offset=offsets[0])
        path.rename(whole / (path.name + suffix))
    last_run: dict[str, Any] = {"clean_shutdown": False, "recovery_point": ACTIVE, **CONFIG}
    for cut_at in range(1, 5):
        directory = Path(shutil.copytree(whole, tmp_path / str(cut_at)))
        with pytest.raises(PowerLost):
            open_log(directory, files=PowerCut(cut_at), **last_run)

        log = open_log(directory, **last_run)

        assert [segment.base_offset for segment in log.segments] == [0, FAR, 3 * FAR, CLOSED, ACTIVE]
        assert sum(segment.size for segment in log.segments) == sum(path.stat().st_size for path in whole.glob("*.log"))
        assert read(log) == VALUES


def test_a_log_that_is_no_longer_compacted_keeps_what_lies_behind_the_gaps_of_a_split(tmp_path: Path) -> None:
    """Neither its policy nor a checkpoint says that it was compacted, and its recovery point may be anywhere."""
    config = {**CONFIG, "cleanup_policy": ("delete",)}
    for recovery_point in (0, 3 * FAR, 3 * FAR + 1, CLOSED, ACTIVE):
        directory = overflowed(tmp_path / str(recovery_point))

        log = open_log(directory, clean_shutdown=False, recovery_point=recovery_point, **config)

        assert read(log) == VALUES
        log.validate_state()


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_power_cut_at_any_moment_of_a_split_loses_nothing(tmp_path: Path, policy: str) -> None:
    config = {**CONFIG, "cleanup_policy": (policy,)}
    whole = overflowed(tmp_path / "whole")
    cut_at = 0
    while True:
        cut_at += 1
        directory = Path(shutil.copytree(whole, tmp_path / str(cut_at)))
        files = PowerCut(cut_at)
        try:
            open_log(directory, files=files, clean_shutdown=True, **config)
        except PowerLost:
            files.crash(random.Random(cut_at))
        else:
            break
        assert read(open_log(directory, files=RealFiles(), clean_shutdown=False, **config)) == VALUES
        check_indexes(directory)
    assert cut_at > 20
