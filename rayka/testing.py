"""Start a broker for a test, a benchmark or an example, find its processes, and stop or kill it.

    from rayka.testing import BrokerProcess

    with BrokerProcess(tmp_path / "data") as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

Processes are found by descent from the one that was started, never by
name alone, so a broker that somebody else runs on the same machine is never touched.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Self
from weakref import WeakSet

import psutil

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 120.0
READY = "rayka is ready on "
FIND_TIMEOUT_S = 60.0
"""How long a process may take to be there, and to be gone when it was killed."""
POLL_S = 0.01
_PORTS = range(20_000, 29_000)
_next_port = itertools.count(random.randrange(len(_PORTS)))
_reserved: list[socket.socket] = []


def free_port() -> int:
    """A free port below the range of outgoing connections, another one each time.

    In that range a client that tries to reach a stopped broker may connect to itself. Processes that look for ports at
    the same time begin at different ones. As long as this process lives, no other one gets the port from here, even if
    no process listens on it yet, or for a moment between two starts of a broker.
    """
    while True:
        port = _PORTS[next(_next_port) % len(_PORTS)]
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            _reserve(port)
            return port


def _reserve(port: int) -> None:
    """Take the port's name among those of Unix sockets without a file. Raises OSError if another process has it."""
    if sys.platform != "linux":
        return
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0rayka-port-{port}")
    except OSError:
        name.close()
        raise
    _reserved.append(name)


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str | Callable[[], str]) -> float:
    """Wait for a condition and return the seconds it took. Raises AssertionError after `timeout_s`.

    `what` names the condition in the error's message; a function returns a text about the state at that time.
    """
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > timeout_s:
            raise AssertionError(f"not within {timeout_s} s: {what if isinstance(what, str) else what()}")
        time.sleep(POLL_S)
    return time.monotonic() - started


@contextlib.contextmanager
def paused(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Stop processes with SIGSTOP; let those that still live continue afterwards, even after an error."""
    try:
        for process in processes:
            process.suspend()
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


class ServerProcess(ABC):
    """A server that runs in the foreground, with its child processes. It can be started again after it has ended."""

    name = "the server"
    launched: ClassVar[WeakSet[ServerProcess]] = WeakSet()
    """Every one that this process has started and still holds: a test that fails shows their logs."""

    def __init__(self, output: Path, port: int | None = None) -> None:
        """`output` is the file for what it prints; a `port` of None picks a free one."""
        self.output = output
        self.port = port or free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self._root: psutil.Process | None = None
        self._log_start = 0

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""

    def is_ready(self) -> bool:
        """Return whether the server accepts connections."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def launch(self) -> None:
        """Start the process without waiting for it to be ready."""
        self.launched.add(self)
        self._log_start = self.output.stat().st_size if self.output.exists() else 0
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(self.command(), stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        self._root = psutil.Process(self.process.pid)

    def start(self) -> Self:
        """Start the process and wait until it is ready. Raises RuntimeError, with its output, when it fails."""
        self.launch()
        try:
            self.await_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def await_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the server is ready. Raises RuntimeError, with its output, when it ends or takes longer."""
        deadline = time.monotonic() + timeout_s
        while not self.is_ready():
            if not self.is_running or time.monotonic() > deadline:
                failed = f"did not become ready in {timeout_s:.0f} s" if self.is_running else "ended"
                raise RuntimeError(f"{self.name} {failed}:\n" + "\n".join(self.log[-50:]))
            time.sleep(POLL_S)

    @property
    def is_running(self) -> bool:
        """Whether the process that was started still runs."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """The id of the process that was started."""
        assert self.process is not None, f"{self.name} was not started"
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of the last run; None while it runs."""
        return None if self.process is None else self.process.poll()

    @property
    def log(self) -> list[str]:
        """The lines that it has printed since its last start."""
        return self.output.read_bytes()[self._log_start :].decode(errors="replace").splitlines()

    def children(self) -> list[psutil.Process]:
        """Every live process below the one that was started."""
        if self._root is None:
            return []
        try:
            return [child for child in self._root.children(recursive=True) if not has_ended(child)]
        except psutil.NoSuchProcess:
            return []

    def processes(self) -> list[psutil.Process]:
        """The process that was started and every live process below it."""
        own = [] if self._root is None or has_ended(self._root) else [self._root]
        return own + self.children()

    def find(self, part: str) -> list[psutil.Process]:
        """The processes whose title has `part`, such as `ray::PartitionActor` or `gcs_server`, by process id.

        The title is the command line up to its first option.
        """
        return sorted((child for child in self.children() if part in title(child)), key=lambda child: child.pid)

    def await_found(self, part: str) -> list[psutil.Process]:
        """Wait until `find` returns a process: it may be starting again, or one look misses it.

        Raises AssertionError after `FIND_TIMEOUT_S`.
        """
        found: list[psutil.Process] = []

        def is_there() -> bool:
            found[:] = self.find(part)
            return found != []

        wait_until(is_there, FIND_TIMEOUT_S, lambda: f"a process {part!r} among {sorted(map(title, self.children()))}")
        return found

    def kill_one(self, part: str, index: int = 0) -> psutil.Process:
        """Kill one of the processes that `await_found` returns, wait until it has ended, and return it.

        Raises AssertionError when there is none, or when it does not end.
        """
        found = self.await_found(part)
        victim = found[index % len(found)]
        kill_all([victim])
        if await_ended([victim], FIND_TIMEOUT_S):
            raise AssertionError(f"{victim} does not end")
        return victim

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process that was started."""
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Send SIGTERM and wait until all processes have ended. Raises TimeoutError when they have not in time.

        Whatever is left then has been killed.
        """
        family = self.processes()
        if self.is_running:
            self.signal(signal.SIGTERM)
        if left := await_ended(family, timeout_s):
            titles = [title(each)[:60] for each in left]
            self.kill()
            await_ended(kill_all(left), timeout_s)
            raise TimeoutError(f"{self.name} did not stop in {timeout_s} s; still there: {titles}")
        self._reap(timeout_s)

    def kill(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Kill all processes at once and wait until their files and sockets are closed."""
        if self._root is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            self._root.suspend()  # it would start what dies again
        while children := self.children():
            await_ended(kill_all(children), timeout_s)
        await_ended(kill_all([self._root]), timeout_s)
        self._reap(timeout_s)

    def _reap(self, timeout_s: float) -> None:
        if self.process is not None:
            self.process.wait(timeout_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self.stop()


class BrokerProcess(ServerProcess):
    """`rayka up` over a data directory."""

    name = "rayka"

    def __init__(
        self,
        data_dir: Path,
        configs: Sequence[str] = (),
        port: int | None = None,
        output: Path | None = None,
    ) -> None:
        """`configs` are NAME=VALUE; `output` is DATA_DIR.log unless it is given."""
        super().__init__(output or data_dir.with_name(f"{data_dir.name}.log"), port)
        self.data_dir = data_dir
        self.configs = tuple(configs)

    def command(self) -> list[str]:
        command = [sys.executable, "-u", "-m", "rayka.cli.main", "up", "--listen", self.bootstrap]
        command += ["--data-dir", os.fspath(self.data_dir)]
        return command + [word for config in self.configs for word in ("--config", config)]

    def is_ready(self) -> bool:
        """Return whether `rayka up` has printed that it is ready."""
        return any(line.startswith(READY) for line in self.log)

    def leader(self, topic: str, partition: int) -> psutil.Process:
        """The actor that leads a partition: the process that has its segment open. Raises LookupError if none has.

        One look may miss it, since Ray rewrites the titles of processes, and files come and go while they are listed.
        """
        deadline_s = time.monotonic() + FIND_TIMEOUT_S
        while (actor := self._holder(f"/{topic}-{partition}/")) is None:
            if time.monotonic() > deadline_s:
                raise LookupError(f"no partition actor has {topic}-{partition} open")
            time.sleep(POLL_S)
        return actor

    def _holder(self, part: str) -> psutil.Process | None:
        for actor in self.find("ray::Partition"):
            with contextlib.suppress(psutil.Error):
                if any(part in file.path for file in actor.open_files()):
                    return actor
        return None


def title(process: psutil.Process) -> str:
    """The command line of a process up to its first option; empty when it has ended."""
    try:
        return " ".join(process.cmdline()).split(" --")[0]
    except psutil.Error:
        return ""


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended and closed its files: a zombie's are open until its last thread is dead."""
    try:
        return not process.is_running() or (
            process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) and process.num_threads() <= 1
        )
    except psutil.NoSuchProcess:
        return True


def kill_all(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Send SIGKILL to all of these that still run, and return them."""
    killed = list(processes)
    for process in killed:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return killed


def await_ended(processes: Iterable[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until these processes have ended; return those that have not after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    left = list(processes)
    while (left := [process for process in left if not has_ended(process)]) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return left


def memory_bytes(processes: Iterable[psutil.Process]) -> int:
    """Proportional set size of all of them together: a page that several share counts once."""
    return sum(_pss_bytes(process) for process in processes)


def _pss_bytes(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """User and system time, in seconds, that these processes have used since they started.

    That of their children counts too once these have ended.
    """
    used_s = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            used_s += times.user + times.system + times.children_user + times.children_system
    return used_s
