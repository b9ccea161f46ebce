"""Reading record bytes out of segment files that another process writes."""

from __future__ import annotations

import os

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.log.segment import DELETED_SUFFIX
from rayka.types import FileSlice


class SegmentReader:
    """Reads slices that a log handed out.

    The file is opened for each read (under a microsecond) rather than kept open: under the same path
    there may be another file, after a topic was deleted and created again. A segment that was deleted in
    between is readable under its new name until it is removed.
    """

    def read(self, file_slice: FileSlice) -> bytes:
        """The bytes. Raises KAFKA_STORAGE_ERROR when they are not there any more."""
        path, position, size = file_slice
        try:
            descriptor = _open(path)
            try:
                data = os.pread(descriptor, size, position)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _unreadable(file_slice, str(error)) from error
        if len(data) != size:
            raise _unreadable(file_slice, f"it has only {len(data)} bytes")
        return data


def _open(path: str) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        return os.open(path + DELETED_SUFFIX, flags)


def _unreadable(file_slice: FileSlice, why: str) -> RaykaError:
    return RaykaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Cannot read {file_slice}: {why}")
