"""Segments of magic 0 and 1 that an old Kafka left in a log: they are rewritten when the log is opened.

Everything that reads a log knows record batches alone. A segment is converted once, piece by piece, and takes the old
one's place as a cleaned segment does: written as `.cleaned`, renamed to `.swap` when it is on the device, then renamed
to `.log`. Its indexes are left to recovery to build, and its modification time is kept: retention goes by that where
records have no timestamp. Bytes that are damaged stay as they are, for recovery to cut off.
"""

from __future__ import annotations

import os
from typing import Final

from rayka.storage.files import RealFiles
from rayka.storage.format.legacy.message import begins_at
from rayka.storage.segments.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)

PIECE_BYTES: Final = 4 << 20
"""Bytes converted at once; more where a message is larger."""
_INDEX_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


class OldSegments:
    """The segments of one log directory that begin with a message of magic 0 or 1."""

    def __init__(self, files: RealFiles, directory: str) -> None:
        self._files = files
        self._directory = directory

    def convert(self, names: set[str]) -> set[str]:
        """Convert all that are among `names`; returns the names of their indexes, which are gone.

        Raises OSError, and RaykaError (see `convert_log`) for messages that do not hold what they should.
        """
        gone: set[str] = set()
        for name in sorted(names):
            if name.endswith(LOG_SUFFIX) and self._is_old(name):
                self._convert(name)
                gone |= self._swap_in(name, names)
        return gone

    def _is_old(self, name: str) -> bool:
        descriptor = self._files.open(self._path(name), read_only=True)
        try:
            size = self._files.size(self._path(name))
            return begins_at(0, size, lambda wanted, position: self._files.read_fully(descriptor, wanted, position))
        finally:
            self._files.close(descriptor)

    def _convert(self, name: str) -> None:
        """Write the converted segment as `.cleaned`, on the device when this returns."""
        source = self._files.open(self._path(name), read_only=True)
        try:
            target = self._files.open(self._path(name + CLEANED_SUFFIX), create=True)
            try:
                self._files.truncate(target, 0)
                self._write_converted(source, target, self._files.size(self._path(name)))
                self._files.sync(target)
            finally:
                self._files.close(target)
        finally:
            self._files.close(source)

    def _write_converted(self, source: int, target: int, size: int) -> None:
        from rayka.storage.format.legacy.log_conversion import convert_log

        position, written, piece = 0, 0, PIECE_BYTES
        while position < size:
            data = self._files.read_fully(source, piece, position)
            batches, consumed = convert_log(data)
            if not consumed and piece < size - position:
                piece *= 2
                continue
            if not consumed:
                batches, consumed = bytearray(data), size - position
            self._files.write_fully(target, batches, written)
            written += len(batches)
            position += consumed
            piece = PIECE_BYTES

    def _swap_in(self, name: str, names: set[str]) -> set[str]:
        path = self._path(name)
        self._files.set_modified_ms(path + CLEANED_SUFFIX, self._files.modified_ms(path))
        self._files.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
        self._files.sync_path(self._directory)
        indexes = {name.removesuffix(LOG_SUFFIX) + suffix for suffix in _INDEX_SUFFIXES} & names
        for index in indexes:
            self._files.remove_if_present(self._path(index))
        self._files.rename(path + SWAP_SUFFIX, path)
        self._files.sync_path(self._directory)
        return indexes

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)
