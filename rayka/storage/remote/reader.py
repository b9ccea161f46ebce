"""Reads records that are only in the remote store: by offset, by time, and the transactions aborted in them.

A read answers with a slice of a local file, as that of a local segment does. All methods may be called in any thread,
wait for the store, and raise OSError; FileNotFoundError stands for a segment that was deleted meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

from rayka.errors import RaykaError
from rayka.storage.files import RealFiles
from rayka.storage.remote.chunk_cache import CachedChunk, ChunkCache, DamagedObject
from rayka.storage.remote.remote_segment import RemoteSegment
from rayka.storage.remote.segment_metadata import RemoteLogSegmentMetadata
from rayka.storage.remote.shared_loads import SharedLoads
from rayka.storage.remote.store import RemoteStore
from rayka.storage.segments.search import offset_for_timestamp
from rayka.storage.segments.segment import BatchPosition
from rayka.storage.segments.segments import Segments
from rayka.storage.segments.transaction_index import AbortedTxn
from rayka.types import AbortedTransaction, FileSlice, OffsetAnswer


class ReaderLimits(NamedTuple):
    """Sizes in bytes: of what is fetched at once, of the cache of that, and of the cache of indexes, as it is now."""

    chunk_bytes: int
    chunk_cache_bytes: int
    index_cache_bytes: Callable[[], int]


class NextChunk(NamedTuple):
    """Where a reader will continue that reads everything."""

    segment: RemoteLogSegmentMetadata
    position: int


class RemoteRead(NamedTuple):
    """Records from the offset that was asked for, all below `end_offset`.

    None if the first batch is larger than asked for; if there is no batch at or above it, `end_offset` is 0 too.
    """

    records: FileSlice | None = None
    end_offset: int = 0
    following: NextChunk | None = None


class RemoteLogReader:
    """Keeps chunks and indexes under `path`, which is emptied at the start."""

    def __init__(
        self, files: RealFiles, path: str, store: RemoteStore, limits: ReaderLimits, throttle: Callable[[int], None]
    ) -> None:
        self._files = files
        self._store = store
        self._limits = limits
        self._chunks = ChunkCache(files, os.path.join(path, "chunks"), store, limits.chunk_cache_bytes, throttle)
        self._index_path = os.path.join(path, "indexes")
        self._segments: OrderedDict[str, RemoteSegment] = OrderedDict()
        self._loads: SharedLoads[RemoteSegment] = SharedLoads()
        self._lock = threading.Lock()
        self._numbers = count()
        if files.exists(self._index_path):
            files.remove_directory(self._index_path)

    def read(
        self, segments: Sequence[RemoteLogSegmentMetadata], offset: int, max_bytes: int, min_one_message: bool
    ) -> RemoteRead:
        """Up to `max_bytes` of the records from `offset` on, of the first of these segments that has any.

        The segments have no gap (`without_gap`): the records of a missing one would be passed over.
        A slice lies in one chunk. With `min_one_message` it has the first batch whole, however large that is.
        Raises CORRUPT_MESSAGE for a batch with an impossible length.
        """
        for number, metadata in enumerate(segments):
            segment = self._open(metadata)
            with self._distrusting(segment):
                found = segment.find(offset, is_checked=True)
                if found is None:
                    continue
                chunk = segment.chunk_at(found.position)
            size = _size(found, chunk, max_bytes, min_one_message)
            end_position = found.position + size
            above = segment.offset_index.offset_above(end_position)
            end_offset = metadata.end_offset + 1 if above is None else above
            following = _next_chunk(segments[number:], chunk)
            records = FileSlice(chunk.path, found.position - chunk.start, size, chunk.inode) if size else None
            return RemoteRead(records, end_offset, following)
        return RemoteRead()

    def prefetch(self, following: NextChunk) -> NextChunk | None:
        """Fetch a chunk that will be read soon; the one after it, None at the end of the segment."""
        segment = self._open(following.segment)
        with self._distrusting(segment):
            chunk = segment.chunk_at(following.position)
        return _next_chunk([following.segment], chunk)

    def aborted_transactions(
        self, segments: Sequence[RemoteLogSegmentMetadata], offset: int, end_offset: int
    ) -> tuple[list[AbortedTxn], bool]:
        """The aborted transactions that a reader from `offset` to `end_offset` may meet, as far as these segments say,
        and whether the segments after them have no more."""
        found: list[AbortedTxn] = []
        for metadata in segments:
            if metadata.is_transaction_index_empty:
                continue
            for aborted in self._open(metadata).transaction_index.ending_from(offset):
                if aborted.first_offset < end_offset:
                    found.append(aborted)
                if aborted.last_stable_offset >= end_offset:
                    return found, True
        return found, False

    def aborted_before(
        self,
        segments: Sequence[RemoteLogSegmentMetadata],
        offset: int,
        end_offset: int,
        local: Iterable[AbortedTxn],
    ) -> tuple[AbortedTransaction, ...]:
        """What a reader of committed records is told; `local` are those of the log after these segments."""
        found, is_complete = self.aborted_transactions(segments, offset, end_offset)
        if not is_complete:
            found += [aborted for aborted in local if aborted.first_offset < end_offset]
        distinct = {AbortedTransaction(each.producer_id, each.first_offset) for each in found}
        return tuple(sorted(distinct, key=lambda aborted: aborted.first_offset))

    def offset_for_timestamp(
        self, segments: Sequence[RemoteLogSegmentMetadata], timestamp: int, log_start_offset: int
    ) -> OffsetAnswer | None:
        """The first record at or after `timestamp` (milliseconds) in these segments, None if all are before."""
        for metadata in segments:
            if metadata.max_timestamp >= timestamp:
                segment = self._open(metadata)
                with self._distrusting(segment):
                    found = offset_for_timestamp(Segments((segment,)), timestamp, log_start_offset)
                if found is not None:
                    return found
        return None

    def forget(self, metadata: RemoteLogSegmentMetadata) -> None:
        """The segment is deleted: drop its indexes."""
        with self._lock:
            segment = self._segments.pop(metadata.segment_id.hex, None)
        if segment is not None:
            self._files.remove_directory(segment.directory)

    @contextlib.contextmanager
    def _distrusting(self, segment: RemoteSegment) -> Iterator[None]:
        """Drop the indexes of a segment whose records do not fit them.

        No CRC covers an index: one that came wrong from the store once would make the segment unreadable for ever.
        """
        try:
            yield
        except (DamagedObject, RaykaError):
            with self._lock:
                is_kept = self._segments.get(segment.metadata.segment_id.hex) is segment
            if is_kept:
                self.forget(segment.metadata)
            raise

    def _open(self, metadata: RemoteLogSegmentMetadata) -> RemoteSegment:
        """The segment with its indexes."""
        key = metadata.segment_id.hex
        return self._opened(key) or self._loads.load(key, lambda: self._opened(key) or self._load(key, metadata))

    def _opened(self, key: str) -> RemoteSegment | None:
        with self._lock:
            segment = self._segments.get(key)
            if segment is not None:
                self._segments.move_to_end(key)
            return segment

    def _load(self, key: str, metadata: RemoteLogSegmentMetadata) -> RemoteSegment:
        directory = os.path.join(self._index_path, f"{key}.{next(self._numbers)}")  # of its own, as chunks have
        self._files.make_directory(directory)
        segment = RemoteSegment(self._files, directory, metadata, self._chunks, self._limits.chunk_bytes)
        try:
            segment.load_indexes(self._store)
        except OSError:
            self._files.remove_directory(directory)
            raise
        with self._lock:
            self._segments[key] = segment
            removed = self._surplus()
        for oldest in removed:
            self._files.remove_directory(oldest.directory)
        return segment

    def _surplus(self) -> list[RemoteSegment]:
        size = sum(segment.index_bytes for segment in self._segments.values())
        removed = []
        while size > self._limits.index_cache_bytes() and len(self._segments) > 1:
            _, oldest = self._segments.popitem(last=False)
            size -= oldest.index_bytes
            removed.append(oldest)
        return removed


def _size(found: BatchPosition, chunk: CachedChunk, max_bytes: int, min_one_message: bool) -> int:
    first = found.header.size_in_bytes
    size = min(max(max_bytes, 0), chunk.end - found.position)
    if size >= first:
        return size
    return first if min_one_message else 0


def _next_chunk(segments: Sequence[RemoteLogSegmentMetadata], chunk: CachedChunk) -> NextChunk | None:
    """What comes after a chunk of the first of these segments."""
    if chunk.end < segments[0].size:
        return NextChunk(segments[0], chunk.end)
    return NextChunk(segments[1], 0) if len(segments) > 1 else None
