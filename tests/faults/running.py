"""A rayka that a test can hurt: started as a user starts it, its processes found below it in /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from tests.clients.broker import free_port

READY = "rayka is ready on "
START_TIMEOUT_S = 60.0


class Running:
    """One `rayka up` over a data directory. `log` collects what it prints."""

    def __init__(self, data_dir: Path, configs: Sequence[str] = (), port: int | None = None) -> None:
        self.data_dir = data_dir
        self.bootstrap = f"127.0.0.1:{port or free_port()}"
        self.log: list[str] = []
        self._ready = threading.Event()
        command = [sys.executable, "-u", "-m", "rayka.cli.main", "up", "--listen", self.bootstrap]
        command += ["--data-dir", str(data_dir), *(word for config in configs for word in ("--config", config))]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        threading.Thread(target=self._follow, daemon=True).start()
        if not self._ready.wait(START_TIMEOUT_S):
            self.kill()
            raise AssertionError("rayka did not become ready:\n" + "\n".join(self.log))

    def _follow(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line.rstrip())
            if line.startswith(READY):
                self._ready.set()

    def descendants(self) -> dict[int, str]:
        """The command lines of all processes below ours, by process id."""
        found: dict[int, str] = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found[process.pid] = " ".join(process.cmdline())
        return found

    def find(self, part: str) -> list[int]:
        """The processes whose command line contains `part`, such as `ray::PartitionActor` or `gcs_server`."""
        return sorted(pid for pid, command in self.descendants().items() if part in command.split(" --")[0])

    def kill_one(self, part: str, which: int = 0) -> int:
        """kill -9 of one process."""
        pids = self.find(part)
        assert pids, f"no process {part!r} among {sorted(name[:60] for name in self.descendants().values())}"
        os.kill(pids[which % len(pids)], signal.SIGKILL)
        return pids[which % len(pids)]

    def stop(self) -> None:
        """SIGTERM, and wait for a clean end."""
        self.process.terminate()
        self.process.wait(20)

    def kill(self) -> None:
        """kill -9 of everything at once."""
        pids = [*self.descendants(), self.process.pid]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(20)
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), 20, "the killed processes are gone")


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> float:
    """Wait for a condition; the seconds that it took. Raises AssertionError when it takes longer than `timeout_s`."""
    started = time.monotonic()
    pause = threading.Event()
    while not condition():
        if time.monotonic() - started > timeout_s:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        pause.wait(0.02)
    return time.monotonic() - started


@contextlib.contextmanager
def running(data_dir: Path, configs: Sequence[str] = ()) -> Iterator[Running]:
    """A rayka that is gone afterwards, whatever happened to it."""
    broker = Running(data_dir, configs)
    try:
        yield broker
    finally:
        if broker.process.poll() is None:
            broker.stop()
