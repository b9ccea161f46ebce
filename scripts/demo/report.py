"""What the demo tells its reader."""

from __future__ import annotations

import time


class Report:
    """One line for each step, with what it took."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.steps = 0

    def step(self, what: str, outcome: str, seconds: float) -> None:
        self.steps += 1
        print(f"{self.steps:>2}. {what:<44} {outcome}  ({seconds:.1f} s)", flush=True)

    def detail(self, text: str) -> None:
        print(f"    {text}", flush=True)

    def done(self) -> None:
        print(f"\nEverything was as it must be, in {time.monotonic() - self._started:.0f} s.", flush=True)


def check(holds: bool, claim: str) -> None:
    """Ends the demo if a claim does not hold."""
    if not holds:
        raise SystemExit(f"FAILED: {claim}")
