"""The shell of a coordinator: a process that stood still hears its members before it counts them out."""

from __future__ import annotations

import asyncio
import pickle
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rayka.actors.channel.frames import Operation, encode
from rayka.actors.channel.service import FrameService
from rayka.actors.channel.socket import ChannelServer, LocalChannel
from rayka.actors.coordinator.context import CoordinatorContext
from rayka.actors.coordinator.log import CoordinatorLog
from rayka.coordinator.groups.requests import (
    DescribedGroup,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    Protocol,
    SyncGroupRequest,
)
from rayka.coordinator.groups.settings import GroupSettings
from rayka.coordinator.topics import Topics
from rayka.errors import ErrorCode
from tests.unit.actors.test_coordinator_log import open_partition

SESSION_MS = 400
SETTINGS = GroupSettings(min_session_timeout_ms=1, initial_rebalance_delay_ms=0)


class Coordinator:
    """One coordinator behind the local channel, and a client of it in the same loop."""

    def __init__(self, path: Path) -> None:
        partition, server = open_partition(path / "log")
        self.replica = CoordinatorContext(CoordinatorLog(partition, server), SETTINGS, {})
        server.offer("group", self._serve)
        self.path = str(path / "c.sock")
        self.server = ChannelServer(self.path, FrameService(server).serve)
        self.client = LocalChannel(self.path)

    def _serve(self, command: str, pickled: bytes, done: Callable[[bytes], None]) -> None:
        self.replica.execute(command, pickle.loads(pickled), lambda response: done(pickle.dumps(response)))

    async def start(self) -> None:
        await self.replica.load(Topics)
        await self.server.start()

    async def stop(self) -> None:
        self.replica.resign()
        self.client.close()
        await self.server.stop()

    def send(self, command: str, request: Any) -> asyncio.Future[Any]:
        """Writes the request to the socket before it returns, once there is a connection."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        control = ("group", (command, pickle.dumps((request,))))
        self.client.request(Operation.CALL, control, lambda answer: future.set_result(pickle.loads(answer)))
        return future

    async def join(self, instance_id: str) -> JoinGroupResponse:
        """A static member, since its join takes one step."""
        protocols = (Protocol("range", b""),)
        request = JoinGroupRequest("g", "", SESSION_MS, 60_000, "consumer", protocols, "new", instance_id)
        joined: JoinGroupResponse = await self.send("join_group", request)
        assert joined.error is ErrorCode.NONE
        return joined

    async def stand_still(self, command: str, request: Any) -> None:
        """The whole process does nothing for two sessions. Meanwhile a request comes, on a connection of its own.

        As after SIGSTOP, the loop finds its timers due before it looks at its sockets.
        """
        loop, stood_still = asyncio.get_running_loop(), asyncio.Event()
        peer = socket.socket(socket.AF_UNIX)
        wake, woken = socket.socketpair()

        def sleep() -> None:
            loop.remove_reader(woken)
            peer.sendall(encode(Operation.CALL, 1, ("group", (command, pickle.dumps((request,))))))
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
        described: tuple[DescribedGroup, ...] = await self.send("describe_groups", ("g",))
        return len(described[0].members)


def check(path: Path, test: Callable[[Coordinator], Awaitable[None]]) -> None:
    async def run() -> None:
        coordinator = Coordinator(path)
        await coordinator.start()
        try:
            await asyncio.wait_for(test(coordinator), 20)
        finally:
            await coordinator.stop()

    uvloop.run(run())


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():
        await asyncio.sleep(0.01)


def test_a_heartbeat_that_waits_in_the_socket_counts_before_the_deadline(tmp_path: Path) -> None:
    async def standing_still(coordinator: Coordinator) -> None:
        joined = await coordinator.join("i")
        sync = SyncGroupRequest("g", 1, joined.member_id, assignments=((joined.member_id, b""),))
        assert (await coordinator.send("sync_group", sync)).error is ErrorCode.NONE
        await coordinator.stand_still("heartbeat", HeartbeatRequest("g", 1, joined.member_id))
        assert await coordinator.members() == 1

        async def is_gone() -> bool:
            return await coordinator.members() == 0

        await until(is_gone)

    check(tmp_path, standing_still)


@pytest.mark.parametrize("jump_s", [3600, -3600])
def test_a_clock_that_is_set_ends_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: int) -> None:
    wall = time.time_ns

    async def setting_the_clock(coordinator: Coordinator) -> None:
        joined = await coordinator.join("i")
        sync = SyncGroupRequest("g", 1, joined.member_id, assignments=((joined.member_id, b""),))
        assert (await coordinator.send("sync_group", sync)).error is ErrorCode.NONE
        monkeypatch.setattr(time, "time_ns", lambda: wall() + jump_s * 1_000_000_000)
        for _ in range(4):
            await asyncio.sleep(SESSION_MS / 3000)
            answer = await coordinator.send("heartbeat", HeartbeatRequest("g", 1, joined.member_id))
            assert answer.error is ErrorCode.NONE

    check(tmp_path, setting_the_clock)
