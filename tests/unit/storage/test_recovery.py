"""Opening again: after a clean stop, after kill -9, and with files in transit."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import time
import zlib
from pathlib import Path

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import Buffer
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.storage.log.log import Log
from rayka.storage.producers.entry import ProducerEntry
from rayka.storage.producers.state import ProducerState
from rayka.storage.segments.scan import iter_batches
from rayka.storage.segments.segment import Segment
from tests.support.faulty_files import BadSector, CrashingFiles, FaultyFiles
from tests.support.logs import NOW_MS, append, batch, check_indexes, directory_bytes, open_log, read_values

SMALL = {"segment_bytes": 2000, "index_interval_bytes": 200}


def fill(directory: Path, count: int = 60, **how: object) -> Log:
    """A log with some segments."""
    log = open_log(directory, **{**SMALL, **how})
    for index in range(count):
        append(log, b"value %d" % index, timestamp=NOW_MS + index)
    return log


def reopen(directory: Path, **how: object) -> Log:
    """Opened again, everything visible."""
    log = open_log(directory, **{**SMALL, **how})
    log.update_high_watermark(log.log_end_offset)
    return log


@pytest.mark.parametrize(
    "how",
    [{"clean_shutdown": True}, {"same_boot": True}, {"same_boot": False}, {"same_boot": True, "recovery_point": 33}],
)
def test_everything_is_there_again(tmp_path: Path, how: dict[str, object]) -> None:
    log = fill(tmp_path)
    before = read_values(log)
    if how.get("clean_shutdown"):
        log.close(NOW_MS)
    again = reopen(tmp_path, **how)
    assert read_values(again) == before
    assert again.log_end_offset == 60
    assert append(again, b"next") == 60
    again.close(NOW_MS)
    check_indexes(tmp_path)


@pytest.mark.parametrize("same_boot", [True, False])
def test_recovering_twice_changes_nothing(tmp_path: Path, same_boot: bool) -> None:
    fill(tmp_path)
    open_log(tmp_path, same_boot=same_boot, **SMALL)
    once = directory_bytes(tmp_path)
    open_log(tmp_path, same_boot=same_boot, **SMALL)
    assert directory_bytes(tmp_path) == once


def test_recovered_indexes_are_those_that_were_written(tmp_path: Path) -> None:
    log = fill(tmp_path)
    log.close(NOW_MS)
    before = directory_bytes(tmp_path)
    for path in [*tmp_path.glob("*.index"), *tmp_path.glob("*.timeindex")]:
        path.unlink()
    again = reopen(tmp_path)
    again.close(NOW_MS)
    assert directory_bytes(tmp_path) == before


def test_a_clean_stop_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path).close(NOW_MS)

    def refuse(*_: object) -> None:
        raise AssertionError("nothing is rebuilt after a clean stop")

    monkeypatch.setattr(Segment, "begin_reindex", refuse)
    assert reopen(tmp_path, clean_shutdown=True).log_end_offset == 60


def test_a_clean_stop_is_not_believed_when_the_end_is_torn(tmp_path: Path) -> None:
    fill(tmp_path).close(NOW_MS)
    last = max(tmp_path.glob("*.log"))
    last.write_bytes(last.read_bytes()[:-3])
    log = reopen(tmp_path, clean_shutdown=True)
    assert list(read_values(log)) == list(range(59))
    assert append(log, b"next") == 59


def test_damage_takes_the_segments_after_it(tmp_path: Path) -> None:
    fill(tmp_path)
    second = sorted(tmp_path.glob("*.log"))[1]
    data = bytearray(second.read_bytes())
    data[len(data) // 2] ^= 0x10
    second.write_bytes(data)
    log = reopen(tmp_path)
    assert sorted(tmp_path.glob("*.log"))[-1] == second
    assert list(read_values(log)) == list(range(log.log_end_offset))
    assert int(second.stem) < log.log_end_offset < 60


def test_the_recovery_point_moves_with_a_flush(tmp_path: Path) -> None:
    log = fill(tmp_path)
    assert log.recovery_point == 0
    assert log.flush_needed(NOW_MS)
    job = log.begin_flush()
    append(log, b"later")
    job.run()
    log.finish_flush(job)
    assert log.recovery_point == 60
    assert not log.flush_needed(NOW_MS)


def test_a_closed_segment_that_may_be_removed_at_once_is_flushed_a_second_later(tmp_path: Path) -> None:
    """What is gone by then never goes to the device."""
    log = open_log(tmp_path, segment_bytes=200, file_delete_delay_ms=0)
    while len(log.segments) < 3:
        append(log, b"x" * 50)
    assert not log.flush_needed(NOW_MS)
    assert not log.flush_needed(NOW_MS + 999)
    assert log.flush_needed(NOW_MS + 1000)
    assert log.flush_needed(NOW_MS - 1), "the clock was set back"
    log.delete_records(log.segments[-1].base_offset)
    assert log.delete_old_segments(NOW_MS) is not None
    assert not log.flush_needed(NOW_MS + 1000)
    while len(log.segments) < 2:
        append(log, b"x" * 50)
    log.flush()
    assert log.recovery_point == log.log_end_offset
    assert not log.flush_needed(NOW_MS + 1000)


def test_flush_messages_and_flush_ms(tmp_path: Path) -> None:
    log = open_log(tmp_path / "messages", flush_messages=3)
    append(log, b"a", b"b")
    assert not log.flush_needed(NOW_MS)
    append(log, b"c")
    assert log.flush_needed(NOW_MS)
    assert not log.flush_before_visible
    log = open_log(tmp_path / "ms", flush_ms=100, flush_messages=1 << 40)
    assert not log.flush_needed(NOW_MS + 100)
    append(log, b"a")
    assert not log.flush_needed(NOW_MS + 99)
    assert log.flush_needed(NOW_MS + 100)
    assert open_log(tmp_path / "one", flush_messages=1).flush_before_visible


def test_a_flush_that_a_truncation_overtook_counts_for_nothing(tmp_path: Path) -> None:
    log = fill(tmp_path)
    job = log.begin_flush()
    log.truncate_to(10)
    append(log, b"other")
    job.run()
    log.finish_flush(job)
    assert log.recovery_point <= 10


def test_log_start_beyond_the_end_begins_empty(tmp_path: Path) -> None:
    fill(tmp_path)
    log = reopen(tmp_path, log_start_offset=100)
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)
    assert append(log, b"x") == 100


def test_the_log_start_offset_is_kept(tmp_path: Path) -> None:
    log = fill(tmp_path)
    log.delete_records(25)
    log.delete_old_segments(NOW_MS)
    again = reopen(tmp_path, log_start_offset=25)
    assert list(read_values(again)) == list(range(25, 60))
    assert not list(tmp_path.glob("*.deleted"))


def test_files_in_transit_are_settled(tmp_path: Path) -> None:
    log = fill(tmp_path)
    before = read_values(log)
    log.close(NOW_MS)
    first, second = sorted(tmp_path.glob("*.log"))[:2]
    for name in ("00000000000000000000.log.deleted", "00000000000000000099.index", "x.tmp"):
        (tmp_path / name).write_bytes(b"garbage")
    (tmp_path / f"{first.stem}.log.swap").write_bytes(first.read_bytes() + second.read_bytes())
    again = reopen(tmp_path)
    assert read_values(again) == before
    assert not second.exists()
    assert {path.suffix for path in tmp_path.iterdir()} <= {".log", ".index", ".timeindex", ".snapshot", ""}
    again.close(NOW_MS)
    check_indexes(tmp_path)


def test_a_swap_beside_cleaned_files_is_unfinished(tmp_path: Path) -> None:
    log = fill(tmp_path)
    before = read_values(log)
    log.close(NOW_MS)
    (tmp_path / "00000000000000000000.log.cleaned").write_bytes(b"half")
    (tmp_path / "00000000000000000000.log.swap").write_bytes(b"half")
    assert read_values(reopen(tmp_path, clean_shutdown=True)) == before


def test_a_torn_transaction_index_is_made_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for producer_id in (1, 2):
        data = batch(b"aborted", producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)
        log.append_as_leader(data, 0, NOW_MS, origin_is_client=False)
    for producer_id in (1, 2):
        marker = build_end_transaction_marker(
            ControlType.ABORT, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, now_ms=NOW_MS
        )
        log.append_as_leader(marker, 0, NOW_MS, origin_is_client=False)
    log.flush()
    log.close(NOW_MS)
    (index,) = tmp_path.glob("*.txnindex")
    whole = index.read_bytes()
    index.write_bytes(bytes(34) + whole[34:])
    for snapshot in tmp_path.glob("*.snapshot"):
        snapshot.unlink()
    again = open_log(tmp_path)
    assert index.read_bytes() == whole
    again.update_high_watermark(4)
    assert [aborted.producer_id for aborted in again.aborted_transactions(0, again.read(0, 100, 4))] == [1, 2]


def test_epochs_are_found_in_the_batches_when_their_file_is_gone(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for epoch in (1, 1, 3, 7, 7):
        log.append_as_leader(batch(b"x"), epoch, NOW_MS)
    written = (tmp_path / "leader-epoch-checkpoint").read_bytes()
    for damage in (None, b"", b"0\n", b"0\n9\n1 0\n", b"0\n1\nx y\n", b"\xff\xfe"):
        (tmp_path / "leader-epoch-checkpoint").unlink()
        if damage is not None:
            (tmp_path / "leader-epoch-checkpoint").write_bytes(damage)
        again = open_log(tmp_path)
        assert again.epoch_end_offset(3) == (3, 3)
        assert (tmp_path / "leader-epoch-checkpoint").read_bytes() == written


def test_old_messages_behind_a_batch_are_refused_and_kept(tmp_path: Path) -> None:
    """Segments that begin with one are converted. No version of Kafka went back within a segment by itself."""
    body = b"\x01" + bytes(9) + b"\xff\xff\xff\xff" + (40).to_bytes(4) + b"v" * 40
    message = (1).to_bytes(8) + (len(body) + 4).to_bytes(4) + zlib.crc32(body).to_bytes(4) + body
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(batch(b"v") + message)
    with pytest.raises(RaykaError) as refused:
        open_log(tmp_path)
    assert refused.value.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert path.read_bytes() == batch(b"v") + message


def test_preallocated_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path, preallocate=True, segment_bytes=4096)
    values = [append(log, b"x" * 500) for _ in range(20)]
    assert max(tmp_path.glob("*.log")).stat().st_size == 4096
    assert list(read_values(reopen(tmp_path, preallocate=True, segment_bytes=4096))) == values
    again = reopen(tmp_path, preallocate=True, segment_bytes=4096)
    again.close(NOW_MS)
    assert list(read_values(reopen(tmp_path, clean_shutdown=True))) == values


def test_opening_a_clean_log_is_quick(tmp_path: Path) -> None:
    fill(tmp_path, count=10).close(NOW_MS)
    started = time.process_time()
    for _ in range(100):
        reopen(tmp_path, clean_shutdown=True).release()
    assert (time.process_time() - started) / 100 < 0.01


@pytest.mark.parametrize("position", [100, 850, 1900])
def test_a_bad_sector_is_an_error_and_not_the_end_of_the_log(tmp_path: Path, position: int) -> None:
    """The bytes behind it may be readable on another day: nothing is cut off."""
    fill(tmp_path).release()
    before = directory_bytes(tmp_path)

    with pytest.raises(RaykaError) as raised:
        reopen(tmp_path, files=BadSector(f"{0:020d}.log", position))

    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert directory_bytes(tmp_path) == before


@pytest.mark.parametrize("damage_at", [None, 0.3, 0.99])
def test_producers_are_as_if_every_kept_batch_had_been_read_again(tmp_path: Path, damage_at: float | None) -> None:
    """Recovery takes them in on the way, from a snapshot on, and remembers only what counts."""
    log = open_log(tmp_path, **SMALL)
    for index in range(60):
        producer_id, epoch = index % 7, index // 40
        sequence = (index - 40 * epoch) // 7
        append(
            log, b"v", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, timestamp=NOW_MS + index
        )
    before = log._producers
    for path in sorted(tmp_path.glob("*.snapshot"))[1:]:
        path.unlink()
    if damage_at is not None:
        path = max(tmp_path.glob("*.log")) if damage_at > 0.5 else sorted(tmp_path.glob("*.log"))[-2]
        data = bytearray(path.read_bytes())
        data[int(len(data) * damage_at)] ^= 1
        path.write_bytes(data)
    recovered = reopen(tmp_path)
    if damage_at is None:
        assert producers(recovered) == {identity: state(entry) for identity, entry in before.entries.items()}
    again = ProducerState(RealFiles(), str(tmp_path))
    for segment in recovered._segments:
        for found in iter_batches(segment.read, 0, segment.size):
            again.append(found.header, found.header.base_offset, found.data, found.start, NOW_MS)
    assert producers(recovered) == {identity: state(entry) for identity, entry in again.entries.items()}
    assert recovered.log_end_offset == (60 if damage_at is None else list(read_values(recovered))[-1] + 1)


def producers(log: Log) -> dict[int, object]:
    return {identity: state(entry) for identity, entry in log._producers.entries.items()}


def state(entry: ProducerEntry) -> object:
    return entry.producer_epoch, [batch[:3] for batch in entry.batches]


@pytest.mark.parametrize("crash", ["kill", "power cut"])
def test_a_retry_after_a_crash_is_known_though_retention_deleted_its_batch(tmp_path: Path, crash: str) -> None:
    """The state of the producers is on the device before the only segment that tells it is deleted."""
    producer = {"producer_id": 7, "producer_epoch": 0}
    files = CrashingFiles()
    log = open_log(tmp_path, files=files, retention_ms=1)
    for sequence in range(3):
        append(log, b"value", base_sequence=sequence, **producer)
    later = NOW_MS + 10_000
    ended = log.end_segments(log.deletable_segments(later), later)
    assert len(ended.segments) == 1
    assert log.delete_segments(ended, later) is None
    log.write_snapshots()
    deletion = log.delete_segments(ended, later)
    assert deletion is not None
    deletion.rename(files)
    log.release()
    if crash == "power cut":
        files.lose_all()
    again = open_log(tmp_path, same_boot=crash == "kill")
    retried = again.append_as_leader(batch(b"value", base_sequence=2, **producer), 0, later)
    assert (retried.is_duplicate, retried.base_offset) == (True, 2)


def test_a_retry_after_a_power_cut_is_known_though_the_log_was_cut_before_retention(tmp_path: Path) -> None:
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    files = CrashingFiles()
    log = open_log(tmp_path, files=files)
    append(log, b"value", **producer)
    log.roll(NOW_MS)
    append(log, b"another")
    append(log, b"cut")
    log.flush()
    log.truncate_to(2)
    log.delete_records(1)
    assert log.delete_old_segments(NOW_MS) is not None
    log.release()
    files.lose_all()
    again = open_log(tmp_path, log_start_offset=1, recovery_point=2, high_watermark=2)
    assert again.append_as_leader(batch(b"value", **producer), 0, NOW_MS).is_duplicate


def test_producer_state_that_recovery_rebuilt_survives_a_second_power_cut(tmp_path: Path) -> None:
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    files = CrashingFiles()
    log = open_log(tmp_path, files=files)
    append(log, b"value", **producer)
    log.roll(NOW_MS)
    append(log, b"another")
    log.flush()
    log.release()
    files.lose_all()
    log = open_log(tmp_path, files=files, recovery_point=2, high_watermark=2)
    log.delete_records(1)
    deletion = log.delete_segments(log.deletable_segments(NOW_MS), NOW_MS)
    assert deletion is not None
    deletion.rename(files)
    log.release()
    files.lose_all()
    log = open_log(tmp_path, files=files, recovery_point=2, log_start_offset=1, high_watermark=2)
    assert log.append_as_leader(batch(b"value", **producer), 0, NOW_MS).is_duplicate


class CountingEntries(RealFiles):
    """Counts the producers in memory whenever a snapshot of them is written."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def write_file(self, path: str, data: Buffer, *, sync: bool = False) -> None:
        if path.endswith(".snapshot"):
            self.counts.append(sum(type(each) is ProducerEntry for each in gc.get_objects()))
        super().write_file(path, data, sync=sync)


def test_recovery_holds_the_producers_of_one_segment_at_a_time(tmp_path: Path) -> None:
    """A log may have thousands of segments, and each of them tens of thousands of producers."""
    log = open_log(tmp_path, **SMALL)
    for index in range(100):
        append(log, b"v", producer_id=index % 10, producer_epoch=0, base_sequence=index // 10, timestamp=NOW_MS + index)
    log.release()
    for path in tmp_path.glob("*.snapshot"):
        path.unlink()
    del log
    gc.collect()
    before = sum(type(each) is ProducerEntry for each in gc.get_objects())
    files = CountingEntries()
    reopen(tmp_path, files=files).release()
    assert len(files.counts) >= 3
    assert max(files.counts) - before <= 20, "those of the log, and those that are being written"


class CountingSyncs(RealFiles):
    """Counts how often somebody waits for the device."""

    count = 0

    def sync(self, descriptor: int) -> None:
        self.count += 1
        super().sync(descriptor)


def test_opening_waits_for_the_device_only_if_there_are_records_that_may_not_be_on_it(tmp_path: Path) -> None:
    files = CountingSyncs()
    open_log(tmp_path, files=files, flush_messages=1).release()
    assert files.count == 0
    log = open_log(tmp_path, files=files, flush_messages=1)
    append(log, b"value")
    log.release()
    log = reopen(tmp_path, files=files, flush_messages=1)
    assert (files.count > 0, log.recovery_point, read_values(log)) == (True, 1, {0: b"value"})
    log.release()
    files.count = 0
    log = open_log(tmp_path, files=files, flush_messages=1, recovery_point=1)
    assert (files.count, log.recovery_point) == (0, 1)
    log.release()


def open_files(directory: Path) -> list[str]:
    """The files of a directory that this process has open."""
    paths = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in paths if path.startswith(f"{directory}/")]


@pytest.mark.parametrize("count", [0, 5])
def test_a_log_that_could_not_be_opened_keeps_no_descriptor(tmp_path: Path, count: int) -> None:
    for number in range(1, 1000):
        directory = tmp_path / f"{number}"
        if count:
            fill(directory, count).release()
        files = FaultyFiles(number, errno.EMFILE)
        try:
            log = open_log(directory, files=files, flush_messages=1)
        except RaykaError:
            assert open_files(directory) == []
        else:
            log.release()
            if files.calls < number:
                return
