"""Reads ranges directly from the remote store of a topic with tiered storage (KIP-405), without the leader.

The leader only says which segments have the records. They are fetched in chunks, the next ones while one is decoded,
through a small cache on this machine's disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from rayka.storage.files import RealFiles
from rayka.storage.remote.reader import NextChunk, ReaderLimits, RemoteLogReader, RemoteRead
from rayka.storage.remote.remote_range import RemoteRange
from rayka.storage.remote.store import RemoteStore
from rayka.storage.segments.reader import SegmentReader
from rayka.types import AbortedTransaction

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNKS_KEPT = 8
_INDEX_BYTES = 64 << 20
_WHOLE_CHUNK = 1 << 40


class RangeRecords(NamedTuple):
    """The records of a range up to `end_offset`, from where those before them ended."""

    end_offset: int
    batch: pa.RecordBatch


class RemoteRanges:
    """The reads of one process. `chunk_bytes` is about how much is fetched, and decoded, at a time."""

    def __init__(self, store: RemoteStore, chunk_bytes: int) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="rayka-remote-ranges-")
        limits = ReaderLimits(chunk_bytes, _CHUNKS_KEPT * chunk_bytes, lambda: _INDEX_BYTES)
        self._reader = RemoteLogReader(RealFiles(), self._directory.name, store, limits, lambda _: None)
        self._slices = SegmentReader()
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="rayka-remote-range")

    def close(self) -> None:
        """Remove what is kept."""
        self._ahead.shutdown(cancel_futures=True)
        self._directory.cleanup()

    def read(self, wanted: RemoteRange, columns: Sequence[str]) -> Iterator[RangeRecords]:
        """The records of the range, in order. Raises OSError and RaykaError if the store does not give them."""
        from rayka.storage.columns.read import read_columns

        topic, partition = wanted.topic_partition
        offset = wanted.start_offset
        ahead: Future[NextChunk | None] | None = None
        while offset < wanted.end_offset:
            segments = wanted.from_offset(offset)
            found = self._reader.read(segments, offset, _WHOLE_CHUNK, True)
            if found.following is not None and (ahead is None or ahead.done()):
                ahead = self._ahead.submit(self._reader.prefetch, found.following)
            batch, next_offset, _ = read_columns(
                b"" if found.records is None else self._slices.read(found.records),
                topic=topic,
                partition=partition,
                columns=columns,
                start_offset=offset,
                end_offset=wanted.end_offset,
                aborted_transactions=self._aborted(wanted, offset, found),
            )
            offset = wanted.end_offset if found.records is None else min(next_offset, wanted.end_offset)
            yield RangeRecords(offset, batch)

    def _aborted(self, wanted: RemoteRange, offset: int, found: RemoteRead) -> tuple[AbortedTransaction, ...] | None:
        if wanted.aborted is None:
            return None
        segments = (*wanted.from_offset(offset), *wanted.following)
        return self._reader.aborted_before(segments, offset, found.end_offset, wanted.aborted)
