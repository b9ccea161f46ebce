"""Files that a log gave up: renamed already, to be removed after `file.delete.delay.ms`."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.files import RealFiles


class Removal(NamedTuple):
    """Work for later: call `run` at `due_ms` or after it; what is gone by then is no error."""

    paths: tuple[str, ...]
    due_ms: int

    def run(self, files: RealFiles) -> None:
        """Remove the files and directories. Raises KAFKA_STORAGE_ERROR."""
        try:
            for path in self.paths:
                with contextlib.suppress(FileNotFoundError):
                    remove = files.remove_directory if files.is_directory(path) else files.remove
                    remove(path)
        except OSError as error:
            raise RaykaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Cannot remove {path}: {error}") from error
