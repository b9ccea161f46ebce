"""Reads record bytes out of segment files that a leader on this node writes.

Files are kept open by path. Compaction and the re-creation of a topic put another file in the place of one, so each use
compares the number of the open file with that of the slice, or where that is not known with the file that the path
names now. A segment that was deleted meanwhile is read through the open descriptor or under its new name. A response
that is being sent keeps the files that it needs open, whether or not they are still in the cache; however many
responses wait for their clients, a segment is open once. Files that have no name any more leave the cache: as long as
one is open, the disk does not get its blocks back.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import os
import queue
import sys
import time
from collections import OrderedDict
from weakref import WeakValueDictionary

from rayka.gateway.server.page_cache import is_cached
from rayka.storage.segments.reader import paths_of
from rayka.types import FileSlice

_MAX_OPEN_FILES = 256
_LOOK_S = 1.0
"""The shortest time between two searches for deleted files."""
_to_close: queue.SimpleQueue[int] = queue.SimpleQueue()
_closing = _thread.allocate_lock()
"""Held by the thread that closes what is in the queue. When it has released it, it looks once more."""
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_ADVISES = hasattr(os, "posix_fadvise")


class SegmentGone(Exception):
    """The slice is not there any more: its segment was deleted or truncated."""


class SegmentCut(SegmentGone):
    """The file of the slice is there, and ends before the slice does."""


class _Descriptor:
    """A descriptor that is closed with the last reference to it.

    It is not a part of `SegmentFile`, to which there are weak references. An object whose `__del__` runs can still be
    had from those: another thread would read from what has the number by then.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        """Close it, in a thread if it is the last of a deleted file: to free the blocks may take long.

        That thread is started without the locks of Python's executors. Whoever runs this may hold them: the collector
        comes at any time.
        """
        if not self.is_of_deleted_file:
            os.close(self.number)
            return
        _to_close.put(self.number)
        if _closing.locked():
            return
        if sys.is_finalizing():
            _close_deleted()
            return
        try:
            _thread.start_new_thread(_close_deleted, ())
        except RuntimeError:  # no thread can be started
            _close_deleted()

    @property
    def is_of_deleted_file(self) -> bool:
        """Whether the file has no name any more, or its file system has lost it."""
        try:
            return not os.fstat(self.number).st_nlink
        except OSError:
            return True


def _forked() -> None:
    """The thread that closes is not in the child, and the descriptors are its own."""
    global _closing
    _closing = _thread.allocate_lock()
    _close_deleted()


os.register_at_fork(after_in_child=_forked)


def _close_deleted() -> None:
    """Close the descriptors of deleted files, unless another thread does."""
    closing = _closing
    while not _to_close.empty() and closing.acquire(blocking=False):
        try:
            while True:
                number = _to_close.get_nowait()
                with contextlib.suppress(OSError):  # of a disk that has failed; the number is free all the same
                    os.close(number)
        except queue.Empty:
            pass
        finally:
            closing.release()


class SegmentFile:
    """An open segment, until the last reference is gone."""

    __slots__ = ("__weakref__", "_device", "_open", "inode", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._open = _Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        status = os.fstat(self.descriptor)
        self._device, self.inode = status.st_dev, status.st_ino

    @property
    def is_current(self) -> bool:
        """Whether no other file has taken the place of this one."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return True
        return status.st_ino == self.inode and status.st_dev == self._device

    @property
    def is_deleted(self) -> bool:
        """Whether the file has no name any more, or its file system has lost it."""
        return self._open.is_of_deleted_file

    @property
    def descriptor(self) -> int:
        """Its descriptor, for as long as there is a reference to this object."""
        return self._open.number

    @property
    def size(self) -> int:
        """The bytes that it has now."""
        return os.fstat(self.descriptor).st_size

    def read_cached(self, target: memoryview, position: int) -> int:
        """Read from the page cache; return how many bytes it had before the first that only the disk has.

        File systems that cannot tell are read as they are.
        """
        try:
            return os.preadv(self.descriptor, [target], position, _NOWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
        return os.preadv(self.descriptor, [target], position)

    def is_cached(self, position: int, size: int) -> bool:
        """Whether the page cache has all of these bytes; False where the system cannot tell."""
        return is_cached(self.descriptor, position, size)

    def read_ahead(self, position: int, size: int) -> None:
        """Have the system get these bytes from the disk; it does so while others wait for the first of them."""
        if _ADVISES:
            with contextlib.suppress(OSError):  # who reads the bytes will see
                os.posix_fadvise(self.descriptor, position, size, os.POSIX_FADV_WILLNEED)

    def send(self, endpoint: int, position: int, size: int) -> int:
        """Send to a socket without copying; return how many bytes it took. Raises BlockingIOError if it takes none,
        SegmentGone if the file has none there any more."""
        sent = os.sendfile(endpoint, self.descriptor, position, size)
        if not sent:
            raise SegmentCut(f"{self.path} ends before {position + size}")
        return sent

    def read(self, size: int, position: int) -> bytes:
        """Read `size` bytes, waiting for the disk. Raises SegmentGone if the file is shorter."""
        data = os.pread(self.descriptor, size, position)
        if len(data) < size:
            raise SegmentCut(f"{self.path} ends before {position + size}")
        return data

    def read_into(self, target: memoryview, position: int) -> None:
        """As `read`, into memory that is there."""
        if os.preadv(self.descriptor, [target], position) < len(target):
            raise SegmentCut(f"{self.path} ends before {position + len(target)}")


class SegmentFiles:
    """A cache of open segments, least recently used dropped first."""

    def __init__(self, max_open_files: int = _MAX_OPEN_FILES) -> None:
        self._max_open_files = max_open_files
        self._files: OrderedDict[str, SegmentFile] = OrderedDict()
        self._in_use: WeakValueDictionary[str, SegmentFile] = WeakValueDictionary()
        self._looked_s = time.monotonic()

    def close(self) -> None:
        """Drop every file."""
        self._files.clear()

    def drop_deleted(self) -> None:
        """Drop the files that were deleted, unless that was just done. Takes less than a microsecond for each file."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        for path in [path for path, file in self._files.items() if file.is_deleted]:
            del self._files[path]

    def open(self, source: FileSlice) -> SegmentFile:
        """The file of a slice. Raises SegmentGone if the file does not have all of its bytes."""
        file = self._files.get(source.path)
        if file is None or not _has(file, source):
            file = self._keep(source)
        self._files.move_to_end(source.path)
        if source.position + source.size > file.size:
            raise SegmentCut(f"{source.path} ends before {source.position + source.size}")
        return file

    def read_small(self, source: FileSlice, target: memoryview) -> bool:
        """Read a slice that the page cache has, from a file that is open; False if it is not like that."""
        file = self._files.get(source.path)
        if file is None or not _has(file, source):
            return False
        self._files.move_to_end(source.path)
        return file.read_cached(target, source.position) == source.size

    def _keep(self, source: FileSlice) -> SegmentFile:
        self.drop_deleted()
        file = self._in_use.get(source.path)
        if file is None or not _has(file, source):
            file = self._in_use[source.path] = _find(source)
        self._files[source.path] = file
        if len(self._files) > self._max_open_files:
            self._files.popitem(last=False)
        return file


def _has(file: SegmentFile, source: FileSlice) -> bool:
    return file.inode == source.inode if source.inode else file.is_current


def _find(source: FileSlice) -> SegmentFile:
    for path in paths_of(source):
        with contextlib.suppress(FileNotFoundError):
            file = SegmentFile(path)
            if source.inode in (0, file.inode):
                return file
    raise SegmentGone(source.path)
