"""Files of deleted segments: renamed at once, removed after `file.delete.delay.ms`."""

from __future__ import annotations

import contextlib
import logging
from typing import NamedTuple

from rayka.storage.directory.disk_state import NO_SPACE
from rayka.storage.files import RealFiles
from rayka.storage.segments.segment import DELETED_SUFFIX

logger = logging.getLogger(__name__)


class SegmentDeletion(NamedTuple):
    """Files of segments that the log has deleted, and that are still to be renamed and, at `due_ms`, to be removed."""

    paths: tuple[str, ...]
    due_ms: int

    def rename(self, files: RealFiles) -> Removal:
        """Rename the files, so that they are not taken for the log's. Any thread may do it. Raises OSError.

        On a full disk a longer name may find no room in the directory; then the file is removed at once.
        """
        renamed = (_rename_deleted(files, path) for path in self.paths)
        return Removal(tuple(path for path in renamed if path), self.due_ms)


class Removal(NamedTuple):
    """Files that were renamed to be deleted; `run` is due at `due_ms`. What is gone by then is not an error."""

    paths: tuple[str, ...]
    due_ms: int

    def run(self, files: RealFiles) -> None:
        """Remove the files and directories. Raises OSError.

        A directory of another user stays, as a partition's that somebody has copied there: the disk is in order.
        """
        for path in self.paths:
            with contextlib.suppress(FileNotFoundError):
                if files.is_directory(path):
                    _remove_directory(files, path)
                else:
                    files.remove(path)


def _remove_directory(files: RealFiles, path: str) -> None:
    try:
        files.remove_directory(path)
    except PermissionError as error:
        logger.error("%s stays, the next start tries it again: %s", path, error)


def _rename_deleted(files: RealFiles, path: str) -> str:
    """The new name; empty if the file is gone."""
    try:
        files.rename(path, path + DELETED_SUFFIX)
    except FileNotFoundError:
        return ""
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        files.remove_if_present(path)
        return ""
    return path + DELETED_SUFFIX
