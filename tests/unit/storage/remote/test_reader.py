"""Reading what is in the remote store alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from rayka.config import LogConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import iter_headers
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.storage.format.records import Record, build_batch, read_records
from rayka.storage.remote.copy_plan import copyable_segments
from rayka.storage.remote.reader import NextChunk, ReaderLimits, RemoteLogReader
from rayka.storage.remote.segment_metadata import RemoteLogSegmentMetadata
from rayka.storage.segments.reader import SegmentReader
from rayka.types import AbortedTransaction, FileSlice
from tests.support.logs import NOW_MS, batch
from tests.support.tiered import TieredLog

CONFIG = LogConfig(
    remote_storage_enable=True, internal_segment_bytes=1_000, index_interval_bytes=100, retention_ms=-1,
    local_retention_bytes=1_500,
)  # fmt: skip


@pytest.fixture
def tiered(tmp_path: Path) -> TieredLog:
    """A log of 200 records of which the first ones are in the store alone."""
    tiered = TieredLog(tmp_path, CONFIG)
    tiered.append(200)
    tiered.copy()
    tiered.log.delete_old_segments(NOW_MS)
    assert 100 < tiered.log.local_log_start_offset <= tiered.log.copied_offset + 1 < 200
    return tiered


def test_a_log_is_read_from_its_start(tiered: TieredLog) -> None:
    assert tiered.log.log_start_offset == 0
    assert list(tiered.read_all()) == [(offset, offset) for offset in range(200)]


def test_a_closed_segment_that_is_not_copied_stays(tmp_path: Path) -> None:
    tiered = TieredLog(tmp_path, CONFIG)
    tiered.append(200)

    assert tiered.log.delete_old_segments(NOW_MS) is None
    assert tiered.log.local_log_start_offset == 0


def test_local_retention_counts_as_retention_when_copies_are_disabled(tiered: TieredLog) -> None:
    tiered.log.configure(replace(CONFIG, remote_log_copy_disable=True, retention_bytes=900))
    tiered.log.delete_old_segments(NOW_MS)

    assert tiered.log.log_start_offset == tiered.log.local_log_start_offset > 150


@pytest.mark.parametrize("is_copied", [False, True])
def test_segments_stay_if_copying_is_turned_on_or_off_while_they_are_to_be_deleted(
    tmp_path: Path, is_copied: bool
) -> None:
    """What is only to leave the local disk would leave the log, and what leaves the log is not in the store."""
    before = replace(CONFIG, retention_bytes=-1 if is_copied else 1_500, remote_log_copy_disable=not is_copied)
    tiered = TieredLog(tmp_path, before)
    tiered.append(200)
    if is_copied:
        tiered.copy()
    log = tiered.log
    deletable = log.end_segments(log.deletable_segments(NOW_MS), NOW_MS)
    log.write_snapshots()
    log.configure(replace(before, remote_log_copy_disable=is_copied))

    assert deletable.segments
    assert log.delete_segments(deletable, NOW_MS) is None
    assert list(tiered.read_all()) == [(offset, offset) for offset in range(200)]
    log.configure(before)
    assert log.delete_segments(deletable, NOW_MS) is not None


def test_an_offset_below_the_local_log_start_is_in_the_store(tiered: TieredLog) -> None:
    with pytest.raises(RaykaError) as refused:
        tiered.log.read(0, 100, 200)
    assert refused.value.code is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE


def test_chunks_are_fetched_once_and_the_cache_is_bounded(tiered: TieredLog) -> None:
    first = tiered.remote.lineage(tiered.log.leader_epochs)
    found = tiered.reader.read(first, 0, 10_000, True)
    assert found.records is not None
    list_of_chunks = tiered.path / "cache" / "chunks"
    assert bytes_in(list_of_chunks) == found.records.size
    tiered.store.delete(next(iter(tiered.store.list(""))).rpartition(".")[0] + ".log")

    assert tiered.reader.read(first, 0, 10_000, True).records == found.records
    for segment in first[1:]:
        following: NextChunk | None = NextChunk(segment, 0)
        while following is not None:
            following = tiered.reader.prefetch(following)
    assert 0 < bytes_in(list_of_chunks) <= 2_000


def bytes_in(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


class BusyFiles(RealFiles):
    """Does other work before the next removal, as another thread may."""

    def __init__(self) -> None:
        self.other_work: Callable[[], object] | None = None

    def _work(self) -> None:
        work, self.other_work = self.other_work, None
        if work is not None:
            work()

    def remove(self, path: str) -> None:
        """See `RealFiles.remove`."""
        self._work()
        super().remove(path)

    def remove_directory(self, path: str) -> None:
        """See `RealFiles.remove_directory`."""
        self._work()
        super().remove_directory(path)


@pytest.mark.parametrize(("chunk_bytes", "index_bytes"), [(2_000, 1 << 20), (1 << 20, 1)], ids=["chunk", "indexes"])
def test_what_is_fetched_again_while_it_leaves_the_cache_can_be_read(
    tmp_path: Path, chunk_bytes: int, index_bytes: int
) -> None:
    tiered = with_copies(tmp_path, 3)
    one, two, three = tiered.remote.lineage(tiered.log.leader_epochs)[:3]
    files, index_cache_bytes = BusyFiles(), [1 << 20]
    limits = ReaderLimits(1_000, chunk_bytes, lambda: index_cache_bytes[0])
    reader = RemoteLogReader(files, str(tiered.path / "small"), tiered.store, limits, lambda _: None)

    def read(segment: RemoteLogSegmentMetadata) -> FileSlice | None:
        return reader.read([segment], segment.start_offset, 100, True).records

    def read_again() -> None:
        index_cache_bytes[0] = 1 << 20
        read(one)

    read(one)
    read(two)
    files.other_work, index_cache_bytes[0] = read_again, index_bytes
    read(three)

    assert files.other_work is None
    found = read(one)
    assert found is not None
    assert next(read_records(SegmentReader().read(found))).offset == one.start_offset


def test_a_first_batch_that_is_larger_than_asked_for_is_whole(tiered: TieredLog) -> None:
    segments = tiered.remote.lineage(tiered.log.leader_epochs)

    whole = tiered.reader.read(segments, 0, 1, True).records

    assert whole is not None
    assert [record.offset for record in tiered.read(0, 1)] == [0]
    assert tiered.reader.read(segments, 0, 1, False).records is None


def test_a_failing_store_fails_the_read_and_not_the_next_one(
    tiered: TieredLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, position: int, size: int) -> bytes:
        raise OSError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(tiered.store, "get", refuse)
        with pytest.raises(OSError, match="away"):
            tiered.read(0)

    assert next(record.offset for record in tiered.read(0)) == 0


@pytest.mark.parametrize("offset", [0, 1, 17, 99])
def test_the_first_record_at_a_time_is_found(tiered: TieredLog, offset: int) -> None:
    segments = tiered.remote.lineage(tiered.log.leader_epochs)

    found = tiered.reader.offset_for_timestamp(segments, NOW_MS + offset, 0)

    assert found is not None
    assert (found.offset, found.timestamp) == (offset, NOW_MS + offset)
    assert tiered.reader.offset_for_timestamp(segments, NOW_MS + 1_000, 0) is None


def with_aborted_transaction(path: Path) -> TieredLog:
    """A log with a transaction, begun at offset 5, that was aborted in a segment that is in the store alone."""
    tiered = TieredLog(path, CONFIG)
    log = tiered.log
    tiered.append(5)
    transactional = batch(b"0 x", producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append_as_leader(transactional, 0, NOW_MS, verification=log.begin_verification(9, 0, 0, NOW_MS))
    tiered.append(60)
    marker = build_end_transaction_marker(
        ControlType.ABORT, producer_id=9, producer_epoch=0, coordinator_epoch=0, now_ms=NOW_MS
    )
    log.append_as_leader(marker, 2, NOW_MS, origin_is_client=False)
    tiered.append(60)
    tiered.copy()
    log.delete_old_segments(NOW_MS)
    return tiered


def test_transactions_that_were_aborted_in_any_segment_are_told(tmp_path: Path) -> None:
    tiered = with_aborted_transaction(tmp_path)
    segments = tiered.remote.lineage(tiered.log.leader_epochs)

    found, is_complete = tiered.reader.aborted_transactions(segments, 3, 20)

    assert [AbortedTransaction(each.producer_id, each.first_offset) for each in found] == [(9, 5)]
    assert is_complete
    assert tiered.reader.aborted_transactions(segments, 3, 5)[0] == []


class LeavingFiles(RealFiles):
    """The indexes of a segment leave the cache just before that of its transactions is read, once."""

    def __init__(self) -> None:
        self.are_gone = False

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        """See `RealFiles.open`."""
        if path.endswith(".txnindex") and not create and not self.are_gone:
            self.are_gone = True
            self.remove_directory(str(Path(path).parent))
        return super().open(path, create=create, read_only=read_only)


def test_an_index_that_leaves_the_cache_does_not_say_that_nothing_was_aborted(tmp_path: Path) -> None:
    tiered, files = with_aborted_transaction(tmp_path), LeavingFiles()
    limits = ReaderLimits(1_000, 1 << 20, lambda: 1 << 20)
    reader = RemoteLogReader(files, str(tmp_path / "small"), tiered.store, limits, lambda _: None)
    segments = tiered.remote.lineage(tiered.log.leader_epochs)

    with pytest.raises(FileNotFoundError):
        reader.aborted_transactions(segments, 3, 20)
    assert files.are_gone


@pytest.mark.parametrize(
    "read",
    [
        lambda reader, segment: reader.read([segment], 5, 1_000, True).records,
        lambda reader, segment: reader.offset_for_timestamp([segment], NOW_MS + 5, 0),
        lambda reader, segment: reader.prefetch(NextChunk(segment, 0)),
    ],
    ids=["read", "by_time", "prefetch"],
)
def test_an_index_that_came_wrong_once_is_fetched_again(
    tiered: TieredLog, read: Callable[[RemoteLogReader, RemoteLogSegmentMetadata], object]
) -> None:
    """No CRC covers it, and its entries rise all the same."""
    get = tiered.store.get
    segment = tiered.remote.lineage(tiered.log.leader_epochs)[0]
    limits = ReaderLimits(300, 1 << 20, lambda: 1 << 20)
    reader = RemoteLogReader(RealFiles(), str(tiered.path / "own"), tiered.store, limits, lambda _: None)

    def get_changed(name: str, position: int, size: int) -> bytes:
        data = get(name, position, size)
        return flip(data, 8, 7) if name.endswith(".index") else data

    tiered.store.get = get_changed  # type: ignore[method-assign]
    with pytest.raises((OSError, RaykaError)):
        read(reader, segment)
    tiered.store.get = get  # type: ignore[method-assign]
    assert read(reader, segment)


def test_a_copy_waits_as_long_as_its_lag_asks_for(tmp_path: Path) -> None:
    tiered = TieredLog(tmp_path, CONFIG)
    tiered.append(100)
    tiered.log.flush()

    def copied(now_ms: int, **lag: int) -> int:
        config = LogConfig(remote_storage_enable=True, **lag)
        return len(list(copyable_segments(tiered.log.segments, config, now_ms, copied_offset=-1, safe_offset=100)))

    everything = copied(NOW_MS)
    assert everything == len(tiered.log.segments) - 1
    assert copied(NOW_MS, remote_copy_lag_ms=1_000) == 0
    assert copied(NOW_MS + 2_000, remote_copy_lag_ms=1_000) == everything
    assert copied(NOW_MS, remote_copy_lag_ms=10_000, remote_copy_lag_bytes=3_000) == everything - 3
    assert copied(NOW_MS, remote_copy_lag_ms=-1, local_retention_ms=-1, local_retention_bytes=-1) == everything


def test_nothing_above_the_last_stable_offset_is_copied(tmp_path: Path) -> None:
    tiered = TieredLog(tmp_path, CONFIG)
    tiered.append(50)
    tiered.log.flush()
    plan = copyable_segments(tiered.log.segments, CONFIG, NOW_MS, copied_offset=-1, safe_offset=20)

    assert [end for _, end in plan] == [each.base_offset for each in tiered.log.segments if 0 < each.base_offset <= 20]


def test_batches_that_are_larger_than_a_chunk_are_read(tmp_path: Path) -> None:
    tiered = TieredLog(tmp_path, CONFIG, chunk_bytes=100)
    for number in range(30):
        value = b"%d " % number + bytes(350)
        tiered.log.append_as_leader(build_batch([Record(0, NOW_MS, b"k", value)]), 0, NOW_MS)
    tiered.log.update_high_watermark(30)
    tiered.copy()
    tiered.log.delete_old_segments(NOW_MS)

    assert list(tiered.read_all()) == [(offset, offset) for offset in range(30)]


@pytest.mark.parametrize("damage", [b"", b"0\n1\n7 x\n", None])
def test_a_damaged_epoch_checkpoint_takes_nothing_from_the_store(tiered: TieredLog, damage: bytes | None) -> None:
    epochs, in_store = tiered.log.leader_epochs, set(tiered.store.list(""))
    tiered.checkpoint()
    tiered.log.release()
    checkpoint = tiered.path / "log" / "leader-epoch-checkpoint"
    checkpoint.unlink() if damage is None else checkpoint.write_bytes(damage)
    tiered.open()
    tiered.retain()

    assert tiered.log.leader_epochs == epochs
    assert list(tiered.read_all()) == [(offset, offset) for offset in range(200)]
    assert set(tiered.store.list("")) == in_store


def test_a_base_offset_that_the_store_changed_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CRC of a batch does not cover it."""
    tiered = with_copies(tmp_path, 2)
    segment = tiered.remote.lineage(tiered.log.leader_epochs)[1]
    get = tiered.store.get

    def get_changed(batch_number: int, change: int, name: str, position: int, size: int) -> bytes:
        data = bytearray(get(name, position, size))
        if name.endswith(".log"):
            start, header = list(iter_headers(data))[batch_number]
            data[start : start + 8] = (header.base_offset + change).to_bytes(8)
        return bytes(data)

    for batch_number, change in product((0, 1, -1), (-4, 4)):
        with monkeypatch.context() as patch:
            patch.setattr(tiered.store, "get", partial(get_changed, batch_number, change))
            with pytest.raises(OSError, match="damaged"):
                tiered.reader.read([segment], segment.start_offset, 500, True)

    found = tiered.reader.read([segment], segment.start_offset, 500, True).records
    assert found is not None
    assert next(read_records(SegmentReader().read(found))).offset == segment.start_offset


def with_copies(path: Path, count: int) -> TieredLog:
    """A log of which so many segments are in the store; nothing of it is deleted here."""
    tiered = TieredLog(path, CONFIG)
    tiered.append(40)
    tiered.copy(count)
    return tiered


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".index", lambda data: flip(data, 8, 1)),
        (".index", lambda data: flip(data, 8, 2)),
        (".index", lambda data: flip(data, 8, 7)),
        (".index", lambda _: None),
        (".timeindex", lambda data: flip(data, 12, 4)),
        (".timeindex", lambda data: flip(data, 12, 10)),
        (".timeindex", lambda _: None),
    ],
    ids=["offset_too_high", "position_behind_the_end", "position_in_a_batch", "missing", "time", "offset", "no_times"],
)
def test_a_segment_whose_index_is_damaged_here_is_copied_with_a_right_one(
    tmp_path: Path, suffix: str, damage: Callable[[bytes], bytes | None]
) -> None:
    tiered = TieredLog(tmp_path, CONFIG)
    tiered.append(40)
    tiered.log.flush()
    index = Path(tiered.log.segments[0].path).with_suffix(suffix)
    damaged = damage(index.read_bytes())
    index.unlink() if damaged is None else index.write_bytes(damaged)
    tiered.copy(1)

    segments = tiered.remote.lineage(tiered.log.leader_epochs)
    for offset in range(segments[0].end_offset + 1):
        records = tiered.reader.read(segments, offset, 500, True).records
        assert records is not None
        assert next(read_records(SegmentReader().read(records))).offset == offset
        found = tiered.reader.offset_for_timestamp(segments, NOW_MS + offset, 0)
        assert found is not None
        assert found.offset == offset


def flip(data: bytes, entry_bytes: int, position: int) -> bytes:
    """An index with one bit of every second entry changed."""
    changed = bytearray(data)
    for start in range(0, len(data), 2 * entry_bytes):
        changed[start + position] ^= 0x10
    return bytes(changed)
