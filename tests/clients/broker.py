"""Runs rayka as its user does: the command line, in a process of its own."""

from __future__ import annotations

import contextlib
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
READY = "rayka is ready on "


def free_port() -> int:
    """Below the ports of outgoing connections, so that no client's connection can have it meanwhile."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def _follow(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line.rstrip())
    lines.put(None)


def _await_ready(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> str:
    """The address of the ready line; raises AssertionError with all output when it does not come in time."""
    deadline = time.monotonic() + START_TIMEOUT_S
    seen: list[str] = []
    while (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(queue.Empty):
            line = lines.get(timeout=left)
            if line is None:
                break
            if line.startswith(READY):
                return line.removeprefix(READY)
            seen.append(line)
    process.kill()
    raise AssertionError("rayka did not become ready; it printed:\n" + "\n".join(seen))


@contextlib.contextmanager
def rayka(data_dir: Path, configs: Sequence[str] = ()) -> Iterator[str]:
    """Starts `rayka up` on a free port over `data_dir`, yields its address and stops it with SIGTERM."""
    command = [sys.executable, "-u", "-m", "rayka.cli.main", "up", "--listen", f"127.0.0.1:{free_port()}"]
    command += ["--data-dir", str(data_dir)]
    for config in configs:
        command += ["--config", config]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_follow, args=(process, lines), daemon=True).start()
    try:
        yield _await_ready(process, lines)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
