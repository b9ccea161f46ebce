"""A file that is prepared in a log's directory for the next roll."""

from __future__ import annotations

import contextlib
import os

from rayka.storage.files import RealFiles

FILE_NAME = "next.log.tmp"


class SpareFile:
    """An empty file, made in a thread ahead of a roll, which only renames it.

    To make a file, the system may have to read from the disk where it can put it, which takes 5 to 40 ms. A rename
    needs nothing that is not in memory. Recovery removes a spare file that a crash left.
    """

    def __init__(self, files: RealFiles, directory: str) -> None:
        self._files = files
        self._path = os.path.join(directory, FILE_NAME)
        self._is_ready = False
        self._is_released = False

    @property
    def is_ready(self) -> bool:
        """Whether the next roll makes no file."""
        return self._is_ready

    def make(self) -> None:
        """Make the file if there is none. Any thread may. Without it the next roll makes its file itself."""
        if not self._is_ready and not self._is_released:
            with contextlib.suppress(OSError):
                self._files.close(self._files.open(self._path, create=True))
                self._is_ready = True

    def take(self, path: str) -> bool:
        """Give the file this name; False if there is none. Raises OSError."""
        if not self._is_ready:
            return False
        self._is_ready = False
        try:
            self._files.rename(self._path, path)
        except FileNotFoundError:
            return False
        return True

    def remove(self) -> None:
        """Remove the file. Raises OSError."""
        if self._is_ready:
            self._is_ready = False
            self._files.remove_if_present(self._path)

    def release(self) -> None:
        """Make none any more: by now the directory may be that of another log."""
        self._is_released = True
