"""Makes the tables of a consumer, and parts of the next ones while the program uses the one that it has.

What the program asks for next is not certain. A part that was made ahead is used in a table of the same kind, if that
gets the records which were expected. Otherwise, and if a part could not be made, who wants the table makes it all:
so errors come as if nothing had been made ahead.
"""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rayka.client.calls import Called
from rayka.client.consumer.read_buffers import TableBuffers
from rayka.client.threads import Threads
from rayka.errors import ErrorCode, RaykaError
from rayka.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from rayka.client.consumer.stored import FetchedBatches, StoredBatches
    from rayka.gateway.server.segment_files import SegmentFiles

logger = logging.getLogger(__name__)

_THREADS = 2
_REST_S = 10.0
"""So long nothing is made ahead when a part could not be made: who wants the table makes that again."""


class TableKind(NamedTuple):
    """The columns that a table has (None: all), and whether values are copied to it."""

    columns: tuple[str, ...] | None
    copy: bool

    @classmethod
    def of(cls, columns: Sequence[str] | None, copy: bool) -> TableKind:
        """The one that a program asks for. Raises INVALID_REQUEST for a single name, which would be its letters."""
        if isinstance(columns, str):
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"columns must be a list of names, not the str {columns!r}")
        return cls(None if columns is None else tuple(columns), copy)


class Part(NamedTuple):
    """Some rows of a table, and about how many bytes they have."""

    batches: Sequence[pa.RecordBatch]
    size: int


class PartAhead:
    """A part that a thread makes: see `TableMaker.begin_part`."""

    def __init__(self, kind: TableKind, position: int, make: Callable[[], Part | None]) -> None:
        self._kind = kind
        self._position = position
        self._called: Called[Part | None] | None = Called(make)

    def __call__(self) -> None:
        """Make it, unless it was taken back."""
        if (called := self._called) is not None:
            called()

    def take(self, kind: TableKind, position: int) -> Part | None:
        """What was made, at the first call, if it is of this kind and begins at this offset. Waits for a thread that
        makes it; None if no thread has begun to, or it could not be made.
        """
        called, self._called = self._called, None
        if called is None or called.take_back() or (kind, position) != (self._kind, self._position):
            return None
        return called.result()


class TableMaker:
    """Its threads start when they are needed, and keep the memory of tables that are gone for the next ones."""

    def __init__(self, check_crcs: bool) -> None:
        self._check_crcs = check_crcs
        self._buffers = TableBuffers()
        self._kind: TableKind | None = None
        self._is_usual = False
        self._rests_until_s = 0.0
        self.threads = Threads(_THREADS, thread_name_prefix="rayka-table")

    def kind_of(self, columns: Sequence[str] | None, copy: bool) -> TableKind:
        """The kind of table that the program asks for. If it is that of the time before, the next ones will be too."""
        kind = TableKind.of(columns, copy)
        self._kind, self._is_usual = kind, kind == self._kind
        return kind

    def table_of(
        self, polled: Mapping[TopicPartition, Sequence[FetchedBatches]], kind: TableKind
    ) -> tuple[pa.Table, Mapping[TopicPartition, int]]:
        """The table of what a poll took, and where the records begin that are too many, or are behind malformed ones.
        In any thread.
        """
        from rayka.client.consumer import tables  # loaded when first used: it brings pyarrow
        from rayka.storage.columns.read import ColumnsTooLarge

        how = polled, kind.columns, self._check_crcs, self._buffers.allocate
        try:
            with contextlib.suppress(ColumnsTooLarge):
                return tables.table_of(*how, self.threads, kind.copy), {}
            return tables.first_part_of(*how, kind.copy)
        except RaykaError as error:
            sound = tables.sound_part_of(*how, kind.copy) if error.code is ErrorCode.CORRUPT_MESSAGE else None
            if sound is None:
                raise
            return sound

    def begin_part(self, kind: TableKind, batches: StoredBatches, files: SegmentFiles) -> PartAhead | None:
        """Have a thread make the part of a table that has these batches, as long as somebody keeps what this returns.

        None if no thread does; also if the program asks for other tables each time, and for views: until it asks for
        these, they would keep deleted files.
        Raises SegmentGone, OSError.
        """
        is_wanted = kind.copy and kind == self._kind and self._is_usual
        if not is_wanted or time.monotonic() < self._rests_until_s:
            return None
        part = PartAhead(kind, batches.position, partial(self._part_of, kind, batches.opened(files)))
        try:
            self.threads.submit(_make, weakref.ref(part))
        except RuntimeError:  # the consumer is closed, or there may be no more threads
            self._rest()
            return None
        return part

    def _part_of(self, kind: TableKind, batches: StoredBatches) -> Part | None:
        """None if that fails: an error would keep the file open, and what was made, until somebody looks at it."""
        from rayka.client.consumer import tables

        try:
            return tables.part_of(batches, kind, self._check_crcs, self._buffers.allocate)
        except Exception as error:
            logger.debug("a part of a table could not be made ahead: %r", error)
            self._rest()
            return None

    def _rest(self) -> None:
        self._rests_until_s = time.monotonic() + _REST_S

    def close(self) -> None:
        """End the threads when they have done what they do, and release the memory of tables that are gone."""
        self.threads.shutdown(wait=False)
        self._buffers = TableBuffers()


def _make(part: weakref.ref[PartAhead]) -> None:
    """Make a part, if anybody may still want it."""
    if (wanted := part()) is not None:
        wanted()
