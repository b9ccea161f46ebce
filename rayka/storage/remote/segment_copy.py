"""Copying one segment to the remote store and deleting it there: what is read, and the order of the objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rayka.storage.files import RealFiles
from rayka.storage.log.leader_epochs import EpochEntry
from rayka.storage.remote.segment_metadata import RemoteLogSegmentMetadata
from rayka.storage.remote.store import RemoteStore, SegmentObject, object_name
from rayka.storage.segments.segment import Segment

PIECE_BYTES = 5 << 20
"""So much is read, and sent, at a time; S3 takes no smaller parts."""


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
        paths = [
            (SegmentObject.OFFSET_INDEX, segment.offset_index.path),
            (SegmentObject.TIME_INDEX, segment.time_index.path),
        ]
        if not metadata.is_transaction_index_empty:
            paths.append((SegmentObject.TRANSACTION_INDEX, segment.transaction_index.path))
        if self.snapshot_path:
            paths.append((SegmentObject.PRODUCER_SNAPSHOT, self.snapshot_path))
        for kind, path in paths:
            store.put(object_name(metadata, kind), [files.read_file(path)])
        pieces = _pieces(files, segment.path, metadata.size, throttle)
        store.put(object_name(metadata, SegmentObject.LOG), pieces)


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
