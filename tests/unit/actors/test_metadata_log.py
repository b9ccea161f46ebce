"""The controller's log: it is read again as it was written, or it refuses; it never gives a shorter history."""

from __future__ import annotations

import errno
import itertools
import os
import re
from pathlib import Path

import pytest

from rayka.actors.controller.log import MetadataLog, MetadataLogDamaged
from rayka.config import LogConfig
from rayka.errors import RaykaError
from rayka.metadata.image import BrokerImage, MetadataImage
from rayka.metadata.records import RegisterBrokerRecord
from rayka.storage.directory import boot_record
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import Buffer
from tests.support.descriptors import open_files
from tests.support.faulty_files import CrashingFiles, FaultyFiles
from tests.support.forgetful_system import ForgetfulSystem

NO_SNAPSHOTS = 20 << 20
PARTITION = "__cluster_metadata-0"


class Killed(BaseException):
    """kill -9."""


class KilledAtSync(CrashingFiles):
    """While `is_killed` is set, the process ends before the next sync."""

    is_killed = False

    def sync(self, descriptor: int) -> None:
        if self.is_killed:
            raise Killed
        super().sync(descriptor)


class FailingSnapshots(RealFiles):
    """While `fails` has the name of a call, that call fails for snapshots. `writes` counts all their writes."""

    fails = ""
    writes = 0

    def write(self, descriptor: int, buffer: Buffer, position: int) -> int:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        self.writes += path.endswith(".checkpoint.tmp")
        self._check("write", path)
        return super().write(descriptor, buffer, position)

    def remove(self, path: str) -> None:
        self._check("remove", path)
        super().remove(path)

    def _check(self, call: str, path: str) -> None:
        if call == self.fails and re.search(r"\.checkpoint(\.tmp)?$", path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def appended(log: MetadataLog, image: MetadataImage, count: int) -> MetadataImage:
    for epoch in range(count):
        record = RegisterBrokerRecord(
            BrokerImage(1, "h", 9092, None, False, f"node-{epoch}", image.next_broker_epoch, ("id",))
        )
        log.append([record], image)
        image = image.apply_all([record])
        log.snapshot_if_due(image)
    return image


def written(path: Path, count: int, bytes_between_snapshots: int = NO_SNAPSHOTS) -> MetadataImage:
    log = MetadataLog(str(path), bytes_between_snapshots)
    image = appended(log, log.load(), count)
    log.close()
    return image


def loaded(path: Path) -> MetadataImage:
    log = MetadataLog(str(path), NO_SNAPSHOTS)
    try:
        return log.load()
    finally:
        log.close()


def segment(path: Path) -> Path:
    (found,) = path.glob(f"{PARTITION}/*.log")
    return found


def snapshots(path: Path) -> list[Path]:
    return sorted(path.glob(f"{PARTITION}/*.checkpoint"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize(("bytes_between_snapshots", "kept"), [(NO_SNAPSHOTS, 0), (1000, 2)])
def test_a_log_is_read_again_and_keeps_two_snapshots(tmp_path: Path, bytes_between_snapshots: int, kept: int) -> None:
    image = written(tmp_path, 50, bytes_between_snapshots)
    assert len(snapshots(tmp_path)) == kept
    assert loaded(tmp_path) == image


def test_a_flipped_bit_anywhere_stops_the_log_or_changes_nothing(tmp_path: Path) -> None:
    image = written(tmp_path, 6)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    whole = segment(tmp_path).read_bytes()
    refused = 0
    for position in range(len(whole)):
        flip(segment(tmp_path), position)
        try:
            assert loaded(tmp_path) == image
        except MetadataLogDamaged:
            refused += 1
            flip(segment(tmp_path), position)
            assert segment(tmp_path).read_bytes() == whole, "a log that is refused is left as it is"
        segment(tmp_path).write_bytes(whole)
        (tmp_path / ".kafka_cleanshutdown").unlink(missing_ok=True)
    assert refused > len(whole) * 0.9  # the leader epoch of a batch is not covered by its CRC and not used


def test_a_log_shorter_than_its_synced_offset_is_refused(tmp_path: Path) -> None:
    image = written(tmp_path, 6)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    whole = segment(tmp_path).read_bytes()
    for size in range(0, len(whole), 7):
        segment(tmp_path).write_bytes(whole[:size])
        with pytest.raises(MetadataLogDamaged, match="__cluster_metadata-0"):
            loaded(tmp_path)
    segment(tmp_path).write_bytes(whole)
    assert loaded(tmp_path) == image


@pytest.mark.parametrize("kept", [0, 1, 40, 70])
def test_an_append_that_a_crash_tore_is_cut_off(tmp_path: Path, kept: int) -> None:
    """The mark of what was synced is older than the torn batch, and nothing intact follows it."""
    image = written(tmp_path, 5)
    size, mark = segment(tmp_path).stat().st_size, (tmp_path / "synced-offset").read_bytes()
    written(tmp_path, 1)
    segment(tmp_path).write_bytes(segment(tmp_path).read_bytes()[: size + kept])
    (tmp_path / "synced-offset").write_bytes(mark)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    assert loaded(tmp_path) == image
    assert segment(tmp_path).stat().st_size == size


def test_damage_before_an_intact_batch_is_no_torn_append_even_without_the_mark(tmp_path: Path) -> None:
    written(tmp_path, 6)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "synced-offset").unlink()
    flip(segment(tmp_path), segment(tmp_path).stat().st_size // 2)
    with pytest.raises(MetadataLogDamaged, match="intact"):
        loaded(tmp_path)


def test_a_damaged_snapshot_is_set_aside_and_the_one_before_it_is_used(tmp_path: Path) -> None:
    image = written(tmp_path, 50, 1000)
    newest = snapshots(tmp_path)[-1]
    flip(newest, newest.stat().st_size - 3)
    assert loaded(tmp_path) == image
    assert newest.with_name(newest.name + ".damaged").exists()
    assert len(snapshots(tmp_path)) == 1


def test_without_an_intact_snapshot_a_log_that_was_shortened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayka.actors.controller.log._CONFIG", LogConfig(retention_ms=-1, internal_segment_bytes=2000))
    written(tmp_path, 200, 1000)
    assert not (tmp_path / PARTITION / f"{0:020d}.log").exists()
    for snapshot in snapshots(tmp_path):
        flip(snapshot, snapshot.stat().st_size - 3)
    with pytest.raises(MetadataLogDamaged):
        loaded(tmp_path)


def test_a_log_whose_files_are_gone_is_refused(tmp_path: Path) -> None:
    written(tmp_path, 50, 1000)
    segment(tmp_path).unlink()
    with pytest.raises(MetadataLogDamaged):
        loaded(tmp_path)


@pytest.mark.parametrize("bytes_between_snapshots", [NO_SNAPSHOTS, 1000])
@pytest.mark.parametrize("was_clean", [True, False])
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("log-start-offset-checkpoint", b"0\n1\n__cluster_metadata 0 9\n"),
        ("log-start-offset-checkpoint", b"0\n1\n__cluster_metadata 0 90\n"),
        (f"{PARTITION}/partition.metadata", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg\n"),
    ],
)
def test_a_wrong_digit_beside_the_log_costs_nothing_of_it(
    tmp_path: Path, name: str, damage: bytes, was_clean: bool, bytes_between_snapshots: int
) -> None:
    """Neither file has a CRC. The log was removed as a whole, or moved aside, before it was refused."""
    image = written(tmp_path, 20, bytes_between_snapshots)
    if not was_clean:
        (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / name).write_bytes(damage)
    assert loaded(tmp_path) == image
    image = written(tmp_path, 1, bytes_between_snapshots)
    assert loaded(tmp_path) == image


def test_the_log_makes_up_for_two_damaged_snapshots_as_long_as_its_first_segment_is_there(tmp_path: Path) -> None:
    image = written(tmp_path, 50, 1000)
    for snapshot in snapshots(tmp_path):
        flip(snapshot, snapshot.stat().st_size // 2)
    assert loaded(tmp_path) == image


def test_an_append_that_fails_is_reported_and_not_part_of_the_history(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = MetadataLog(str(tmp_path), NO_SNAPSHOTS, files)
    image = appended(log, log.load(), 3)
    files.fail_at = files.calls + 1
    with pytest.raises(RaykaError, match="KAFKA_STORAGE_ERROR"):
        appended(log, image, 1)
    log.release()
    assert loaded(tmp_path) == image


def test_attempts_to_open_a_log_on_a_full_disk_leave_no_descriptors(tmp_path: Path) -> None:
    """The controller tries five times a second."""
    log = MetadataLog(str(tmp_path), NO_SNAPSHOTS)
    appended(log, log.load(), 3)
    log.release()
    failures = 0
    for fail_at in itertools.count(1):
        files = FaultyFiles(fail_at, errno.ENOSPC)
        try:
            MetadataLog(str(tmp_path), NO_SNAPSHOTS, files).release()
        except (RaykaError, OSError):
            failures += 1
        assert open_files(tmp_path) == 0
        if files.calls < fail_at:
            break
    assert failures > 0


def test_metadata_that_was_read_at_the_start_survives_a_power_cut(tmp_path: Path) -> None:
    """The controller was killed between an append and its sync; the next one serves what it reads."""
    files = KilledAtSync()
    log = MetadataLog(str(tmp_path), NO_SNAPSHOTS, files)
    image = appended(log, log.load(), 3)
    files.is_killed = True
    with pytest.raises(Killed):
        appended(log, image, 1)
    files.is_killed = False
    log.release()
    log = MetadataLog(str(tmp_path), NO_SNAPSHOTS, files)
    served = log.load()
    assert served.version == image.version + 1
    log.release()
    files.lose_all()
    assert loaded(tmp_path) == served


def test_what_follows_a_flush_that_failed_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ForgetfulSystem()
    log = MetadataLog(str(tmp_path), NO_SNAPSHOTS, files)
    image = appended(log, log.load(), 3)
    files.fails = True
    with pytest.raises(RaykaError, match="Flush failed"):
        appended(log, image, 1)
    log.release()
    log = MetadataLog(str(tmp_path), NO_SNAPSHOTS, files)
    image = appended(log, log.load(), 1)
    log.release()
    files.cut_power()
    monkeypatch.setattr(boot_record, "_read_boot_id", lambda _: "another boot")
    assert loaded(tmp_path) == image


def test_segments_before_the_older_snapshot_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayka.actors.controller.log._CONFIG", LogConfig(retention_ms=-1, internal_segment_bytes=2000))
    log = MetadataLog(str(tmp_path), 1000)
    appended(log, log.load(), 60)
    assert not (tmp_path / PARTITION / "00000000000000000000.log").exists()
    assert not list(tmp_path.glob(f"{PARTITION}/*.deleted"))
    log.close()


@pytest.mark.parametrize("call", ["write", "remove"])
def test_snapshots_that_fail_are_tried_rarely_and_leave_nothing(tmp_path: Path, call: str) -> None:
    files = FailingSnapshots()
    log = MetadataLog(str(tmp_path), 1000, files)
    image = appended(log, log.load(), 40)
    files.fails, before = call, files.writes
    image = appended(log, image, 40)
    assert 0 < files.writes - before < 10
    assert not list(tmp_path.glob(f"{PARTITION}/*.tmp"))
    assert len(snapshots(tmp_path)) < 10
    files.fails = ""
    image = appended(log, image, 40)
    assert len(snapshots(tmp_path)) == 2
    log.close()
    assert loaded(tmp_path) == image
