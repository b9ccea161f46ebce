"""The descriptors of this process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def open_files(directory: Path) -> int:
    """How many descriptors are open for files that are in the directory, or were before they were deleted.

    Those of other threads elsewhere do not count.
    """
    return sum(target.startswith(f"{directory}/") for target in _targets())


def open_sockets() -> int:
    """How many descriptors are sockets."""
    return sum(target.startswith("socket:") for target in _targets())


def _targets() -> Iterator[str]:
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            yield os.readlink(f"/proc/self/fd/{descriptor}")
