"""Logs of magic 0 and 1 that Apache Kafka 0.10 left: converted when they are opened, at the same offsets."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import iter_headers
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import Record, build_batch, read_records
from rayka.storage.log.log import Log
from rayka.storage.segments import old_segments
from rayka.types import TimestampType
from tests.support.faulty_files import FaultyFiles
from tests.support.logs import NOW_MS, append, check_indexes, directory_bytes, open_log, read_batches
from tests.support.message_sets import LOG_APPEND_TIME, Message, compressed_set, encode, message_set
from tests.support.power_cut import PowerCut, PowerLost

DATA = Path(__file__).parents[2] / "data" / "kafka-0.10-log"
START_MS = 1_450_000_000_000
CONFIG = {"retention_ms": -1, "index_interval_bytes": 1000}
FIRST_SEGMENT = "00000000000000000000.log"


def expected(topic: str) -> dict[int, Message]:
    """What the README of the files says was produced."""
    if topic == "compacted":
        return expected_after_cleaning()
    messages = {}
    for offset in range(400):
        index = offset % 100
        number = 1000 * (offset // 100) + index
        key = b"key-%d" % number if index % 5 else None
        value = b"value-%d " % number * 20 if index % 7 else None
        messages[offset] = Message(offset, -1 if topic == "magic0" else START_MS + number, key, value)
    return messages


def expected_after_cleaning() -> dict[int, Message]:
    """Of the rounds that were cleaned the last message of each key; the last round as a whole."""
    messages: dict[bytes, Message] = {}
    last: list[Message] = []
    for offset in range(240):
        round_, index = divmod(offset, 30)
        number = (7 * index + round_) % 25
        value = b"round-%d-%d " % (round_, index) * 4 if number else None
        message = Message(offset, START_MS + 1000 * round_ + index, b"key-%d" % number, value)
        if round_ == 7:
            last.append(message)
        else:
            messages[message.key or b""] = message
    return {message.offset: message for message in [*sorted(messages.values()), *last]}


def copy(topic: str, directory: Path) -> Path:
    target = directory / topic
    shutil.copytree(DATA / f"{topic}-0", target)
    return target


def reopen(directory: Path, **how: object) -> Log:
    log = open_log(directory, **{**CONFIG, **how})
    log.update_high_watermark(log.log_end_offset)
    return log


def read(log: Log) -> dict[int, Message]:
    return {record.offset: Message(*record[:4]) for data in read_batches(log) for record in read_records(data)}


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("topic", ["magic0", "magic1", "compacted"])
def test_every_record_of_an_old_log_is_there(topic: str, is_clean: bool, tmp_path: Path) -> None:
    directory = copy(topic, tmp_path)
    policy = ("compact",) if topic == "compacted" else ("delete",)
    log = reopen(directory, clean_shutdown=is_clean, cleanup_policy=policy)
    assert read(log) == expected(topic)
    assert log.log_end_offset == max(expected(topic)) + 1
    check_indexes(directory)
    assert append(log, b"new") == log.log_end_offset - 1
    for timestamp, offset in {one.timestamp: one.offset for one in expected(topic).values()}.items():
        found = log.offset_for_timestamp(timestamp) if timestamp >= 0 else None
        assert found is None or found.offset == offset


@pytest.mark.parametrize("is_clean", [True, False])
def test_log_append_time_stays_what_it_was(is_clean: bool, tmp_path: Path) -> None:
    log = reopen(copy("appendtime", tmp_path), clean_shutdown=is_clean)
    messages = read(log)
    assert {offset: one[2:] for offset, one in messages.items()} == {
        offset: one[2:] for offset, one in expected("appendtime").items()
    }
    batches = list(read_batches(log))
    assert {header.timestamp_type for data in batches for _, header in iter_headers(data)} == {
        TimestampType.LOG_APPEND_TIME
    }
    stamps = [one.timestamp for one in messages.values()]
    assert stamps == sorted(stamps)
    assert stamps[0] > START_MS + 10**9


def test_compressed_messages_keep_their_codec(tmp_path: Path) -> None:
    log = reopen(copy("magic1", tmp_path), clean_shutdown=True)
    codecs = [header.codec for data in read_batches(log) for _, header in iter_headers(data)]
    assert list(dict.fromkeys(codecs)) == [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]


def test_a_log_is_converted_once_and_keeps_its_times(tmp_path: Path) -> None:
    directory = copy("magic0", tmp_path)
    for path in directory.iterdir():
        os.utime(path, (1_450_000_000, 1_450_000_000))
    log = reopen(directory, clean_shutdown=True)
    assert [segment.modified_ms() for segment in log._segments] == [1_450_000_000_000] * 2
    log.close(NOW_MS)
    converted = directory_bytes(directory)
    reopen(directory, clean_shutdown=True).close(NOW_MS)
    assert directory_bytes(directory) == converted


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_larger_than_a_piece(magic: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_segments, "PIECE_BYTES", 100)
    messages = [Message(offset, START_MS if magic else -1, b"k", bytes(offset * 50)) for offset in range(20)]
    (tmp_path / FIRST_SEGMENT).write_bytes(message_set(messages, magic))
    assert list(read(reopen(tmp_path, clean_shutdown=True)).values()) == messages


def test_a_segment_may_change_its_format(tmp_path: Path) -> None:
    """Kafka's `message.format.version` could be raised at any time."""
    old = [Message(offset, -1, b"k", b"magic 0") for offset in range(3)]
    newer = [Message(offset, START_MS + offset, b"k", b"magic 1") for offset in range(3, 6)]
    gap = [one._replace(offset=one.offset + 10) for one in newer]
    batch = bytes(build_batch([Record(0, START_MS, b"k", b"magic 2")], base_offset=20))
    appended = message_set(
        [Message(21, START_MS, b"k", b"x"), Message(22, START_MS + 9, b"k", b"y")], 1, LOG_APPEND_TIME
    )
    data = message_set(old, 0) + compressed_set(newer, 1, Codec.GZIP) + message_set(gap, 1) + batch + appended
    (tmp_path / FIRST_SEGMENT).write_bytes(data)
    messages = read(reopen(tmp_path, clean_shutdown=True, cleanup_policy=("compact",)))
    assert [one for one in messages.values() if one.offset < 20] == [*old, *newer, *gap]
    assert [messages[offset].timestamp for offset in (20, 21, 22)] == [START_MS, START_MS, START_MS + 9]


def test_compressed_messages_that_were_cleaned_keep_their_offsets(tmp_path: Path) -> None:
    """The offset of the outer message is that of the last inner one that is left."""
    messages = [Message(offset, START_MS + offset, b"k", b"v") for offset in (100, 103, 117)]
    (tmp_path / "00000000000000000100.log").write_bytes(compressed_set(messages, 1, Codec.LZ4))
    log = reopen(tmp_path, clean_shutdown=True, cleanup_policy=("compact",), log_start_offset=100)
    assert list(read(log).values()) == messages


def test_damage_at_the_end_is_cut_off(tmp_path: Path) -> None:
    whole = [encode(Message(offset, START_MS, b"k", b"value"), 1) for offset in range(5)]
    for cut in range(len(whole[4])):
        directory = tmp_path / str(cut)
        directory.mkdir()
        (directory / FIRST_SEGMENT).write_bytes(b"".join(whole[:4]) + whole[4][:cut])
        assert list(read(reopen(directory))) == [0, 1, 2, 3]
    flipped = bytearray(b"".join(whole))
    flipped[3 * len(whole[0]) + 20] ^= 1
    (tmp_path / FIRST_SEGMENT).write_bytes(flipped)
    assert list(read(reopen(tmp_path))) == [0, 1, 2]


@pytest.mark.parametrize("size", [1, 100])
def test_old_messages_after_record_batches_are_not_mistaken_for_damage(size: int, tmp_path: Path) -> None:
    """Kafka's `message.format.version` could be lowered too."""
    batch = bytes(build_batch([Record(0, START_MS, b"k", b"magic 2")]))
    data = batch + message_set([Message(1, START_MS, b"k", bytes(size))], 1)
    (tmp_path / FIRST_SEGMENT).write_bytes(data)
    with pytest.raises(RaykaError) as raised:
        reopen(tmp_path)
    assert raised.value.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert (tmp_path / FIRST_SEGMENT).read_bytes() == data


def test_an_empty_preallocated_segment_is_not_mistaken_for_an_old_one(tmp_path: Path) -> None:
    """Its zeros look like magic 0. To convert them would write a file of `segment.bytes` at each start."""

    class WrittenFiles(RealFiles):
        def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
            """See `RealFiles.open`."""
            assert not path.endswith(".cleaned")
            return super().open(path, create=create, read_only=read_only)

    (tmp_path / FIRST_SEGMENT).write_bytes(bytes(10_000))
    assert reopen(tmp_path, files=WrittenFiles()).log_end_offset == 0


def test_malformed_old_messages_make_the_log_unavailable(tmp_path: Path) -> None:
    """The CRC is right, so this is no damage that recovery may cut off."""
    data = encode(Message(0, START_MS, None, b"not gzip"), 1, Codec.GZIP)
    (tmp_path / FIRST_SEGMENT).write_bytes(data)
    for is_clean in (True, False):
        with pytest.raises(RaykaError) as raised:
            reopen(tmp_path, clean_shutdown=is_clean)
        assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
        assert (tmp_path / FIRST_SEGMENT).read_bytes() == data


def small(directory: Path) -> tuple[Path, list[Message]]:
    """A log of two old segments."""
    messages = [Message(offset, START_MS + offset, b"k", b"value %d" % offset) for offset in range(8)]
    directory.mkdir(parents=True)
    (directory / FIRST_SEGMENT).write_bytes(message_set(messages[:4], 1))
    (directory / "00000000000000000004.log").write_bytes(compressed_set(messages[4:], 1, Codec.GZIP))
    return directory, messages


def open_failing(directory: Path, files: FaultyFiles) -> ErrorCode:
    try:
        open_log(directory, files=files, clean_shutdown=True, **CONFIG)
    except RaykaError as error:
        return error.code
    return ErrorCode.NONE


def test_a_failing_disk_loses_nothing(tmp_path: Path) -> None:
    outcomes = []
    for error in (errno.EIO, errno.ENOSPC):
        files = FaultyFiles(0)
        while files.calls >= files.fail_at:
            files = FaultyFiles(files.fail_at + 1, error)
            directory, messages = small(tmp_path / str(error) / str(files.fail_at))
            outcomes.append(open_failing(directory, files))
            assert list(read(reopen(directory, clean_shutdown=True)).values()) == messages
    assert set(outcomes) == {ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR}
    assert outcomes.count(ErrorCode.KAFKA_STORAGE_ERROR) > 20


def test_a_power_cut_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    cut_at = 0
    while True:
        cut_at += 1
        directory, messages = small(tmp_path / str(cut_at))
        files = PowerCut(cut_at)
        try:
            open_log(directory, files=files, clean_shutdown=True, **CONFIG)
        except PowerLost:
            files.crash(random.Random(cut_at))
        else:
            break
        assert list(read(reopen(directory)).values()) == messages
        check_indexes(directory)
    assert cut_at > 10
