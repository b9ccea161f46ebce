"""Prefetched record batches as one Arrow table. Importing this module imports pyarrow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import accumulate, chain

import pyarrow as pa

from rayka.client.calls import Called
from rayka.client.consumer.records import RecordBatches
from rayka.client.consumer.stored import FetchedBatches, StoredBatches
from rayka.client.consumer.table_maker import Part, TableKind
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.columns.build import Allocate
from rayka.storage.columns.read import COLUMNS, END, ColumnsReader, FileBatches, FilesRead
from rayka.storage.format.batch import is_intact
from rayka.types import TopicPartition

_PART_BYTES = 256 << 20
"""A part of the table that is as large as this gets no further records: to grow it costs a copy, and Arrow's arrays of
headers hold no more than 2 GiB."""
_MOST_BYTES = 256 << 20
"""With so many a table gets no more compressed records: a few bytes of the log may be gigabytes of them."""
_MOST_AHEAD_BYTES = 64 << 20
"""The same for a part that is made ahead, of which there may be some at the same time."""

_FIRST_PART = 0.48
"""The first part is finished while the helper is still busy with the second one."""
_LEAST_STORED_BYTES = 2 << 20
"""For less, waking a thread costs more than it saves."""


def table_of(
    polled: Mapping[TopicPartition, Iterable[FetchedBatches]],
    columns: Sequence[str] | None,
    check_crcs: bool,
    allocate: Allocate = pa.allocate_buffer,
    helper: Executor | None = None,
    copy: bool = True,
) -> pa.Table:
    """The records of what a poll took, partition by partition, with these columns (None: all).

    Unless parts of it were made ahead, it has one array for each column up to `_PART_BYTES`: arrays for each fetch
    would cost more than the decoding of small ones. If much of it is still in files, `helper` makes a second part of
    the table meanwhile. `allocate` gives their memory.
    Unless they are to be copied, values are views of these files and batches.
    Raises CORRUPT_MESSAGE, INVALID_REQUEST for an unknown or repeated column; SegmentGone and OSError if a file can't
    be read; ColumnsTooLarge if it gets more than `_MOST_BYTES` by records that are compressed, or are found in another
    general way.
    """
    kind = TableKind.of(columns, copy)
    begin = partial(_Part, kind=kind, check_crcs=check_crcs, allocate=allocate)
    parts, found, left_bytes = list[pa.RecordBatch](), list[FetchedBatches](), _MOST_BYTES
    for batches in chain.from_iterable(polled.values()):
        begun = batches.part if isinstance(batches, StoredBatches) else None
        ahead = None if begun is None else begun.take(kind, batches.position)
        if ahead is None:
            found.append(batches)
            continue
        if found:
            parts += _made(found, begin, helper, left_bytes)
            found = []
        left_bytes -= ahead.size
        parts += ahead.batches
    if found or not parts:
        parts += _made(found, begin, helper, left_bytes)
    if all(part.schema.equals(parts[0].schema) for part in parts):
        return pa.Table.from_batches(parts)
    return pa.concat_tables([pa.Table.from_batches([part]) for part in parts], promote_options="permissive")


def _made(
    found: Sequence[FetchedBatches], begin: Callable[..., _Part], helper: Executor | None, most_bytes: int
) -> list[pa.RecordBatch]:
    """A part of the table, or two of which `helper` makes one."""
    _ensure_same(found)
    first, second = (found, []) if helper is None else _split(found)
    if helper is None or not second:
        return begin(first, most_bytes=most_bytes).made()
    first_part, second_part = (begin(part, most_bytes=most_bytes // 2) for part in (first, second))
    filling = Called(second_part.fill)
    with contextlib.suppress(RuntimeError):  # the consumer is closed, or there may be no more threads
        helper.submit(filling)
    try:
        parts = first_part.made()
    finally:
        is_left = filling.take_back()
    if is_left:
        second_part.fill()
    else:
        filling.result()
    return parts + second_part.finish()


def part_of(batches: StoredBatches, kind: TableKind, check_crcs: bool, allocate: Allocate) -> Part:
    """As `table_of`, of one fetch. Raises ColumnsTooLarge with `_MOST_AHEAD_BYTES`."""
    _ensure_same([batches])
    part = _Part([batches], kind, check_crcs, allocate, _MOST_AHEAD_BYTES)
    made = part.made()
    return Part(made, sum(each.get_total_buffer_size() for each in made))


def first_part_of(
    polled: Mapping[TopicPartition, Iterable[FetchedBatches]],
    columns: Sequence[str] | None,
    check_crcs: bool,
    allocate: Allocate = pa.allocate_buffer,
    copy: bool = True,
) -> tuple[pa.Table, dict[TopicPartition, int]]:
    """As `table_of`, of the first batches only: up to the one with which the table has `_MOST_BYTES`. Also returns
    where the records begin of which it has none. Raises CORRUPT_MESSAGE also for a piece without a whole batch.
    """
    reader, rest = _new_reader(TableKind.of(columns, copy), _MOST_BYTES, allocate), dict[TopicPartition, int]()
    found = [*chain.from_iterable(polled.values())]
    _ensure_same(found)
    for batches in found:
        if rest:
            rest.setdefault(batches.topic_partition, batches.position)
            continue
        topic, partition = batches.topic_partition
        for data in _loaded(batches):
            next_offset, size = reader.read(
                data,
                topic=topic,
                partition=partition,
                start_offset=batches.position,
                aborted_transactions=None if isinstance(batches, StoredBatches) else batches.aborted_transactions,
                check_crcs=check_crcs,
                max_bytes=_MOST_BYTES,
            )
            if not size:  # to begin there again would bring the same
                raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"{batches.topic_partition} has a batch of damaged length")
            if size < len(data) or reader.size >= _MOST_BYTES:
                rest[batches.topic_partition] = next_offset
                break
    return pa.Table.from_batches([reader.finish()]), rest


def sound_part_of(
    polled: Mapping[TopicPartition, Sequence[FetchedBatches]],
    columns: Sequence[str] | None,
    check_crcs: bool,
    allocate: Allocate = pa.allocate_buffer,
    copy: bool = True,
) -> tuple[pa.Table, dict[TopicPartition, int]] | None:
    """As `first_part_of`, of the batches before the first whose records are malformed although its CRC is right, if the
    poll took one fetch, and this is in memory. None if it is not like that, or no records are before that batch.
    """
    found = [*chain.from_iterable(polled.values())]
    if len(found) != 1 or not isinstance(batches := found[0], RecordBatches):
        return None
    kind = TableKind.of(columns, copy)
    end = _end_of_sound(batches, _new_reader(kind, batches.size, allocate), check_crcs)
    if end is None:
        return None
    place, next_offset = end
    sound = {batches.topic_partition: [batches._replace(data=batches.data[:place], next_offset=next_offset)]}
    table, rest = first_part_of(sound, columns, check_crcs, allocate, copy)
    return table, rest or {batches.topic_partition: next_offset}


def _end_of_sound(batches: RecordBatches, reader: ColumnsReader, check_crcs: bool) -> tuple[int, int] | None:
    """The place and the offset of the first batch with malformed records behind a right CRC; None if there is none, or
    no other batch with records before it. `reader` can't be used any more.
    """
    topic, partition = batches.topic_partition
    is_first = True
    for place, header in batches.visible():
        data = batches.data[place : place + header.size_in_bytes]
        if check_crcs and not is_intact(data, 0, header):
            return None
        try:
            reader.read(data, topic=topic, partition=partition, start_offset=batches.position, check_crcs=False)
        except RaykaError as error:
            return None if is_first or error.code is not ErrorCode.CORRUPT_MESSAGE else (place, header.base_offset)
        is_first = False
    return None


def _ensure_same(found: Iterable[FetchedBatches]) -> None:
    """Raise SegmentGone, OSError for batches whose file is another one now."""
    for batches in found:
        if isinstance(batches, StoredBatches):
            batches.ensure_same()


def _new_reader(kind: TableKind, total_bytes: int, allocate: Allocate, most_bytes: int = END) -> ColumnsReader:
    return ColumnsReader(
        COLUMNS if kind.columns is None else kind.columns, total_bytes, allocate, most_bytes, kind.copy
    )


def _loaded(batches: FetchedBatches) -> Iterator[memoryview]:
    """The batches in memory; those of a file are read piece by piece."""
    if not isinstance(batches, StoredBatches):
        yield batches.data
        return
    assert batches.file is not None
    for position, size, _ in batches.pieces:
        data = memoryview(bytearray(size))
        batches.file.read_into(data, position)
        yield data


class _Part:
    """Some fetches, which become record batches in three steps. The second one, `fill`, needs next to no Python: two
    threads can do it at the same time, for two parts.
    """

    def __init__(
        self,
        found: Sequence[FetchedBatches],
        kind: TableKind,
        check_crcs: bool,
        allocate: Allocate,
        most_bytes: int,
    ) -> None:
        self._found = found
        self._check_crcs = check_crcs
        self._new_reader = partial(_new_reader, kind, allocate=allocate)
        self._most_bytes = most_bytes
        self._reader = self._new_reader(_part_bytes(found), most_bytes=most_bytes)
        self._begun = self._begin()

    def made(self) -> list[pa.RecordBatch]:
        """All records, by this thread alone."""
        self.fill()
        return self.finish()

    def fill(self) -> None:
        """Let compiled code read the first files."""
        if self._begun is not None:
            self._begun.run()

    def finish(self) -> list[pa.RecordBatch]:
        """All records, in order."""
        parts, done = [], 0
        while self._begun is not None or self._found:
            if self._begun is not None:
                self._reader.end_files(self._begun)
            else:
                self._read_next()
            if self._reader.size >= _PART_BYTES and self._found:
                done += self._reader.size
                parts.append(self._reader.finish())
                self._reader = self._new_reader(_part_bytes(self._found), most_bytes=self._most_bytes - done)
            self._begun = self._begin()
            self.fill()
        parts.append(self._reader.finish())
        return parts

    def _begin(self) -> FilesRead | None:
        """Begin to read those of the next fetches that are in files; None if the next one isn't."""
        run = _stored_run(self._found)
        self._found = self._found[len(run) :]
        if not run:
            return None
        return self._reader.begin_files([*map(_in_file, run)], self._check_crcs)

    def _read_next(self) -> None:
        """Read a fetch that is in memory."""
        batches, self._found = self._found[0], self._found[1:]
        assert isinstance(batches, RecordBatches)
        topic, partition = batches.topic_partition
        self._reader.read(
            batches.data,
            topic=topic,
            partition=partition,
            start_offset=batches.position,
            aborted_transactions=batches.aborted_transactions,
            check_crcs=self._check_crcs and not batches.are_intact,
        )


def _split(found: Sequence[FetchedBatches]) -> tuple[Sequence[FetchedBatches], Sequence[FetchedBatches]]:
    """Two parts; one if little is in files."""
    left = int(sum(each.size for each in found) * _FIRST_PART)
    if sum(each.size for each in found if isinstance(each, StoredBatches)) < _LEAST_STORED_BYTES:
        return found, ()
    for number, batches in enumerate(found):
        if batches.size > left:
            parts = batches.split(left) if isinstance(batches, StoredBatches) else (None, batches)
            first, second = ([part] if part and part.size else [] for part in parts)
            return [*found[:number], *first], [*second, *found[number + 1 :]]
        left -= batches.size
    return found, ()


def _stored_run(found: Sequence[FetchedBatches]) -> list[StoredBatches]:
    """Those of the first fetches that are in files and make a part of the table: one call reads them all."""
    run, size = list[StoredBatches](), 0
    for batches in found:
        if size >= _PART_BYTES or not isinstance(batches, StoredBatches):
            break
        run.append(batches)
        size += batches.size
    return run


def _in_file(batches: StoredBatches) -> FileBatches:
    assert batches.file is not None
    return FileBatches(batches.file, batches.pieces, *batches.topic_partition, batches.position)


def _part_bytes(found: Sequence[FetchedBatches]) -> int:
    """Bytes of the fetches that fill the next part, if their records take as much memory: what it reserves."""
    size = 0
    for size in accumulate(each.size for each in found):
        if size >= _PART_BYTES:
            break
    return size
