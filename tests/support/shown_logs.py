"""What a test that fails shows besides its assertion: the ends of the logs of the brokers that it has started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rayka.testing import ServerProcess
from tests.support.found_files import found_files

LINES = 40
FILES = 5
RAY_DIRECTORIES: set[Path] = set()
"""Where the Ray of this process keeps its files, which has the logs of embedded brokers."""


def shown_logs() -> Iterator[tuple[str, str]]:
    """A title and the last lines of each."""
    for server in list(ServerProcess.launched):
        if server.output.exists():
            yield f"log of {server.name} on {server.bootstrap}", "\n".join(server.log[-LINES:])
    for directory in RAY_DIRECTORIES:
        for path in _written_last(found_files(directory, "*/logs/worker-*.err")):
            yield f"log {path.name}", "\n".join(path.read_text(errors="replace").splitlines()[-LINES:])


def _written_last(paths: list[Path]) -> list[Path]:
    """The files that were written to last, and are not empty."""
    filled = [path for path in paths if path.stat().st_size]
    return sorted(filled, key=lambda path: path.stat().st_mtime)[-FILES:]
