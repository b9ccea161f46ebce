"""What recovery removes from a damaged log does not come back, and what was deleted is not missed."""

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
from rayka.storage.log.deletion import SegmentDeletion
from rayka.storage.log.log import Log
from tests.support.full_disk import FullDisk
from tests.support.logs import NOW_MS, ORDERS, append, batch, open_log, read_values


class LostRemovals(RealFiles):
    """At a power cut files come back whose removal is not on the device; everything else is there."""

    def __init__(self) -> None:
        self._removed: dict[str, bytes] = {}

    def remove(self, path: str) -> None:
        self._removed[path] = Path(path).read_bytes()
        super().remove(path)

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self._removed.pop(target, None)

    def sync(self, descriptor: int) -> None:
        synced = os.readlink(f"/proc/self/fd/{descriptor}")
        self._removed = {path: data for path, data in self._removed.items() if os.path.dirname(path) != synced}
        super().sync(descriptor)

    def cut_power(self) -> None:
        for path, data in self._removed.items():
            Path(path).write_bytes(data)
        self._removed.clear()


def test_a_snapshot_of_lost_records_does_not_answer_for_those_in_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayka.storage.segments.index.WRITE_BYTES", 8)
    monkeypatch.setattr("rayka.storage.log.recovery.CHECKED_BYTES", 1)
    producer = {"producer_id": 7, "producer_epoch": 0}
    files = LostRemovals()
    config = {"files": files, "recovery_point": 1, "index_interval_bytes": 0}
    log = open_log(tmp_path, **config)
    append(log, b"flushed", base_sequence=0, **producer)
    log.flush()
    size = log.size
    append(log, b"lost", base_sequence=1, **producer)
    log._snapshot_producers()
    log.write_snapshots()
    log.release()
    os.truncate(tmp_path / "00000000000000000000.log", size)
    log = open_log(tmp_path, **config)
    for _ in range(4):
        append(log, b"in its place")
    log.release()
    files.cut_power()
    open_log(tmp_path, **config).release()
    log = open_log(tmp_path, same_boot=True, **config)
    assert not log.append_as_leader(batch(b"lost", base_sequence=1, **producer), 0, NOW_MS).is_duplicate


def test_a_snapshot_that_tells_of_lost_records_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut takes the end of a closed segment. In a compacted log no gap shows where that was."""
    monkeypatch.setattr("rayka.storage.log.recovery.CHECKED_BYTES", 1)
    producer = {"producer_id": 7, "producer_epoch": 0}
    config = {"cleanup_policy": ("compact",), "index_interval_bytes": 0}
    log = open_log(tmp_path, **config)
    append(log, b"x")
    append(log, b"x", base_sequence=0, **producer)
    size = log.size
    append(log, b"lost", base_sequence=1, **producer)
    log.roll(NOW_MS)
    append(log, b"x")
    append(log, b"x")
    log.write_snapshots()
    log.release()
    os.truncate(tmp_path / "00000000000000000000.log", size)
    log = open_log(tmp_path, **config)
    log.begin_flush().run()
    log.segments[-1].write_indexes()
    log.release()
    log = open_log(tmp_path, same_boot=True, **config)
    assert not log.append_as_leader(batch(b"lost", base_sequence=1, **producer), 0, NOW_MS).is_duplicate


def test_a_torn_segment_whose_indexes_were_never_written_ends_a_compacted_log(tmp_path: Path) -> None:
    """As after a power cut between a roll and its flush."""
    log = open_log(tmp_path, cleanup_policy=("compact",))
    append(log, b"kept")
    size = log.size
    append(log, b"torn")
    log.roll(NOW_MS)
    append(log, b"behind the damage")
    log.release()
    assert not list(tmp_path.glob("*.index"))
    os.truncate(tmp_path / "00000000000000000000.log", size + 70)
    log = open_log(tmp_path, cleanup_policy=("compact",))
    log.update_high_watermark(log.log_end_offset)
    assert read_values(log) == {0: b"kept"}


def test_a_segment_behind_damage_does_not_come_back_beside_what_took_its_place(tmp_path: Path) -> None:
    files = LostRemovals()
    config = {"files": files, "cleanup_policy": ("compact",)}
    log = open_log(tmp_path, **config)
    append(log, b"kept")
    size = log.size
    append(log, b"damaged")
    log.roll(NOW_MS)
    append(log, b"behind the damage")
    log.begin_flush().run()
    log.release()
    os.truncate(tmp_path / "00000000000000000000.log", size + 70)
    log = open_log(tmp_path, **config)
    assert log.log_end_offset == 1
    for value in (b"one", b"two", b"three"):
        append(log, value)
    log.release()
    files.cut_power()
    log = open_log(tmp_path, **config)
    log.update_high_watermark(log.log_end_offset)
    assert list(read_values(log).values()) == [b"kept", b"one", b"two", b"three"]


def test_segments_that_were_compacted_do_not_come_back_beside_the_one_made_of_them(tmp_path: Path) -> None:
    """A crash came before the new segment got its name, and a power cut when recovery had given it that."""
    files = LostRemovals()
    config = {"files": files, "cleanup_policy": ("compact",), "was_cleaned": True}
    values = [b"first", b"second", b"third", b"active"]
    log = open_log(tmp_path, **config)
    for value in values:
        log.roll(NOW_MS)
        append(log, value)
    log.close(NOW_MS)
    old = [Path(segment.path) for segment in log.segments[:-1]]
    (tmp_path / "00000000000000000000.log.swap").write_bytes(b"".join(path.read_bytes() for path in old))
    open_log(tmp_path, clean_shutdown=True, **config).release()
    files.cut_power()
    log = open_log(tmp_path, **config)
    assert [segment.base_offset for segment in log.segments] == [0, 3]
    log.update_high_watermark(log.log_end_offset)
    assert list(read_values(log).values()) == values


def test_what_took_the_place_of_lost_records_is_examined_after_the_next_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records were on the device once, so the recovery point is above the end of what is left of the log."""

    def start(boot_id: str) -> tuple[LogDirectory, Log]:
        monkeypatch.setattr(boot_record, "_read_boot_id", lambda _: boot_id)
        directory = LogDirectory.open(str(tmp_path), RealFiles(), now_ms=NOW_MS)
        log = directory.open_log(ORDERS, None, LogConfig(), now_ms=NOW_MS)
        directory.opened()
        return directory, log

    def lose_power(directory: LogDirectory, log: Log) -> None:
        log.release()
        directory.release()
        os.truncate(tmp_path / str(ORDERS) / "00000000000000000000.log", size + 20)

    directory, log = start("first")
    append(log, b"kept")
    size = log.size
    for _ in range(3):
        append(log, b"lost")
    log.flush()
    directory.checkpoint([log])
    lose_power(directory, log)
    directory, log = start("second")
    append(log, b"not flushed")
    log.roll(NOW_MS)
    for _ in range(3):
        append(log, b"behind a gap")
    log.segments[-1].write_indexes()
    lose_power(directory, log)
    _, log = start("third")
    log.update_high_watermark(log.log_end_offset)
    assert (log.log_end_offset, read_values(log)) == (1, {0: b"kept"})


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_what_is_missing_below_the_log_start_takes_no_record_above_it(tmp_path: Path, how: str) -> None:
    """A segment may stay behind when its file could not be renamed, while later ones could."""
    log = open_log(tmp_path)
    for value in (b"first", b"second", b"third", b"fourth"):
        append(log, value)
        log.roll(NOW_MS)
    log.delete_records(2)
    log.release()
    path = tmp_path / "00000000000000000001.log"
    path.unlink() if how == "missing" else os.truncate(path, 20)
    log = open_log(tmp_path, log_start_offset=2)
    log.update_high_watermark(log.log_end_offset)
    assert read_values(log) == {2: b"third", 3: b"fourth"}
    log.delete_old_segments(NOW_MS)
    assert log.segments[0].base_offset == 2


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_file_whose_longer_name_finds_no_room_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refuse(self: RealFiles, source: str, target: str) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(RealFiles, "rename", refuse)
    (tmp_path / "old.log").touch()
    assert not SegmentDeletion((str(tmp_path / "old.log"),), NOW_MS).rename(RealFiles()).paths
    assert not list(tmp_path.iterdir())


def test_deleted_segments_go_though_the_disk_is_full(tmp_path: Path) -> None:
    files = FullDisk()
    log = open_log(tmp_path, files=files)
    for value in (b"first", b"second"):
        append(log, value)
        log.roll(NOW_MS)
    log.write_snapshots()
    log.delete_records(1)
    files.is_full = True
    with pytest.raises(RaykaError, match="No space left"):
        log.delete_old_segments(NOW_MS)
    assert not (tmp_path / "00000000000000000000.log").exists()
