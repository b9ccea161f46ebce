"""The segments of a log in the order of their base offsets."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator

from rayka.storage.segments.segment import Segment


class Segments:
    """An ordered set of segments; the last one is active. Changes replace the tuple that readers see."""

    def __init__(self, segments: tuple[Segment, ...] = ()) -> None:
        self._set(segments)

    def _set(self, segments: tuple[Segment, ...]) -> None:
        self.all = segments
        self._base_offsets = [segment.base_offset for segment in segments]
        if segments:
            self.active = segments[-1]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def add(self, segment: Segment) -> None:
        """Append a new active segment."""
        self._set((*self.all, segment))

    def remove(self, gone: tuple[Segment, ...]) -> None:
        """Take segments out."""
        left_out = set(gone)
        self._set(tuple(segment for segment in self.all if segment not in left_out))

    def replace(self, gone: tuple[Segment, ...], segment: Segment) -> None:
        """Put one segment in the place of others, of which the first has its base offset."""
        at = self.all.index(gone[0])
        self._set((*self.all[:at], segment, *self.all[at + len(gone) :]))

    def floor(self, offset: int) -> Segment | None:
        """The segment that has `offset`, if any: the last whose base offset is not above it."""
        index = bisect_right(self._base_offsets, offset) - 1
        return self.all[index] if index >= 0 else None

    def after(self, segment: Segment) -> Segment | None:
        """The segment that follows."""
        index = bisect_right(self._base_offsets, segment.base_offset)
        return self.all[index] if index < len(self.all) else None

    def from_offset(self, offset: int) -> tuple[Segment, ...]:
        """The segments that may have offsets at or above `offset`."""
        index = max(bisect_right(self._base_offsets, offset) - 1, 0)
        return self.all[index:]

    def release(self) -> None:
        """Give every descriptor back and write nothing more; even a close that fails gives a descriptor back."""
        for segment in self.all:
            with contextlib.suppress(OSError):
                segment.release()

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.all)
