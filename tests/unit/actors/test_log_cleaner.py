"""The log cleaner of a partition actor: a real process cleans, while the log is served."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from rayka.actors.cleaner import log_cleaner
from rayka.actors.cleaner.log_cleaner import LogCleaner
from rayka.actors.cleaner.messages import CleaningRequest, send
from rayka.actors.cleaner.process import CleanerProcess
from rayka.actors.replica.disk import DiskThread
from rayka.config import BrokerConfig, LogConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.cleaner.dirtiness import Dirtiness, measure, plan_of
from rayka.storage.cleaner.plan import CleanerLimits, CleaningPlan
from rayka.storage.directory.log_directory import CLEANED_OFFSETS_FILE, LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.storage.format.records import Record, build_batch
from rayka.storage.log.log import Log
from rayka.storage.segments.segment import CLEANED_SUFFIX, LOG_SUFFIX, file_name
from rayka.testing import wait_until
from rayka.types import TopicPartition
from tests.support.logs import append, open_log, read_values

NAME = TopicPartition("compacted", 0)
TOPIC_ID = uuid.uuid4()
CONFIG = LogConfig(cleanup_policy=("compact",), internal_segment_bytes=20_000)


class Cleaned:
    """A compacted partition with its cleaner."""

    def __init__(self, path: Path, *, is_internal: bool = False, **settings: str) -> None:
        self.directory = LogDirectory.open(str(path / "logs"), RealFiles(), now_ms=0)
        self.disk = DiskThread()
        config = CONFIG if not is_internal else LogConfig(cleanup_policy=("compact",))
        self.log = self.directory.open_log(NAME, TOPIC_ID, config, now_ms=0)
        self.partition = Partition(self.log, TOPIC_ID, is_internal=is_internal)
        self.partition.become_leader(0)
        self.replicas = Replicas()
        self.replicas.add(self.partition)
        broker = BrokerConfig.parse(settings)
        self.cleaner = LogCleaner(self.replicas, self.directory, self.disk, lambda: broker, str(path / "slots"))

    def write(self, count: int, size: int = 100) -> dict[bytes, tuple[int, bytes]]:
        """Updates of ten keys; the last offset and value of each."""
        last = {}
        for _ in range(count):
            offset = self.log.log_end_offset
            key, value = b"key %d" % (offset % 10), b"%d " % offset + bytes(size)
            self.log.append_as_leader(build_batch([Record(0, 0, key, value)]), 0, 0)
            last[key] = offset, value
        self.log.update_high_watermark(self.log.log_end_offset)
        self.log.flush()
        return last

    async def stop(self) -> None:
        await self.cleaner.stop()
        self.disk.stop()


def check(cleaned: Callable[[], Cleaned], test: Callable[[Cleaned], Awaitable[None]]) -> None:
    async def run() -> None:
        subject = cleaned()
        try:
            await test(subject)
        finally:
            await subject.stop()

    asyncio.run(run())


def test_a_dirty_log_is_cleaned_and_serves_the_same_last_values(tmp_path: Path) -> None:
    async def test(subject: Cleaned) -> None:
        last = subject.write(1000)
        size = subject.log.size
        assert await subject.cleaner.clean_one()
        assert subject.log.size < size / 3
        values = read_values(subject.log)
        assert {offset: values[offset] for offset, _ in last.values()} == dict(last.values())
        assert not await subject.cleaner.clean_one(), "nothing is dirty any more"
        checkpoint = (tmp_path / "logs" / CLEANED_OFFSETS_FILE).read_text()
        assert checkpoint == f"0\n1\ncompacted 0 {subject.log.segments[-1].base_offset}\n"
        more = subject.write(1000)
        assert await subject.cleaner.clean_one()
        values = read_values(subject.log)
        assert {offset: values[offset] for offset, _ in more.values()} == dict(more.values())
        assert not [name for name in os.listdir(subject.log.directory) if name.endswith((".cleaned", ".swap"))]

    check(lambda: Cleaned(tmp_path), test)


@pytest.mark.parametrize(
    "settings", [{"log.cleaner.enable": "false"}, {"log.cleaner.threads": "0"}], ids=["disabled", "no threads"]
)
def test_a_cleaner_that_is_turned_off_cleans_nothing(tmp_path: Path, settings: dict[str, str]) -> None:
    async def test(subject: Cleaned) -> None:
        subject.write(1000)
        assert not await subject.cleaner.clean_one()
        assert len(read_values(subject.log)) == 1000

    check(lambda: Cleaned(tmp_path, **settings), test)


def test_the_actors_of_a_node_share_the_slots(tmp_path: Path) -> None:
    async def test(subject: Cleaned) -> None:
        subject.write(1000)
        (tmp_path / "slots").mkdir()
        files = RealFiles()
        other = files.lock(str(tmp_path / "slots" / "cleaner-0.lock"))
        assert not await subject.cleaner.clean_one()
        files.close(other)
        assert await subject.cleaner.clean_one()

    check(lambda: Cleaned(tmp_path), test)


def test_a_log_with_a_damaged_batch_is_left_alone_and_the_next_one_is_cleaned(tmp_path: Path) -> None:
    async def test(subject: Cleaned) -> None:
        subject.write(1000)
        damaged = subject.log.segments[1].path
        with open(damaged, "r+b") as file:
            file.seek(100)
            file.write(b"?")
        name = TopicPartition("other", 0)
        other = subject.directory.open_log(name, uuid.uuid4(), CONFIG, now_ms=0)
        replica = Partition(other, uuid.uuid4())
        replica.become_leader(0)
        subject.replicas.add(replica)
        size = subject.log.size
        assert not await subject.cleaner.clean_one()
        assert subject.log.size == size
        assert not [entry for entry in os.listdir(subject.log.directory) if entry.endswith((".cleaned", ".swap"))]
        for number in range(1000):
            other.append_as_leader(build_batch([Record(0, 0, b"%d" % (number % 9), bytes(99))]), 0, 0)
        other.update_high_watermark(1000)
        other.flush()
        assert await subject.cleaner.clean_one()
        assert len(read_values(other)) < 300

    check(lambda: Cleaned(tmp_path), test)


def test_other_logs_are_cleaned_while_one_log_cannot_be(tmp_path: Path) -> None:
    async def test(subject: Cleaned) -> None:
        config = LogConfig(cleanup_policy=("compact",))
        other = subject.directory.open_log(TopicPartition("other", 0), uuid.uuid4(), config, now_ms=0)
        many = [Record(0, 0, b"%d" % number, None) for number in range(45_000)]  # the map has room for fewer
        other.append_as_leader(build_batch(many), 0, 0)
        other.update_high_watermark(len(many))
        other.roll(0)
        other.flush()
        replica = Partition(other, uuid.uuid4())
        replica.become_leader(0)
        subject.write(1000)
        assert await subject.cleaner.clean_one()
        subject.replicas.add(replica)
        subject.write(1000)
        subject.cleaner.start()
        await asyncio.to_thread(wait_until, lambda: subject.cleaner.rounds > 1, 20, "the less dirty log is cleaned")

    settings = {"log.cleaner.dedupe.buffer.size": str(1 << 20), "log.cleaner.backoff.ms": "10"}
    check(lambda: Cleaned(tmp_path, **settings), test)


def add_dirty(subject: Cleaned) -> None:
    """Another partition whose log is to be cleaned."""
    other = subject.directory.open_log(TopicPartition("other", 0), uuid.uuid4(), CONFIG, now_ms=0)
    replica = Partition(other, uuid.uuid4())
    replica.become_leader(0)
    subject.replicas.add(replica)
    for number in range(1000):
        other.append_as_leader(build_batch([Record(0, 0, b"%d" % (number % 9), bytes(99))]), 0, 0)
    other.update_high_watermark(1000)
    other.flush()


def test_other_logs_are_cleaned_after_an_unexpected_failure_of_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(subject: Cleaned) -> None:
        subject.write(1000)
        add_dirty(subject)
        undisturbed = log_cleaner.plan_of

        def plan(dirtiness: Dirtiness, *arguments: Any) -> CleaningPlan:
            if dirtiness.log is subject.log:
                raise ValueError("nobody has thought of this")
            return undisturbed(dirtiness, *arguments)

        monkeypatch.setattr(log_cleaner, "plan_of", plan)
        await subject.cleaner._clean_all()
        assert subject.cleaner.rounds == 1

    check(lambda: Cleaned(tmp_path), test)


def test_other_logs_are_cleaned_when_the_disk_takes_no_note_of_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(subject: Cleaned) -> None:
        subject.write(1000)
        add_dirty(subject)
        undisturbed = subject.directory.write_cleaned_offset

        def write(log: Log, offset: int) -> None:
            if log is subject.log and offset:
                raise RaykaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
            undisturbed(log, offset)

        monkeypatch.setattr(subject.directory, "write_cleaned_offset", write)
        await subject.cleaner._clean_all()
        assert subject.cleaner.rounds == 1
        monkeypatch.undo()
        await subject.cleaner._clean_all()
        assert subject.cleaner.rounds == 2

    check(lambda: Cleaned(tmp_path), test)


def test_a_round_that_fails_unexpectedly_is_an_answer_too(tmp_path: Path) -> None:
    plan = CleaningPlan(str(tmp_path), (), 0, 0, 1, 1, 1, 1, 1, {})
    limits = CleanerLimits(dedupe_buffer_bytes=1 << 10, io_buffer_bytes=-1)
    process = CleanerProcess()
    try:
        for _ in range(2):
            process.begin(CleaningRequest(plan, limits))
            event = process.next()
            assert event is not None
            assert event.failure is not None
            assert event.failure.code == ErrorCode.UNKNOWN_SERVER_ERROR
    finally:
        process.end()


def test_a_deleted_log_ends_its_round(tmp_path: Path) -> None:
    async def test(subject: Cleaned) -> None:
        subject.write(3000)
        cleaning = asyncio.ensure_future(subject.cleaner.clean_one())
        async with asyncio.timeout(10):
            while subject.directory.cleaned_offset(NAME) is None:
                await asyncio.sleep(0.001)
        subject.replicas.remove(NAME)
        await subject.disk.run(lambda: subject.directory.delete_log(subject.log, "gone"))
        assert not await cleaning
        subject.directory.check_online()

    check(lambda: Cleaned(tmp_path), test)


def test_a_log_that_was_cut_meanwhile_keeps_what_it_has(tmp_path: Path) -> None:
    async def test(subject: Cleaned) -> None:
        subject.write(3000)
        cleaning = asyncio.ensure_future(subject.cleaner.clean_one())
        async with asyncio.timeout(10):
            while subject.directory.cleaned_offset(NAME) is None:
                await asyncio.sleep(0.001)
        subject.log.truncate_to(subject.log.log_end_offset - 1)
        assert not await cleaning
        assert len(read_values(subject.log)) == 2999

    check(lambda: Cleaned(tmp_path), test)


def test_a_commit_is_on_the_device_before_older_values_of_its_keys_go(tmp_path: Path) -> None:
    async def test(subject: Cleaned) -> None:
        last = subject.write(1000)
        value = b"committed" + bytes(100)
        data = build_batch(
            [Record(0, 0, key, value) for key in last],
            producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True,
        )  # fmt: skip
        subject.log.append_as_leader(data, 0, 0, origin_is_client=False)
        subject.log.roll(0)
        subject.log.flush()
        marker = build_end_transaction_marker(
            ControlType.COMMIT, producer_id=7, producer_epoch=0, coordinator_epoch=0, now_ms=0
        )
        marker_offset = subject.log.append_as_leader(marker, 0, 0, origin_is_client=False).base_offset
        subject.log.update_high_watermark(subject.log.log_end_offset)
        assert subject.log.recovery_point == marker_offset
        cleaning = asyncio.ensure_future(subject.cleaner.clean_one())
        async with asyncio.timeout(30):
            while subject.directory.cleaned_offset(NAME) is None:
                await asyncio.sleep(0.001)
        assert subject.log.recovery_point == marker_offset + 1
        assert len(read_values(subject.log)) > 1000, "nothing was taken away before that"
        assert await cleaning
        assert set(read_values(subject.log).values()) >= {value}

    check(lambda: Cleaned(tmp_path), test)


def test_a_policy_that_no_longer_compacts_ends_the_round(tmp_path: Path) -> None:
    async def test(subject: Cleaned) -> None:
        subject.write(1000)
        cleaning = asyncio.ensure_future(subject.cleaner.clean_one())
        async with asyncio.timeout(30):
            while subject.directory.cleaned_offset(NAME) is None:
                await asyncio.sleep(0.001)
        subject.log.configure(LogConfig(cleanup_policy=("delete",), internal_segment_bytes=20_000))
        assert not await cleaning
        assert len(read_values(subject.log)) == 1000
        assert not list(Path(subject.log.directory).glob("*.cleaned"))

    check(lambda: Cleaned(tmp_path), test)


def test_a_round_begins_without_files_that_an_earlier_one_has_left(tmp_path: Path) -> None:
    async def test(subject: Cleaned) -> None:
        subject.write(1000)
        left = Path(subject.log.directory, file_name(1, LOG_SUFFIX) + CLEANED_SUFFIX)
        left.touch()
        assert await subject.cleaner.clean_one()
        assert not left.exists(), "after a crash a segment that is put in place would count as unfinished beside it"

    check(lambda: Cleaned(tmp_path), test)


def test_the_active_segment_of_an_internal_topic_is_closed_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayka.actors.cleaner.log_cleaner._EARLY_ROLL_BYTES", 50_000)

    async def test(subject: Cleaned) -> None:
        last = subject.write(1000)
        assert not await subject.cleaner.clean_one(), "the closed segment is not on the device yet"
        subject.log.flush()
        assert await subject.cleaner.clean_one()
        assert read_values(subject.log) == dict(last.values())

    check(lambda: Cleaned(tmp_path, is_internal=True), test)


PARENT = """
import sys, threading
from rayka.actors.cleaner.messages import CleaningRequest, receive
from rayka.actors.cleaner.process import CleanerProcess

process = CleanerProcess()
process.begin(receive(sys.stdin.buffer, CleaningRequest))
print(process._process.pid, flush=True)
threading.Event().wait()
"""


def test_the_cleaner_process_dies_with_its_actor(tmp_path: Path) -> None:
    """A new owner of the directory must not meet it there."""
    log = open_log(tmp_path, cleanup_policy=("compact",))
    append(log, *[bytes(100)] * 100)
    log.roll(0)
    log.flush()
    dirtiness = measure(log, None, 0)
    request = CleaningRequest(plan_of(dirtiness, (), 0), CleanerLimits(max_bytes_per_second=1.0))
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        send(parent.stdin, request)
        cleaner = psutil.Process(int(parent.stdout.readline()))
        assert cleaner.is_running()
        parent.kill()
    wait_until(lambda: not cleaner.is_running() or cleaner.status() == psutil.STATUS_ZOMBIE, 60, "the cleaner is gone")
