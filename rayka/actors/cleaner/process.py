"""Starts the cleaner process when there is a log to clean, and ends it when there has been none for a while."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from rayka.actors.cleaner.messages import CleaningEvent, CleaningRequest, receive, send


class CleanerProcess:
    """Methods block; one thread uses them, but for `stop`. The process dies with the thread that made it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_stopped = False

    def begin(self, request: CleaningRequest) -> None:
        """Hand over a round; `next` gives its events. Raises OSError if the process is gone or can't be started."""
        process = self._start()
        assert process.stdin is not None
        send(process.stdin, request)

    def next(self) -> CleaningEvent | None:
        """Wait for the next event of the round, None if the process is gone."""
        process = self._process
        if process is None or process.stdout is None:
            return None
        return receive(process.stdout, CleaningEvent)

    def end(self) -> None:
        """End the process and wait until it is gone: it writes nothing any more."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None and not stream.closed:
                    stream.close()

    def stop(self) -> None:
        """End a round early, from any thread: `next` gives None. No process is started again."""
        with self._lock:
            self._is_stopped = True
            if self._process is not None:
                self._process.kill()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_stopped:
                raise BrokenPipeError("the cleaner is stopped")
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "rayka.actors.cleaner", str(os.getpid())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=_environment(),
                )
            return self._process


def _environment() -> dict[str, str]:
    """This process's, with its module path: Ray workers extend theirs."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
