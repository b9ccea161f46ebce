"""The installed PySpark in place of the archive of its sources that Spark puts first on the path of Python's processes.

Python keeps no bytecode of modules in an archive, so each process that imports PySpark from there compiles it again,
for half a second.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder

_NEEDED = ("pyspark", "py4j")


def prefer_installed() -> None:
    """Leave the archives out of `sys.path`; call it before PySpark is imported."""
    sys.path[:] = without_archives(sys.path)


def without_archives(path: Sequence[str]) -> list[str]:
    """The entries but the archives in the folder of a PySpark that is on the path itself, and so is the same one.

    The entries as they are if a package that the archives have is not found elsewhere.
    """
    folders = {os.path.join(entry, "pyspark", "python", "lib") for entry in path}
    left = [entry for entry in path if os.path.dirname(entry) not in folders]
    return left if all(_is_package(name, left) for name in _NEEDED) else list(path)


def _is_package(name: str, path: Sequence[str]) -> bool:
    """Whether the path has it; a mere folder of that name is none."""
    found = PathFinder.find_spec(name, path)
    return found is not None and found.has_location
