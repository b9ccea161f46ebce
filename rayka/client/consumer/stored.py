"""Record batches that stay in their segment until a table is made of them.

A table is made of the mapped file, so that each byte comes out of the main memory once. Each piece of it is looked at
when the system has just said that it is there: otherwise a broken disk would end the process.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from rayka.client.compiled import LOAD_AFTER_RECORDS, Compiled
from rayka.client.consumer.records import RecordBatches
from rayka.gateway.server.segment_files import SegmentFile, SegmentFiles, SegmentGone
from rayka.storage.format.batch import MAGIC, RECORD_BATCH_OVERHEAD, BatchHeader, read_header
from rayka.types import FileSlice, TopicPartition

if TYPE_CHECKING:
    from rayka.client.consumer.table_maker import PartAhead
    from rayka.storage.columns.file_headers import BatchesInFile

LEAST_BYTES = 262_144
"""Less than this is not worth it."""
_LEAST_MEAN_BYTES = 8192
"""To look at the header of each batch costs too much if they are smaller on average."""
_LARGE_BATCH = 32_768
"""The same for plain Python."""
_PIECE_BYTES = 1 << 20
_FEW_BATCHES = 8
_HEADER_IN_RECORDS = 8
"""To look at a header in plain Python counts as so many records that are handled in plain Python."""


def _load(find: Callable[..., Any]) -> None:
    from rayka.storage.columns import file_headers  # NumPy is loaded when there is much to do

    file_headers.ensure_available()
    find(-1, 0, RECORD_BATCH_OVERHEAD, 0, inf, _PIECE_BYTES, _FEW_BATCHES, _LEAST_MEAN_BYTES)


_compiled = Compiled("rayka.storage.columns.file_headers", "batches_in_file", _load)


class Piece(NamedTuple):
    """Some batches: their position in the file, their size, and how many records their headers count."""

    position: int
    size: int
    record_count: int


class Landmark(NamedTuple):
    """What tells a batch from all others: its position in the file, its offset and its CRC."""

    position: int
    base_offset: int
    crc: int


class StoredBatches(NamedTuple):
    """Whole record batches, in the file in which they lie. See `RecordBatches`; no aborted transactions are in them."""

    topic_partition: TopicPartition
    source: FileSlice
    pieces: Sequence[Piece]
    position: int
    next_offset: int
    file: SegmentFile | None = None
    """Open only while a table is made: the disk needs the blocks of deleted segments."""
    topic_id: uuid.UUID | None = None
    landmarks: tuple[Landmark, ...] = ()
    """The first batch and the last one that were there."""
    part: PartAhead | None = None
    """What a thread makes of them for the next table."""

    @property
    def size(self) -> int:
        """The bytes of all pieces, which lie side by side."""
        if not self.pieces:
            return 0
        last = self.pieces[-1]
        return last.position + last.size - self.pieces[0].position

    def split(self, size: int) -> tuple[StoredBatches, StoredBatches]:
        """Pieces of about this size, and those that are left. Either may be without any."""
        count = sum(
            end - piece.size / 2 < size
            for piece, end in zip(self.pieces, accumulate(p.size for p in self.pieces), strict=True)
        )
        return self._replace(pieces=self.pieces[:count]), self._replace(pieces=self.pieces[count:])

    def opened(self, files: SegmentFiles) -> StoredBatches:
        """With the open file. Raises SegmentGone, OSError."""
        return self._replace(file=files.open(self.source))

    def ensure_same(self) -> None:
        """Raise SegmentGone if the open file is not the one that was found, or OSError. May wait for the disk.

        Compaction puts another file in the place of one, and after the next time that may have the same number too.
        """
        assert self.file is not None
        room = memoryview(bytearray(RECORD_BATCH_OVERHEAD))
        for landmark in self.landmarks:
            self.file.read_into(room, landmark.position)
            if _landmark(landmark.position, read_header(room)) != landmark:
                raise SegmentGone(f"{self.source.path} is another file, or has other batches")


FetchedBatches: TypeAlias = RecordBatches | StoredBatches
BeginPart: TypeAlias = "Callable[[StoredBatches, SegmentFiles], PartAhead | None]"
"""Has a thread make a part of a table of these batches: see `TableMaker.begin_part`."""


class NotCached(Exception):
    """Only the disk has what is wanted."""


class StoredFetch:
    """The batches of one fetch answer, as `CompletedFetch`; for tables only."""

    def __init__(self, batches: StoredBatches) -> None:
        self.batches = batches
        self.size, self.held_bytes = batches.size, 0
        self.next_offset = batches.next_offset

    def begin(self, begin_part: BeginPart, files: SegmentFiles) -> None:
        """Have a part of the next table made of it, if that has not begun. Raises SegmentGone, OSError."""
        if self.batches.part is None:
            self.batches = self.batches._replace(part=begin_part(self.batches, files))

    def drop_part(self) -> None:
        """Forget what `begin` did; a thread that makes the part already goes on."""
        self.batches = self.batches._replace(part=None)


def find_stored(
    topic_partition: TopicPartition,
    fetch_offset: int,
    source: FileSlice,
    file: SegmentFile,
    end_offset: float = inf,
    may_wait: bool = False,
) -> StoredFetch | None:
    """The whole batches of this slice. None if they are better read at once: those that are small, and what is not as
    the format says or not in the order of offsets, or behind `end_offset`, where the partition ends.

    Raises SegmentGone, OSError, and unless it may wait for the disk NotCached for headers that the page cache lacks.
    """
    if source.size < LEAST_BYTES:
        return None
    found = _find_compiled(fetch_offset, source, file, end_offset)
    if found is None:
        found = _find(fetch_offset, source, file, end_offset, may_wait)
    if not found.pieces:
        return None
    pieces, next_offset, landmarks = found
    return StoredFetch(StoredBatches(topic_partition, source, pieces, fetch_offset, next_offset, landmarks=landmarks))


class _Found(NamedTuple):
    """Whole batches; nothing if they are better read at once."""

    pieces: Sequence[Piece]
    next_offset: int
    landmarks: tuple[Landmark, ...]


_NOTHING = _Found((), 0, ())


def _find_compiled(fetch_offset: int, source: FileSlice, file: SegmentFile, end_offset: float) -> _Found | None:
    """As `_find`. None if compiled code is not loaded, or has not read a header, for whatever reason."""
    if _compiled.function is None:
        return None
    position, end = source.position, source.position + source.size
    found: BatchesInFile | None = _compiled.function(
        file.descriptor, position, end, fetch_offset, end_offset, _PIECE_BYTES, _FEW_BATCHES, _LEAST_MEAN_BYTES
    )
    if found is None:
        return None
    landmarks = dict.fromkeys([Landmark(*found.first), Landmark(*found.last)])  # they may be the same
    return _Found([Piece(*piece) for piece in found.pieces], found.next_offset, tuple(landmarks))


def _find(fetch_offset: int, source: FileSlice, file: SegmentFile, end_offset: float, may_wait: bool) -> _Found:
    """Raises as `find_stored`."""
    # A thread that may wait finds the same as compiled code would in the page cache.
    least_mean_bytes = _LEAST_MEAN_BYTES if may_wait and _compiled.function is not None else _LARGE_BATCH
    position, end = source.position, source.position + source.size
    room, pieces = memoryview(bytearray(RECORD_BATCH_OVERHEAD)), [Piece(position, 0, 0)]
    next_offset, count, landmarks = fetch_offset, 0, tuple[Landmark, ...]()
    while position + RECORD_BATCH_OVERHEAD <= end:
        if may_wait:
            file.read_into(room, position)
        elif file.read_cached(room, position) < RECORD_BATCH_OVERHEAD:
            raise NotCached
        header = read_header(room)
        size = header.size_in_bytes
        is_ordered = (
            header.last_offset_delta >= 0 and (header.base_offset if count else header.last_offset) >= next_offset
        )
        is_ordered = is_ordered and header.next_offset <= end_offset
        if header.magic != MAGIC or size < RECORD_BATCH_OVERHEAD or not is_ordered:
            return _NOTHING
        if position + size > end:
            break
        if pieces[-1].size and pieces[-1].size + size > _PIECE_BYTES:
            pieces.append(Piece(position, 0, 0))
        start, size_before, records_before = pieces[-1]
        pieces[-1] = Piece(start, size_before + size, records_before + max(header.record_count, 0))
        landmarks = *landmarks[:1], _landmark(position, header)
        position, next_offset, count = position + size, header.next_offset, count + 1
        if count > _FEW_BATCHES and count * least_mean_bytes > position - source.position:
            if count * _LEAST_MEAN_BYTES <= position - source.position:
                _compiled.count(LOAD_AFTER_RECORDS)  # at once: compiled code finds batches of 8 to 32 KB
            return _NOTHING
    _compiled.count(count * _HEADER_IN_RECORDS)
    return _Found(pieces if count else (), next_offset, landmarks)


def _landmark(position: int, header: BatchHeader) -> Landmark:
    return Landmark(position, header.base_offset, header.crc)
