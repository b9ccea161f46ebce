"""Servers that tests start: they are ready when they listen, and nothing of them is left afterwards."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest

from rayka.testing import ServerProcess, await_ended, wait_until

PARENT = """
import socket, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "the-child"])
listener = socket.create_server(("127.0.0.1", {port}))
print("listening", flush=True)
time.sleep(600)
"""


class Parent(ServerProcess):
    """A server with one child."""

    name = "the parent"
    program = PARENT

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.program.format(port=self.port)]


class Failing(Parent):
    program = "import sys; sys.exit('no disk, port {port}')"


@pytest.fixture
def server(tmp_path: Path):
    started = Parent(tmp_path / "output").start()
    yield started
    started.kill()


def test_kill_ends_the_whole_family_and_a_new_start_has_its_own_log(server: Parent) -> None:
    family = server.processes()
    assert len(family) == 2
    server.kill()
    assert await_ended(family, 0) == []
    assert server.exit_code == -signal.SIGKILL
    server.start()
    assert server.log == ["listening"]


def test_one_process_is_found_by_its_title_and_killed(server: Parent) -> None:
    child = server.kill_one("the-child")
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert server.is_running
    with pytest.raises(AssertionError, match="no process 'the-child'"):
        server.kill_one("the-child")


def test_a_process_that_survives_stop_is_named_and_killed(server: Parent) -> None:
    family = server.processes()
    with pytest.raises(TimeoutError, match=r"still there: .*import time"):
        server.stop(timeout_s=0.2)
    assert await_ended(family, 30) == []


def test_a_server_that_ends_at_once_shows_its_output(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the parent ended:\nno disk"):
        Failing(tmp_path / "output").start()


def test_wait_until_says_what_did_not_happen() -> None:
    assert wait_until(lambda: True, 10, "nothing") < 10
    with pytest.raises(AssertionError, match=r"not within 0\.05 s: a sign"):
        wait_until(lambda: False, 0.05, "a sign")
