"""The files below a directory that a broker works in."""

from __future__ import annotations

import os
from fnmatch import fnmatch
from pathlib import Path


def found_files(root: Path, pattern: str) -> list[Path]:
    """Those whose path matches, as `fnmatch` has it, in which `*` stands for several directories too.

    A directory that goes away meanwhile is passed over: `Path.glob` would raise FileNotFoundError.
    """
    below = (os.path.join(directory, name) for directory, _, names in os.walk(root) for name in names)
    return [Path(path) for path in below if fnmatch(path, pattern)]
