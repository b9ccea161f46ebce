"""The messages of the daemon's processes to the operator."""

from __future__ import annotations

import os
import sys
import time


def log(line: str) -> None:
    """One line with the time on stderr."""
    print(f"{time.strftime('%H:%M:%S')} rayka: {line}", file=sys.stderr, flush=True)


def announce(text: str) -> None:
    """Tell on standard output that the broker is ready. Nobody may read it any more, as in `rayka up | head -1`.

    Where Python does not buffer (PYTHONUNBUFFERED), one text is several writes, and a reader of the first line may be
    gone before the last.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
