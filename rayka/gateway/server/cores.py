"""How many cores this process may use at once, by which polling without sleeping pays or not."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

_CGROUP = Path("/sys/fs/cgroup")
_LIMIT_FILES: Final = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))
"""The quota and the period of a container's CPU limit, in version 2 of cgroups and in version 1."""


def usable_cores() -> int:
    """Those that the process may run on, but no more than the CPU limit of its container allows.

    A container with a limit sees all cores of the machine. When it has used up its time, all of its processes stand
    still for the rest of the period, usually for some tens of milliseconds.
    """
    return max(1, int(min(len(os.sched_getaffinity(0)), _limit())))


def _limit() -> float:
    for names in _LIMIT_FILES:
        try:
            quota, period = map(int, " ".join((_CGROUP / name).read_text() for name in names).split())
        except (OSError, ValueError):  # not this version, or "max"
            continue
        if quota > 0 and period > 0:
            return quota / period
    return math.inf
