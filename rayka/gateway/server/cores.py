"""How many cores this process may use at once. With a single one it must not poll without sleeping."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_LIMIT_FILES: Final = {"": ("", ("cpu.max",)), "cpu": ("cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us"))}
"""By the name of the controller, in version 2 of cgroups and in version 1: the folder of the root group, and the files
in the folder of each group that have its quota and period.
"""


def usable_cores() -> int:
    """The cores that the process may run on, but no more than the CPU limits of its cgroup and those above it allow.

    A container with a limit, or a systemd service with `CPUQuota`, sees all cores of the machine. When it has used up
    its time, all of its processes stand still for the rest of the period, usually for some tens of milliseconds.
    """
    return max(1, int(min(len(os.sched_getaffinity(0)), _limit())))


def _limit() -> float:
    return min((_limit_in(folder, names) for folder, names in _groups()), default=math.inf)


def _groups() -> Iterator[tuple[Path, tuple[str, ...]]]:
    """The folders of the own groups and of those above them. In a container the root has the container's limit."""
    own_groups = _own_groups()
    for controller, (root, names) in _LIMIT_FILES.items():
        own = own_groups.get(controller, PurePosixPath("/"))
        for group in (own, *own.parents):
            yield _CGROUP / root / group.relative_to("/"), names


def _own_groups() -> dict[str, PurePosixPath]:
    """The path of this process's group by controller."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return {}
    groups: dict[str, PurePosixPath] = {}
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if path.startswith("/") and ".." not in path.split("/"):  # a group outside of what is mounted here
            groups |= dict.fromkeys(controllers.split(","), PurePosixPath(path))
    return groups


def _limit_in(folder: Path, names: tuple[str, ...]) -> float:
    try:
        quota, period = map(int, " ".join((folder / name).read_text() for name in names).split())
    except (OSError, ValueError):  # not this version, or "max"
        return math.inf
    return quota / period if quota > 0 and period > 0 else math.inf
