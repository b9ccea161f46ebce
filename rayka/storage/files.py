"""The file layer: every open, write, sync, rename and removal of the storage engine goes through it.

Tests replace it to make disks fail. All methods raise OSError. Nothing is mapped into memory: a page
that the disk can't give or take would end the process, where a system call just fails. An OSError becomes
KAFKA_STORAGE_ERROR in one place, `storing`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import shutil
import stat
from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.fallocate import set_blocks_aside
from rayka.storage.format.batch import Buffer

_READ_BYTES = 1 << 20
_NOT_SYNCED = (errno.EACCES, errno.EPERM, errno.EINVAL)
"""What a parent gives that must not be read, or that is of a read-only file system or an automounter."""


class FileStatus(NamedTuple):
    """Size in bytes, time of the last change in milliseconds since the epoch, and the number of the file."""

    size: int
    modified_ms: int
    inode: int


class RealFiles:
    """The operating system's files. Positions and sizes in bytes.

    `write` and `read` are the system calls themselves, so that an append costs no Python call for them.
    """

    write = staticmethod(os.pwrite)
    """(descriptor, buffer, position) -> bytes written, perhaps fewer than asked for."""
    read = staticmethod(os.pread)
    """(descriptor, size, position) -> bytes, fewer at the end of the file and before bytes that the disk can't give."""
    set_blocks_aside = staticmethod(set_blocks_aside)

    def read_into(self, descriptor: int, buffer: memoryview, position: int) -> int:
        """Read to a buffer; the number of bytes, as `read`."""
        return os.preadv(descriptor, [buffer], position)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        """A descriptor for reading and writing, or for reading only."""
        flags = (os.O_RDONLY if read_only else os.O_RDWR) | (os.O_CREAT if create else 0)
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def duplicate(self, descriptor: int) -> int:
        """A second descriptor of the same file, which stays good when the first is closed."""
        return os.dup(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        """Wait until the file's bytes and size are on the device."""
        os.fdatasync(descriptor)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def make_lasting_directory(self, path: str) -> None:
        """Make a directory whose name survives a power cut, and so do those of its parents that are new."""
        parent = os.path.dirname(path)
        if not self.exists(parent):
            self.make_lasting_directory(parent)
        self.make_directory(path)
        try:
            self.sync_path(parent)
        except OSError as error:
            if error.errno not in _NOT_SYNCED:
                raise

    def remove_directory(self, path: str) -> None:
        """Remove a directory and all that is in it."""
        shutil.rmtree(path)

    def remove_empty_directory(self, path: str) -> None:
        """Remove a directory that has nothing in it. Raises OSError if it has."""
        os.rmdir(path)

    def list(self, path: str) -> list[str]:
        """Names in a directory, in no order."""
        return os.listdir(path)

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory. An error says nothing of that, and is raised."""
        return self._mode(path) is not None

    def is_directory(self, path: str) -> bool:
        """Whether there is such a directory. An error says nothing of that, and is raised."""
        mode = self._mode(path)
        return mode is not None and stat.S_ISDIR(mode)

    def _mode(self, path: str) -> int | None:
        try:
            return os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None

    def size(self, file: str | int) -> int:
        return os.stat(file).st_size

    def status(self, file: str | int) -> FileStatus:
        """What the system knows of a file, given by its path or an open descriptor."""
        status = os.stat(file)
        return FileStatus(status.st_size, status.st_mtime_ns // 1_000_000, status.st_ino)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Let a file have been changed last at another time."""
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def modified_ms(self, path: str) -> int:
        """Time of the last change, in milliseconds since the epoch."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def space(self, path: str) -> tuple[int, int]:
        """Bytes of the file system in all, and those that can still be written."""
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize

    def lock(self, path: str) -> int:
        """Open `path` and hold it alone; BlockingIOError when another process holds it.

        Both kinds of lock are taken: Kafka's is the POSIX one, which alone would not keep out a second
        opening in the same process.
        """
        descriptor = self.open(path, create=True)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def read_file(self, path: str) -> bytes:
        """All bytes of a file, also of one in /proc, whose size the system gives as 0."""
        descriptor = self.open(path, read_only=True)
        try:
            data = self.read(descriptor, os.fstat(descriptor).st_size + 1, 0)
            while more := self.read(descriptor, _READ_BYTES, len(data)):
                data += more
            return data
        finally:
            self.close(descriptor)

    def write_file(self, path: str, data: Buffer, *, sync: bool = False) -> None:
        """Put `data` in the place of `path` at once: a reader finds the old bytes or the new ones."""
        temporary = path + ".tmp"
        descriptor = self.open(temporary, create=True)
        try:
            self.write_fully(descriptor, data, 0)
            self.truncate(descriptor, len(data))
            if sync:
                self.sync(descriptor)
        finally:
            self.close(descriptor)
        self.rename(temporary, path)
        if sync:
            self.sync_path(os.path.dirname(path))

    def write_fully(self, descriptor: int, data: Buffer, position: int) -> None:
        """Write all of `data`, however little the system takes at a time."""
        view = memoryview(data)
        while view:
            written = self.write(descriptor, view, position)
            view = view[written:]
            position += written

    def read_fully(self, descriptor: int, size: int, position: int) -> bytes:
        """Read `size` bytes, fewer only at the end of the file.

        A system call that meets a bad sector returns what comes before it, which looks like the end; the next one
        fails.
        """
        data = self.read(descriptor, size, position)
        while len(data) < size and (more := self.read(descriptor, size - len(data), position + len(data))):
            data += more
        return data

    def write_at(self, path: str, data: Buffer, position: int) -> None:
        """Write at a position of a file, cut off what lies behind that, and close the file again.

        The cut comes last: a file system may write a file to the device that is emptied and filled again.
        """
        descriptor = self.open(path, create=True)
        try:
            self.write_fully(descriptor, data, position)
            if os.fstat(descriptor).st_size != position + len(data):
                self.truncate(descriptor, position + len(data))
        finally:
            self.close(descriptor)

    def cut(self, path: str, size: int) -> None:
        """Shorten a file."""
        descriptor = self.open(path)
        try:
            self.truncate(descriptor, size)
        finally:
            self.close(descriptor)

    def remove_if_present(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.remove(path)

    def sync_path(self, path: str) -> None:
        """Wait until the bytes of a file, or the names in a directory, are on the device."""
        descriptor = self.open(path, read_only=True)
        try:
            self.sync(descriptor)
        finally:
            self.close(descriptor)


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Storing(Protocol):
    """A log or a log directory: it refuses calls when offline, and decides what an I/O error does to it."""

    def check_online(self) -> None:
        """Raises KAFKA_STORAGE_ERROR when offline."""

    def failed(self, error: OSError) -> RaykaError:
        """Note a failure; the error for the caller."""


Store = TypeVar("Store", bound=Storing)


def storage_error(what: str, error: OSError) -> RaykaError:
    """KAFKA_STORAGE_ERROR with the cause in its message."""
    return RaykaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{what}: {error}")


def storing(
    method: Callable[Concatenate[Store, Arguments], Result],
) -> Callable[Concatenate[Store, Arguments], Result]:
    """A method that works on files: refused when offline, its OSErrors translated."""

    @functools.wraps(method)
    def call(self: Store, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        self.check_online()
        try:
            return method(self, *args, **kwargs)
        except OSError as error:
            raise self.failed(error) from error

    return call  # type: ignore[return-value]
