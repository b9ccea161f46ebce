"""Copying one segment to the remote store and deleting it there: what is read, and the order of the objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rayka.storage.files import RealFiles
from rayka.storage.format.batch import HEADER, MAGIC, RECORD_BATCH_OVERHEAD, BatchHeader
from rayka.storage.log.leader_epochs import EpochEntry
from rayka.storage.remote.segment_metadata import RemoteLogSegmentMetadata
from rayka.storage.remote.store import RemoteStore, SegmentObject, object_name
from rayka.storage.segments.index import OffsetIndex
from rayka.storage.segments.scan import iter_batches
from rayka.storage.segments.segment import Segment

PIECE_BYTES = 5 << 20
"""So much is read, and sent, at a time; S3 takes no smaller parts."""
_INDEX_BYTES = 1 << 30
_INDEX_INTERVAL = 4096
_MOST_UNINDEXED_BYTES = 16 << 20
"""An index with less than an entry for so many bytes is replaced: readers fetch from one entry to another."""


class SegmentCopy(NamedTuple):
    """A segment with what its readers need: `epochs` are those of the log up to the end of the segment.

    `snapshot_path` is that of the producers' state at its end, empty if there is none.
    """

    segment: Segment
    epochs: Sequence[EpochEntry]
    snapshot_path: str

    def write(
        self,
        files: RealFiles,
        store: RemoteStore,
        metadata: RemoteLogSegmentMetadata,
        throttle: Callable[[int], None],
    ) -> None:
        """Put all objects into the store, the records last. Raises OSError.

        The batches are those that `metadata` counts: a log may be preallocated. `throttle` is told of each piece.
        """
        segment = self.segment
        epochs = "\n".join(f"{entry.epoch} {entry.start_offset}" for entry in self.epochs)
        checkpoint = f"0\n{len(self.epochs)}\n{epochs}\n".encode("ascii")
        store.put(object_name(metadata, SegmentObject.LEADER_EPOCHS), [checkpoint])
        offset_index, time_index = _indexes(files, segment, metadata.size)
        store.put(object_name(metadata, SegmentObject.OFFSET_INDEX), [offset_index])
        store.put(object_name(metadata, SegmentObject.TIME_INDEX), [time_index])
        paths = []
        if not metadata.is_transaction_index_empty:
            paths.append((SegmentObject.TRANSACTION_INDEX, segment.transaction_index.path))
        if self.snapshot_path:
            paths.append((SegmentObject.PRODUCER_SNAPSHOT, self.snapshot_path))
        for kind, path in paths:
            store.put(object_name(metadata, kind), [files.read_file(path)])
        pieces = _pieces(files, segment.path, metadata.size, throttle)
        store.put(object_name(metadata, SegmentObject.LOG), pieces)


def _indexes(files: RealFiles, segment: Segment, size: int) -> tuple[bytes, bytes]:
    """The offset index and the time index, made again if those on the disk are missing or do not fit the batches.

    A log finds its records in spite of a wrong entry. Who reads the copy has nothing else to go by.
    """
    descriptor = files.open(segment.path, read_only=True)
    try:
        if _has_sound_indexes(files, segment, descriptor, size):
            return files.read_file(segment.offset_index.path), files.read_file(segment.time_index.path)
        return _rebuilt_indexes(files, segment, descriptor, size)
    finally:
        files.close(descriptor)


def _has_sound_indexes(files: RealFiles, segment: Segment, descriptor: int, size: int) -> bool:
    if not (segment.offset_index.is_sane() and segment.time_index.is_sane()):
        return False
    last_offset, last_position = -1, 0
    for offset, position in OffsetIndex.ENTRY.iter_unpack(files.read_file(segment.offset_index.path)):
        data = files.read(descriptor, RECORD_BATCH_OVERHEAD, position) if 0 <= position < size else b""
        if len(data) < RECORD_BATCH_OVERHEAD or position - last_position > _MOST_UNINDEXED_BYTES:
            return False
        header = BatchHeader._make(HEADER.unpack(data))
        if header.magic != MAGIC or not last_offset < header.base_offset - segment.base_offset <= offset:
            return False
        last_offset, last_position = offset, position
    return size - last_position <= _MOST_UNINDEXED_BYTES


def _rebuilt_indexes(files: RealFiles, segment: Segment, descriptor: int, size: int) -> tuple[bytes, bytes]:
    new = Segment(files, "", segment.base_offset, index_bytes=_INDEX_BYTES, index_interval=_INDEX_INTERVAL)
    new.offset_index.reset()
    new.time_index.reset()
    for batch in iter_batches(lambda wanted, position: files.read_fully(descriptor, wanted, position), 0, size):
        header = batch.header
        new.index_batch(batch.position, header.size_in_bytes, header.last_offset, header.max_timestamp)
    new.time_index.append_if_later(new.max_timestamp, new.offset_of_max_timestamp)
    return bytes(new.offset_index.load()), bytes(new.time_index.load())


def _pieces(files: RealFiles, path: str, size: int, throttle: Callable[[int], None]) -> Iterator[bytes]:
    descriptor = files.open(path, read_only=True)
    try:
        for position in range(0, size, PIECE_BYTES):
            wanted = min(PIECE_BYTES, size - position)
            throttle(wanted)
            data = files.read_fully(descriptor, wanted, position)
            if len(data) != wanted:
                raise OSError(f"{path} has fewer than {size} bytes")
            yield data
    finally:
        files.close(descriptor)


def delete_objects(store: RemoteStore, metadata: RemoteLogSegmentMetadata) -> None:
    """Remove all objects of a segment, the records first. Raises OSError; it can be called again."""
    for kind in SegmentObject:
        store.delete(object_name(metadata, kind))
