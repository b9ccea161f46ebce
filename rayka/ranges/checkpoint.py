"""How far a stream has come, on disk: what each batch reads is written before it runs, that it is done afterwards.

Laid out as Spark's own checkpoints: `offsets/N` has the ranges of batch N, `commits/N` exists once its sink has
returned. A batch with offsets and no commit runs again after a restart, with the same number and ranges. The
directory belongs to one process at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.plan import OffsetRange

_KEPT_BATCHES = 100
_VERSION = 1


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """One micro-batch: `ranges` has every partition, also those in which there is nothing new."""

    batch_id: int
    ranges: tuple[OffsetRange, ...]


class Checkpoint:
    """A checkpoint directory, held until `close`. Raises INVALID_REQUEST if another process has it."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._offsets, self._commits = Path(directory, "offsets"), Path(directory, "commits")
        for each in (self._offsets, self._commits):
            each.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(Path(directory, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"another stream runs with checkpoint {directory}") from None

    def close(self) -> None:
        """Let another process have the directory."""
        os.close(self._lock)

    def last(self) -> PlannedBatch | None:
        """The batch that was planned last, None if there never was one. Raises CORRUPT_MESSAGE for a broken file."""
        batch_id = max(_ids(self._offsets), default=None)
        return None if batch_id is None else self._read(batch_id)

    def is_done(self, batch: PlannedBatch) -> bool:
        """Whether its sink has returned."""
        return (self._commits / str(batch.batch_id)).exists()

    def plan(self, batch: PlannedBatch) -> None:
        """Fix what a batch reads, on disk when this returns."""
        lines = [json.dumps({"version": _VERSION}), *(json.dumps(astuple(each)) for each in batch.ranges)]
        _write(self._offsets / str(batch.batch_id), "\n".join(lines))

    def commit(self, batch: PlannedBatch) -> None:
        """The batch is done, on disk when this returns; long done ones are forgotten."""
        _write(self._commits / str(batch.batch_id), "{}")
        for directory in (self._offsets, self._commits):
            for batch_id in _ids(directory):
                if batch_id <= batch.batch_id - _KEPT_BATCHES:
                    (directory / str(batch_id)).unlink()

    def _read(self, batch_id: int) -> PlannedBatch:
        path = self._offsets / str(batch_id)
        try:
            head, *lines = map(json.loads, path.read_text().splitlines())
            if head["version"] != _VERSION:
                raise ValueError(f"version {head['version']}")
            return PlannedBatch(batch_id, tuple(OffsetRange(*line) for line in lines))
        except (ValueError, KeyError, TypeError) as error:
            raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"{path} is no checkpoint: {error}") from error


def _ids(directory: Path) -> Sequence[int]:
    return [int(path.name) for path in directory.iterdir() if path.name.isdigit()]


def _write(path: Path, text: str) -> None:
    """Whole or not at all, whatever happens meanwhile."""
    partial = path.with_name(f".{path.name}.tmp")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
