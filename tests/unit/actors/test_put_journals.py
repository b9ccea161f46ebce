"""A leader and its put journals, with a real log; the program is in the same process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import uuid
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayka.actors.channel.requests import (
    DeleteRecords,
    DrainJournals,
    ListOffsets,
    MeasureShareDepth,
    OpenJournal,
    ShareFetch,
)
from rayka.actors.replica import put_journals
from rayka.actors.replica.disk import DiskThread
from rayka.actors.replica.server import ReplicaServer
from rayka.config import LogConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.queue import put_journal
from rayka.queue.put_journal import JournalOpener, PutJournal
from rayka.queue.writer import QueueWriter
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.share.requests import ShareFetchParams, ShareFetchPartition
from rayka.storage.directory.disk_state import State
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.format.pieces import Pieces
from rayka.storage.format.records import Record, build_batch, read_records
from rayka.storage.journal.layout import (
    CAPACITY,
    FRAME,
    HEADER_BYTES,
    LARGE_CAPACITY,
    MOST_FRAME_BYTES,
    MOST_LARGE_RECORD_BYTES,
    MOST_UNREAD_RECORDS,
    WORD,
    WRITTEN,
    JournalState,
)
from rayka.types import (
    AppendParams,
    AppendRequest,
    IsolationLevel,
    OffsetQuery,
    OffsetSpec,
    OpenedJournal,
    TopicPartition,
)

QUEUE = TopicPartition("queue", 0)
TOPIC_ID = uuid.UUID(int=7)
ENOUGH_S = 30


class Disk(RealFiles):
    """Fails with `error` when it is set, where it writes a log."""

    error: int | None = None

    def write(self, descriptor: int, buffer: Any, position: int) -> int:  # type: ignore[override]
        if self.error is not None:
            raise OSError(self.error, "the test's")
        return RealFiles.write(descriptor, buffer, position)


class Leader:
    """A server that leads one partition."""

    def __init__(self, path: Path, **config: Any) -> None:
        self.disk = Disk()
        self.directory = LogDirectory.open(str(path), self.disk, now_ms=0)
        self.directory.opened()
        self.replicas = Replicas()
        log = self.directory.open_log(QUEUE, TOPIC_ID, LogConfig(**config), now_ms=0)
        self.partition = Partition(log, TOPIC_ID)
        self.partition.become_leader(1)
        self.replicas.add(self.partition)
        self.server = ReplicaServer(self.replicas, self.directory, DiskThread())
        self.journals = self.server.put_journals
        self.journals.take_over(self.partition, self.journals.find(str(path / str(QUEUE))))

    async def ask(self, request: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        self.server.ask(request, future.set_result)
        answer = await asyncio.wait_for(future, ENOUGH_S)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def open(self, producer_id: int = 1, *, is_large: bool = False) -> PutJournal:
        opened: OpenedJournal = await self.ask(OpenJournal(QUEUE, TOPIC_ID.bytes, producer_id, is_large))
        return PutJournal(opened.path, opened.max_record_bytes, lambda: None)

    async def drain(self) -> None:
        assert await self.ask(DrainJournals(QUEUE)) is True

    @property
    def end_offset(self) -> int:
        return self.partition.log.log_end_offset

    def values(self) -> list[bytes]:
        log = self.partition.log
        found = log.read(0, 1 << 24, log.high_watermark)
        assert found is not None
        data = Path(found.path).read_bytes()[found.position : found.position + found.size]
        return [bytes(record.value or b"") for record in read_records(memoryview(data))]


def with_leader(path: Path, check: Callable[[Leader], Coroutine[Any, Any, None]], **config: Any) -> None:
    async def run() -> None:
        leader = Leader(path, **config)
        await check(leader)
        await leader.server.stop()

    asyncio.run(run())


def files(path: Path) -> list[str]:
    return sorted(each.name for each in (path / str(QUEUE)).iterdir() if "journal" in each.name)


def test_what_a_program_writes_is_in_the_log_after_a_ring(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        program = await leader.open()
        assert program.put([b"a"]) == 1
        assert program.put([b"b", b"c"]) == 2
        await leader.drain()
        program.wait_until_drained()
        assert leader.values() == [b"a", b"b", b"c"]

    with_leader(tmp_path, check)


def test_a_question_for_the_end_offset_finds_what_nobody_rang_for(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        program = await leader.open()
        program.put([b"a", b"b"])
        query = OffsetQuery(QUEUE, OffsetSpec.LATEST)
        ((answer),) = await leader.ask(ListOffsets((query,), IsolationLevel.READ_UNCOMMITTED))
        assert answer.offset == 2

    with_leader(tmp_path, check)


def test_a_watched_journal_needs_no_ring(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        program = await leader.open()
        await leader.drain()
        assert program._writer.is_watched
        program.put([b"a"])
        async with asyncio.timeout(ENOUGH_S):
            while program._writer.is_watched or not leader.end_offset:
                await asyncio.sleep(0.001)
        assert leader.end_offset == 1

    with_leader(tmp_path, check)


def test_records_are_cut_into_batches_that_readers_share(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        program = await leader.open()
        values = [b"%d" % number for number in range(1000)]
        for value in values:
            program.put([value])
        await leader.drain()
        assert leader.values() == values
        producer = leader.partition.log.producers[1]
        assert producer.last_sequence == 999

    with_leader(tmp_path, check)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic_partition": TopicPartition("other", 0)}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic_id": uuid.UUID(int=8).bytes}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"producer_id": 1}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_journal_is_refused(tmp_path: Path, change: dict[str, Any], code: ErrorCode) -> None:
    async def check(leader: Leader) -> None:
        await leader.open(1)
        with pytest.raises(RaykaError) as raised:
            await leader.ask(OpenJournal(QUEUE, TOPIC_ID.bytes, 2)._replace(**change))
        assert raised.value.code is code

    with_leader(tmp_path, check)


def test_a_topic_that_flushes_first_has_no_journals(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        with pytest.raises(RaykaError, match="flushed before it is acknowledged"):
            await leader.open()

    with_leader(tmp_path, check, flush_messages=1)


def test_a_partition_with_more_replicas_has_no_journals(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        leader.partition.become_leader(2, replica_count=2, in_sync_count=2)
        with pytest.raises(RaykaError, match="has replicas"):
            await leader.open()

    with_leader(tmp_path, check)


def test_there_are_not_more_journals_than_a_leader_can_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_journals, "MOST_JOURNALS", 2)

    async def check(leader: Leader) -> None:
        programs = [await leader.open(number) for number in range(2)]
        with pytest.raises(RaykaError) as raised:
            await leader.open(2)
        assert raised.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert len(programs) == 2

    with_leader(tmp_path, check)


def test_a_stop_appends_everything_and_closes_the_journals(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        program = await leader.open()
        program.put([b"a"])
        await leader.server.stop()
        assert leader.values() == [b"a"]
        assert files(tmp_path) == []
        assert program.is_closed
        program.wait_until_drained()
        assert program.put([b"b"]) == 0

    with_leader(tmp_path, check)


def test_the_journal_of_a_program_that_is_gone_is_appended_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(put_journals, "_GRACE_S", 0.0)

    async def check(leader: Leader) -> None:
        program = await leader.open()
        program.put([b"a"])
        await leader.journals._check_all()
        assert files(tmp_path) == ["1.journal"]
        program.put([b"b"])
        del program
        await leader.journals._check_all()
        assert leader.values() == [b"a", b"b"]
        assert files(tmp_path) == []

    with_leader(tmp_path, check)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork with threads
def test_a_child_of_a_program_that_is_gone_keeps_no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was forked, as by `multiprocessing`, and lives on."""
    monkeypatch.setattr(put_journals, "_GRACE_S", 0.0)

    async def check(leader: Leader) -> None:
        program = await leader.open()
        reading, writing = os.pipe()
        is_there, says = os.pipe()
        if (child := os.fork()) == 0:
            os.close(writing)
            os.write(says, b"x")
            os.read(reading, 1)
            os._exit(0)
        os.read(is_there, 1)
        del program
        await leader.journals._check_all()
        left = files(tmp_path)
        os.close(writing)
        os.waitpid(child, 0)
        for descriptor in (reading, is_there, says):
            os.close(descriptor)
        assert left == []

    with_leader(tmp_path, check)


def test_a_program_that_can_not_be_told_keeps_its_journal(tmp_path: Path) -> None:
    """The disk is full, and its file system writes even what is there already to another place."""

    async def check(leader: Leader) -> None:
        program = await leader.open()
        leader.partition.log.configure(LogConfig(flush_messages=1))
        leader.disk.error = errno.ENOSPC
        leader.journals.configured(leader.partition)
        assert program.put([b"a"]) == 1
        leader.disk.error = None
        leader.directory.probe()
        await leader.journals._check_all()
        assert program.is_closed
        assert leader.end_offset == 1

    with_leader(tmp_path, check)


def test_a_leader_that_makes_room_slowly_may_take_long_for_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes room once in 80 s; `put` gives up when there was none for 120 s."""

    async def check(leader: Leader) -> None:
        now_s = 0.0

        def sleep(_: float) -> None:
            nonlocal now_s
            now_s += 80
            leader.journals.drain([QUEUE])

        monkeypatch.setattr(put_journal, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=sleep))
        program = await leader.open()
        items = [b"x" * program.max_record_bytes] * (5 * CAPACITY // program.max_record_bytes)
        assert program.put(items) == len(items)
        assert now_s > 240

    with_leader(tmp_path, check)


def test_a_program_of_a_deleted_topic_gets_the_error(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        program = await leader.open()
        program.put([b"a"])
        leader.journals.removed(QUEUE)
        with pytest.raises(RaykaError) as raised:
            program.wait_until_drained()
        assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert program.put([b"b"]) == 0

    with_leader(tmp_path, check)


def test_a_topic_that_flushes_from_now_on_closes_its_journals(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        program = await leader.open()
        program.put([b"a"])
        leader.partition.log.configure(LogConfig(flush_messages=1))
        leader.journals.configured(leader.partition)
        assert program.is_closed
        assert leader.end_offset == 1

    with_leader(tmp_path, check)


def test_what_can_not_be_appended_now_is_appended_later(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        program = await leader.open()
        program.put([b"a"])
        leader.partition.resign()
        await leader.drain()
        assert leader.end_offset == 0
        leader.partition.become_leader(2)
        await leader.drain()
        assert leader.values() == [b"a"]

    with_leader(tmp_path, check)


def test_a_full_disk_loses_nothing_that_was_put(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        program = await leader.open()
        program.put([b"a"])
        leader.disk.error = errno.ENOSPC
        await leader.drain()
        leader.disk.error = None
        leader.directory.probe()
        await leader.drain()
        assert leader.values() == [b"a"]

    with_leader(tmp_path, check)


def test_records_that_the_topic_refuses_are_kept_aside(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        program = await leader.open()
        program.put([b"x" * 1000])
        leader.partition.log.configure(LogConfig(max_message_bytes=200))
        await leader.drain()
        with pytest.raises(RaykaError) as raised:
            program.wait_until_drained()
        assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert files(tmp_path) == ["1.journal.failed"]

    with_leader(tmp_path, check)


def test_a_journal_with_a_damaged_frame_is_kept_aside_and_its_program_is_told(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        program = await leader.open()
        program.put([b"whole"])
        await leader.drain()
        program.put([b"damaged"])
        path = tmp_path / str(QUEUE) / "1.journal"
        with path.open("r+b") as file:
            file.seek(path.read_bytes().index(b"damaged"))
            file.write(b"DAMAGED")
        await leader.drain()
        assert files(tmp_path) == ["1.journal.failed"]
        with pytest.raises(RaykaError) as raised:
            program.wait_until_drained()
        assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
        assert leader.values() == [b"whole"]

    with_leader(tmp_path, check)


def test_the_next_leader_goes_on_with_the_journals_of_one_that_died(tmp_path: Path) -> None:
    """It died after an append that its mark does not cover."""

    async def check() -> None:
        leader = Leader(tmp_path)
        program = await leader.open()
        program.put([b"a", b"b"])
        leader.journals._of(QUEUE)[0].journal.drained = lambda _: None  # type: ignore[method-assign]
        leader.journals._drain(leader.journals._of(QUEUE)[0])
        assert leader.end_offset > 0
        await leader.journals._background.stop()
        leader.directory.close([], now_ms=0)
        program.put([b"c"])
        successor = Leader(tmp_path)
        await successor.drain()
        program.put([b"d"])
        await successor.drain()
        assert successor.values() == [b"a", b"b", b"c", b"d"]
        await successor.server.stop()

    asyncio.run(check())


def test_the_next_leader_appends_nothing_of_a_journal_that_was_closed(tmp_path: Path) -> None:
    """It died before it could remove the file. The program has sent what it wrote after the end."""

    async def check() -> None:
        leader = Leader(tmp_path)
        program = await leader.open()
        program.put([b"a"])
        await leader.drain()
        leader.journals._of(QUEUE)[0].journal.set_state(JournalState.CLOSED)
        assert program.put([b"b"]) == 0
        leader.directory.close([], now_ms=0)
        successor = Leader(tmp_path)
        await successor.drain()
        assert successor.values() == [b"a"]
        assert files(tmp_path) == []
        await successor.server.stop()

    asyncio.run(check())


def test_a_journal_of_a_partition_that_is_gone_is_no_error_of_the_disk(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        answer = asyncio.get_running_loop().create_future()
        leader.journals.open(OpenJournal(QUEUE, TOPIC_ID.bytes, 1), answer.set_result)
        leader.directory.delete_log(leader.replicas.remove(QUEUE).log, "x")
        error = await asyncio.wait_for(answer, ENOUGH_S)
        assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert leader.directory.disk.state is State.ONLINE

    with_leader(tmp_path, check)


def open_descriptors(path: Path) -> int:
    """How many files below `path` this process has open."""
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(each).startswith(str(path))
    return count


def test_a_journal_for_which_there_is_no_room_leaves_nothing(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        await leader.open(2)
        before = open_descriptors(tmp_path)
        leader.disk.error = errno.ENOSPC
        for _ in range(3):
            with pytest.raises(RaykaError, match="the test's"):
                await leader.open()
        assert open_descriptors(tmp_path) == before
        assert files(tmp_path) == ["2.journal"]
        leader.disk.error = None
        leader.directory.probe()
        await leader.open()

    with_leader(tmp_path, check)


def test_journals_that_could_not_be_found_are_closed_again(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        programs = [await leader.open(number) for number in range(3)]
        before, opened = open_descriptors(tmp_path), RealFiles.open

        def open_two(path: str, **options: Any) -> int:
            if open_descriptors(tmp_path) > before + 1:
                raise OSError(errno.EMFILE, "the test's")
            return opened(leader.disk, path, **options)

        leader.disk.open = open_two  # type: ignore[method-assign]
        with pytest.raises(RaykaError):
            leader.journals.find(str(tmp_path / str(QUEUE)))
        assert open_descriptors(tmp_path) == before
        del leader.disk.open, programs

    with_leader(tmp_path, check)


def test_what_else_is_called_a_journal_is_no_error_of_the_disk(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        path = tmp_path / str(QUEUE)
        (path / "1.journal").mkdir()
        (path / "2.journal").symlink_to("nothing")
        assert leader.journals.find(str(path)) == []
        assert leader.directory.disk.state is State.ONLINE

    with_leader(tmp_path, check)


class Sent:
    """In the place of a producer: what was sent to it."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def send(self, topic: str, value: bytes) -> Any:
        self.values.append(value)
        return SimpleNamespace(get=lambda: None)


def writer_of(program: PutJournal, sent: Sent) -> QueueWriter:
    opener = JournalOpener(None, None, None)  # type: ignore[arg-type]
    opener.journal = program
    return QueueWriter(sent, "queue", 0, opener)  # type: ignore[arg-type]


def opener_of(leader: Leader, asked: list[bool]) -> JournalOpener:
    """It notes for each journal that it asks for whether that is a large one."""

    async def producer_id() -> int:
        return len(asked)

    async def open_journal(partition: TopicPartition, topic_id: bytes, producer_id: int, *, is_large: bool) -> Any:
        asked.append(is_large)
        return await leader.ask(OpenJournal(partition, topic_id, producer_id, is_large))

    broker = SimpleNamespace(
        controller=SimpleNamespace(allocate_producer_id=producer_id),
        partitions=SimpleNamespace(channel_of=lambda _: "a path", open_journal=open_journal),
    )
    loop = SimpleNamespace(submit=asyncio.ensure_future, call_soon=lambda call: None)
    topic = SimpleNamespace(partitions=lambda: [QUEUE], topic_id=TOPIC_ID.bytes, name="queue")
    return JournalOpener(broker, loop, topic)  # type: ignore[arg-type]


async def put_until_journal(writer: QueueWriter, opener: JournalOpener) -> None:
    async with asyncio.timeout(ENOUGH_S):
        while opener.journal is None:
            writer.put(b"small")
            await asyncio.sleep(0)


def test_a_handle_that_is_dropped_gives_its_journal_back_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that runs many small tasks would soon have all journals, if it waited for the garbage collector."""
    monkeypatch.setattr(put_journals, "_GRACE_S", 0.0)

    async def check(leader: Leader) -> None:
        opener = opener_of(leader, [])
        writer = QueueWriter(Sent(), "queue", 0, opener)  # type: ignore[arg-type]
        await put_until_journal(writer, opener)
        gc.disable()
        try:
            del writer, opener
            await asyncio.sleep(0)
            await leader.journals._check_all()
            assert files(tmp_path) == []
        finally:
            gc.enable()

    with_leader(tmp_path, check)


@pytest.mark.parametrize("max_message_bytes", [1 << 20, 100_000])
def test_a_large_item_now_and_then_takes_no_journal_each(tmp_path: Path, max_message_bytes: int) -> None:
    """Also where a large journal does not take it, since the topic's batches may not be larger."""

    async def check(leader: Leader) -> None:
        asked: list[bool] = []
        opener = opener_of(leader, asked)
        writer = QueueWriter(Sent(), "queue", 0, opener)  # type: ignore[arg-type]
        for _ in range(4):
            await put_until_journal(writer, opener)
            writer.put(b"x" * 80_000)
        assert asked == [False, True]

    with_leader(tmp_path, check, max_message_bytes=max_message_bytes)


def test_a_later_put_raises_the_error_of_items_that_the_topic_refused(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        sent = Sent()
        writer = writer_of(await leader.open(), sent)
        writer.put(b"x" * 1000)
        leader.partition.log.configure(LogConfig(max_message_bytes=200))
        await leader.drain()
        with pytest.raises(RaykaError) as raised:
            writer.put(b"b")
        assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
        writer.put(b"c")
        assert sent.values == [b"c"]
        writer.flush()

    with_leader(tmp_path, check)


def test_a_program_waits_for_its_earlier_items_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread puts all the time."""
    monkeypatch.setattr(put_journal, "_TIMEOUT_S", 0.5)

    async def check(leader: Leader) -> None:
        program = await leader.open()
        program.put([b"a"])

        def ring() -> None:
            leader.journals._drain(leader.journals._of(QUEUE)[0])
            program._writer.write([b"of another thread"])

        program._ring = ring
        program.wait_until_drained()

    with_leader(tmp_path, check)


def test_a_journal_that_is_closed_while_a_thread_puts_is_no_error_for_another(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        program = await leader.open()
        program.put([b"a"])
        await leader.server.stop()
        assert program.put([b"b"]) == 0
        program.wait_until_drained()

    with_leader(tmp_path, check)


def test_the_end_of_the_interpreter_closes_no_journal_that_may_be_used(tmp_path: Path) -> None:
    """A thread, or a function that runs at exit, would write to whatever has the descriptor then."""

    async def check(leader: Leader) -> None:
        program = await leader.open()
        finalizers = [each for each in weakref.finalize._registry if (found := each.peek()) and found[0] is program]  # type: ignore[attr-defined]
        assert [each.atexit for each in finalizers] == [False]

    with_leader(tmp_path, check)


def test_a_journal_that_a_topic_may_not_have_any_more_is_closed_when_that_is_possible(tmp_path: Path) -> None:
    """The topic got `flush.messages` while the leader was away, or its disk was full; or it got replicas."""

    async def check() -> None:
        leader = Leader(tmp_path)
        program = await leader.open()
        program.put([b"a"])
        leader.directory.close([], now_ms=0)
        successor = Leader(tmp_path, flush_messages=1)
        await successor.journals._check_all()
        assert program.is_closed
        assert successor.end_offset == 1
        assert files(tmp_path) == []
        await successor.server.stop()

    asyncio.run(check())


def test_a_damaged_journal_keeps_the_leader_from_no_other(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        damaged, program = await leader.open(1), await leader.open(2)
        await leader.drain()
        os.truncate(tmp_path / str(QUEUE) / "1.journal", 4096)
        damaged._writer._words[WRITTEN // WORD] = 2**62
        program.put([b"a"])
        await leader.journals._check_all()
        assert leader.values() == [b"a"]

    with_leader(tmp_path, check)


def test_what_is_sent_after_a_put_follows_it(tmp_path: Path) -> None:
    """The program sends through another handle of the queue, or tells another program to."""

    async def check(leader: Leader) -> None:
        program = await leader.open()
        program.put([b"a"])
        batch = memoryview(bytearray(build_batch([Record(0, 0, None, b"b")])))
        answer = asyncio.get_running_loop().create_future()
        leader.server.append([AppendRequest(QUEUE, batch)], AppendParams(1, 0), answer.set_result)
        await asyncio.wait_for(answer, ENOUGH_S)
        assert leader.values() == [b"a", b"b"]

    with_leader(tmp_path, check)


def test_a_queue_that_is_closed_gives_its_journal_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_journals, "_GRACE_S", 0.0)

    async def check(leader: Leader) -> None:
        writer = writer_of(await leader.open(), Sent())
        writer.put(b"a")
        await leader.drain()
        writer.close()
        await leader.journals._check_all()
        assert files(tmp_path) == []

    with_leader(tmp_path, check)


def test_a_file_that_is_no_journal_leaves_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    before = open_descriptors(tmp_path)
    for _ in range(3):
        with pytest.raises((OSError, ValueError)):
            PutJournal(str(tmp_path / "x"), 1, lambda: None)
    assert open_descriptors(tmp_path) == before


def test_a_question_for_the_end_offset_finds_all_of_a_full_journal(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        program = await leader.open()
        assert program.put([b"x"] * MOST_UNREAD_RECORDS) == MOST_UNREAD_RECORDS
        query = OffsetQuery(QUEUE, OffsetSpec.LATEST)
        ((answer),) = await leader.ask(ListOffsets((query,), IsolationLevel.READ_UNCOMMITTED))
        assert answer.offset == MOST_UNREAD_RECORDS

    with_leader(tmp_path, check)


MIDDLE = 300_000
"""Bytes of an item for which a usual journal is too small."""


def items_of(*sizes: int) -> list[bytes]:
    return [bytes([number]) * size for number, size in enumerate(sizes)]


def test_large_items_are_appended_in_the_order_of_the_journal(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        program, pieces = await leader.open(is_large=True), Pieces()
        items = items_of(MIDDLE, 1, MIDDLE, 3_000_000)
        for piece in (b"<", items[0], b">"):
            pieces.write(piece)
        assert program.put([*items, pieces, b"end"]) == 6
        await leader.drain()
        assert leader.values() == [*items, bytes(pieces), b"end"]

    with_leader(tmp_path, check, max_message_bytes=2 * MOST_LARGE_RECORD_BYTES)


def test_more_large_items_than_a_journal_has_room_for_are_put_while_the_leader_reads(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        program = await leader.open(is_large=True)
        items = [bytes([number]) * 900_000 for number in range(2 * LARGE_CAPACITY // 900_000)]
        putting = asyncio.create_task(asyncio.to_thread(program.put, items))
        while not putting.done():
            await leader.drain()
        await leader.drain()
        assert await putting == leader.end_offset == len(items)

    with_leader(tmp_path, check, max_message_bytes=2 * MOST_LARGE_RECORD_BYTES)


def test_the_next_leader_goes_on_with_the_large_journal_of_one_that_died(tmp_path: Path) -> None:
    """It died after an append that its mark does not cover."""

    async def check() -> None:
        leader, items = Leader(tmp_path), items_of(MIDDLE, MIDDLE, MIDDLE)
        program = await leader.open(is_large=True)
        program.put(items[:1])
        leader.journals._of(QUEUE)[0].journal.drained = lambda _: None  # type: ignore[method-assign]
        leader.journals._drain(leader.journals._of(QUEUE)[0])
        assert leader.end_offset > 0
        leader.directory.close([], now_ms=0)
        program.put(items[1:2])
        successor = Leader(tmp_path)
        await successor.drain()
        program.put(items[2:])
        await successor.drain()
        assert successor.values() == items
        await successor.server.stop()

    asyncio.run(check())


def test_large_items_that_the_topic_refuses_are_kept_aside(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        program = await leader.open(is_large=True)
        program.put(items_of(MIDDLE))
        leader.partition.log.configure(LogConfig(max_message_bytes=MIDDLE))
        await leader.drain()
        assert program.is_closed
        with pytest.raises(RaykaError) as raised:
            program.check_kept()
        assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert [name.endswith(".journal.failed") for name in files(tmp_path)] == [True]

    with_leader(tmp_path, check)


@pytest.mark.parametrize("item", [b"small", b"x" * (MOST_FRAME_BYTES + 1)])
@pytest.mark.parametrize("position", [0, 10, FRAME.size])
def test_a_damaged_frame_is_kept_aside(tmp_path: Path, item: bytes, position: int) -> None:
    async def check(leader: Leader) -> None:
        program = await leader.open(is_large=True)
        program.put([b"before"])
        await leader.drain()
        place = HEADER_BYTES + program._writer._after[0] + position
        program.put([item])
        (path,) = (tmp_path / str(QUEUE)).glob("*.journal")
        with path.open("r+b") as file:
            byte = os.pread(file.fileno(), 1, place)[0]
            os.pwrite(file.fileno(), bytes([byte ^ 0x55]), place)
        await leader.drain()
        assert leader.values() == [b"before"]
        assert program.is_closed
        with pytest.raises(RaykaError) as raised:
            program.check_kept()
        assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
        assert files(tmp_path) == ["1.journal.failed"]

    with_leader(tmp_path, check)


def test_a_large_journal_counts_as_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_journals, "MOST_JOURNALS", 8)

    async def check(leader: Leader) -> None:
        programs = [await leader.open(1, is_large=True), await leader.open(2)]
        with pytest.raises(RaykaError) as raised:
            await leader.open(3, is_large=True)
        assert raised.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        programs += [await leader.open(number) for number in range(4, 7)]
        with pytest.raises(RaykaError):
            await leader.open(7)
        assert len(programs) == 5

    with_leader(tmp_path, check)


def test_an_item_that_needs_a_larger_journal_gives_the_other_one_back(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        sent = Sent()
        writer = writer_of(await leader.open(), sent)
        assert writer._journals is not None
        writer.put(b"a")
        await leader.drain()
        too_large = bytes(MOST_LARGE_RECORD_BYTES + 1)
        writer.put(too_large)
        assert writer._journals.journal is not None
        writer.put(bytes(MIDDLE))
        assert writer._journals.journal is None
        assert sent.values == [too_large, bytes(MIDDLE)]

    with_leader(tmp_path, check)


def test_what_a_thread_puts_while_another_needs_a_larger_journal_is_in_the_log_after_flush(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        sent, program = Sent(), await leader.open()
        writer = writer_of(program, sent)
        writer.put(b"early")

        def put_late() -> None:
            """The leader has read, and before the first thread sees that, another one puts."""
            leader.journals.drain([QUEUE])
            program._ring = lambda: None
            writer.put(b"late")
            program._ring = lambda: leader.journals.drain([QUEUE])

        program._ring = put_late
        writer.put(bytes(MIDDLE))
        writer.flush()
        assert leader.values() == [b"early", b"late"]
        assert sent.values == [bytes(MIDDLE)]

    with_leader(tmp_path, check)


def test_a_thread_that_still_has_a_journal_that_was_given_back_sends_its_items(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        sent, program = Sent(), await leader.open()
        writer = writer_of(program, sent)
        writer.put(b"a")
        await leader.drain()
        writer.close()
        assert program.put([b"b"]) == 0
        assert writer._journals is not None
        writer._journals.journal = program  # as the thread found it
        writer.put(b"b")
        assert sent.values == [b"b"]
        assert writer._journals.journal is None

    with_leader(tmp_path, check)


def test_a_journal_holds_a_bounded_number_of_records_that_the_log_does_not_have(tmp_path: Path) -> None:
    """A leader may have to append all of them before it answers a request."""

    async def check(leader: Leader) -> None:
        program = await leader.open()
        written = 0
        while count := program._writer.write([b"x"] * 3000):
            written += count
        assert MOST_UNREAD_RECORDS - 3000 < written <= MOST_UNREAD_RECORDS
        await leader.drain()
        assert program._writer.write([b"y"] * 3000) == 3000

    with_leader(tmp_path, check)


MANY = 20
"""Journals that take longer than the turn in which an actor does nothing else."""
IN_EACH = 16_000


async def full_journals(leader: Leader) -> list[PutJournal]:
    programs = [await leader.open(number) for number in range(MANY)]
    for program in programs:
        assert program.put([b"x"] * IN_EACH) == IN_EACH
    return programs


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns in which also a fast machine can't read all that `full_journals` has."""
    monkeypatch.setattr("rayka.actors.replica.put_journals._TURN_S", 0.001)


@pytest.mark.usefixtures("short_turns")
def test_other_requests_are_served_while_many_journals_are_full(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        programs = await full_journals(leader)
        await leader.drain()
        ends = [leader.end_offset]
        while ends[-1] < MANY * IN_EACH:
            leader.journals._look()
            assert ends[-1] < leader.end_offset
            ends.append(leader.end_offset)
        assert len(ends) > 3
        for program in programs:
            program.wait_until_drained()

    with_leader(tmp_path, check)


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize(
    ("request_", "is_part_enough"),
    [
        (ShareFetch(ShareFetchParams("group", "member", max_records=9), (ShareFetchPartition(QUEUE, b""),)), True),
        (ShareFetch(ShareFetchParams("group", "member", min_records=9), (ShareFetchPartition(QUEUE, b""),)), False),
        (MeasureShareDepth("group", QUEUE, b""), False),
    ],
    ids=["some", "a batch", "the number"],
)
def test_who_asks_for_some_items_does_not_wait_until_all_journals_are_read(
    tmp_path: Path, request_: Any, is_part_enough: bool
) -> None:
    async def check(leader: Leader) -> None:
        programs = await full_journals(leader)
        leader.server.share_partitions = SimpleNamespace(  # type: ignore[assignment]
            ask=lambda request, done: done(leader.end_offset), more_bytes=lambda partition: None
        )
        found = await leader.ask(request_)
        assert 0 < found < MANY * IN_EACH if is_part_enough else found == MANY * IN_EACH
        leader.server.share_partitions = None
        assert len(programs) == MANY

    with_leader(tmp_path, check)


def test_a_program_is_told_of_records_that_are_kept_aside_when_that_is_possible(tmp_path: Path) -> None:
    """Else it would go on with a journal that nobody reads."""

    async def check(leader: Leader) -> None:
        program = await leader.open()
        program.put([b"x" * 1000])
        leader.partition.log.configure(LogConfig(max_message_bytes=200))
        leader.disk.error = errno.ENOSPC
        leader.journals.drain([QUEUE])
        assert not program.is_closed
        leader.disk.error = None
        leader.directory.probe()
        await leader.drain()
        assert program.is_closed
        assert files(tmp_path) == ["1.journal.failed"]

    with_leader(tmp_path, check)


def test_an_actor_without_memory_serves_its_journals_and_requests_when_it_has_some(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        program = await leader.open()
        program.put([b"a"])
        read = leader.disk.read_fully

        def fail(*_: object) -> bytes:
            raise MemoryError

        leader.disk.read_fully = fail  # type: ignore[method-assign]
        await leader.drain()
        leader.journals.drain([QUEUE])
        leader.journals._look()
        leader.disk.read_fully = read  # type: ignore[method-assign]
        async with asyncio.timeout(ENOUGH_S):
            while not leader.end_offset:
                await asyncio.sleep(0.001)
        assert leader.values() == [b"a"]

    with_leader(tmp_path, check)


def test_segments_below_deleted_records_are_removed(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        program, log = await leader.open(is_large=True), leader.partition.log
        segments = tmp_path / str(QUEUE)
        for _ in range(8):
            program.put(items_of(MIDDLE))
            await leader.drain()
        before = len(list(segments.glob("*.log")))
        (answer,) = await leader.ask(DeleteRecords(((QUEUE, 7),)))
        assert (answer.error, log.log_start_offset) == (ErrorCode.NONE, 7)
        await asyncio.wait(leader.server._background._tasks, timeout=ENOUGH_S)
        assert before > len(list(segments.glob("*.log"))) == len(list(segments.glob("*.log*"))) == 1

    with_leader(tmp_path, check, segment_bytes=2 * MIDDLE, file_delete_delay_ms=0)
