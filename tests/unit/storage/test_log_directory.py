"""What the owner of a log directory relies on: the lock, the checkpoints, how the last run ended."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from rayka.config import LogConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.replica.partition import Partition
from rayka.storage.directory.boot_record import BOOT_ID_FILE
from rayka.storage.directory.log_directory import CLEAN_SHUTDOWN_FILE, CLEANED_OFFSETS_FILE, LogDirectory
from rayka.storage.directory.meta_properties import MetaProperties
from rayka.storage.directory.names import parse_directory_name
from rayka.storage.files import RealFiles
from rayka.storage.log.deletion import SegmentDeletion
from rayka.storage.log.log import Log
from rayka.storage.log.replacement import CleanedSegment, Replacement
from rayka.types import TopicPartition
from tests.support.compaction import compact
from tests.support.faulty_files import CrashingFiles, FaultyFiles
from tests.support.full_disk import FullDisk
from tests.support.logs import NOW_MS, ORDERS, append, batch, check_indexes, directory_bytes, read_values

TOPIC_ID = uuid.UUID("0c706bbf-b9a6-483a-9aa2-a53a5dd0570a")
CONFIG = LogConfig(file_delete_delay_ms=1000)
TRY_TO_LOCK = """
import fcntl, sys
with open(sys.argv[1], "a") as file:
    try:
        getattr(fcntl, sys.argv[2])(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(3)
"""


def open_directory(path: Path, **how: MetaProperties) -> LogDirectory:
    """The directory, locked."""
    return LogDirectory.open(str(path), RealFiles(), now_ms=NOW_MS, **how)


def open_log(directory: LogDirectory, topic_id: uuid.UUID | None = TOPIC_ID) -> Log:
    """The log of `orders-0`."""
    return directory.open_log(ORDERS, topic_id, CONFIG, now_ms=NOW_MS)


def kill(directory: LogDirectory, *logs: Log) -> None:
    """What the kernel does for a process that is killed."""
    for log in logs:
        log.release()
    RealFiles().close(directory._lock)


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    for kind in ("flock", "lockf"):
        tried = subprocess.run([sys.executable, "-c", TRY_TO_LOCK, str(tmp_path / ".lock"), kind], check=False)
        assert tried.returncode == 3
    with pytest.raises(BlockingIOError):
        open_directory(tmp_path)
    directory.close([], now_ms=NOW_MS)
    open_directory(tmp_path)


def test_files_after_a_clean_stop(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    log = open_log(directory)
    directory.opened()
    append(log, b"a", b"b")
    log.delete_records(1)
    directory.close([log], now_ms=NOW_MS)
    assert (tmp_path / CLEAN_SHUTDOWN_FILE).exists()
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 0 2\n"
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\norders 0 1\n"
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n1\norders 0 2\n"
    metadata = (tmp_path / "orders-0" / "partition.metadata").read_text()
    assert metadata == "version: 0\ntopic_id: DHBrv7mmSDqaoqU6XdBXCg\n"
    again = open_directory(tmp_path)
    assert again.partitions == {ORDERS: TOPIC_ID}
    log = open_log(again)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset, log.recovery_point) == (1, 2, 2, 2)
    again.opened()
    assert not (tmp_path / CLEAN_SHUTDOWN_FILE).exists()


def test_after_kill_the_checkpoints_hold(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    log = open_log(directory)
    directory.opened()
    for value in (b"a", b"b", b"c"):
        append(log, value)
    log.delete_records(1)
    directory.write_log_starts([log])
    kill(directory, log)
    again = open_directory(tmp_path)
    log = open_log(again)
    assert (log.log_start_offset, log.log_end_offset) == (1, 3)
    log.update_high_watermark(3)
    assert read_values(log) == {1: b"b", 2: b"c"}


def test_a_log_that_gets_records_while_others_are_opened_is_recovered_after_a_crash(tmp_path: Path) -> None:
    """A coordinator writes as soon as it has loaded."""
    directory = open_directory(tmp_path)
    log = open_log(directory)
    directory.opened()
    append(log, b"flushed")
    directory.close([log], now_ms=NOW_MS)
    directory = open_directory(tmp_path)
    log = open_log(directory)
    append(log, b"not flushed")
    kill(directory, log)
    log = open_log(open_directory(tmp_path))
    assert (log.recovery_point, log.log_end_offset) == (1, 2)


def power_cut(path: Path, directory: LogDirectory, *logs: Log) -> None:
    """The machine starts again: the boot id on disk is not that of the kernel that runs now."""
    kill(directory, *logs)
    if (path / BOOT_ID_FILE).exists():
        (path / BOOT_ID_FILE).write_text("another\n")


def tear(path: Path) -> None:
    """Damage a batch that is not near the end, where only a whole recovery looks."""
    log = path / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)


@pytest.fixture
def indexes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of a few batches has indexes on disk that a restart can rely on."""
    monkeypatch.setattr("rayka.storage.segments.index.WRITE_BYTES", 8)
    monkeypatch.setattr("rayka.storage.log.recovery.CHECKED_BYTES", 100)


def fill(log: Log) -> None:
    for _ in range(6):
        append(log, b"x" * 5000)


def test_the_first_record_of_a_new_broker_outlasts_a_power_cut(tmp_path: Path) -> None:
    """Also the names of the directories above the log have to be on the device."""
    files = CrashingFiles()
    path = tmp_path / "new" / "logs" / "partitions-1-00"
    directory = LogDirectory.open(str(path), files, now_ms=NOW_MS)
    log = directory.open_log(ORDERS, TOPIC_ID, LogConfig(flush_messages=1), now_ms=NOW_MS)
    directory.opened()
    append(log, b"a")
    log.flush()
    kill(directory, log)
    files.lose_all()
    again = open_log(open_directory(path))
    again.update_high_watermark(1)
    assert read_values(again) == {0: b"a"}


def test_a_directory_below_a_file_system_that_syncs_nothing_can_be_used() -> None:
    """Such as a read-only image, or the root of an automounter."""
    with pytest.raises(OSError, match="Invalid argument"):
        RealFiles().sync_path("/proc")
    RealFiles().make_lasting_directory("/proc/self")


@pytest.mark.usefixtures("indexes_at_once")
def test_a_kill_in_the_middle_of_recovery_does_not_end_it(tmp_path: Path) -> None:
    """After a power cut every log is read as a whole, however often the broker is killed while it does so."""
    directory = open_directory(tmp_path)
    log = open_log(directory)
    directory.opened()
    fill(log)
    power_cut(tmp_path, directory, log)
    tear(tmp_path / "orders-0")
    kill(open_directory(tmp_path))  # before it opened the log
    assert open_log(open_directory(tmp_path)).log_end_offset == 0


@pytest.mark.usefixtures("indexes_at_once")
@pytest.mark.parametrize("stop", ["killed", "stopped"])
def test_a_partition_that_was_not_opened_after_a_power_cut_is_recovered_later(tmp_path: Path, stop: str) -> None:
    directory = open_directory(tmp_path)
    log = open_log(directory)
    directory.opened()
    fill(log)
    power_cut(tmp_path, directory, log)
    tear(tmp_path / "orders-0")
    directory = open_directory(tmp_path)
    directory.opened()
    kill(directory) if stop == "killed" else directory.close([], now_ms=NOW_MS)
    assert open_log(open_directory(tmp_path)).log_end_offset == 0


def test_the_boot_record_holds_the_id_of_the_running_kernel(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    directory.opened()
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text()
    assert boot_id.strip()
    assert (tmp_path / BOOT_ID_FILE).read_text() == boot_id
    kill(directory)
    (tmp_path / BOOT_ID_FILE).write_text("\n")
    assert not open_directory(tmp_path)._boot.is_same_boot


@pytest.mark.usefixtures("indexes_at_once")
def test_a_recovered_log_is_trusted_until_the_machine_goes_down(tmp_path: Path) -> None:
    """A restart after a kill reads only the ends of logs."""
    directory = open_directory(tmp_path)
    log = open_log(directory)
    directory.opened()
    fill(log)
    kill(directory, log)
    tear(tmp_path / "orders-0")
    assert open_log(open_directory(tmp_path)).log_end_offset == 6


@pytest.mark.parametrize(
    "damage", [None, b"", b"0\n", b"1\n1\norders 0 2\n", b"0\n5\norders 0 1\n", b"0\n1\norders x 1\n", b"\xff" * 9]
)
def test_damaged_checkpoints_cost_time_and_no_data(tmp_path: Path, damage: bytes | None) -> None:
    directory = open_directory(tmp_path)
    log = open_log(directory)
    append(log, b"a")
    directory.checkpoint([log])
    kill(directory, log)
    names = ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint")
    for name in (*names, BOOT_ID_FILE, "meta.properties"):
        (tmp_path / name).unlink(missing_ok=True)
        if damage is not None:
            (tmp_path / name).write_bytes(damage)
    log = open_log(open_directory(tmp_path))
    log.update_high_watermark(log.log_end_offset)
    assert read_values(log) == {0: b"a"}


@pytest.mark.parametrize("how", ["damaged", "cut", "set aside"])
def test_gaps_that_compaction_left_cost_no_data_when_the_checkpoint_does_not_tell(tmp_path: Path, how: str) -> None:
    directory = open_directory(tmp_path)
    log = directory.open_log(ORDERS, TOPIC_ID, LogConfig(internal_segment_bytes=100), now_ms=NOW_MS)
    for value in (b"1", b"2", b"3", b"4"):
        append(log, value)
        log.roll(NOW_MS)
        log.flush()
    directory.write_cleaned_offset(log, 0)
    compact(log, NOW_MS, RealFiles())
    assert read_values(log) == {3: b"4"}
    if how == "set aside":
        directory.set_aside(ORDERS)
    else:
        kill(directory, log)
        damage = b"0\n1\norders x 1\n" if how == "damaged" else b"0\n"
        (tmp_path / CLEANED_OFFSETS_FILE).write_bytes(damage)
        directory = open_directory(tmp_path)
    for _ in range(2):
        log = open_log(directory)
        log.update_high_watermark(log.log_end_offset)
        assert read_values(log) == {3: b"4"}
        kill(directory, log)
        directory = open_directory(tmp_path)


def test_records_in_place_of_lost_ones_are_not_mistaken_for_compacted(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    log = open_log(directory)
    for _ in range(4):
        append(log, b"v")
    directory.opened()
    directory.write_cleaned_offset(log, 4)
    size = log.segments[0].size // 2
    kill(directory, log)
    os.truncate(log.segments[0].path, size)
    for _ in range(2):
        directory = open_directory(tmp_path)
        log = open_log(directory)
        assert directory.cleaned_offset(ORDERS) == 2
        directory.opened()
        append(log, b"v")
        append(log, b"v")
        kill(directory, log)


def replace_first_segment(directory: LogDirectory, log: Log) -> tuple[Replacement, SegmentDeletion]:
    """Put a cleaned segment in the place of a closed one; the files still have to get their names."""
    append(log, b"a")
    log.roll(NOW_MS)
    log.flush()
    source = log.segments[0].path.removesuffix(".log")
    for suffix in (".log", ".index", ".timeindex"):
        shutil.copy(source + suffix, source + suffix + ".cleaned")
    replacement = log.begin_replacement(CleanedSegment(0, (0,), log.segments[0].size))
    assert replacement is not None
    assert directory.prepare_replacement(log, replacement)
    deletion = log.replace_segments(replacement, NOW_MS)
    return replacement, deletion


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_directory_goes_offline_when_a_compacted_segment_does_not_get_its_name(tmp_path: Path, number: int) -> None:
    files = UnnamingFiles(number)
    directory = LogDirectory.open(str(tmp_path), files, now_ms=NOW_MS)
    log = open_log(directory)
    replacement, deletion = replace_first_segment(directory, log)
    with pytest.raises(RaykaError):
        directory.finish_replacement(log, replacement, deletion)
    log.end_replacement(replacement)
    with pytest.raises(RaykaError, match="offline"):
        directory.check_online()
    kill(directory, log)
    again = open_log(open_directory(tmp_path))
    again.update_high_watermark(1)
    assert read_values(again) == {0: b"a"}


def test_compaction_does_not_begin_before_it_is_noted_on_the_disk(tmp_path: Path) -> None:
    """The next round would else take it as noted, and recovery the gaps for lost batches."""
    files = FullDisk()
    directory = LogDirectory.open(str(tmp_path), files, now_ms=NOW_MS)
    log = open_log(directory)
    files.is_full = True
    with pytest.raises(RaykaError):
        directory.write_cleaned_offset(log, 0)
    assert directory.cleaned_offset(ORDERS) is None
    files.is_full = False
    directory.write_cleaned_offset(log, 0)
    assert directory.cleaned_offset(ORDERS) == 0


def test_the_old_files_go_though_descriptors_were_lacking_when_a_compacted_segment_got_its_name(tmp_path: Path) -> None:
    files = FullDisk()
    directory = LogDirectory.open(str(tmp_path), files, now_ms=NOW_MS)
    log = open_log(directory)
    directory.opened()
    replacement, deletion = replace_first_segment(directory, log)
    files.lacks_descriptors = True
    with pytest.raises(RaykaError):
        directory.finish_replacement(log, replacement, deletion)
    log.end_replacement(replacement)
    files.lacks_descriptors = False
    directory.probe()
    directory.remove_deleted(sys.maxsize)
    assert not [name for name in os.listdir(log.directory) if name.endswith(".deleted")]
    assert read_values(log) == {0: b"a"}


class UnnamingFiles(RealFiles):
    """No file gets its final name by a rename."""

    def __init__(self, number: int) -> None:
        self._number = number

    def rename(self, source: str, target: str) -> None:
        if source.endswith(".log.swap"):
            raise OSError(self._number, os.strerror(self._number), source)
        super().rename(source, target)


def test_a_deleted_log_goes_after_the_delay(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    log = open_log(directory)
    append(log, b"a")
    directory.checkpoint([log])
    directory.delete_log(log, "abc")
    gone = tmp_path / "orders-0.abc-delete"
    assert gone.is_dir()
    directory.remove_deleted(NOW_MS + 999)
    assert gone.is_dir()
    directory.remove_deleted(NOW_MS + 1000)
    assert not gone.exists()
    fresh = open_log(directory, uuid.uuid4())
    assert (fresh.log_end_offset, directory.partitions[ORDERS]) == (0, fresh.topic_id)


def test_a_flush_that_a_deletion_overtook_harms_nothing(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    log = open_log(directory)
    append(log, b"a")
    before = log.begin_flush()
    directory.delete_log(log, "abc")
    after = log.begin_flush()
    for job in (before, after):
        job.run()
        log.finish_flush(job)
    with pytest.raises(RaykaError) as refused:
        append(log, b"b")
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert directory.disk.error is None


def test_the_flush_of_a_deleted_log_writes_nothing_into_the_files_of_its_successor(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    how = LogConfig(internal_segment_bytes=2000, index_interval_bytes=100)
    log = directory.open_log(ORDERS, uuid.uuid4(), how, now_ms=NOW_MS)
    for _ in range(60):
        append(log, b"a")
    late = log.begin_flush()
    directory.delete_log(log, "abc")
    successor = directory.open_log(ORDERS, uuid.uuid4(), how, now_ms=NOW_MS)
    append(successor, b"b")
    before = directory_bytes(tmp_path / "orders-0")
    late.run()
    assert directory_bytes(tmp_path / "orders-0") == before
    successor.close(NOW_MS)
    check_indexes(tmp_path / "orders-0")


def test_a_flush_that_the_deletion_of_its_segments_overtook_leaves_no_files(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    how = LogConfig(internal_segment_bytes=2000, index_interval_bytes=100)
    log = directory.open_log(ORDERS, None, how, now_ms=NOW_MS)
    for _ in range(60):
        append(log, b"a")
    late = log.begin_flush()
    log.delete_records(log.log_end_offset)
    log.write_snapshots()
    deletion = log.delete_segments(log.deletable_segments(NOW_MS), NOW_MS)
    assert deletion is not None
    directory.rename_deleted(deletion)
    late.run()
    log.finish_flush(late)
    directory.remove_deleted(NOW_MS + how.file_delete_delay_ms)
    start = log.segments[0].base_offset
    assert start > 0
    assert {path.stem for path in (tmp_path / "orders-0").glob("*.*index")} == {f"{start:020d}"}
    assert log.recovery_point == log.log_end_offset


def test_a_deletion_that_a_crash_interrupted_is_finished_at_the_next_start(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    directory.delete_log(open_log(directory), "abc")
    kill(directory)
    again = open_directory(tmp_path)
    assert again.partitions == {}
    again.remove_deleted(NOW_MS)
    assert not list(tmp_path.glob("*-delete"))


def test_given_up_segments_are_removed_with_the_rest(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    log = directory.open_log(ORDERS, None, LogConfig(internal_segment_bytes=200, file_delete_delay_ms=5), now_ms=NOW_MS)
    for _ in range(6):
        append(log, b"x" * 50)
    log.delete_records(4)
    log.write_snapshots()
    deletion = log.delete_segments(log.deletable_segments(NOW_MS), NOW_MS)
    assert deletion is not None
    directory.rename_deleted(deletion)
    assert list((tmp_path / "orders-0").glob("*.deleted"))
    directory.remove_deleted(NOW_MS + 5)
    assert not list((tmp_path / "orders-0").glob("*.deleted"))


def test_a_topic_made_anew_does_not_get_the_old_records(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    log = open_log(directory)
    append(log, b"old")
    directory.close([log], now_ms=NOW_MS)
    again = open_directory(tmp_path)
    other = open_log(again, uuid.uuid4())
    assert (other.log_start_offset, other.log_end_offset) == (0, 0)
    assert again.strays == [f"orders-0.{TOPIC_ID.hex}-stray"]
    assert (tmp_path / again.strays[0] / "00000000000000000000.log").read_bytes() != b""


@pytest.mark.parametrize("is_made_before_the_crash", [True, False])
def test_a_topic_made_anew_does_not_get_the_old_offsets_after_a_crash(
    tmp_path: Path, is_made_before_the_crash: bool
) -> None:
    directory = open_directory(tmp_path)
    log = open_log(directory)
    directory.opened()
    append(log, *[b"old"] * 50)
    log.flush()
    log.delete_records(40)
    directory.checkpoint([log])
    directory.write_cleaned_offset(log, 30)
    directory.delete_log(log, "abc")
    new_id = uuid.uuid4()
    count = 35 if is_made_before_the_crash else 0
    new_logs = [open_log(directory, new_id)] if is_made_before_the_crash else []
    for new_log in new_logs:
        append(new_log, *[b"new"] * count)
    kill(directory, *new_logs)
    again = open_directory(tmp_path)
    new_log = open_log(again, new_id)
    assert (new_log.log_start_offset, new_log.recovery_point, new_log.log_end_offset) == (0, 0, count)
    assert again.cleaned_offset(ORDERS) is None


def test_directories_that_are_no_partitions_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "notes").mkdir()
    directory = open_directory(tmp_path)
    assert directory.strays == ["lost+found", "notes"]
    assert directory.partitions == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-0", ORDERS),
        ("a-b-12", TopicPartition("a-b", 12)),
        ("orders", None),
        ("-1", None),
        ("orders-01", None),
        ("orders-", None),
        ("orders-0.abc-delete", None),
    ],
)
def test_directory_names(name: str, expected: TopicPartition | None) -> None:
    assert parse_directory_name(name) == expected


def test_the_identity_is_written_once_and_then_checked(tmp_path: Path) -> None:
    mine = MetaProperties("cluster-a", 1, uuid.UUID(int=5))
    open_directory(tmp_path, properties=mine).close([], now_ms=NOW_MS)
    text = (tmp_path / "meta.properties").read_text()
    assert text == "version=1\ncluster.id=cluster-a\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAABQ\n"
    directory = open_directory(tmp_path)
    assert directory.properties == mine
    directory.close([], now_ms=NOW_MS)
    with pytest.raises(RaykaError) as refused:
        open_directory(tmp_path, properties=MetaProperties("cluster-b", 1, uuid.UUID(int=5)))
    assert refused.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\x00" * 80,
        b"version=1\ncluster.id=cluster-a\nnode.id=1\n",
        b"version=1\ncluster.id=cluster-a\nnode.id=1\ndirectory.id=AAAA\n",
        b"version=0\ncluster.id=cluster-a\nbroker.id=1\n",
        b"#\n#Sat Nov 21 02:29:53 UTC 2026\nnode.id=1\ndirectory.id=VPmYaSahl\nversion=1\ncluster.id=cluster-a\n",
        b"#\n#Sat Nov 21 02:29:53 UTC 2026\nnode.id=1\nvers",
    ],
)
def test_an_identity_that_cannot_be_read_is_not_replaced(tmp_path: Path, damage: bytes) -> None:
    """Under another id the partitions of the directory would be offline for ever."""
    open_directory(tmp_path, properties=MetaProperties("cluster-a", 1, uuid.UUID(int=5))).close([], now_ms=NOW_MS)
    path = tmp_path / "meta.properties"
    path.write_bytes(damage)
    with pytest.raises(RaykaError, match=r"meta\.properties has no valid") as refused:
        open_directory(tmp_path, properties=MetaProperties("cluster-a", 1, uuid.UUID(int=6)))
    assert refused.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert path.read_bytes() == damage


@pytest.mark.parametrize(
    "lines",
    [
        b"#\n#Sat Nov 21 02:29:53 UTC 2020\ncluster.id=9ByfDgspTMCCuUl8_8YitA\nversion=1\nnode.id=1\n",
        b"#\n#Sat Nov 21 02:29:53 UTC 2020\ncluster.id=9ByfDgspTMCCuUl8_8YitA\nversion=0\nbroker.id=0\n",
        b"#\n#Sat Nov 21 02:29:53 UTC 2015\nversion=0\nbroker.id=0\n",
    ],
)
def test_a_directory_of_a_kafka_without_directory_ids_gets_one(tmp_path: Path, lines: bytes) -> None:
    """Before 3.7, and with ZooKeeper. Its file is whole."""
    (tmp_path / "meta.properties").write_bytes(lines)
    assert MetaProperties.read(RealFiles(), str(tmp_path)) is None
    ours = MetaProperties("cluster-a", 1, uuid.UUID(int=6))
    open_directory(tmp_path, properties=ours).release()
    assert MetaProperties.read(RealFiles(), str(tmp_path)) == ours


def test_a_duplicate_is_known_after_a_kill(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    log = open_log(directory)
    sent = batch(b"a", producer_id=1, producer_epoch=0, base_sequence=0)
    log.append_as_leader(bytearray(sent), 0, NOW_MS)
    kill(directory, log)
    again = open_log(open_directory(tmp_path))
    assert again.append_as_leader(bytearray(sent), 0, NOW_MS).is_duplicate


def test_the_high_watermark_is_where_it_was_after_a_kill_with_flush_messages_1(tmp_path: Path) -> None:
    """The checkpoint is up to a minute old; what consumers saw since then they see again at once."""
    directory = open_directory(tmp_path)
    log = directory.open_log(ORDERS, TOPIC_ID, LogConfig(flush_messages=1), now_ms=NOW_MS)
    partition = Partition(log, TOPIC_ID)
    partition.become_leader(0)
    log.append_as_leader(batch(b"a", b"b"), 0, NOW_MS)
    log.flush()
    assert partition.advance_high_watermark()
    kill(directory, log)
    log = open_directory(tmp_path).open_log(ORDERS, TOPIC_ID, LogConfig(flush_messages=1), now_ms=NOW_MS)
    partition = Partition(log, TOPIC_ID)
    partition.become_leader(1)
    assert log.high_watermark == 2


def test_space_is_that_of_the_file_system(tmp_path: Path) -> None:
    total, usable = open_directory(tmp_path).space()
    assert total >= usable > 0


def test_a_partition_that_was_set_aside_is_kept_and_comes_back_when_its_topic_does(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    append(open_log(directory), b"a")
    path = directory.set_aside(ORDERS)
    assert directory.stray_partitions == [path]
    assert (Path(path) / "00000000000000000000.log").stat().st_size > 0
    assert directory.has(ORDERS, TOPIC_ID)
    directory.release()
    again = open_directory(tmp_path)
    assert again.stray_partitions == [path]
    log = open_log(again)
    log.update_high_watermark(log.log_end_offset)
    assert read_values(log) == {0: b"a"}
    assert again.stray_partitions == []


def test_the_files_of_a_partition_that_are_gone_are_missed(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    assert not directory.has(ORDERS, TOPIC_ID)
    open_log(directory)
    assert directory.has(ORDERS, TOPIC_ID)
    assert not directory.has(ORDERS, uuid.UUID(int=99))


def test_a_start_misses_no_partition_when_one_call_to_the_disk_fails(tmp_path: Path) -> None:
    """Either the directory fails to open, and is opened again, or all that is in it is known."""
    directory = open_directory(tmp_path)
    directory.opened()
    log = open_log(directory)
    directory.close([log], now_ms=NOW_MS)
    counting = FaultyFiles()
    RealFiles().close(LogDirectory.open(str(tmp_path), counting, now_ms=NOW_MS)._lock)
    for fail_at in range(1, counting.calls + 1):
        with contextlib.suppress(RaykaError):
            opened = LogDirectory.open(str(tmp_path), FaultyFiles(fail_at), now_ms=NOW_MS)
            RealFiles().close(opened._lock)
            assert opened.has(ORDERS, TOPIC_ID)


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
def test_a_file_that_cannot_be_examined_is_not_mistaken_for_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    files = RealFiles()
    (tmp_path / "file").touch()
    assert [files.is_directory(str(tmp_path / name)) for name in ("", "file", "file/below", "none")] == [
        True, False, False, False,
    ]  # fmt: skip
    assert [files.exists(str(tmp_path / name)) for name in ("", "file", "file/below", "none")] == [
        True, True, False, False,
    ]  # fmt: skip

    def fail(path: str, **_: object) -> os.stat_result:
        raise OSError(error, "out of order", path)

    for ask in (files.is_directory, files.exists):
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", fail)
            with pytest.raises(OSError, match="out of order"):
                ask("/none")
