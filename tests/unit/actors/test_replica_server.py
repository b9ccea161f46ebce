"""The leader's answers to appends that wait for a flush, with a real log and a disk that the test holds up."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rayka.actors import background
from rayka.actors.channel.requests import NUMBERS, CheckRecords, FetchParams, ListOffsets, encode_value
from rayka.actors.channel.service import CallRequest, FrameService
from rayka.actors.channel.socket import ChannelClosed
from rayka.actors.replica import group_commit
from rayka.actors.replica.disk import DiskThread
from rayka.actors.replica.group_commit import GroupCommit
from rayka.actors.replica.server import ReplicaServer
from rayka.config import LogConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.directory.boot_record import BOOT_ID_FILE, FLUSH_FAILED
from rayka.storage.directory.disk_state import State
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.types import (
    AppendParams,
    AppendRequest,
    AppendResult,
    FetchPartition,
    FetchResult,
    FileSlice,
    IsolationLevel,
    OffsetQuery,
    TopicPartition,
)
from tests.support.descriptors import open_files
from tests.support.logs import NOW_MS, batch

FLUSHED = TopicPartition("flushed", 0)
PLAIN = TopicPartition("plain", 0)


class SlowDisk(RealFiles):
    """An fsync in a thread waits until `released` is set."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def sync(self, descriptor: int) -> None:
        in_loop = threading.current_thread() is threading.main_thread()
        assert in_loop or self.released.wait(30)
        super().sync(descriptor)


class Leader:
    """A server that leads a partition with `flush.messages=1` and one without."""

    def __init__(self, path: Path, disk: SlowDisk | None = None) -> None:
        self.disk = disk or SlowDisk()
        directory = self.directory = LogDirectory.open(str(path), self.disk, now_ms=0)
        replicas = self.replicas = Replicas()
        for name, config in ((FLUSHED, LogConfig(flush_messages=1)), (PLAIN, LogConfig())):
            partition = Partition(directory.open_log(name, uuid.uuid4(), config, now_ms=0), uuid.uuid4())
            partition.become_leader(3)
            replicas.add(partition)
        self.server = ReplicaServer(replicas, directory, DiskThread())

    def append(self, *names: TopicPartition, timeout_ms: int = 30_000) -> asyncio.Future[list[AppendResult]]:
        future: asyncio.Future[list[AppendResult]] = asyncio.get_running_loop().create_future()

        def done(results: list[AppendResult] | ChannelClosed) -> None:
            assert not isinstance(results, ChannelClosed)
            future.set_result(results)

        requests = [AppendRequest(name, memoryview(batch(b"v")), 3) for name in names]
        self.server.append(requests, AppendParams(-1, timeout_ms), done)
        return future

    async def stop(self) -> None:
        self.disk.released.set()
        await self.server.stop()


def errors(results: list[AppendResult]) -> list[int]:
    return [result.error for result in results]


def test_an_append_is_answered_after_its_flush(tmp_path: Path) -> None:
    async def check() -> None:
        leader = Leader(tmp_path)
        waiting = leader.append(FLUSHED, PLAIN)
        plain = leader.append(PLAIN)
        assert (plain.done(), waiting.done()) == (True, False)
        leader.disk.released.set()
        assert errors(await asyncio.wait_for(waiting, 60)) == [0, 0]
        await leader.stop()

    asyncio.run(check())


def test_an_append_whose_flush_takes_too_long_times_out_alone(tmp_path: Path) -> None:
    async def check() -> None:
        leader = Leader(tmp_path)
        patient = leader.append(FLUSHED)
        late = leader.append(PLAIN, FLUSHED, timeout_ms=20)
        assert errors(await asyncio.wait_for(late, 60)) == [0, ErrorCode.REQUEST_TIMED_OUT]
        assert not patient.done()
        leader.disk.released.set()
        assert errors(await asyncio.wait_for(patient, 60)) == [0]
        await leader.stop()

    asyncio.run(check())


def test_a_partition_that_leaves_fails_only_its_own_part_of_a_request(tmp_path: Path) -> None:
    async def check() -> None:
        leader = Leader(tmp_path)
        waiting = leader.append(PLAIN, FLUSHED)
        leader.server.release(FLUSHED)
        assert errors(await asyncio.wait_for(waiting, 60)) == [0, ErrorCode.NOT_LEADER_OR_FOLLOWER]
        await leader.stop()

    asyncio.run(check())


class FailingClose(RealFiles):
    """The next close of a duplicated descriptor fails when asked to; Linux closes it nevertheless."""

    def __init__(self) -> None:
        self._duplicates: set[int] = set()
        self.fails = False

    def duplicate(self, descriptor: int) -> int:
        duplicate = super().duplicate(descriptor)
        self._duplicates.add(duplicate)
        return duplicate

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        if descriptor in self._duplicates and self.fails:
            self.fails = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_every_partition_of_a_round_is_answered_when_a_close_fails_after_an_fsync(tmp_path: Path) -> None:
    async def run() -> None:
        files = FailingClose()
        directory = LogDirectory.open(str(tmp_path), files, now_ms=0)
        partitions = []
        for name in (FLUSHED, PLAIN):
            log = directory.open_log(name, uuid.uuid4(), LogConfig(flush_messages=1), now_ms=0)
            log.append_as_leader(batch(b"v"), 0, NOW_MS)
            partitions.append(Partition(log, uuid.uuid4()))
        files.fails = True
        flushed: list[Partition] = []
        failed: list[tuple[Partition, ErrorCode]] = []
        commit = GroupCommit(flushed.append, lambda partition, error: failed.append((partition, error.code)))
        commit.flush(partitions)
        await commit.stop()
        assert {partition for partition, _ in failed} | set(flushed) == set(partitions)
        assert failed[0] == (partitions[0], ErrorCode.KAFKA_STORAGE_ERROR)

    asyncio.run(run())


def test_every_partition_of_a_round_is_answered_when_one_answer_fails(tmp_path: Path) -> None:
    async def run() -> None:
        files = FailingClose()
        directory = LogDirectory.open(str(tmp_path), files, now_ms=0)
        partitions = []
        for name in (FLUSHED, PLAIN):
            log = directory.open_log(name, uuid.uuid4(), LogConfig(flush_messages=1), now_ms=0)
            log.append_as_leader(batch(b"v"), 0, NOW_MS)
            partitions.append(Partition(log, uuid.uuid4()))
        files.fails = True
        answered: list[Partition] = []

        def answer(partition: Partition, error: RaykaError | None = None) -> None:
            answered.append(partition)
            raise ConnectionResetError("the client is gone")

        commit = GroupCommit(answer, answer)
        commit.flush(partitions)
        await commit.stop()
        assert answered == partitions

    asyncio.run(run())


class NoThread(ThreadPoolExecutor):
    """The system has no thread for the first call."""

    has_failed = False

    def submit(self, *call: Any, **arguments: Any) -> Future[Any]:  # type: ignore[override]
        if not self.has_failed:
            self.has_failed = True
            raise RuntimeError("can't start new thread")
        return super().submit(*call, **arguments)


def test_a_flush_for_which_there_was_no_thread_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the appends that wait for it would do so until they time out, and its descriptor would stay open."""
    monkeypatch.setattr(group_commit, "_RETRY_S", 0.001)

    async def check() -> None:
        asyncio.get_running_loop().set_default_executor(NoThread(1))
        leader = Leader(tmp_path)
        leader.disk.released.set()
        before, failures = open_files(tmp_path), background.failures["group commit"]
        assert errors(await asyncio.wait_for(leader.append(FLUSHED), 60)) == [0]
        await leader.stop()
        assert background.failures["group commit"] == failures + 1
        assert "can't start new thread" in caplog.text
        assert open_files(tmp_path) == before

    asyncio.run(check())


def test_a_close_that_fails_for_a_flush_without_a_thread_fails_the_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the only one that hears of the bytes that are lost: the flush that is done again would succeed."""
    monkeypatch.setattr(group_commit, "_RETRY_S", 0.001)

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(NoThread(1))
        files = FailingClose()
        directory = LogDirectory.open(str(tmp_path), files, now_ms=0)
        log = directory.open_log(FLUSHED, uuid.uuid4(), LogConfig(flush_messages=1), now_ms=0)
        log.append_as_leader(batch(b"v"), 0, NOW_MS)
        files.fails = True
        flushed: list[Partition] = []
        failed: list[ErrorCode] = []
        commit = GroupCommit(flushed.append, lambda partition, error: failed.append(error.code))
        commit.flush([Partition(log, uuid.uuid4())])
        await commit.stop()
        assert not flushed
        assert set(failed) == {ErrorCode.KAFKA_STORAGE_ERROR}
        assert directory.disk.state is State.OFFLINE
        assert FLUSH_FAILED in Path(tmp_path, BOOT_ID_FILE).read_text()

    asyncio.run(run())


def test_the_flush_of_a_deleted_partition_answers_no_append_to_its_successor(tmp_path: Path) -> None:
    async def check() -> None:
        leader = Leader(tmp_path)
        before = leader.append(FLUSHED)
        old = leader.replicas.remove(FLUSHED)
        old.resign()
        leader.server.release(FLUSHED)
        assert errors(await asyncio.wait_for(before, 60)) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        leader.directory.delete_log(old.log, "gone")
        log = leader.directory.open_log(FLUSHED, uuid.uuid4(), LogConfig(flush_messages=1), now_ms=0)
        new = Partition(log, uuid.uuid4())
        leader.replicas.add(new)
        new.become_leader(3)
        written = leader.append(FLUSHED)
        leader.server._flushed(old)  # as the group commit does when the flush under way is done
        leader.server._flush_failed(old, RaykaError(ErrorCode.KAFKA_STORAGE_ERROR, "gone"))
        assert not written.done()
        leader.disk.released.set()
        assert errors(await asyncio.wait_for(written, 60)) == [0]
        await leader.stop()

    asyncio.run(check())


class Unreadable(SlowDisk):
    """When it `fails` the event loop can read no file."""

    fails = False

    def read(self, descriptor: int, size: int, position: int) -> bytes:  # type: ignore[override]
        if self.fails and threading.current_thread() is threading.main_thread():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pread(descriptor, size, position)


def test_a_partition_that_cannot_be_read_after_a_flush_keeps_no_other_from_its_answer(tmp_path: Path) -> None:
    async def check() -> None:
        files = Unreadable()
        directory = LogDirectory.open(str(tmp_path), files, now_ms=0)
        replicas = Replicas()
        for name in (FLUSHED, PLAIN):
            log = directory.open_log(name, uuid.uuid4(), LogConfig(flush_messages=1), now_ms=0)
            replicas.add(Partition(log, uuid.uuid4()))
            replicas.get(name).become_leader(3)
        server = ReplicaServer(replicas, directory, DiskThread())
        answers: dict[TopicPartition, list[AppendResult]] = {}

        def append(name: TopicPartition) -> None:
            request = AppendRequest(name, memoryview(batch(b"v")), 3)
            server.append([request], AppendParams(-1, 30_000), lambda results: answers.setdefault(name, results))

        append(FLUSHED)
        append(PLAIN)
        await asyncio.sleep(0)  # the flush of both is under way
        append(FLUSHED)  # so the new high watermark has to be looked up
        files.fails = True
        files.released.set()
        async with asyncio.timeout(10):
            while len(answers) < 2:
                await asyncio.sleep(0.01)
        assert errors(answers[FLUSHED]) == errors(answers[PLAIN]) == [ErrorCode.KAFKA_STORAGE_ERROR]
        await server.stop()

    asyncio.run(check())


def test_a_fetch_waits_for_no_more_bytes_than_its_limit_lets_in(tmp_path: Path) -> None:
    """The read ends with a whole batch, below the limit, which is also what the reader waits for."""

    async def check() -> None:
        leader = Leader(tmp_path)
        partition = leader.replicas.get(PLAIN)
        for _ in range(4):
            leader.server.append_as_coordinator(partition, memoryview(batch(b"v" * 9000)), NOW_MS)
        answers: list[list[FetchResult]] = []

        def done(results: object) -> None:
            assert isinstance(results, list)
            answers.append(results)

        def fetch(offset: int, limit: int = 20_000) -> bool:
            wanted = (FetchPartition(PLAIN, offset, limit),)
            params = FetchParams(wanted, 60.0, limit, limit, IsolationLevel.READ_UNCOMMITTED)
            return leader.server.fetch(params, done) is None

        assert fetch(0)
        assert answers[0][0].has_more
        assert 18_000 < answers[0][0].size < 20_000
        assert not fetch(2)
        assert not fetch(4)
        leader.server.append_as_coordinator(partition, memoryview(batch(b"v" * 9000)), NOW_MS)
        assert len(answers) == 2
        await leader.stop()

    asyncio.run(check())


class UnreadableRecords(SlowDisk):
    """Reads of records fail when asked to, as a broken disk does."""

    error = 0

    def read(self, descriptor: int, size: int, position: int) -> bytes:  # type: ignore[override]
        if self.error and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".log"):
            raise OSError(self.error, os.strerror(self.error))
        return os.pread(descriptor, size, position)


def test_the_leader_reads_records_that_others_could_not_read_and_its_directory_fails(
    tmp_path: Path,
) -> None:
    """Gateways and clients read segments themselves, so an error of the disk shows there first."""

    async def check() -> None:
        leader = Leader(tmp_path)
        leader.disk.released.set()
        disk = leader.disk = leader.directory._files = UnreadableRecords()
        await asyncio.wait_for(leader.append(PLAIN), 60)
        records = leader.replicas.get(PLAIN).log.read(0, 1 << 20, 1)
        assert records is not None

        async def answer(asked: FileSlice) -> object:
            future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            leader.server.ask(CheckRecords(asked), future.set_result)
            return await asyncio.wait_for(future, 60)

        assert await answer(records) == records.size
        assert await answer(records._replace(path=records.path + ".gone")) == 0
        disk.error = errno.EIO
        assert await answer(records._replace(path="/proc/self/mem")) == 0
        assert leader.directory.disk.state is State.ONLINE
        failure = await answer(records)
        assert isinstance(failure, RaykaError)
        assert failure.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert leader.directory.disk.state is State.OFFLINE
        await leader.stop()

    asyncio.run(check())


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, os.strerror(errno.EMFILE)), MemoryError()])
def test_a_reader_on_another_node_whose_records_can_t_be_read_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Its records are read when an append brings them; the append is answered, and other readers get theirs."""
    wanted = FetchParams((FetchPartition(PLAIN, 0, 1 << 20),), 30.0, 1, 1 << 20, IsolationLevel.READ_UNCOMMITTED)

    async def check() -> None:
        leader = Leader(tmp_path)
        service = FrameService(leader.server)
        remote, other = (CallRequest(NUMBERS[FetchParams], encode_value(wanted), b"") for _ in range(2))
        service.serve(remote)
        service.serve(other)
        local: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        leader.server.fetch(wanted, local.set_result)
        errors_left = iter([error])
        undisturbed = os.open

        def fail_once(*arguments: Any, **options: Any) -> int:
            if threading.current_thread() is not threading.main_thread():
                for one in errors_left:
                    raise one
            return undisturbed(*arguments, **options)

        monkeypatch.setattr(os, "open", fail_once)
        assert errors(await asyncio.wait_for(leader.append(PLAIN), 60)) == [0]
        failed = [await asyncio.wait_for(one.answered, 60) for one in (remote, other)]
        assert sorted(is_failed for is_failed, _ in failed) == [False, True]
        assert await asyncio.wait_for(local, 60)
        leader.disk.released.set()
        await leader.stop()

    asyncio.run(check())


def test_an_answered_fetch_leaves_no_timer(tmp_path: Path) -> None:
    """Long polls that end with records, or that nobody waits for any more, would otherwise leave one for minutes."""
    wanted = FetchParams((FetchPartition(PLAIN, 0, 1 << 20),), 60.0, 1, 1 << 20, IsolationLevel.READ_UNCOMMITTED)

    async def check() -> None:
        leader = Leader(tmp_path)
        answers: list[object] = []
        leader.server.fetch(wanted, answers.append)
        unwanted = leader.server.fetch(wanted, answers.append)
        timers = list(leader.server.reads._timers.values())
        leader.server.cancel(unwanted)
        assert errors(await leader.append(PLAIN)) == [0]
        assert len(answers) == 1
        assert not leader.server.reads._timers
        assert all(timer.cancelled() for timer in timers)
        leader.disk.released.set()
        await leader.stop()

    asyncio.run(check())


@pytest.mark.parametrize("ends", ["flush", "release"])
def test_an_append_that_fails_with_its_answer_fails_alone(ends: str, tmp_path: Path) -> None:
    def fail(results: object) -> None:
        raise ConnectionError

    async def check() -> None:
        leader, read = Leader(tmp_path), asyncio.Event()
        leader.server.append([AppendRequest(FLUSHED, memoryview(batch(b"v")), 3)], AppendParams(-1, 600_000), fail)
        waiting = leader.append(FLUSHED, timeout_ms=600_000)
        partition = leader.replicas.get(FLUSHED)
        coordinator: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        leader.server.when_flushed(partition, 1, fail)
        leader.server.when_flushed(partition, 1, coordinator.set_result)
        wanted = FetchParams((FetchPartition(FLUSHED, 0, 1 << 20),), 600.0, 1, 1 << 20, IsolationLevel.READ_UNCOMMITTED)
        leader.server.fetch(wanted, lambda results: read.set())
        if ends == "flush":
            leader.disk.released.set()
        else:
            leader.server.release(FLUSHED)
        error = ErrorCode.NONE if ends == "flush" else ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (errors(await waiting), await coordinator) == ([error], error)
        await read.wait()
        await leader.stop()

    asyncio.run(asyncio.wait_for(check(), 60))


@pytest.mark.parametrize("ends", ["append", "commit of a coordinator", "release", "time"])
def test_a_reader_that_fails_with_its_answer_fails_alone(ends: str, tmp_path: Path) -> None:
    """Neither the append that it has waited for fails, which is in the log, nor another reader."""

    def fail(results: object) -> None:
        raise ConnectionError

    async def check() -> None:
        leader, answered = Leader(tmp_path), asyncio.Event()
        wait_s = 0.05 if ends == "time" else 600.0
        wanted = FetchParams((FetchPartition(PLAIN, 0, 1 << 20),), wait_s, 1, 1 << 20, IsolationLevel.READ_UNCOMMITTED)
        leader.server.fetch(wanted, fail)
        leader.server.fetch(wanted, lambda results: answered.set())
        if ends == "append":
            assert errors(await leader.append(PLAIN)) == [0]
        elif ends == "release":
            leader.server.release(PLAIN)
        elif ends != "time":
            assert leader.server.append_as_coordinator(leader.replicas.get(PLAIN), memoryview(batch(b"v")), NOW_MS) == 0
        await answered.wait()
        assert not leader.server.reads._timers
        await leader.stop()

    asyncio.run(asyncio.wait_for(check(), 60))


class OutOfMemory(SlowDisk):
    """There is no memory for reads of one partition's records."""

    fails = False

    def read(self, descriptor: int, size: int, position: int) -> bytes:  # type: ignore[override]
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if self.fails and path.endswith(".log") and str(PLAIN) in path:
            raise MemoryError
        return os.pread(descriptor, size, position)


def test_a_read_that_fails_unexpectedly_is_answered_at_once(tmp_path: Path) -> None:
    """So is one that has waited, and other partitions of the same request get their records."""
    wanted = tuple(FetchPartition(name, 1, 1 << 20) for name in (PLAIN, FLUSHED))

    def params(min_bytes: int) -> FetchParams:
        return FetchParams(wanted, 600.0, min_bytes, 1 << 20, IsolationLevel.READ_UNCOMMITTED)

    async def check() -> None:
        disk = OutOfMemory()
        disk.released.set()
        leader = Leader(tmp_path, disk)
        for _ in range(3):
            await leader.append(PLAIN, FLUSHED)
        answers: list[Any] = []
        leader.server.fetch(params(min_bytes=1 << 19), answers.append)
        disk.fails = True
        leader.server.release(PLAIN)
        leader.server.fetch(params(min_bytes=1), answers.append)
        queries = tuple(OffsetQuery(name, NOW_MS) for name in (PLAIN, FLUSHED))
        leader.server.ask(ListOffsets(queries, IsolationLevel.READ_UNCOMMITTED), answers.append)
        assert list(map(errors, answers)) == [[ErrorCode.UNKNOWN_SERVER_ERROR, 0]] * 3
        assert answers[0][1].size
        assert answers[1][1].size
        checked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        records = answers[0][1].records
        leader.server.ask(
            CheckRecords(records._replace(path=records.path.replace("flushed", "plain"))), checked.set_result
        )
        assert (await checked).code is ErrorCode.UNKNOWN_SERVER_ERROR
        await leader.stop()

    asyncio.run(asyncio.wait_for(check(), 60))
