"""The messages of the daemon's processes to the operator."""

from __future__ import annotations

import sys
import time


def log(line: str) -> None:
    """One line with the time on stderr."""
    print(f"{time.strftime('%H:%M:%S')} rayka: {line}", file=sys.stderr, flush=True)
