"""Runs Ray's `gcs_server`, and restarts it in place when it dies.

Theory of operation. The GCS keeps what it knows in an embedded RocksDB (`RAY_gcs_storage=rocksdb`), and everybody who
talks to it reconnects for a minute (`gcs_rpc_server_reconnect_timeout_s`). So a dead one can be started with the same
arguments, environment and port before anything of Ray ends for want of it; actors answer each other meanwhile. A GCS
without a store forgets everything when it dies: that one is not started again.

`python -m rayka.cli.daemon.gcs_server PORT` does this for a Ray cluster that `ray start` made, see cluster.yaml.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from rayka.cli.daemon.console import log
from rayka.cli.daemon.processes import dies_with
from rayka.cli.daemon.restart_policy import ChildRun, GiveUp, Policy, RestartPolicy

NAME = "gcs_server"
STORAGE = "RAY_gcs_storage"
_PORT_ARGUMENT = "--gcs_server_port="
_POLICY = Policy(max_failures=5, first_delay_s=0.1, max_delay_s=2.0, healthy_after_s=30.0)
_MAX_SHORT_RUNS = 10
_STOP_S = 1.0


class GcsServer:
    """A running gcs_server that this process may start again. `pidfd` becomes readable when it is gone."""

    def __init__(self, pid: int, port: int, *, fate_shared: bool) -> None:
        """Note how it was started. `fate_shared`: those started again die with this process."""
        process = psutil.Process(pid)
        self._environ = process.environ()
        self._arguments = with_port(process.cmdline(), port)
        self._executable = process.exe()
        self._output_paths = _target(f"/proc/{pid}/fd/1"), _target(f"/proc/{pid}/fd/2")
        self._fate_shared = fate_shared
        self._policy = RestartPolicy(_POLICY)
        self._began = time.monotonic()
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)

    @property
    def has_storage(self) -> bool:
        """Whether its state outlives its process."""
        return str(self._environ.get(STORAGE, "memory")) != "memory"

    def restart(self) -> subprocess.Popen[bytes] | None:
        """Start it again after it died; None if it keeps dying. `pidfd` is a new one afterwards."""
        verdict = self._policy.after_exit(ChildRun(f"{NAME} died", time.monotonic() - self._began))
        if isinstance(verdict, GiveUp) or self._policy.short_runs > _MAX_SHORT_RUNS:
            return None
        time.sleep(verdict.delay_s)
        os.close(self.pidfd)
        process = self._start()
        self.pid, self.pidfd, self._began = process.pid, os.pidfd_open(process.pid), time.monotonic()
        return process

    def _start(self) -> subprocess.Popen[bytes]:
        out_path, err_path = self._output_paths
        with open(out_path, "ab") as out, open(err_path, "ab") as err:
            return subprocess.Popen(
                self._arguments,
                executable=self._executable,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                preexec_fn=dies_with(os.getpid()) if self._fate_shared else None,
                start_new_session=not self._fate_shared,
            )


def with_port(arguments: Sequence[str], port: int) -> list[str]:
    """The same command line with the port that was chosen when it said 0, so that clients find it again."""
    return [f"{_PORT_ARGUMENT}{port}" if word.startswith(_PORT_ARGUMENT) else word for word in arguments]


def _target(descriptor: str) -> str:
    """The file behind a descriptor; /dev/null for what cannot be opened a second time."""
    path = os.readlink(descriptor)
    return path if Path(path).is_file() else os.devnull


def find(port: int) -> GcsServer:
    """The gcs_server of this user that was told to listen on `port`. Raises LookupError if there is none."""
    for process in psutil.process_iter(["name", "cmdline", "uids"]):
        command = process.info["cmdline"] or []
        if process.info["name"] == NAME and f"{_PORT_ARGUMENT}{port}" in command:
            return GcsServer(process.pid, port, fate_shared=False)
    raise LookupError(f"no {NAME} of this user listens on port {port}")


def main(port: int) -> int:
    """Keep the GCS of this machine running until its raylet ends; SIGTERM ends this process, but not the GCS."""
    server = find(port)
    if not server.has_storage:
        log(f"{NAME} keeps its state in memory ({STORAGE}), so it cannot be restarted")
        return 1
    raylet = _raylet_pidfd(port)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps those that died
    was_restarted = False
    while True:
        select.select([server.pidfd, raylet], [], [])
        if _is_gone(raylet):
            if was_restarted:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(server.pid, signal.SIGKILL)
            return 0
        if server.restart() is None:
            log(f"{NAME} keeps dying and is not restarted any more")
            return 1
        was_restarted = True
        log(f"{NAME} died and was restarted in place")


def _is_gone(pidfd: int) -> bool:
    """Whether the raylet ends too, as it does soon after the GCS under `ray stop`."""
    return bool(select.select([pidfd], [], [], _STOP_S)[0])


def _raylet_pidfd(port: int) -> int:
    """A pidfd of the raylet on this machine that belongs to the GCS on `port`. Raises LookupError."""
    for process in psutil.process_iter(["name", "cmdline"]):
        gcs = [word for word in process.info["cmdline"] or [] if word.startswith("--gcs-address=")]
        if process.info["name"] == "raylet" and gcs and gcs[0].endswith(f":{port}"):
            return os.pidfd_open(process.pid)
    raise LookupError(f"no raylet of this machine belongs to the GCS on port {port}")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
