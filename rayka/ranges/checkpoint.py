"""How far a stream has come, on disk, laid out as Spark's own checkpoints.

- `metadata` has the id of the stream and the positions at which it started. It is written first.
- `offsets/N` has the ranges of batch N, and is written before the batch runs.
- `commits/N` exists once the sink of batch N has returned.

A batch with offsets and no commit runs again after a restart, with the same number and ranges. Every file is written
under another name, synced, and renamed. The directory belongs to one process at a time.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.plan import OffsetRange
from rayka.types import is_number

_KEPT_BATCHES = 100
_VERSION = 2
_SCHEME = re.compile("[a-zA-Z][a-zA-Z0-9+.-]*:/")
_READABLE_VERSIONS = (1, 2)
"""Version 1 had no topic ids and no metadata."""


class Files(Protocol):
    """The file operations of a checkpoint; `rayka.storage.files.RealFiles` has them. All raise OSError."""

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]: ...

    def read_file(self, path: str) -> bytes: ...

    def write_file(self, path: str, data: bytes, *, sync: bool = False) -> None: ...

    def remove(self, path: str) -> None: ...

    def make_lasting_directory(self, path: str) -> None: ...

    def lock(self, path: str) -> int: ...

    def close(self, descriptor: int) -> None: ...


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """One micro-batch: `ranges` has every partition, also those in which there is nothing new."""

    batch_id: int
    ranges: tuple[OffsetRange, ...]


def require_local(path: str | os.PathLike[str]) -> str:
    """The path. Raises INVALID_REQUEST for a URI, of which a folder in the working directory would be made."""
    text = os.fspath(path)
    if _SCHEME.match(text):
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"{text} is a URI: give the path of a mounted file system")
    return text


class Checkpoint:
    """A checkpoint directory, held until `close`. Raises INVALID_REQUEST for a URI, or if another process has it."""

    def __init__(self, directory: str | os.PathLike[str], files: Files) -> None:
        self.directory = os.path.abspath(require_local(directory))
        self._files = files
        self._offsets, self._commits, self._metadata = (
            os.path.join(self.directory, name) for name in ("offsets", "commits", "metadata")
        )
        for each in (self._offsets, self._commits):
            files.make_lasting_directory(each)
        try:
            self._lock = files.lock(os.path.join(self.directory, ".lock"))
        except BlockingIOError:
            message = f"another stream runs with checkpoint {self.directory}"
            raise RaykaError(ErrorCode.INVALID_REQUEST, message) from None

    def close(self) -> None:
        """Let another process have the directory. Safe to repeat."""
        descriptor, self._lock = self._lock, -1
        if descriptor >= 0:
            self._files.close(descriptor)

    def stream_id(self) -> str | None:
        """The id of the stream, None before `begin`. Raises CORRUPT_MESSAGE for a broken file."""
        if not self._files.exists(self._metadata):
            return None
        head, _ = self._read(self._metadata)
        if "stream_id" not in head:
            raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"{self._metadata} has no stream id")
        return str(head["stream_id"])

    def begin(self, stream_id: str, positions: Iterable[OffsetRange]) -> None:
        """Give the directory to a new stream that starts at these positions, on disk when this returns."""
        self._write(self._metadata, {"stream_id": stream_id}, positions)

    def starting_positions(self) -> tuple[OffsetRange, ...]:
        """Where the stream started: empty ranges."""
        return self._read(self._metadata)[1]

    def last(self) -> PlannedBatch | None:
        """The batch that was planned last, None if there never was one.

        Raises CORRUPT_MESSAGE for a broken file, and if a later batch is done, which was planned before: then only a
        part of the directory was restored.
        """
        batch_id = max(self._ids(self._offsets), default=-1)
        done = max(self._ids(self._commits), default=-1)
        if done > batch_id:
            message = f"{self._commits}/{done} is there without offsets/{done}: restore all of the checkpoint"
            raise RaykaError(ErrorCode.CORRUPT_MESSAGE, message)
        if batch_id < 0:
            return None
        return PlannedBatch(batch_id, self._read(os.path.join(self._offsets, str(batch_id)))[1])

    def is_done(self, batch: PlannedBatch) -> bool:
        """Whether its sink has returned."""
        return self._files.exists(os.path.join(self._commits, str(batch.batch_id)))

    def plan(self, batch: PlannedBatch) -> None:
        """Fix what a batch reads, on disk when this returns."""
        self._write(os.path.join(self._offsets, str(batch.batch_id)), {}, batch.ranges)

    def commit(self, batch: PlannedBatch) -> None:
        """The batch is done, on disk when this returns. Files of batches that were done long ago are removed."""
        self._files.write_file(os.path.join(self._commits, str(batch.batch_id)), b"{}", sync=True)
        for directory in (self._offsets, self._commits):
            for batch_id in self._ids(directory):
                if batch_id <= batch.batch_id - _KEPT_BATCHES:
                    self._files.remove(os.path.join(directory, str(batch_id)))

    def _ids(self, directory: str) -> Sequence[int]:
        return [int(name) for name in self._files.list(directory) if is_number(name)]

    def _write(self, path: str, head: Mapping[str, Any], ranges: Iterable[OffsetRange]) -> None:
        lines = [{"version": _VERSION, **head}, *(each.to_json() for each in ranges)]
        self._files.write_file(path, "\n".join(map(json.dumps, lines)).encode(), sync=True)

    def _read(self, path: str) -> tuple[Mapping[str, Any], tuple[OffsetRange, ...]]:
        try:
            head, *rows = map(json.loads, self._files.read_file(path).decode().splitlines())
            if head["version"] not in _READABLE_VERSIONS:
                raise ValueError(f"version {head['version']} is not known")
            return head, tuple(map(OffsetRange.from_json, rows))
        except (ValueError, KeyError, TypeError) as error:
            raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"{path} can't be read as a checkpoint: {error}") from error
