"""The foreground process of `rayka up`: keeps one broker process running and leaves nothing behind.

Theory of operation. A Ray driver cannot outlive its raylet, so the process that a person starts is not part of Ray
and imports nothing of it. It starts a Ray driver with the broker in it (`rayka.cli.daemon.serve`), with a reaper in
between (`rayka.cli.daemon.reaper`), and reads its status (`rayka.cli.daemon.child`).

Nothing outlives the broker:

- Supervisor and reaper adopt orphans (child subreaper), so whatever Ray leaves behind is a descendant of theirs. It
  is killed before a new child is started and before they exit.
- When the supervisor is killed the reaper kills everything; when the reaper is killed the supervisor does.
- A stop that takes longer than `stop_timeout_s` becomes a kill.

`restart_policy` decides whether and when a child that ended unasked is started again.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rayka.cli.daemon import processes
from rayka.cli.daemon.child import Child
from rayka.cli.daemon.console import announce, log
from rayka.cli.daemon.restart_policy import ChildRun, GiveUp, Policy, Restart, RestartPolicy
from rayka.cli.exits import Exit

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Supervisor:
    """Runs `command` as the child and gives it `settings`."""

    def __init__(self, command: Sequence[str], settings: Mapping[str, Any], policy: Policy | None = None) -> None:
        self._command = tuple(command)
        self._settings = dict(settings)
        self._policy = policy or Policy()
        self.stopped_cleanly = False
        """Whether the child stopped in order when it was told to; not if there was none, or it had to be killed."""
        self._stop_requests = 0
        self._restarts = RestartPolicy(self._policy)
        self._down_since = 0.0

    def run(self) -> Exit:
        """Serves until told to stop (SIGINT, SIGTERM, SIGHUP); returns the exit code."""
        processes.adopt_orphans()
        with self._signals():
            try:
                return self._keep_serving()
            finally:
                processes.kill_descendants()

    def _keep_serving(self) -> Exit:
        while True:
            child = Child(self._command, self._settings)
            try:
                self._watch(child)
                if self._stop_requests:
                    return self._stop(child)
            finally:
                child.close()
            processes.kill_descendants()
            verdict = self._after_exit(child)
            if isinstance(verdict, GiveUp):
                log(verdict.reason)
                return verdict.exit_code
            log(f"{verdict.reason}; restarting it")
            if not self._pause(verdict.delay_s):
                return Exit.DONE

    def _watch(self, child: Child) -> None:
        """Returns when the child has ended, was too slow to get ready, or somebody wants us to stop."""
        deadline = time.monotonic() + self._policy.start_timeout_s
        while child.exit_code is None and not self._stop_requests:
            if child.ready_at is None:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return
                self._wait(child, left_s)
                if child.listen is not None:
                    self._became_ready(child, child.listen)
            else:
                self._wait(child, None)

    def _became_ready(self, child: Child, listen: str) -> None:
        if self._settings.get("address"):  # `auto` is found once
            self._settings["address"] = child.address
        if self._settings["listen"].endswith(":0"):  # a port that was chosen for us stays ours
            self._settings["listen"] = self._settings["listen"][:-1] + listen.rpartition(":")[2]
        was_ever_ready = self._restarts.was_ever_ready
        self._restarts.became_ready()
        if was_ever_ready:
            log(f"restarted in {time.monotonic() - self._down_since:.1f} s; serving on {listen} again")
            return
        data_dir = self._settings.get("data_dir")
        place = f"\nThe data is in {data_dir}." if data_dir else ""
        announce(f"rayka is ready on {listen}{place}")

    def _after_exit(self, child: Child) -> Restart | GiveUp:
        """Decide what follows the end of a child that nobody asked to end."""
        now = time.monotonic()
        if child.ready_at is not None:
            self._down_since = now
        ready_s = None if child.ready_at is None else now - child.ready_at
        return self._restarts.after_exit(ChildRun(child.reason, ready_s, child.refusal))

    def _stop(self, child: Child) -> Exit:
        """Asks the child to stop; it is killed when it takes too long, or when we are asked again."""
        deadline = time.monotonic() + self._policy.stop_timeout_s
        child.signal(signal.SIGTERM)
        while child.exit_code is None and self._stop_requests < 2:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            self._wait(child, left_s)
        self.stopped_cleanly = child.exit_code == 0
        if self.stopped_cleanly or child.ready_at is None:
            return Exit.DONE
        log("the broker did not stop cleanly and was killed; the next start recovers its logs")
        return Exit.FAILED

    def _pause(self, delay_s: float) -> bool:
        """Waits `delay_s` seconds; False if told to stop meanwhile."""
        deadline = time.monotonic() + delay_s
        while not self._stop_requests and (left_s := deadline - time.monotonic()) > 0:
            self._wait(None, left_s)
        return not self._stop_requests

    def _wait(self, child: Child | None, timeout_s: float | None) -> None:
        """Waits for a signal, for the child's status or for the end of one; takes note of what came."""
        sources: list[Any] = [self._wakeup]
        if child is not None and child.status_fd >= 0:
            sources.append(child.status_fd)
        readable, _, _ = select.select(sources, [], [], timeout_s)
        if self._wakeup in readable:
            self._stop_requests += sum(number in STOP_SIGNALS for number in self._wakeup.recv(4096))
        ended = processes.reap()
        if child is not None:
            child.read_status()
            if child.pid in ended:
                child.ended(ended[child.pid])

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Turns signals into bytes on a socket, so that one select waits for everything."""
        self._wakeup, write_end = socket.socketpair()
        write_end.setblocking(False)
        previous_fd = signal.set_wakeup_fd(write_end.fileno())
        previous = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGCHLD)}
        if previous[signal.SIGHUP] is signal.SIG_IGN:  # nohup: the terminal may go
            del previous[signal.SIGHUP]
        for number in previous:
            signal.signal(number, lambda *_: None)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(previous_fd)
            write_end.close()
            self._wakeup.close()
