"""Batches in memory that a client shares with a leader: what the client does to it never harms the leader's log."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from rayka.actors.channel import memory_file
from rayka.actors.channel.channel_link import ChannelLeaderClient, shared_frame
from rayka.actors.channel.memory_file import MemoryFile, PeerMemory
from rayka.actors.channel.requests import AppendFrame, AppendShared, SharedRecords, ShareMemory
from rayka.actors.channel.server import ChannelRequest, ChannelServer
from rayka.actors.channel.service import FrameService
from rayka.actors.channel.socket import ChannelClosed, LocalChannel
from rayka.client.producer import filling
from rayka.client.producer.batch import ProducerBatch
from rayka.client.settings import ProducerConfig, configure
from rayka.errors import ErrorCode, RaykaError
from rayka.replica.partition import Partition
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import Buffer, is_intact, iter_headers
from rayka.testing import wait_until
from rayka.types import AppendParams, AppendRequest
from tests.support.logs import batch
from tests.support.ways import WAYS, fill_by
from tests.unit.actors.test_coordinator_log import NAME, open_partition

MIB = 1 << 20
PARAMS = AppendParams(-1, 30_000)
WAIT_S = 60


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryFile:
    """The memory file of this process."""
    file = MemoryFile()
    monkeypatch.setattr(memory_file, "_own", file)
    return file


def put(memory: MemoryFile, records: bytearray) -> memoryview:
    taken = memory.take(len(records))
    assert taken is not None
    taken[:] = records
    return taken


def large(number: int = 0) -> bytearray:
    return batch(b"%d" % number * 200_000)


def test_memory_is_free_again_when_nobody_has_a_view_of_it() -> None:
    memory = MemoryFile(4 * MIB)
    views = [memory.take(MIB) for _ in range(4)]
    assert None not in views
    assert memory.take(MIB) is None
    part = views.pop()[5:10]  # type: ignore[index]
    assert memory.take(MIB) is None
    del part
    gc.collect()
    assert memory.take(MIB) is not None
    assert memory.take(1000) is None, "not worth it"


@given(st.lists(st.tuples(st.integers(0, 3 * MIB), st.booleans()), max_size=12))
def test_what_somebody_has_is_given_to_nobody_else(asked: list[tuple[int, bool]]) -> None:
    memory, held = MemoryFile(4 * MIB), []
    for number, (size, is_held) in enumerate(asked):
        view = memory.take(size)
        if view is not None:
            view[:] = bytes([number]) * size
            if is_held:
                held.append((view, number))
    assert [set(view.tobytes()) for view, _ in held] == [{number} for _, number in held]


def test_a_view_has_a_position_only_in_its_own_file() -> None:
    memory, other = MemoryFile(MIB), MemoryFile(MIB)
    view = memory.take(MIB)
    assert view is not None
    assert memory.position_of(view[777:]) == 777
    for elsewhere in (other.take(MIB), memoryview(bytearray(5)), memoryview(b"12345")):
        assert elsewhere is not None
        assert memory.position_of(elsewhere) is None


class Leader:
    """A partition behind a local channel, and the requests that came."""

    def __init__(self, directory: Path, files: RealFiles | None) -> None:
        self._files = files
        self.path = str(directory / "sockets" / "leader.1.sock")
        self.partition: Partition
        self.seen: list[type] = []
        self._directory = directory

    async def start(self) -> None:
        self.partition, server = open_partition(self._directory / "log", self._files)
        self._service = FrameService(server)
        await self.open()

    async def open(self) -> None:
        self._server = ChannelServer(self.path, self._serve)
        await self._server.start()

    async def close(self) -> None:
        await self._server.stop()

    def _serve(self, request: ChannelRequest) -> None:
        self.seen.append(type(request.message))
        self._service.serve(request)


def run(directory: Path, check: Callable[[Leader], Awaitable[None]], files: RealFiles | None = None) -> Leader:
    leader = Leader(directory, files)

    async def main() -> None:
        await leader.start()
        try:
            await asyncio.wait_for(check(leader), WAIT_S)
        finally:
            await leader.close()

    uvloop.run(main())
    return leader


async def append(client: ChannelLeaderClient, *records: memoryview, topic_id: bytes | None = None) -> Any:
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    client.append([AppendRequest(NAME, each, 0, topic_id) for each in records], PARAMS, answered.set_result)
    return await answered


async def ask(channel: LocalChannel, message: Any) -> Any:
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    channel.request(message, answered.set_result)
    return await answered


async def append_shared(client: ChannelLeaderClient, leader: Leader, memory: MemoryFile) -> None:
    """Append until one goes through shared memory."""
    before = leader.seen.count(AppendShared)
    while leader.seen.count(AppendShared) == before:
        (result,) = await append(client, put(memory, large()))
        assert result.error == ErrorCode.NONE


def log_of(leader: Leader) -> bytes:
    log = leader.partition.log
    log.flush()
    return b"".join(path.read_bytes() for path in sorted(Path(log.directory).glob("*.log")))


def test_batches_in_shared_memory_are_appended_as_those_of_a_frame(tmp_path: Path, memory: MemoryFile) -> None:
    async def check(leader: Leader) -> None:
        client = ChannelLeaderClient(leader.path)
        first = await append(client, put(memory, large(1)))
        await append_shared(client, leader, memory)
        several = await append(client, put(memory, large(2)), put(memory, large(3)))
        small = await append(client, memoryview(batch(b"small")))
        results = [*first, *several, *small]
        assert [result.error for result in results] == [0] * 4
        assert leader.seen[:2] == [ShareMemory, AppendFrame]
        assert leader.seen[-2:] == [AppendShared, AppendFrame]
        assert leader.partition.log.log_end_offset == results[-1].base_offset + 1
        client.close()

    run(tmp_path, check)


class AlignedFiles(RealFiles):
    """Notes how far behind a cache line's begin large writes begin, in memory and in the file."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def write(self, descriptor: int, buffer: Buffer, position: int) -> int:  # type: ignore[override]
        if len(buffer) >= 200_000:
            self.seen.append((ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % 64, position % 64))
        return os.pwrite(descriptor, buffer, position)


def test_a_copy_lies_in_memory_as_in_the_file(tmp_path: Path, memory: MemoryFile) -> None:
    """So that it takes less time to write."""
    files = AlignedFiles()

    async def check(leader: Leader) -> None:
        client = ChannelLeaderClient(leader.path)
        await append_shared(client, leader, memory)
        files.seen.clear()
        for number in range(5):
            await append(client, put(memory, batch(b"%d" % number * (200_000 + number))))
        assert [in_memory for in_memory, _ in files.seen] == [in_file for _, in_file in files.seen]
        assert len({in_file for _, in_file in files.seen}) > 1
        results = await append(client, *[put(memory, large(number)) for number in range(5)])
        assert [result.error for result in results] == [ErrorCode.NONE] * 5
        client.close()

    log = log_of(run(tmp_path, check, files))
    assert all(is_intact(log, position, header) for position, header in iter_headers(log))


def test_a_request_that_is_read_when_other_records_are_there_is_refused(tmp_path: Path, memory: MemoryFile) -> None:
    async def check(leader: Leader) -> None:
        channel = LocalChannel(leader.path)
        assert await ask(channel, ShareMemory(memory.descriptor)) is True
        place = put(memory, large(1))
        late = shared_frame([AppendRequest(NAME, place, 0)], PARAMS, memory)
        place[:] = large(2)
        (result,) = await ask(channel, late)
        assert result.error == ErrorCode.CORRUPT_MESSAGE
        assert leader.partition.log.log_end_offset == 0
        channel.close()

    run(tmp_path, check)


def test_more_than_a_request_may_share_goes_through_the_socket(tmp_path: Path, memory: MemoryFile) -> None:
    async def check(leader: Leader) -> None:
        client = ChannelLeaderClient(leader.path)
        await append_shared(client, leader, memory)
        records = [put(memory, large()) for _ in range(85)]
        assert sum(map(len, records)) > 16 * MIB
        results = await append(client, *records)
        assert [result.error for result in results] == [0] * len(records)
        assert leader.seen[-1] == AppendFrame
        client.close()

    run(tmp_path, check)


def filled(**config: Any) -> ProducerBatch:
    """A batch of single records, encoded as a producer with these settings does it."""
    batch = ProducerBatch(NAME, configure(ProducerConfig, config), MIB)
    for number in range(300):
        batch.add(None, b"%06d" % number * 150, number, (), 1_000)
    batch.build(-1, -1, -1)
    return batch


@pytest.mark.parametrize("way", WAYS)
def test_large_batches_of_single_records_lie_in_the_memory(
    memory: MemoryFile, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_by(way, monkeypatch)
    filling._compiled.load()
    plain, compressed = filled().buffer, filled(compression_type="zstd").buffer
    assert isinstance(plain, memoryview)
    assert memory.position_of(plain) is not None
    ((_, header),) = iter_headers(plain)
    assert is_intact(plain, 0, header)
    assert header.record_count == 300
    assert memory.position_of(memoryview(compressed or b"")) is None


def test_batches_of_either_kind_are_for_the_topic_with_their_id(tmp_path: Path, memory: MemoryFile) -> None:
    async def check(leader: Leader) -> None:
        client = ChannelLeaderClient(leader.path)
        await append_shared(client, leader, memory)
        own, other = leader.partition.topic_id.bytes, bytes(range(16))
        for records in (put(memory, large(1)), memoryview(batch(b"small"))):
            refused = await append(client, records, topic_id=other)
            taken = await append(client, records, topic_id=own)
            assert [refused[0].error, taken[0].error] == [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NONE]
        assert leader.seen[-4:] == [AppendShared, AppendShared, AppendFrame, AppendFrame]
        client.close()

    run(tmp_path, check)


class DisturbedFiles(RealFiles):
    """Calls `disturb` before each write: what was checked by then can change."""

    def __init__(self) -> None:
        self.disturb: Callable[[], None] = lambda: None

    def write(self, descriptor: int, buffer: Buffer, position: int) -> int:  # type: ignore[override]
        self.disturb()
        return os.pwrite(descriptor, buffer, position)


def test_what_a_client_changes_after_the_check_does_not_get_into_the_log(tmp_path: Path, memory: MemoryFile) -> None:
    files, place = DisturbedFiles(), put(memory, large())

    def disturb() -> None:
        place[100_000] ^= 1

    async def check(leader: Leader) -> None:
        client = ChannelLeaderClient(leader.path)
        await append_shared(client, leader, memory)
        files.disturb = disturb
        errors = [(await append(client, place))[0].error for _ in range(4)]
        assert errors == [ErrorCode.NONE, *[ErrorCode.CORRUPT_MESSAGE] * 3], "only the first one was as its CRC says"
        client.close()

    log = log_of(run(tmp_path, check, files))
    assert all(is_intact(log, position, header) for position, header in iter_headers(log))


BAD_RECORDS = {
    "before the file": (-1, 200_000, 61),
    "behind the file": (memory_file.FILE_BYTES - 100, 200_000, 61),
    "far away": (2**62, 200_000, 61),
    "no bytes": (0, 0, 61),
    "fewer bytes than none": (0, -1, 61),
    "a short header": (0, 200_000, 60),
    "a long header": (0, 200_000, 62),
    "too many bytes": (0, 17 * MIB, 61),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_a_request_for_bytes_that_are_not_there_fails_alone(name: str, tmp_path: Path, memory: MemoryFile) -> None:
    async def check(leader: Leader) -> None:
        client, channel = ChannelLeaderClient(leader.path), LocalChannel(leader.path)
        assert await ask(channel, ShareMemory(memory.descriptor)) is True
        position, size, header_size = BAD_RECORDS[name]
        records = SharedRecords(NAME, 0, bytes(header_size), position, size)
        refusal = await ask(channel, AppendShared(PARAMS, (records,)))
        assert isinstance(refusal, RaykaError)
        assert refusal.code is ErrorCode.INVALID_REQUEST
        await append_shared(client, leader, memory)
        client.close()
        channel.close()

    run(tmp_path, check)


def test_shared_records_need_shared_memory(tmp_path: Path) -> None:
    async def check(leader: Leader) -> None:
        channel = LocalChannel(leader.path)
        refusal = await ask(channel, AppendShared(PARAMS, (SharedRecords(NAME, 0, bytes(61), 0, 100),)))
        assert refusal.code is ErrorCode.INVALID_REQUEST
        channel.close()

    run(tmp_path, check)


def unsealed() -> int:
    descriptor = os.memfd_create("unsealed")
    os.ftruncate(descriptor, MIB)
    return descriptor


@pytest.mark.parametrize(
    "open_descriptor",
    [
        lambda: 999_999,
        lambda: -1,
        lambda: os.open("/dev/null", os.O_RDWR),
        lambda: os.open(__file__, os.O_RDONLY),
        lambda: os.pipe()[0],
        unsealed,
        lambda: MemoryFile(65 * MIB).descriptor,
    ],
    ids=["not open", "no descriptor", "a device", "a file", "a pipe", "a file that can shrink", "too large"],
)
def test_a_leader_maps_only_sealed_memory(open_descriptor: Callable[[], int]) -> None:
    with pytest.raises(RaykaError) as raised:
        PeerMemory(os.getpid(), open_descriptor())
    assert raised.value.code is ErrorCode.INVALID_REQUEST


def test_a_client_can_not_shrink_its_memory(memory: MemoryFile) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(memory.descriptor, 0)


def test_batches_go_through_the_socket_where_the_leader_has_mapped_other_memory(
    tmp_path: Path, memory: MemoryFile
) -> None:
    """As in a container whose process ids are not the leader's, or when the number stands for another file by now."""
    other = MemoryFile()
    memory.descriptor = other.descriptor

    async def check(leader: Leader) -> None:
        client = ChannelLeaderClient(leader.path)
        await append(client, put(memory, large()))  # which asks the leader to map the memory
        (result,) = await append(client, put(memory, large(1)))
        assert result.error == ErrorCode.CORRUPT_MESSAGE
        (result,) = await append(client, put(memory, large(1)))
        assert result.error == ErrorCode.NONE
        assert leader.seen[-2:] == [AppendShared, AppendFrame]
        client.close()

    run(tmp_path, check)


def test_after_a_lost_connection_memory_is_shared_again(tmp_path: Path, memory: MemoryFile) -> None:
    async def check(leader: Leader) -> None:
        client = ChannelLeaderClient(leader.path)
        await append_shared(client, leader, memory)
        await leader.close()
        lost = await append(client, put(memory, large()))
        assert isinstance(lost, ChannelClosed)
        await leader.open()
        leader.seen.clear()
        await append_shared(client, leader, memory)
        assert leader.seen[:2] == [ShareMemory, AppendFrame]
        client.close()

    run(tmp_path, check)


def test_without_shared_memory_batches_go_through_the_socket(
    tmp_path: Path, memory: MemoryFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "descriptor", 999_999)

    async def check(leader: Leader) -> None:
        client = ChannelLeaderClient(leader.path)
        for number in range(5):
            (result,) = await append(client, put(memory, large(number)))
            assert result.error == ErrorCode.NONE
        assert leader.seen == [ShareMemory, *[AppendFrame] * 5]
        client.close()

    run(tmp_path, check)


CLIENT = """
import asyncio, sys
from rayka.actors.channel.memory_file import MemoryFile
from rayka.actors.channel.requests import ShareMemory
from rayka.actors.channel.socket import LocalChannel

async def main():
    LocalChannel(sys.argv[1]).request(ShareMemory(MemoryFile().descriptor), lambda answer: print(answer, flush=True))
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_the_memory_of_a_client_that_was_killed_is_released(tmp_path: Path) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:rayka-records")

    async def check(leader: Leader) -> None:
        gc.collect()
        before = mapped()
        with subprocess.Popen([sys.executable, "-c", CLIENT, leader.path], stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            assert await asyncio.to_thread(client.stdout.readline) == "True\n"
            assert mapped() == before + 1
            client.send_signal(signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: mapped() == before, WAIT_S, "the end of the mapping")

    run(tmp_path, check)
