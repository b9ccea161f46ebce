"""A gcs_server that dies is started again as it was. Shells that bear its name stand for it."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from rayka.cli.daemon import gcs_server
from rayka.cli.daemon.gcs_server import GcsServer, find
from rayka.cli.daemon.serve import RayDaemons, listener_of, wait_for_end
from rayka.testing import wait_until

BOUND_S = 30.0
NOBODYS_PORT = 1_000_000 + os.getpid()
"""No server listens there, so no real gcs_server or raylet is taken for a stand-in."""
STAND_IN = 'echo "$0 $RAY_gcs_storage"; echo trouble >&2; [ -e ENDS ] || read _ < NEVER'


class Machine:
    """A directory with the executables of stand-ins, their output, and those that run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.out, self.err = directory / "out", directory / "err"
        self.running: list[subprocess.Popen[bytes]] = []
        os.mkfifo(directory / "NEVER")

    def start(
        self,
        name: str = "gcs_server",
        argument: str = "--gcs_server_port=0",
        storage: str = "rocksdb",
        output: int | None = None,
    ) -> subprocess.Popen[bytes]:
        executable = self.directory / name
        if not executable.exists():
            shutil.copy("/bin/sh", executable)
        with self.out.open("ab") as out, self.err.open("ab") as err:
            process = subprocess.Popen(
                [executable, "-c", STAND_IN, argument],
                cwd=self.directory,
                env={"RAY_gcs_storage": storage},
                stdout=output or out,
                stderr=output or err,
            )
        self.running.append(process)
        return process

    def gcs_server(self, storage: str = "rocksdb") -> tuple[GcsServer, subprocess.Popen[bytes]]:
        process = self.start(storage=storage)
        self.await_starts(1)
        return GcsServer(process.pid, NOBODYS_PORT, fate_shared=False), process

    def restart(self, server: GcsServer) -> subprocess.Popen[bytes] | None:
        process = server.restart()
        if process is not None:
            self.running.append(process)
        return process

    def starts(self) -> list[str]:
        return self.out.read_text().splitlines()

    def await_starts(self, count: int) -> None:
        wait_until(lambda: len(self.starts()) == count, BOUND_S, f"{count} starts")

    def end_at_once(self) -> None:
        """From now on what is started ends by itself."""
        (self.directory / "ENDS").touch()

    def stop(self) -> None:
        """Kill what runs, also what a program under test has started from here."""
        for process in psutil.process_iter(["exe"]):
            if Path(process.info["exe"] or "/").parent == self.directory:
                process.kill()
        for started in self.running:
            started.kill()
            started.wait()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.chdir(tmp_path)  # a gcs_server that is started again has the directory of who starts it
    machine = Machine(tmp_path)
    yield machine
    machine.stop()


class Clock:
    """The time as `gcs_server` sees it: nothing passes but what `advance` says, and `delays` are the pauses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.delays: list[float] = []
        self._now = 1000.0
        seen = SimpleNamespace(monotonic=lambda: self._now, sleep=self.delays.append)
        monkeypatch.setattr(gcs_server, "time", seen)

    def advance(self, seconds: float) -> None:
        self._now += seconds


def await_end(pidfd: int) -> None:
    assert select.select([pidfd], [], [], BOUND_S)[0]


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def test_a_gcs_restarts_on_its_port_with_its_environment_and_log_files(machine: Machine) -> None:
    server, first = machine.gcs_server()
    descriptors = len(os.listdir("/proc/self/fd"))
    kill(first)
    await_end(server.pidfd)
    second = machine.restart(server)
    assert second is not None
    machine.await_starts(2)
    assert machine.starts() == ["--gcs_server_port=0 rocksdb", f"--gcs_server_port={NOBODYS_PORT} rocksdb"]
    assert machine.err.read_text() == "trouble\ntrouble\n"
    assert server.pid == second.pid
    assert Path(f"/proc/{second.pid}/exe").resolve() == machine.directory / "gcs_server"
    assert os.readlink(f"/proc/{second.pid}/fd/0") == os.devnull
    assert os.getsid(second.pid) == second.pid, "a signal to this process's terminal ends it"
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert not select.select([server.pidfd], [], [], 0)[0]
    kill(second)
    await_end(server.pidfd)


def test_output_that_cannot_be_opened_again_is_dropped(machine: Machine) -> None:
    first = machine.start(output=subprocess.PIPE)
    assert first.stdout is not None
    assert first.stdout.readline()
    server = GcsServer(first.pid, NOBODYS_PORT, fate_shared=False)
    kill(first)
    second = machine.restart(server)
    assert second is not None
    assert {os.readlink(f"/proc/{second.pid}/fd/{descriptor}") for descriptor in (0, 1, 2)} == {os.devnull}


@pytest.mark.parametrize(("storage", "outlives"), [("rocksdb", True), ("redis", True), ("memory", False)])
def test_a_gcs_has_storage_only_with_rocksdb_or_redis(machine: Machine, storage: str, outlives: bool) -> None:
    server, _ = machine.gcs_server(storage)
    assert server.has_storage is outlives


def test_a_gcs_that_keeps_dying_is_restarted_less_and_less_often_and_then_given_up(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    server, first = machine.gcs_server()
    machine.end_at_once()
    kill(first)
    while machine.restart(server) is not None:
        await_end(server.pidfd)
    assert clock.delays == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0]


def test_a_gcs_that_served_for_half_a_minute_is_restarted_at_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    server, first = machine.gcs_server()
    machine.end_at_once()
    kill(first)
    for lived_s in (30.0, 30.0, 29.0, 30.0, 29.0):
        await_end(server.pidfd)
        clock.advance(lived_s)
        assert machine.restart(server) is not None
    assert clock.delays == [0.0, 0.0, 0.1, 0.0, 0.1]


def test_the_gcs_of_an_embedded_ray_ends_with_the_broker(machine: Machine) -> None:
    machine.start()
    machine.await_starts(1)
    program = (
        "import os, sys\nfrom rayka.cli.daemon.gcs_server import GcsServer\n"
        f"server = GcsServer({machine.running[0].pid}, {NOBODYS_PORT}, fate_shared=True)\n"
        "os.kill(server.pid, 9)\nprint(server.restart().pid, flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        pidfd = os.pidfd_open(int(broker.stdout.readline()))
        assert not select.select([pidfd], [], [], 0)[0]
        broker.kill()
    await_end(pidfd)
    os.close(pidfd)


def test_the_gcs_server_of_a_port_is_found(machine: Machine) -> None:
    argument = f"--gcs_server_port={NOBODYS_PORT}"
    machine.start("not_gcs_server", argument)
    machine.start(argument=f"{argument}0")
    machine.await_starts(2)
    with pytest.raises(LookupError, match=str(NOBODYS_PORT)):
        find(NOBODYS_PORT)
    wanted = machine.start(argument=argument)
    machine.await_starts(3)
    assert find(NOBODYS_PORT).pid == wanted.pid


class Guarded:
    """`python -m rayka.cli.daemon.gcs_server` beside the stand-ins of a GCS and a raylet."""

    def __init__(self, machine: Machine, storage: str = "rocksdb") -> None:
        self.gcs = machine.start(argument=f"--gcs_server_port={NOBODYS_PORT}", storage=storage)
        machine.start("not_raylet", f"--gcs-address=127.0.0.1:{NOBODYS_PORT}")
        machine.start("raylet", f"--gcs-address=127.0.0.1:1{NOBODYS_PORT}")
        self.raylet = machine.start("raylet", f"--gcs-address=127.0.0.1:{NOBODYS_PORT}")
        machine.await_starts(4)
        self.log = machine.directory / "log"
        command = [sys.executable, "-m", "rayka.cli.daemon.gcs_server", str(NOBODYS_PORT)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log)
        machine.running.append(self.process)
        if storage != "memory":
            wait_until(self._watches, BOUND_S, "it watches both")

    def _watches(self) -> bool:
        """Ignoring SIGCHLD is the last that it does before it waits."""
        ignored = int(Path(f"/proc/{self.process.pid}/status").read_text().split("SigIgn:")[1].split()[0], 16)
        return bool(ignored >> (signal.SIGCHLD - 1) & 1)


def test_a_cluster_that_ray_start_made_keeps_its_gcs_until_its_raylet_ends(machine: Machine) -> None:
    guarded = Guarded(machine)
    kill(guarded.gcs)
    machine.await_starts(5)
    restarted = find(NOBODYS_PORT)
    kill(guarded.raylet)
    assert guarded.process.wait(BOUND_S) == 0
    await_end(restarted.pidfd)
    assert guarded.log.read_text().count("died and was restarted in place") == 1


def test_a_gcs_that_nobody_restarted_is_left_when_the_raylet_ends(machine: Machine) -> None:
    guarded = Guarded(machine)
    kill(guarded.raylet)
    assert guarded.process.wait(BOUND_S) == 0
    assert guarded.gcs.poll() is None


def test_ray_stop_ends_the_gcs_without_a_restart(machine: Machine) -> None:
    guarded = Guarded(machine)
    guarded.gcs.kill()
    kill(guarded.raylet)
    assert guarded.process.wait(BOUND_S) == 0
    assert len(machine.starts()) == 4


def test_a_gcs_without_a_store_is_not_kept(machine: Machine) -> None:
    guarded = Guarded(machine, storage="memory")
    assert guarded.process.wait(BOUND_S) == 1
    assert "in memory" in guarded.log.read_text()


@pytest.mark.parametrize("order", [signal.SIGTERM, signal.SIGINT])
def test_the_loss_of_the_raylet_ends_the_broker(machine: Machine, order: int) -> None:
    server, _ = machine.gcs_server()
    raylet = machine.start("raylet")
    stop, stopper = socket.socketpair()
    daemons = RayDaemons(raylet.pid, server)
    stopper.send(bytes([signal.SIGCHLD]))
    kill(raylet)
    assert wait_for_end(stop, daemons) == "raylet is gone"
    kill(machine.running[0])
    stopper.send(bytes([order]))
    assert wait_for_end(stop, daemons) is None, "an order to stop comes before the death of a daemon"


def test_a_gcs_that_lost_its_state_ends_the_broker(machine: Machine) -> None:
    server, process = machine.gcs_server("memory")
    daemons = RayDaemons(os.getpid(), server)
    kill(process)
    stop, _stopper = socket.socketpair()
    assert wait_for_end(stop, daemons) == "gcs_server is gone"


def test_a_gcs_that_is_back_is_rays_again_and_one_that_keeps_dying_ends_the_broker(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray
    from ray._private.services import ProcessInfo

    Clock(monkeypatch)
    server, process = machine.gcs_server()
    infos = [ProcessInfo(process, *[None] * (len(ProcessInfo._fields) - 1))]
    monkeypatch.setattr(ray._private.worker, "_global_node", SimpleNamespace(all_processes={"gcs_server": infos}))
    daemons = RayDaemons(os.getpid(), server)
    machine.end_at_once()
    kill(process)
    stop, _stopper = socket.socketpair()
    assert wait_for_end(stop, daemons) == "gcs_server keeps dying"
    assert infos[0].process.pid == server.pid
    assert capsys.readouterr().err.count("gcs_server died and was restarted in place") == 10


def test_a_raylet_of_somebody_else_is_found_by_its_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "raylet"))
        listener.listen()
        assert listener_of(str(tmp_path / "raylet")) == os.getpid()
    assert RayDaemons(os.getpid(), None).ended(-1) == "raylet is gone"
