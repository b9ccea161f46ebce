"""The Linux process functions that the supervisor needs: adopting orphans, dying with a parent, finding descendants.

Nothing here goes by a process's name: only by descent, so a Ray cluster or a broker that somebody else runs
on the same machine is never touched.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl({option}): {os.strerror(errno)}")


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent dies (child subreaper)."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def dies_with(parent_pid: int, number: int = signal.SIGKILL) -> Callable[[], None]:
    """Gives the function to run between fork and exec so that the child gets a signal when its parent dies."""

    def arm() -> None:
        _prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent_pid:  # the parent died before the kernel was told
            os._exit(1)

    return arm


def descendants(root: int) -> list[int]:
    """Every process below `root`; zombies included."""
    try:
        return [process.pid for process in psutil.Process(root).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def reap() -> dict[int, int]:
    """Collects every child that has ended, without waiting: {pid: exit code, negative for a signal}."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def kill_descendants(timeout_s: float = 5.0) -> list[int]:
    """Kills and reaps everything below this process; returns what still runs when the time is up.

    The tree is walked again until it is empty, because a process may fork while its siblings are killed.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        reap()
        left = descendants(os.getpid())
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)


def describe_exit(exit_code: int) -> str:
    """`was killed by SIGKILL` (-9, or 137 as shells tell it) or `exited with code 3`."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    if number <= 0:
        return f"exited with code {exit_code}"
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"was killed by {name}"
