"""The processes of a broker, found by a mark in their environment, which children inherit; Linux's /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

MARK = "RAYKA_BENCHMARK_BROKER"
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# what Ray itself runs beside the actors
RAYS_OWN = (
    "raylet/raylet",
    "gcs_server",
    "/dashboard/",
    "log_monitor.py",
    "autoscaler/_private/monitor",
    "runtime_env",
)


def marked(mark: str) -> list[int]:
    """The ids of all live processes that were started under `mark`."""
    return list(_marked(f"{MARK}={mark}".encode()))


def _marked(entry: bytes) -> Iterator[int]:
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if entry in (process / "environ").read_bytes().split(b"\0"):
                    yield int(process.name)


def is_rays_own(pid: int) -> bool:
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return any(part in command for part in RAYS_OWN)
    return False


def resident_bytes(pids: list[int]) -> int:
    """Proportional set size of all of them together: a page shared by several counts once."""
    return sum(_pss_bytes(pid) for pid in pids)


def _pss_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def cpu_s(pids: list[int]) -> float:
    """User and system time that they have used since they started."""
    return sum(_cpu_ticks(pid) for pid in pids) / CLOCK_TICKS_PER_S


def _cpu_ticks(pid: int) -> int:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0


def kill(pids: list[int], timeout_s: float) -> None:
    """kill -9; returns when their files and sockets are closed too, which is after they have lost their environment."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _await_none(lambda: [pid for pid in pids if _holds_files(pid)], timeout_s)


def _holds_files(pid: int) -> bool:
    """A process whose first thread is dead keeps them until its last one is."""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1
    return False


def await_gone(mark: str, timeout_s: float) -> None:
    """Raises TimeoutError when processes of `mark` are left after the time."""
    _await_none(lambda: marked(mark), timeout_s)


def _await_none(left: Callable[[], list[int]], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while pids := left():
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} are still there after {timeout_s:.0f} s")
        time.sleep(0.01)
