"""A progress line on standard error for work that takes longer than two seconds; nothing when nobody watches."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

_BAR_WIDTH = 30
_REDRAW_S = 0.1


class Progress:
    """Counts what is done and shows it in place: a bar where the total is known, else the count and the rate."""

    def __init__(
        self,
        title: str,
        total: int | None = None,
        unit: str = "records",
        *,
        after_s: float = 2.0,
        stream: TextIO | None = None,
    ) -> None:
        self._title = title
        self._total = total
        self._unit = unit
        self._stream = stream or sys.stderr
        self._watched = self._stream.isatty()
        self._started = time.monotonic()
        self._next_draw = self._started + after_s
        self._drawn = False
        self.done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.clear()

    def add(self, count: int = 1) -> None:
        """Notes that so many more are done."""
        self.done += count
        if self._watched:
            now = time.monotonic()
            if now >= self._next_draw:
                self._next_draw = now + _REDRAW_S
                self._draw(now)

    def clear(self) -> None:
        """Takes the line away."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False

    def _draw(self, now: float) -> None:
        rate = self.done / max(now - self._started, 1e-9)
        self._stream.write(f"\r\x1b[K{self._title} {self.line(rate)}")
        self._stream.flush()
        self._drawn = True

    def line(self, rate: float) -> str:
        """The text for the present state at `rate` units a second."""
        if not self._total:
            return f"{self.done:,} {self._unit}, {rate:,.0f}/s"
        part = min(self.done / self._total, 1.0)
        bar = ("#" * round(part * _BAR_WIDTH)).ljust(_BAR_WIDTH, ".")
        left_s = (self._total - self.done) / rate if rate else 0.0
        return f"[{bar}] {part:4.0%} of {self._total:,} {self._unit}, {max(left_s, 0):.0f} s left"
