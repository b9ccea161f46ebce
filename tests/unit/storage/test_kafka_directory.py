"""rayka takes over log directories that Apache Kafka wrote, after a clean stop and after kill -9."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from rayka.config import LogConfig
from rayka.storage.directory.log_directory import CLEAN_SHUTDOWN_FILE, LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import iter_headers
from rayka.storage.format.records import read_records
from rayka.storage.log.log import Log
from rayka.storage.segments.reader import SegmentReader
from rayka.types import TopicPartition
from tests.support.logs import NOW_MS, batch, check_indexes, directory_bytes

DATA = Path(__file__).parents[2] / "data" / "kafka-log"
LAST_SNAPSHOT = "00000000000000000652.snapshot"
FIXTURE = TopicPartition("fixture", 0)
CONFIG = LogConfig(retention_ms=-1, index_interval_bytes=1000)
PREALLOCATED_BYTES = 10 << 20
RUNS = ((0, 120, 0, 20), (120, 200, 1000, 30), (320, 200, 2000, 30), (520, 50, 3000, 5), (592, 60, 5000, 10))


def expected_records() -> dict[int, tuple[int, bytes | None, bytes | None]]:
    """What was produced outside of transactions: offset -> timestamp, key, value."""
    expected = {}
    for first_offset, count, base, size in RUNS:
        for index in range(count):
            key = b"key-%d" % (base + index) if index % 5 else None
            value = b"value-%d " % (base + index) * size if index % 7 else None
            expected[first_offset + index] = (NOW_MS + base + index, key, value)
    return expected


@pytest.fixture(params=["clean", "killed"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The directory as a clean stop left it, and as kill -9 would have: preallocated indexes, no last snapshot."""
    copy = tmp_path / "data"
    shutil.copytree(DATA, copy)
    if request.param == "killed":
        (copy / CLEAN_SHUTDOWN_FILE).unlink()
        for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            (copy / name).write_text("0\n1\nfixture 0 0\n")
        partition = copy / "fixture-0"
        (partition / LAST_SNAPSHOT).unlink()
        for suffix in (".index", ".timeindex"):
            with open(partition / f"00000000000000000580{suffix}", "r+b") as file:
                file.truncate(PREALLOCATED_BYTES)
    return copy


def open_fixture(directory: Path) -> tuple[LogDirectory, Log]:
    """The partition's log, all of it visible."""
    log_directory = LogDirectory.open(str(directory), RealFiles(), now_ms=NOW_MS)
    log = log_directory.open_log(FIXTURE, None, CONFIG, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    return log_directory, log


def test_every_record_is_there(directory: Path) -> None:
    _, log = open_fixture(directory)
    assert (log.log_start_offset, log.log_end_offset, log.last_stable_offset) == (0, 652, 652)
    reader = SegmentReader()
    offset = 0
    read = {}
    while (file_slice := log.read(offset, 1 << 20, log.high_watermark)) is not None:
        data = reader.read(file_slice)
        for record in read_records(data):
            read[record.offset] = (record.timestamp, record.key, record.value)
        offset = [header.next_offset for _, header in iter_headers(data)][-1]
    expected = expected_records()
    assert {offset: read[offset] for offset in expected} == expected
    assert [read[offset][2] for offset in range(570, 580)] == [b"committed-%d" % index for index in range(10)]
    assert [aborted.first_offset for aborted in log.aborted_transactions(581, log.read(581, 1, 652))] == [581]
    assert log.aborted_transactions(0, log.read(0, 1, 652)) == ()


def test_offsets_are_found_by_timestamp(directory: Path) -> None:
    _, log = open_fixture(directory)
    stamps = {timestamp: offset for offset, (timestamp, _, _) in expected_records().items() if offset < 592}
    for timestamp, offset in stamps.items():
        found = log.offset_for_timestamp(timestamp)
        assert found is not None
        assert found.offset == offset
    latest = log.max_timestamp()
    assert latest is not None


def test_closing_leaves_the_files_that_kafka_left(directory: Path) -> None:
    """After kill -9 the snapshots are taken again: they say what Kafka's said, in rayka's longer form."""
    is_clean = (directory / CLEAN_SHUTDOWN_FILE).exists()
    log_directory, log = open_fixture(directory)
    log_directory.opened()
    log_directory.close([log], now_ms=NOW_MS)
    ours, kafkas = (directory_bytes(path / "fixture-0") for path in (directory, DATA))
    assert ours.keys() == kafkas.keys()
    for name in [name for name in kafkas if name.endswith(".snapshot") and (name == LAST_SNAPSHOT or not is_clean)]:
        assert producers(ours.pop(name)) == producers(kafkas.pop(name)), name
    assert ours == kafkas
    check_indexes(directory / "fixture-0")


def producers(snapshot: bytes) -> dict[int, tuple[int, ...]]:
    """What Kafka reads: of several entries for one producer the last counts. Without the time, field 5."""
    rows = struct.iter_unpack(">qhiqiqiq", snapshot[10:])
    return {row[0]: row[1:5] + row[6:] for row in rows}


def test_producers_go_on_where_they_were(directory: Path) -> None:
    _, log = open_fixture(directory)
    again = log.append_as_leader(batch(*[b"x"] * 20, producer_id=0, producer_epoch=0, base_sequence=100), 1, NOW_MS)
    assert (again.is_duplicate, again.base_offset, again.last_offset) == (True, 100, 119)
    new = log.append_as_leader(batch(b"y", producer_id=0, producer_epoch=0, base_sequence=120), 1, NOW_MS)
    assert new.base_offset == 652


def test_the_identity_of_the_directory(directory: Path) -> None:
    log_directory, _ = open_fixture(directory)
    assert log_directory.properties is not None
    assert log_directory.properties.node_id == 1
    assert log_directory.properties.cluster_id == "9ByfDgspTMCCuUl8_8YitA"
    assert list(log_directory.partitions) == [FIXTURE]
