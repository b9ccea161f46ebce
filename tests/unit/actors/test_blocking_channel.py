"""The local channel for a thread without an event loop, when it and the leader poll on the same core."""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayka.actors.channel.blocking_channel import SPIN_S, BlockingChannel
from rayka.actors.channel.requests import EndShareSession
from rayka.actors.channel.socket import ChannelClosed
from rayka.testing import wait_until

LEADER = """
import asyncio, sys
import uvloop
from rayka.actors.channel.server import ChannelServer
from rayka.gateway.server.busy_poll import BusyPoll

async def main():
    poll = BusyPoll(asyncio.get_running_loop().call_soon, 2)

    def serve(request):
        poll.request_came(0)
        request.answer(7)
        poll.answered()

    await ChannelServer(sys.argv[1], serve).start()
    print("listening", flush=True)
    await asyncio.Event().wait()

uvloop.run(main())
"""
WAIT_S = 60.0


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    """Where a leader listens, a process on one core."""
    path = str(tmp_path / "sockets" / "leader.1.sock")
    with on_one_core():
        process = subprocess.Popen([sys.executable, "-c", LEADER, path], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        yield path
        process.kill()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a single core is never polled on")
def test_two_that_poll_on_one_core_give_way_to_each_other(path: str) -> None:
    channel = BlockingChannel(path)

    def median_s() -> float:
        times = []
        for _ in range(200):
            began_s = time.perf_counter()
            channel.request(EndShareSession("group", "member", False), b"")
            assert channel.receive(WAIT_S) == 7
            times.append(time.perf_counter() - began_s)
        return statistics.median(times)

    with on_one_core():
        wait_until(lambda: median_s() < SPIN_S / 2, WAIT_S, "answers before the end of the time that is polled")
    channel.close()


def test_without_a_free_descriptor_there_is_no_channel(tmp_path: Path) -> None:
    """The caller then goes another way: through the connections of its event loop."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(ChannelClosed, match="Too many open files") as raised:
            BlockingChannel(str(tmp_path / "leader.1.sock"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not raised.value.sent
