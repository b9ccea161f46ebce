"""A segment in the remote store that is read like a local one: its indexes are local files, its records are chunks."""

from __future__ import annotations

from rayka.storage.files import RealFiles
from rayka.storage.remote.chunk_cache import CachedChunk, ChunkCache
from rayka.storage.remote.segment_metadata import RemoteLogSegmentMetadata
from rayka.storage.remote.store import RemoteStore, SegmentObject, object_name
from rayka.storage.segments.segment import Segment
from rayka.storage.segments.transaction_index import TransactionIndex

_MAX_INDEX_BYTES = 1 << 30
_INDEX_INTERVAL = 4096


class RemoteSegment(Segment):
    """Its chunks begin and end where batches do: at the first index entry behind each multiple of `chunk_bytes`."""

    def __init__(
        self,
        files: RealFiles,
        directory: str,
        metadata: RemoteLogSegmentMetadata,
        chunks: ChunkCache,
        chunk_bytes: int,
    ) -> None:
        super().__init__(
            files,
            directory,
            metadata.start_offset,
            index_bytes=_MAX_INDEX_BYTES,
            index_interval=_INDEX_INTERVAL,
        )
        self.directory = directory
        """Where its indexes are; nothing else is there."""
        if not metadata.is_transaction_index_empty:  # one that has left the cache must not say that nothing was aborted
            self.transaction_index = TransactionIndex(files, self.transaction_index.path, must_exist=True)
        self.metadata = metadata
        self.size = metadata.size
        self.index_bytes = 0
        """Bytes of the index files."""
        self._chunks = chunks
        self._chunk_bytes = chunk_bytes
        self._name = object_name(metadata, SegmentObject.LOG)

    def load_indexes(self, store: RemoteStore) -> None:
        """Make local files of the indexes in the store. Raises OSError."""
        paths = {SegmentObject.OFFSET_INDEX: self.offset_index.path, SegmentObject.TIME_INDEX: self.time_index.path}
        if not self.metadata.is_transaction_index_empty:
            paths[SegmentObject.TRANSACTION_INDEX] = self.transaction_index.path
        for kind, path in paths.items():
            data = store.get(object_name(self.metadata, kind), 0, _MAX_INDEX_BYTES)
            self._files.write_file(path, data)
            self.index_bytes += len(data)
        if not (self.offset_index.is_sane() and self.time_index.is_sane() and self._has_aborted_transactions()):
            raise OSError(f"the indexes of {self._name} are damaged in the remote store")

    def _has_aborted_transactions(self) -> bool:
        """Whether the index of transactions has some, all whole, if it should."""
        if self.metadata.is_transaction_index_empty:
            return True
        size = self._files.size(self.transaction_index.path)
        return size > 0 and size % self.transaction_index.ENTRY_BYTES == 0

    def chunk_at(self, position: int) -> CachedChunk:
        """The chunk with the batch that begins at `position`. Raises OSError."""
        number = position // self._chunk_bytes
        while (start := self._boundary(number)) > position:
            number -= 1
        while (end := self._boundary(number + 1)) <= position < self.size:
            number += 1
            start = end
        return self._chunks.load(self._name, start, end, self._offsets(start, end))

    def _offsets(self, start: int, end: int) -> range:
        """Between which index entries the offsets of the batches from one position up to another are."""
        first = self.offset_index.lookup_position(start - 1).offset if start else self.base_offset
        above = self.offset_index.offset_above(end)
        return range(first, self.metadata.end_offset + 1 if above is None else above)

    def _boundary(self, number: int) -> int:
        """Where the chunk of this number begins. A batch that is larger than a chunk leaves some without bytes."""
        if number <= 0:
            return 0
        entry = self.offset_index.first_at(number * self._chunk_bytes)
        return self.size if entry is None else entry.position

    def read(self, size: int, position: int) -> bytes:
        """Up to `size` bytes from a batch that begins at `position`; no more than those of its chunk."""
        chunk = self.chunk_at(position)
        descriptor = self._files.open(chunk.path, read_only=True)
        try:
            return self._files.read(descriptor, min(size, chunk.end - position), position - chunk.start)
        finally:
            self._files.close(descriptor)

    def file_size(self) -> int:
        """That of the object in the store; the chunk with a batch is whole."""
        return self.size
