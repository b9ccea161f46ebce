"""How daemons of Ray are started again: with the ports that everybody knows already."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rayka.cli.daemon import agent
from rayka.cli.daemon.gcs_server import with_port
from rayka.testing import wait_until


def test_a_gcs_server_that_chose_its_port_is_started_again_on_that_port() -> None:
    arguments = ["gcs_server", "--log_dir=/tmp/logs", "--gcs_server_port=0"]
    assert with_port(arguments, 41937) == ["gcs_server", "--log_dir=/tmp/logs", "--gcs_server_port=41937"]


def test_an_agent_is_started_again_on_the_port_that_the_raylet_learned(tmp_path: Path) -> None:
    command = ["python", "main.py", "--node-id=abc", "--runtime-env-agent-port=0", f"--session-dir={tmp_path}"]
    assert agent.with_ports(command) == command, "the first one chooses"
    (tmp_path / "runtime_env_agent_port_abc").write_text("40123")
    assert agent.with_ports(command)[3] == "--runtime-env-agent-port=40123"


def test_a_port_that_was_given_stays(tmp_path: Path) -> None:
    (tmp_path / "dashboard_agent_listen_port_abc").write_text("1")
    command = ["python", "agent.py", "--node-id=abc", "--listen-port=52365", f"--session-dir={tmp_path}"]
    assert agent.with_ports(command) == command


class Runs:
    """The clock of `agent`: its runs last so many seconds, and `delays` are the pauses between them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lived_s: Iterator[float]) -> None:
        self.delays: list[float] = []
        self._times = self._tell(lived_s)
        seen = SimpleNamespace(monotonic=lambda: next(self._times), sleep=self.delays.append)
        monkeypatch.setattr(agent, "time", seen)

    def _tell(self, lived_s: Iterator[float]) -> Iterator[float]:
        for seconds in lived_s:
            yield 100.0
            yield 100.0 + seconds


def shell(script: str, directory: Path) -> list[str]:
    copy = directory / "sh"
    if not copy.exists():
        shutil.copy("/bin/sh", copy)
    options = ["--node-id=abc", "--runtime-env-agent-port=0", f"--session-dir={directory}"]
    return [str(copy), "-c", script, *options]


def test_an_agent_that_keeps_failing_is_started_less_and_less_often_and_then_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(monkeypatch, iter([1.9] * 8))
    assert agent.main(shell(f"echo $PPID $RAY_RAYLET_PID >> {tmp_path}/out; exit 3", tmp_path)) == 3
    assert runs.delays == [0.0, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    parent = str(os.getpid())  # an agent ends when its parent is not the one that it was told of
    assert (tmp_path / "out").read_text().split() == [parent, parent] * 8


def test_an_agent_that_served_may_fail_as_often_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch, iter([0.1] * 7 + [30.0] + [0.1] * 8))
    assert agent.main(shell("kill -9 $$", tmp_path)) == 1
    assert runs.delays == [0.0, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 0.0, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_the_port_that_an_agent_chose_is_that_of_all_later_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Runs(monkeypatch, iter([0.1] * 8))
    (chosen, seen) = tmp_path / "runtime_env_agent_port_abc", tmp_path / "seen"
    agent.main(shell(f"echo $1 >> {seen}; echo 40123 > {chosen}; exit 1", tmp_path))
    assert seen.read_text().split() == ["--runtime-env-agent-port=0", *["--runtime-env-agent-port=40123"] * 7]


def test_an_agent_ends_with_its_raylet(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    waits = f"echo $PPID $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pids; read _ < {tmp_path}/never"
    kept = shlex.join([sys.executable, "-m", agent.__name__, *shell(waits, tmp_path)])
    with subprocess.Popen(shell(f"{kept} & read _ < {tmp_path}/never", tmp_path)) as raylet:
        wait_until((tmp_path / "pids").exists, 30, "the agent runs")
        pidfds = [os.pidfd_open(int(pid)) for pid in (tmp_path / "pids").read_text().split()]
        raylet.kill()
    for pidfd in pidfds:
        assert select.select([pidfd], [], [], 30)[0]
        os.close(pidfd)


def test_raylets_run_their_agents_below_a_process_that_starts_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray._private.services as services

    name = "_build_python_executable_command_memory_profileable"
    monkeypatch.setattr(services, name, lambda component, *_: ["python", component])
    agent.install()
    build = getattr(services, name)
    for component in ("dashboard_agent", "runtime_env_agent"):
        assert build(component, "session") == [sys.executable, "-m", agent.__name__, "python", component]
    assert build("dashboard", "session") == ["python", "dashboard"], "a raylet does without it"
