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
HOMES: set[Path] = set()
"""Below these are the data directories of the brokers that a test starts with `rayka up --background`."""


def shown_logs() -> Iterator[tuple[str, str]]:
    """A title and the last lines of each."""
    for server in list(ServerProcess.launched):
        if server.output.exists():
            yield f"log of {server.name} on {server.bootstrap}", "\n".join(server.log[-LINES:])
    ray_directories = set(RAY_DIRECTORIES)
    for path in _logs_in_background():
        yield f"log {path}", _end(path)
        ray_directories.add(_ray_directory(path.parent))
    for directory in ray_directories:
        for path in _written_last(found_files(directory, "*/logs/worker-*.err")):
            yield f"log {path.name}", _end(path)


def _logs_in_background() -> list[Path]:
    return [path for home in HOMES for path in found_files(home, "*/up.log")]


def _ray_directory(data_dir: Path) -> Path:
    from rayka.actors.node.node import ray_dir  # Ray is not for every test

    return Path(ray_dir(str(data_dir)))


def _end(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-LINES:])


def _written_last(paths: list[Path]) -> list[Path]:
    """The files that were written to last, and are not empty."""
    filled = [path for path in paths if path.stat().st_size]
    return sorted(filled, key=lambda path: path.stat().st_mtime)[-FILES:]
