"""One run of the broker process, as its supervisor sees it.

The child gets its settings as JSON on standard input (they may hold passwords, so not on the command line)
and reports its status as JSON lines on a pipe whose number is in the settings as `status_fd`:
`{"ready": "HOST:PORT", "address": "HOST:PORT"}` with where Kafka clients and where Ray programs connect,
`{"failed": reason}` when it refuses to start, `{"down": reason}` when Ray died under it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rayka.cli.daemon import processes
from rayka.cli.daemon.reaper import PARENT_DIED


class Child:
    """A started broker process, under its reaper. It dies with this one.

    `status_fd` is readable when there is something for `read_status`, and -1 once the child has closed its end.
    """

    def __init__(self, command: Sequence[str], settings: Mapping[str, Any]) -> None:
        self.status_fd, child_fd = os.pipe()
        os.set_blocking(self.status_fd, False)
        self.exit_code: int | None = None
        self.listen: str | None = None
        self.address: str | None = None
        self.ready_at: float | None = None
        self.refusal: str | None = None
        self._loss: str | None = None
        self._unread = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rayka.cli.daemon.reaper", *command],
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno(),  # our stdout carries the ready line and nothing else
            pass_fds=(child_fd,),
            process_group=0,  # Ctrl-C in the terminal reaches the supervisor alone
            preexec_fn=processes.dies_with(os.getpid(), PARENT_DIED),
        )
        self.pid = self._process.pid
        os.close(child_fd)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(json.dumps({**settings, "status_fd": child_fd}).encode())

    def signal(self, number: int) -> None:
        """Sends a signal, if the child still runs."""
        if self.exit_code is None:
            os.kill(self.pid, number)

    def ended(self, exit_code: int) -> None:
        """Notes that the child was reaped, after reading its last status."""
        self.read_status()
        self.exit_code = self._process.returncode = exit_code

    def read_status(self) -> None:
        """Read the status lines that have arrived so far."""
        while self.status_fd >= 0:
            try:
                received = os.read(self.status_fd, 65536)
            except BlockingIOError:
                return
            if not received:
                self.close()
                return
            *lines, self._unread = (self._unread + received).split(b"\n")
            for line in lines:
                self._note(json.loads(line))

    def close(self) -> None:
        """Stops listening."""
        if self.status_fd >= 0:
            os.close(self.status_fd)
            self.status_fd = -1

    def _note(self, news: Mapping[str, str]) -> None:
        if listen := news.get("ready"):
            self.listen, self.ready_at = listen, time.monotonic()
            self.address = news.get("address")
        self.refusal = news.get("failed", self.refusal)
        self._loss = news.get("down", self._loss)

    @property
    def reason(self) -> str:
        """Why this run ended, in words."""
        if self.refusal is not None:
            return self.refusal
        if self._loss is not None:
            return f"ray went down ({self._loss})"
        if self.exit_code is not None:
            return f"the broker process {processes.describe_exit(self.exit_code)}"
        return "the broker did not get ready in time"
