"""Reading record bytes out of segment files that another process writes."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.segments.segment import DELETED_SUFFIX, SWAP_SUFFIX
from rayka.types import FileSlice


class SegmentReader:
    """Reads slices that a log handed out.

    The file is opened for each read (under a microsecond) rather than kept open: under the same path
    there may be another file, after a topic was deleted and created again. A segment that was deleted in
    between is readable under its new name until it is removed, and compaction may have put another file in its place.
    """

    def read(self, file_slice: FileSlice) -> bytes:
        """The bytes. Raises KAFKA_STORAGE_ERROR when they are not there any more."""
        position, size = file_slice.position, file_slice.size
        with open_segment(file_slice) as descriptor:
            data = os.pread(descriptor, size, position)
        if len(data) != size:
            raise _unreadable(file_slice, f"it has only {len(data)} bytes")
        return data


@contextlib.contextmanager
def open_segment(file_slice: FileSlice) -> Iterator[int]:
    """A descriptor to read the segment of a slice by. Raises KAFKA_STORAGE_ERROR if it, or a read within, fails."""
    try:
        descriptor = _open(file_slice)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unreadable(file_slice, str(error)) from error


def paths_of(file_slice: FileSlice) -> tuple[str, ...]:
    """Where the file of a slice may be: under its name, to be deleted, or about to take the place of another.

    That one may get its name between two looks, so the name comes once more at the end.
    """
    path = file_slice.path
    deleted = path + DELETED_SUFFIX
    return (path, deleted, path + SWAP_SUFFIX, path) if file_slice.inode else (path, deleted)


def _open(file_slice: FileSlice) -> int:
    for path in paths_of(file_slice):
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if file_slice.inode in (0, os.fstat(descriptor).st_ino):
                return descriptor
            os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "there is no such segment any more", file_slice.path)


def _unreadable(file_slice: FileSlice, why: str) -> RaykaError:
    return RaykaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Cannot read {file_slice}: {why}")
