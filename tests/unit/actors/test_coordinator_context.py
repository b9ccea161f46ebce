"""The shell of a coordinator: what waits in its socket counts before deadlines, and a bad request fails alone."""

from __future__ import annotations

import asyncio
import pickle
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from rayka.actors.channel.frames import encode
from rayka.actors.channel.messages import MessageCodec
from rayka.actors.channel.requests import NUMBERS, Coordinate, encode_value
from rayka.actors.channel.server import ChannelServer
from rayka.actors.channel.service import FrameService
from rayka.actors.channel.socket import LocalChannel
from rayka.actors.coordinator.log import CoordinatorLog
from rayka.actors.coordinator.runtime import CoordinatorRuntime
from rayka.config import BrokerConfig, LogConfig
from rayka.coordinator.groups.classic.requests import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    Protocol,
    SyncGroupRequest,
)
from rayka.coordinator.groups.record_formats import encode as encode_record
from rayka.coordinator.groups.records import CoordinatorRecord, OffsetCommitKey, OffsetCommitValue
from rayka.coordinator.groups.requests import ListGroupsRequest, OffsetFetchRequest
from rayka.coordinator.groups.spec import GROUPS
from rayka.coordinator.request import Request
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from tests.unit.actors.test_coordinator_log import lead

SESSION_MS = 400
SETTINGS = {
    "offsets.retention.check.interval.ms": "50",
    "group.min.session.timeout.ms": "1",
    "group.initial.rebalance.delay.ms": "0",
}
CODEC = MessageCodec(GROUPS.message_types())
R = TypeVar("R")
LogEntry = tuple[bytes, bytes | None]


class Coordinator:
    """One coordinator behind the local channel, and a client of it in the same loop."""

    def __init__(self, path: Path) -> None:
        self.directory = LogDirectory.open(str(path / "log"), RealFiles(), now_ms=0)
        partition, server = lead(self.directory, LogConfig())
        self.runtime = CoordinatorRuntime(GROUPS, server, BrokerConfig.parse(SETTINGS), 1)
        server.offer(GROUPS.name, self.runtime.execute)
        self.partition, self.replicas = partition, server
        self.path = str(path / "c.sock")
        self.server = ChannelServer(self.path, FrameService(server).serve)
        self.client = LocalChannel(self.path)

    async def start(self) -> None:
        self.runtime.leads(self.partition)
        await self.server.start()

        async def is_loaded() -> bool:
            try:
                await self.send(ListGroupsRequest())
            except RaykaError:
                return False
            return True

        await until(is_loaded)

    async def stop(self) -> None:
        self.runtime.resign()
        self.client.close()
        await self.server.stop()

    async def send(self, request: Request[R]) -> R:
        """The response, as another process gets it. Raises the RaykaError that comes instead."""
        response = CODEC.decode(await self.send_bytes(CODEC.encode(request)))
        if isinstance(response, RaykaError):
            raise response
        found: R = response
        return found

    def send_bytes(self, message: bytes) -> asyncio.Future[bytes]:
        """Written to the socket before this returns, once there is a connection."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.client.request(Coordinate(GROUPS.name, 0, message), future.set_result)
        return future

    async def join(self, instance_id: str) -> JoinGroupResponse:
        """A static member, since its join takes one step."""
        protocols = (Protocol("range", b""),)
        request = JoinGroupRequest("g", "", SESSION_MS, 60_000, "consumer", protocols, "new", instance_id)
        joined = await self.send(request)
        assert joined.error is ErrorCode.NONE
        return joined

    async def stand_still(self, request: Request[Any]) -> None:
        """The whole process does nothing for two sessions. Meanwhile a request comes, on a connection of its own.

        As after SIGSTOP, the loop finds its timers due before it looks at its sockets.
        """
        loop, stood_still = asyncio.get_running_loop(), asyncio.Event()
        peer = socket.socket(socket.AF_UNIX)
        wake, woken = socket.socketpair()

        def sleep() -> None:
            loop.remove_reader(woken)
            control = encode_value(Coordinate(GROUPS.name, 0, CODEC.encode(request)))
            peer.sendall(encode(NUMBERS[Coordinate], 1, control))
            time.sleep(2 * SESSION_MS / 1000)
            stood_still.set()

        with peer, wake, woken:
            await loop.run_in_executor(None, peer.connect, self.path)
            await self.members()  # by then the connection has been taken
            loop.add_reader(woken, sleep)
            wake.send(b".")
            await stood_still.wait()
            peer.setblocking(False)
            assert await loop.sock_recv(peer, 1)

    async def members(self) -> int:
        return len((await self.send(DescribeGroupsRequest(("g",)))).groups[0].members)


def check(path: Path, test: Callable[[Coordinator], Awaitable[None]], log: Sequence[LogEntry] = ()) -> None:
    async def run() -> None:
        coordinator = Coordinator(path)
        for batch in batched(log, 1_000):
            CoordinatorLog(coordinator.partition, coordinator.replicas).append(batch)
        await coordinator.start()
        try:
            await asyncio.wait_for(test(coordinator), 60)
        finally:
            await coordinator.stop()

    uvloop.run(run())


def batched(log: Sequence[LogEntry], size: int) -> Iterator[Sequence[LogEntry]]:
    return (log[start : start + size] for start in range(0, len(log), size))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():
        await asyncio.sleep(0.01)


def test_pending_heartbeats_count_after_a_pause(tmp_path: Path) -> None:
    async def standing_still(coordinator: Coordinator) -> None:
        joined = await coordinator.join("i")
        sync = SyncGroupRequest("g", 1, joined.member_id, assignments=((joined.member_id, b""),))
        assert (await coordinator.send(sync)).error is ErrorCode.NONE
        await coordinator.stand_still(HeartbeatRequest("g", 1, joined.member_id))
        assert await coordinator.members() == 1

        async def is_gone() -> bool:
            return await coordinator.members() == 0

        await until(is_gone)

    check(tmp_path, standing_still)


@pytest.mark.parametrize("jump_s", [3600, -3600])
def test_setting_the_clock_expires_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: int) -> None:
    wall = time.time_ns

    async def setting_the_clock(coordinator: Coordinator) -> None:
        joined = await coordinator.join("i")
        sync = SyncGroupRequest("g", 1, joined.member_id, assignments=((joined.member_id, b""),))
        assert (await coordinator.send(sync)).error is ErrorCode.NONE
        monkeypatch.setattr(time, "time_ns", lambda: wall() + jump_s * 1_000_000_000)
        for _ in range(4):
            await asyncio.sleep(SESSION_MS / 3000)
            answer = await coordinator.send(HeartbeatRequest("g", 1, joined.member_id))
            assert answer.error is ErrorCode.NONE

    check(tmp_path, setting_the_clock)


def test_a_malformed_record_does_not_disable_its_partition(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    committed = CoordinatorRecord(OffsetCommitKey("g", "t", 0), OffsetCommitValue(7, commit_timestamp=2**62))

    async def loading(coordinator: Coordinator) -> None:
        fetched = await coordinator.send(OffsetFetchRequest("g"))
        assert [offset.offset for offset in fetched.offsets] == [7]
        assert "skipped 3 malformed records" in caplog.text

    entries = [(b"\0", b"x"), encode_record(committed), (b"\0\1\0", None), (b"\0\2\xff\xff", b"\0\3")]
    check(tmp_path, loading, entries)


def test_tens_of_thousands_of_offsets_expire_at_once(tmp_path: Path) -> None:
    async def expiring(coordinator: Coordinator) -> None:
        async def are_gone() -> bool:
            return not (await coordinator.send(ListGroupsRequest())).groups

        await until(are_gone)
        assert coordinator.partition.log.log_end_offset == 60_001, "the group is deleted too"

    old = OffsetCommitValue(7, commit_timestamp=0)
    check(
        tmp_path,
        expiring,
        [encode_record(CoordinatorRecord(OffsetCommitKey("g", "t", n), old)) for n in range(30_000)],
    )


def test_bad_requests_fail_alone_on_a_shared_channel(tmp_path: Path) -> None:
    async def refusing(coordinator: Coordinator) -> None:
        too_long = CODEC.encode(HeartbeatRequest("g" * 100_000, 1, "m"))
        for message in (b"", b"no request", CODEC.encode(ListGroupsRequest())[:-1], pickle.dumps(ListGroupsRequest())):
            refused = CODEC.decode(await coordinator.send_bytes(message))
            assert isinstance(refused, RaykaError)
            assert refused.code is ErrorCode.INVALID_REQUEST
        assert CODEC.decode(await coordinator.send_bytes(too_long)).error is ErrorCode.UNKNOWN_MEMBER_ID
        request = JoinGroupRequest("g" * 100_000, "", 1_000, 1_000, "consumer", (Protocol("range", b""),), "n", "i")
        assert (await coordinator.send(request)).error is ErrorCode.UNKNOWN_SERVER_ERROR
        assert (await coordinator.join("i")).generation_id == 1, "the channel is open and the coordinator serves"

    check(tmp_path, refusing)
