"""Any core runs on the coordinators' shell: here one of counters, with every way in which a request can fail."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rayka.actors.channel.messages import MessageCodec
from rayka.actors.coordinator.log import CoordinatorLog
from rayka.actors.coordinator.runtime import CoordinatorRuntime
from rayka.config import BrokerConfig, LogConfig
from rayka.coordinator.clock import Now
from rayka.coordinator.request import Request
from rayka.coordinator.result import Completion, Pending, Result
from rayka.coordinator.spec import CoordinatorConfigs, CoordinatorSpec
from rayka.coordinator.topics import Topics
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.image import MetadataImage
from rayka.metadata.values import BrokerImage, PartitionImage, TopicImage
from rayka.storage.files import RealFiles
from tests.unit.actors.test_coordinator_log import FewDescriptors, open_partition

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Count:
    number: int


@dataclass(frozen=True, slots=True)
class AddRequest(Request[Count]):
    """Adds to a counter. An amount of 13 can't be written, one of 14 breaks the core half-way."""

    name: str
    amount: int


@dataclass(frozen=True, slots=True)
class ReadRequest(Request[Count]):
    name: str


@dataclass(frozen=True, slots=True)
class AwaitRequest(Request[Count]):
    """Answered when the counter is next changed."""

    name: str


@dataclass(frozen=True, slots=True)
class SetAllRequest(Request[Count]):
    """Sets many counters to 1, in several batches."""

    count: int


@dataclass(frozen=True, slots=True)
class ExpireRequest(Request[Count]):
    """Sets so many deadlines for now. At each of them a counter goes up; "broken" can't be replayed."""

    deadlines: int
    name: str


@dataclass(frozen=True, slots=True)
class UnservedRequest(Request[Count]):
    name: str


@dataclass(frozen=True, slots=True)
class Notify:
    """Step: answer those who wait for the counter."""

    name: str


def long_name(number: int) -> str:
    return f"{number:05}" + "x" * 100


class Counters:
    """A `spec.Coordinator`. A counter that is broken can't be replayed."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.waiting: dict[str, list[int]] = {}
        self.due_ms: int | None = None
        self.deadlines = 0
        self.expiring = ""
        self.requests = 0
        self.topics = Topics()

    def replay(self, record: tuple[str, int], record_offset: int, producer_id: int) -> None:
        if record == ("broken", 1):
            raise KeyError("broken")
        self.numbers[record[0]] = record[1]

    def end_transaction(self, producer_id: int, is_committed: bool) -> None: ...

    def on_loaded(self, now: Now) -> None: ...

    def on_new_metadata_image(self, topics: Topics) -> Result[None]:
        self.topics = topics
        return Result(None)

    def on_new_configs(self, configs: CoordinatorConfigs) -> None: ...

    def unload(self, error: ErrorCode) -> tuple[Completion, ...]:
        """Has an answer of its own for those who wait for the counter "told"."""
        return tuple(Completion(request_id, Count(-int(error))) for request_id in self.waiting.get("told", []))

    def commit(self, step: Notify, now: Now) -> tuple[Completion, ...]:
        waiting = self.waiting.pop(step.name, [])
        return tuple(Completion(request_id, Count(self.numbers[step.name])) for request_id in waiting)

    def rollback(self, step: Notify, error: ErrorCode, now: Now) -> Result[Any] | None:
        return Result(Count(-int(error)))

    def next_deadline(self) -> int | None:
        return self.due_ms

    def expire(self, now: Now) -> Result[None] | None:
        if not self.deadlines:
            self.due_ms = None
            return None
        self.deadlines -= 1
        return Result(None, ((self.expiring, self.numbers.get(self.expiring, 0) + 1),))

    def validate_state(self) -> None:
        assert all(number >= 0 for number in self.numbers.values())

    def add(self, request: AddRequest, now: Now) -> Result[Count]:
        number = self.numbers.get(request.name, 0) + request.amount
        if request.amount == 14:
            raise ZeroDivisionError
        value: Any = {request.amount} if request.amount == 13 else number
        return Result(Count(number), ((request.name, value),), step=Notify(request.name))

    def wait(self, request: AwaitRequest, now: Now) -> Result[Count]:
        self.requests += 1
        self.waiting.setdefault(request.name, []).append(self.requests)
        return Result(Pending(self.requests))

    def expire_soon(self, request: ExpireRequest, now: Now) -> Result[Count]:
        self.deadlines, self.due_ms, self.expiring = request.deadlines, now.ms, request.name
        return Result(Count(request.deadlines))

    def set_all(self, request: SetAllRequest, now: Now) -> Result[Count]:
        records = tuple((long_name(number), 1) for number in range(request.count))
        return Result(Count(request.count), records, is_atomic=False)

    def read(self, request: ReadRequest) -> Count:
        """The counter "endless" is larger than any message can say."""
        return Count(2**99 if request.name == "endless" else self.numbers.get(request.name, 0))


def encode(record: tuple[str, int]) -> tuple[bytes, bytes | None]:
    return record[0].encode(), json.dumps(record[1]).encode()


def decode(key: bytes, value: bytes | None) -> tuple[str, int]:
    return key.decode(), json.loads(value or b"0")


COUNTERS: CoordinatorSpec[Counters] = CoordinatorSpec(
    "counter",
    "__counters",
    "num.partitions",
    lambda configs: Counters(),
    encode,
    decode,
    commands={
        AddRequest: Counters.add,
        AwaitRequest: Counters.wait,
        SetAllRequest: Counters.set_all,
        ExpireRequest: Counters.expire_soon,
    },
    queries={ReadRequest: Counters.read},
)
CODEC = MessageCodec((*COUNTERS.message_types(), UnservedRequest))


class Running:
    """A coordinator of counters, asked as another process asks it."""

    def __init__(self, path: Path, files: RealFiles | None = None, config: LogConfig | None = None) -> None:
        self.partition, self.server = open_partition(path, files, config)
        self.runtime = CoordinatorRuntime(COUNTERS, self.server, BrokerConfig.parse({}), 1)
        self.log = CoordinatorLog(self.partition, self.server)

    async def start(self) -> None:
        self.runtime.leads(self.partition)
        await self.loaded()

    async def loaded(self) -> None:
        loading = CODEC.encode(RaykaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        while await self.send(CODEC.encode(ReadRequest(""))) == loading:
            await asyncio.sleep(0)

    async def ask(self, request: Request[R]) -> R:
        response = CODEC.decode(await self.send(CODEC.encode(request)))
        if isinstance(response, RaykaError):
            raise response
        found: R = response
        return found

    async def send(self, message: bytes) -> bytes:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.runtime.execute(0, message, future.set_result)
        return await asyncio.wait_for(future, 60)

    async def refusal(self, request: Request[Any]) -> ErrorCode:
        with pytest.raises(RaykaError) as error:
            await self.ask(request)
        return error.value.code

    async def number(self, name: str) -> int:
        return (await self.ask(ReadRequest(name))).number


def nothing(running: Running) -> None: ...


def check(path: Path, test: Callable[[Running], Awaitable[None]], before: Callable[[Running], None] = nothing) -> None:
    async def run() -> None:
        running = Running(path)
        before(running)
        await running.start()
        await test(running)
        running.runtime.resign()

    asyncio.run(run())


def test_a_command_counts_and_outlives_a_restart(tmp_path: Path) -> None:
    async def add(running: Running) -> None:
        assert await running.ask(AddRequest("a", 2)) == Count(2)
        assert await running.ask(AddRequest("a", 3)) == Count(5)
        running.runtime.leaves(0)
        assert await running.refusal(ReadRequest("a")) is ErrorCode.NOT_COORDINATOR
        await running.start()
        assert await running.number("a") == 5

    check(tmp_path, add)


def test_a_request_that_waits_is_answered_by_the_step_of_another(tmp_path: Path) -> None:
    async def wait(running: Running) -> None:
        waiting = asyncio.ensure_future(running.ask(AwaitRequest("a")))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert running.partition.log.size == 0, "a command without records writes nothing"
        await running.ask(AddRequest("a", 4))
        assert await waiting == Count(4)

    check(tmp_path, wait)


def test_requests_that_wait_are_answered_when_the_coordinator_resigns(tmp_path: Path) -> None:
    """By the core, or else with the error that later requests get."""

    async def resign(running: Running) -> None:
        refused = asyncio.ensure_future(running.refusal(AwaitRequest("a")))
        told = asyncio.ensure_future(running.ask(AwaitRequest("told")))
        await asyncio.sleep(0)
        running.runtime.leaves(0)
        assert await refused is ErrorCode.NOT_COORDINATOR
        assert await told == Count(-ErrorCode.NOT_COORDINATOR)

    check(tmp_path, resign)


def test_a_response_that_cannot_be_sent_is_an_error_of_the_server(tmp_path: Path) -> None:
    async def read(running: Running) -> None:
        assert await running.refusal(ReadRequest("endless")) is ErrorCode.UNKNOWN_SERVER_ERROR

    check(tmp_path, read)


@pytest.mark.parametrize("loads_later", [False, True])
def test_a_coordinator_follows_racks_of_brokers_that_change(tmp_path: Path, loads_later: bool) -> None:
    """The partition has a replica on a broker that is not registered."""
    partition = PartitionImage(0, 1, 0, (1, 2), (1,), 0, ("one", "two"))
    topics = {"t": TopicImage("t", uuid.uuid4(), (partition,))}
    images = [
        MetadataImage(version=version, topics=topics, brokers={1: BrokerImage(1, "host", 9092, rack, False, "node", 1)})
        for version, rack in enumerate((None, "a"), 1)
    ]

    async def follow(running: Running) -> None:
        running.runtime.take_image(images[0])
        if loads_later:
            running.runtime.leaves(0)
            running.runtime.take_image(images[1])
            await running.start()
        else:
            running.runtime.image_changed(*images)
        core = running.runtime._coordinators[0]._core
        assert core.topics.by_name["t"].racks == (("a",),)

    check(tmp_path, follow)


@pytest.mark.parametrize("amount", [13, 14])
def test_a_command_that_fails_unexpectedly_fails_alone_and_changes_nothing(tmp_path: Path, amount: int) -> None:
    async def fail(running: Running) -> None:
        await running.ask(AddRequest("a", 2))
        end = running.partition.log.log_end_offset
        if amount == 14:
            assert await running.refusal(AddRequest("a", amount)) is ErrorCode.UNKNOWN_SERVER_ERROR
        else:
            assert await running.ask(AddRequest("a", amount)) == Count(-ErrorCode.UNKNOWN_SERVER_ERROR)
        assert (await running.number("a"), running.partition.log.log_end_offset) == (2, end)
        assert await running.ask(AddRequest("a", 1)) == Count(3)

    check(tmp_path, fail)


def test_an_append_that_fails_is_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(running: Running) -> None:
        await running.ask(AddRequest("a", 2))
        running.partition.resign()
        assert await running.ask(AddRequest("a", 5)) == Count(-ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert await running.number("a") == 2

    check(tmp_path, fail)


def test_a_record_that_cannot_be_replayed_makes_the_coordinator_load_again(tmp_path: Path) -> None:
    """Its memory may not agree with its log then. Loading skips the record."""

    async def fail(running: Running) -> None:
        await running.ask(AddRequest("a", 2))
        assert await running.refusal(AddRequest("broken", 1)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await running.loaded()
        assert (await running.number("a"), await running.number("broken")) == (2, 0)

    check(tmp_path, fail)


def test_a_coordinator_that_loads_again_leaves_the_deadlines_of_before(tmp_path: Path) -> None:
    async def expire(running: Running) -> None:
        await running.ask(ExpireRequest(3, "broken"))
        async with asyncio.timeout(10):
            while running.partition.log.log_end_offset == 0:
                await asyncio.sleep(0.001)
        await running.loaded()
        assert running.runtime._coordinators[0]._core.deadlines == 0
        assert running.partition.log.log_end_offset == 1
        assert await running.number("broken") == 0

    check(tmp_path, expire)


def test_requests_are_answered_while_thousands_of_deadlines_are_handled(tmp_path: Path) -> None:
    async def expire(running: Running) -> None:
        await running.ask(ExpireRequest(5_000, "expired"))
        async with asyncio.timeout(30):
            while not (first := await running.number("expired")):
                await asyncio.sleep(0)
            assert first < 5_000
            while await running.number("expired") < 5_000:
                await asyncio.sleep(0.01)

    check(tmp_path, expire)


def test_bad_requests_are_refused_one_by_one(tmp_path: Path) -> None:
    async def refuse(running: Running) -> None:
        for message in (b"", b"garbage", CODEC.encode(AddRequest("a", 1))[:-1], CODEC.encode(UnservedRequest("a"))):
            refused = CODEC.decode(await running.send(message))
            assert isinstance(refused, RaykaError)
            assert refused.code is ErrorCode.INVALID_REQUEST
        assert await running.refusal(Count(1)) is ErrorCode.INVALID_REQUEST  # type: ignore[arg-type]
        assert await running.ask(AddRequest("a", 1)) == Count(1)

    check(tmp_path, refuse)


def test_malformed_records_are_skipped_when_loading(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def damage(running: Running) -> None:
        for key, value in ((b"a", b"7"), (b"\xff", b"1"), (b"a", b"}"), (b"b", b"8")):
            running.log.append([(key, value)])

    async def skip(running: Running) -> None:
        assert (await running.number("a"), await running.number("b")) == (7, 8)
        assert "skipped 2 malformed records" in caplog.text
        assert "skipped the record at offset 2" in caplog.text

    check(tmp_path, skip, damage)


def test_a_result_that_is_not_atomic_may_be_larger_than_a_batch(tmp_path: Path) -> None:
    async def set_all(running: Running) -> None:
        assert await running.ask(SetAllRequest(50_000)) == Count(50_000)
        assert running.partition.log.log_end_offset == 50_000
        assert running.partition.log.size > 3 * 1024 * 1024

    check(tmp_path, set_all)


def test_half_of_a_result_counts_if_the_rest_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = CoordinatorLog.append

    def fail_second(log: CoordinatorLog, records: Any, *transaction: Any) -> int:
        if log.partition.log.log_end_offset:
            raise RaykaError(ErrorCode.KAFKA_STORAGE_ERROR, "disk full")
        return append(log, records, *transaction)

    async def set_all(running: Running) -> None:
        monkeypatch.setattr(CoordinatorLog, "append", fail_second)
        await running.ask(SetAllRequest(10_000))
        monkeypatch.setattr(CoordinatorLog, "append", append)
        written = running.partition.log.log_end_offset
        assert 0 < written < 10_000
        assert [await running.number(long_name(number)) for number in (written - 1, written)] == [1, 0]

    check(tmp_path, set_all)


def check_flushing(path: Path, test: Callable[[Running, FewDescriptors], Awaitable[None]]) -> None:
    """With a log whose records count when they are on the device."""

    async def run() -> None:
        files = FewDescriptors()
        running = Running(path, files, LogConfig(flush_messages=1))
        await running.start()
        await test(running, files)
        running.runtime.resign()
        await running.server.stop()

    asyncio.run(run())


def test_requests_are_refused_when_the_flush_fails(tmp_path: Path) -> None:
    async def fail(running: Running, files: FewDescriptors) -> None:
        assert await running.ask(AddRequest("a", 2)) == Count(2)
        waiting = asyncio.ensure_future(running.refusal(AwaitRequest("a")))
        await asyncio.sleep(0)
        files.lacks = True
        adding = asyncio.ensure_future(running.refusal(AddRequest("a", 3)))
        await asyncio.sleep(0)
        assert await running.refusal(ReadRequest("a")) is ErrorCode.NOT_COORDINATOR
        assert await adding is ErrorCode.NOT_COORDINATOR
        assert await waiting is ErrorCode.NOT_COORDINATOR
        files.lacks = False
        running.server.flush([running.partition])
        assert await running.number("a") == 5, "the record was written, and the flush after it succeeded"

    check_flushing(tmp_path, fail)


def test_a_coordinator_that_resigns_answers_requests_that_wait_for_a_flush(tmp_path: Path) -> None:
    async def resign(running: Running, files: FewDescriptors) -> None:
        adding = asyncio.ensure_future(running.refusal(AddRequest("a", 3)))
        reading = asyncio.ensure_future(running.refusal(ReadRequest("a")))
        await asyncio.sleep(0)
        running.runtime.resign()
        assert running.partition.log.recovery_point == 0, "the flush is not done"
        assert await adding is ErrorCode.NOT_COORDINATOR
        assert await reading is ErrorCode.NOT_COORDINATOR

    check_flushing(tmp_path, resign)
