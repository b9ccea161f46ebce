"""Unit and property tests need nothing but Python and its packages, so they run at once on a fresh machine.

A test or a fixture that starts another program fails, unless the program came with a package or was made by the test.
What their own Python processes start is not seen.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_STARTS = ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system")
_TESTS = Path(__file__).parents[1]
_PYTHON = os.path.realpath(sys.executable)
_FOLDERS = tuple(os.path.realpath(path) for path in (sysconfig.get_path("platlib"), tempfile.gettempdir()))
_is_refused = False


def must_be_pure(item: pytest.Item) -> bool:
    """Whether this is a unit test or a property test."""
    return any(item.path.is_relative_to(_TESTS / folder) for folder in ("unit", "property"))


@contextlib.contextmanager
def only_python() -> Iterator[None]:
    """Within it, starting a program of the system other than Python raises AssertionError."""
    global _is_refused
    _is_refused = True
    try:
        yield
    finally:
        _is_refused = False


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _is_refused and event in _STARTS:
        name = os.fsdecode(arguments[0])  # type: ignore[arg-type]
        path = _path(shlex.split(name)[0] if event == "os.system" else name)
        if path != _PYTHON and not any(Path(path).is_relative_to(folder) for folder in _FOLDERS):
            raise AssertionError(f"a unit or property test must start no program but Python, and this starts {name}")


def _path(name: str) -> str:
    """Where a program lies; one that is not there might lie anywhere."""
    return os.path.realpath(shutil.which(name) or os.path.join(os.sep, name))


sys.addaudithook(_audit)
