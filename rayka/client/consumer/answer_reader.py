"""Gets the records of fetch answers that name a part of a segment on this node.

What the page cache has is there at once. For the rest a thread waits for the disk, so that the event loop never does.
Large batches for tables stay in their file: then only their headers are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from rayka.client.consumer.read_buffers import ReadBuffers
from rayka.client.consumer.stored import NotCached, StoredFetch, find_stored
from rayka.gateway.server.segment_files import SegmentFile, SegmentFiles, SegmentGone
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD, read_header
from rayka.types import FileSlice, TopicPartition

Found: TypeAlias = StoredFetch | memoryview | bytes
"""Large batches, which stay in their file, or the bytes of all batches."""
_Find: TypeAlias = Callable[[bool], StoredFetch | None]
"""Finds large batches; whether it may wait for the disk. Raises NotCached, SegmentGone, OSError."""


class AnswerReader:
    """Reads for one consumer. Lives in the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.files = SegmentFiles()
        self.waiting_bytes = 0
        """How much threads are reading from the disk."""
        self._buffers = ReadBuffers()
        self._loop = loop

    def read(
        self,
        topic_partition: TopicPartition,
        fetch_offset: int,
        source: FileSlice,
        end_offset: int,
        may_be_stored: bool,
    ) -> Found | asyncio.Future[Found]:
        """The records of this slice; a future if only the disk has some of them.

        `may_be_stored`: large batches up to `end_offset` may stay in their file.
        Raises SegmentGone, OSError, and RuntimeError where no thread can be started.
        """
        try:
            file = self.files.open(source)
        except SegmentGone:
            source = self._shortened(source)
            file = self.files.open(source)
        find: _Find = partial(find_stored, topic_partition, fetch_offset, source, file, end_offset)
        try:
            return self._cached(file, source, find if may_be_stored else _find_none)
        except NotCached:
            waiting = self._loop.run_in_executor(None, _wait_for, file, source, find if may_be_stored else _find_none)
            self.waiting_bytes += source.size
            waiting.add_done_callback(partial(self._waited, source.size))
            return waiting

    def _shortened(self, source: FileSlice) -> FileSlice:
        """What is left of a slice if the file was cut off behind whole batches. Raises SegmentGone, OSError."""
        file = self.files.open(source._replace(size=RECORD_BATCH_OVERHEAD))
        header = read_header(file.read(RECORD_BATCH_OVERHEAD, source.position))
        self.files.open(source._replace(size=header.size_in_bytes))
        return source._replace(size=min(source.size, file.size - source.position))

    def _cached(self, file: SegmentFile, source: FileSlice, find: _Find) -> Found:
        """Raises NotCached, SegmentGone, OSError."""
        stored = find(False)
        if stored is not None:
            return stored
        data = self._buffers.take(source.size)
        if file.read_cached(data, source.position) < source.size:
            raise NotCached
        return data

    def _waited(self, size: int, waiting: asyncio.Future[Found]) -> None:
        self.waiting_bytes -= size
        if not waiting.cancelled():
            waiting.exception()  # asyncio reports one that nobody looks at

    def close(self) -> None:
        """Close the files, and forget the memory of what was read."""
        self._buffers = ReadBuffers()
        self.files.close()


def _wait_for(file: SegmentFile, source: FileSlice, find: _Find) -> Found:
    file.read_ahead(source.position, source.size)
    return find(True) or file.read(source.size, source.position)


def _find_none(_: bool) -> None:
    """Nothing may stay in its file."""
