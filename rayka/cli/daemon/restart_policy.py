"""When to restart a process that died, and when to give up. No clock and no I/O.

A process that served for `healthy_after_s` and then died starts again at once. Short runs in a row are followed by
growing delays. After `max_failures` starts in a row of which none became ready the policy gives up. A process that
says before it was ever ready why it cannot start is not tried again, because a wrong setting stays wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

from rayka.cli.exits import Exit


@dataclass(frozen=True, slots=True)
class Policy:
    """How often and how long. Times in seconds."""

    max_failures: int = 5
    first_delay_s: float = 0.5
    max_delay_s: float = 8.0
    healthy_after_s: float = 10.0
    start_timeout_s: float = 300.0
    stop_timeout_s: float = 8.0

    def delay_s(self, short_runs: int) -> float:
        """The pause before the next start after so many short runs in a row; none after the first."""
        if short_runs <= 1:
            return 0.0
        return min(self.first_delay_s * 2.0 ** min(short_runs - 2, 32), self.max_delay_s)


@dataclass(frozen=True, slots=True)
class ChildRun:
    """A run that has ended: why, how long it was ready (None: never), and what it said when it refused to start."""

    reason: str
    ready_s: float | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the process again after `delay_s` seconds."""

    delay_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not start it again; the supervisor ends with this exit code."""

    exit_code: Exit
    reason: str


class RestartPolicy:
    """Counts failed starts and short runs, and decides what follows the end of a run."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.was_ever_ready = False
        self.failed_starts = 0
        self.short_runs = 0

    def became_ready(self) -> None:
        """The process serves."""
        self.was_ever_ready = True
        self.failed_starts = 0

    def after_exit(self, run: ChildRun) -> Restart | GiveUp:
        """Decide what follows an exit that nobody asked for; the caller logs it and acts."""
        self.failed_starts = self.failed_starts + 1 if run.ready_s is None else 0
        self.short_runs = 1 if (run.ready_s or 0.0) >= self.policy.healthy_after_s else self.short_runs + 1
        if run.refusal is not None and not self.was_ever_ready:
            return GiveUp(Exit.FAILED, run.refusal)
        if self.failed_starts >= self.policy.max_failures:
            reason = f"giving up: {self.failed_starts} starts in a row failed; the last: {run.reason}"
            return GiveUp(Exit.GAVE_UP, reason)
        return Restart(self.policy.delay_s(self.short_runs), run.reason)
