"""A directory as the remote store: a network file system, a larger disk, or a place for tests."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from typing import Final

from rayka.storage.files import RealFiles

MARKER: Final = ".rayka-remote-store"
"""A file that every store has, and the mount point of a file system that is not mounted has not."""
_MARKER_TEXT: Final = b"rayka keeps older segments in this directory, and uses no directory without this file.\n"
_PART_SUFFIX: Final = ".part"


class DirectoryStore:
    """`RemoteStore` in a directory. An object is flushed before it gets its name, and names are flushed too.

    A directory without its marker is an error, not an empty store, and so is one that goes away, or another one in its
    place. Only `create` writes the marker: a mount point that is examined too early must not get one.
    """

    def __init__(self, files: RealFiles, path: str) -> None:
        self._files = files
        self._path = os.path.abspath(path)
        self._marker = os.path.join(self._path, MARKER)
        self._inode: int | None = None

    def create(self) -> None:
        """See `RemoteStore.create`."""
        if not self._files.exists(self._marker):
            self._files.make_lasting_directory(self._path)
            self._files.write_at(self._marker, _MARKER_TEXT, 0)  # by several actors at once, perhaps
            self._files.sync_path(self._marker)
            self._files.sync_path(self._path)
        self.open()

    def open(self) -> None:
        """Find the directory. Raises OSError; then every later call tries again."""
        if not self._files.exists(self._marker):
            message = (
                f"the remote store has no file {MARKER}: mount the file system that has it; if this is the right "
                "directory nevertheless, create an empty file of that name in it"
            )
            raise FileNotFoundError(errno.ENOENT, message, self._path)
        self._inode = self._files.status(self._path).inode

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """See `RemoteStore.put`."""
        self._check()
        path = self._of(name)
        directory = os.path.dirname(path)
        try:
            descriptor = self._begin_part(path)
        except (FileNotFoundError, FileExistsError):  # the directory was removed just now, with the last object in it
            self._check()
            descriptor = self._begin_part(path)
        try:
            size = 0
            for piece in pieces:
                self._files.write_fully(descriptor, piece, size)
                size += len(piece)
            self._files.truncate(descriptor, size)
            self._files.sync(descriptor)
        finally:
            self._files.close(descriptor)
        self._files.rename(path + _PART_SUFFIX, path)
        while len(directory) >= len(self._path):
            self._files.sync_path(directory)
            directory = os.path.dirname(directory)

    def _begin_part(self, path: str) -> int:
        self._files.make_directory(os.path.dirname(path))
        return self._files.open(path + _PART_SUFFIX, create=True)

    def get(self, name: str, position: int, size: int) -> bytes:
        """See `RemoteStore.get`."""
        descriptor = self._files.open(self._of(name), read_only=True)
        try:
            return self._files.read_fully(descriptor, size, position)
        finally:
            self._files.close(descriptor)

    def delete(self, name: str) -> None:
        """See `RemoteStore.delete`."""
        self._check()
        path = self._of(name)
        for suffix in ("", _PART_SUFFIX):
            self._files.remove_if_present(path + suffix)
        self._finish_removal(os.path.dirname(path))

    def _finish_removal(self, directory: str) -> None:
        """Remove the directories that are empty now, and flush the one above them: the removal lasts.

        Another process may do the same at this moment.
        """
        if directory == self._path:
            self._files.sync_path(directory)
            return
        try:
            self._files.remove_empty_directory(directory)
        except FileNotFoundError:
            pass
        except OSError:  # other objects are in it
            with contextlib.suppress(FileNotFoundError):
                self._files.sync_path(directory)
                return
        self._finish_removal(os.path.dirname(directory))

    def list(self, prefix: str) -> Iterator[str]:
        """See `RemoteStore.list`; an object that is only a part counts too."""
        self._check()
        for directory, _, names in os.walk(os.path.dirname(self._of(prefix)), onerror=_raise_unless_gone):
            for name in sorted(names):
                found = os.path.relpath(os.path.join(directory, name), self._path)
                if found.startswith(prefix) and found != MARKER:
                    yield found

    def _check(self) -> None:
        if self._inode is None:
            self.open()
        if not self._files.is_directory(self._path):
            raise NotADirectoryError(errno.ENOTDIR, "the remote store is not there", self._path)
        if self._files.status(self._path).inode != self._inode:
            message = "this is not the directory that was the remote store at the start; if it is right now, restart"
            raise OSError(errno.ESTALE, message, self._path)

    def _of(self, name: str) -> str:
        return os.path.join(self._path, name)


def _raise_unless_gone(error: OSError) -> None:
    """A directory that cannot be read is not empty."""
    if not isinstance(error, FileNotFoundError):
        raise error
