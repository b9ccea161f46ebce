"""Segments whose offsets do not fit into four bytes relative to their first one (KAFKA-6264).

Old versions of Kafka's log cleaner put segments together that are too far apart. No index can be written of such a
segment, so it is split when the log is opened. The parts are written as `.cleaned` and renamed to `.swap`, the last one
first: a crash leaves the old segment, until every part has its new name; then opening the log puts them in its place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from rayka.storage.files import RealFiles
from rayka.storage.segments.scan import MAX_RELATIVE_OFFSET, iter_batches
from rayka.storage.segments.segment import CLEANED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX, Segment, file_name

_PIECE_BYTES: Final = 4 << 20


class _Part(NamedTuple):
    """The batches of one new segment: where they begin in the old one."""

    base_offset: int
    position: int


class OverflowedSegments:
    """The segments of one log directory. Methods raise OSError."""

    def __init__(self, files: RealFiles, directory: str) -> None:
        self._files = files
        self._directory = directory

    def split(self, base_offsets: list[int]) -> Iterator[set[str]]:
        """Split the segments that need it; of each, the names of the files that are to take its place now.

        Only a segment is examined whose successor, of these `base_offsets`, is too far away.
        """
        for base_offset, following in pairwise(base_offsets):
            if following - base_offset > MAX_RELATIVE_OFFSET + 1:
                segment = Segment(self._files, self._directory, base_offset, index_bytes=0, index_interval=0)
                segment.open()
                parts = list(self._parts(segment))
                if len(parts) > 1:
                    yield self._write_parts(segment, parts)
                segment.close()

    def _parts(self, segment: Segment) -> Iterator[_Part]:
        """As few as possible. Damage stays where it is, for recovery to cut off."""
        base_offset = segment.base_offset
        yield _Part(base_offset, 0)
        if self._files.exists(segment.offset_index.path):
            end_offset = segment.next_offset()
            if end_offset is not None and end_offset - 1 - base_offset <= MAX_RELATIVE_OFFSET:
                return
        for batch in iter_batches(segment.read, 0, segment.size):
            if not batch.is_intact():
                return
            if batch.header.last_offset - base_offset > MAX_RELATIVE_OFFSET:
                base_offset = batch.header.base_offset
                yield _Part(base_offset, batch.position)

    def _write_parts(self, segment: Segment, parts: list[_Part]) -> set[str]:
        modified_ms = self._files.modified_ms(segment.path)
        names = [file_name(part.base_offset, LOG_SUFFIX) for part in parts]
        ends = [*(part.position for part in parts[1:]), segment.size]
        for name, part, end in zip(names, parts, ends, strict=True):
            path = self._path(name + CLEANED_SUFFIX)
            self._write(segment, path, part.position, end)
            self._files.set_modified_ms(path, modified_ms)
        self._files.sync_path(self._directory)
        for name in reversed(names):
            self._files.rename(self._path(name + CLEANED_SUFFIX), self._path(name + SWAP_SUFFIX))
            self._files.sync_path(self._directory)
        return {name + SWAP_SUFFIX for name in names}

    def _write(self, segment: Segment, path: str, start: int, end: int) -> None:
        target = self._files.open(path, create=True)
        try:
            self._files.truncate(target, 0)
            for position in range(start, end, _PIECE_BYTES):
                data = segment.read(min(_PIECE_BYTES, end - position), position)
                self._files.write_fully(target, data, position - start)
            self._files.sync(target)
        finally:
            self._files.close(target)

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)
