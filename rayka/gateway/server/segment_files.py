"""Reads record bytes out of segment files that a leader on this node writes.

Descriptors are cached by path, and each use compares the file that the path names now with the open one:
compaction and the re-creation of a topic put another file in its place. A segment that was deleted or
renamed meanwhile has no file at its path and is read through the open descriptor.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from rayka.types import FileSlice

_MAX_OPEN_FILES = 256
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


class Piece(NamedTuple):
    """A slice of a file and where its bytes go."""

    source: FileSlice
    target: memoryview


class SegmentGone(Exception):
    """The slice is not there any more: its segment was deleted or truncated."""


class _OpenFile(NamedTuple):
    descriptor: int
    device: int
    inode: int


class SegmentFiles:
    """A cache of descriptors open for reading, least recently used closed first."""

    def __init__(self, max_open_files: int = _MAX_OPEN_FILES) -> None:
        self._max_open_files = max_open_files
        self._files: OrderedDict[str, _OpenFile] = OrderedDict()

    def close(self) -> None:
        """Close every descriptor."""
        for file in self._files.values():
            os.close(file.descriptor)
        self._files.clear()

    def read_cached(self, pieces: Sequence[Piece]) -> int:
        """Fill pieces from the page cache; return how many are full before one that the disk must give.

        Raises SegmentGone.
        """
        for index, piece in enumerate(pieces):
            if _read_nowait(self._descriptor(piece.source.path), piece) < piece.source.size:
                return index
        return len(pieces)

    def reading(self, pieces: Sequence[Piece]) -> BlockingRead:
        """A read of these pieces that may wait for the disk, to be called in a thread. Raises SegmentGone."""
        descriptors: list[int] = []
        try:
            for piece in pieces:
                descriptors.append(os.dup(self._descriptor(piece.source.path)))
        except SegmentGone:
            _close_all(descriptors)
            raise
        return BlockingRead(pieces, descriptors)

    def _descriptor(self, path: str) -> int:
        cached = self._files.get(path)
        if cached is not None and _is_current(path, cached):
            self._files.move_to_end(path)
            return cached.descriptor
        return self._open(path)

    def _open(self, path: str) -> int:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise SegmentGone(path) from error
        status = os.fstat(descriptor)
        replaced = self._files.pop(path, None)
        if replaced is not None:
            os.close(replaced.descriptor)
        self._files[path] = _OpenFile(descriptor, status.st_dev, status.st_ino)
        if len(self._files) > self._max_open_files:
            os.close(self._files.popitem(last=False)[1].descriptor)
        return descriptor


class BlockingRead:
    """Reads pieces through descriptors of its own, which the cache cannot close under it."""

    def __init__(self, pieces: Sequence[Piece], descriptors: list[int]) -> None:
        self._pieces = pieces
        self._descriptors = descriptors

    def __call__(self) -> None:
        """Fill all pieces. Raises SegmentGone."""
        try:
            for piece, descriptor in zip(self._pieces, self._descriptors, strict=True):
                _read_blocking(descriptor, piece)
        finally:
            _close_all(self._descriptors)


def _is_current(path: str, file: _OpenFile) -> bool:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return True
    return status.st_ino == file.inode and status.st_dev == file.device


def _read_nowait(descriptor: int, piece: Piece) -> int:
    """Bytes read without waiting for the disk. File systems that cannot tell are read as they are."""
    try:
        return os.preadv(descriptor, [piece.target], piece.source.position, _NOWAIT)
    except BlockingIOError:
        return 0
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
    return os.preadv(descriptor, [piece.target], piece.source.position)


def _read_blocking(descriptor: int, piece: Piece) -> None:
    done = 0
    while done < piece.source.size:
        count = os.preadv(descriptor, [piece.target[done:]], piece.source.position + done)
        if not count:
            raise SegmentGone(f"{piece.source.path} ends before {piece.source.position + piece.source.size}")
        done += count


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
