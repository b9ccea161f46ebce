"""A progress line on standard error for work that takes longer than two seconds; only on a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    import rich.progress


class ProgressBar:
    """Counts what is done; on a terminal it shows a bar with the time left (the time passed without a total)."""

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
        self._is_watched = self._stream.isatty()
        self._show_at = time.monotonic() + after_s
        self._bar: rich.progress.Progress | None = None
        self.done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.clear()

    def add(self, count: int = 1) -> None:
        """Note that this many more are done."""
        self.done += count
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], count)
        elif self._is_watched and time.monotonic() >= self._show_at:
            self._bar = self._started()

    def clear(self) -> None:
        """Remove the line."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._is_watched = False

    def _started(self) -> rich.progress.Progress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        count = TextColumn("{task.completed:,.0f} " + self._unit)
        last = TimeElapsedColumn() if self._total is None else TimeRemainingColumn()
        bar = Progress(
            TextColumn(self._title), BarColumn(), count, last, console=Console(file=self._stream), transient=True
        )
        bar.add_task(self._title, total=self._total, completed=self.done)
        bar.start()
        return bar
