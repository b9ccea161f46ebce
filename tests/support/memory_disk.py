"""Directories in memory, for tests that sync so often that a device would take most of their time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(name="tmp_path")
def memory_path() -> Iterator[Path]:
    """Takes the place of pytest's `tmp_path` in a module that imports it."""
    with tempfile.TemporaryDirectory(prefix="rayka-", dir="/dev/shm") as directory:
        yield Path(directory)
