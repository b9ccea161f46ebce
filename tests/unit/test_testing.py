"""Servers that tests start: they are ready when they listen, and nothing of them is left afterwards."""

from __future__ import annotations

import itertools
import signal
import sys
from pathlib import Path

import psutil
import pytest

from rayka import testing
from rayka.testing import ServerProcess, await_ended, free_port, paused, wait_until

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


def test_one_process_is_found_by_its_title_and_killed(server: Parent, monkeypatch: pytest.MonkeyPatch) -> None:
    child = server.kill_one("the-child")
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert server.is_running
    monkeypatch.setattr(testing, "FIND_TIMEOUT_S", 0.05)
    with pytest.raises(AssertionError, match=r"not within 0\.05 s: a process 'the-child' among \[\]"):
        server.kill_one("the-child")


def test_a_paused_process_goes_on_though_the_test_fails(server: Parent) -> None:
    (child,) = server.await_found("the-child")

    def fail_meanwhile() -> None:
        with paused([child]):
            wait_until(lambda: child.status() == psutil.STATUS_STOPPED, 30, "it stands still")
            raise KeyError

    with pytest.raises(KeyError):
        fail_meanwhile()
    wait_until(lambda: child.status() != psutil.STATUS_STOPPED, 30, "it goes on")


def test_a_process_that_ends_while_it_is_paused_is_no_error(server: Parent) -> None:
    with paused(server.await_found("the-child")):
        server.kill_one("the-child")


def test_a_port_is_given_once_though_nobody_listens_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    again = itertools.count(testing._PORTS.index(port))
    monkeypatch.setattr(testing, "_next_port", again)
    assert free_port() != port


def test_a_process_that_survives_stop_is_named_and_killed(server: Parent) -> None:
    family = server.processes()
    with pytest.raises(TimeoutError, match=r"still there: .*import time"):
        server.stop(timeout_s=0.2)
    assert await_ended(family, 30) == []


def test_a_server_that_ends_at_once_shows_its_output(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the parent ended:\nno disk"):
        Failing(tmp_path / "output").start()


def test_wait_until_says_what_did_not_happen() -> None:
    assert wait_until(lambda: True, 60, "nothing") < 10
    with pytest.raises(AssertionError, match=r"not within 0\.05 s: a sign"):
        wait_until(lambda: False, 0.05, "a sign")
    looks: list[int] = []
    with pytest.raises(AssertionError, match=r"not within 0\.05 s: [1-9]\d* looks"):
        wait_until(lambda: bool(looks.append(0)), 0.05, lambda: f"{len(looks)} looks")
