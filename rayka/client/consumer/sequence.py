"""What `poll` returns for a partition: a sequence that makes each record when it is accessed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, overload

if TYPE_CHECKING:
    from rayka.client.consumer.records import ConsumerRecord

BLOCK_RECORDS = 512


class RecordSource(Protocol):
    """Decoded records, made or not."""

    def __len__(self) -> int: ...

    def offset(self, number: int) -> int:
        """The offset of one record."""

    def records(self, start: int, end: int) -> list[ConsumerRecord]:
        """The records with the numbers from `start` up to `end`, or fewer, but one at least.

        Raises CORRUPT_MESSAGE where the first of them can't be read.
        """


class MadeRecords(list["ConsumerRecord"]):
    """Records that were made already."""

    def offset(self, number: int) -> int:
        """See `RecordSource`."""
        return self[number].offset

    def records(self, start: int, end: int) -> list[ConsumerRecord]:
        """See `RecordSource`."""
        return self[start:end]


class ConsumerRecords(Sequence["ConsumerRecord"]):
    """Records of one partition in the order of their offsets.

    It compares and adds like a list. A record is made each time it is accessed; `list` makes all of them. The sequence
    keeps the memory of its fetch. Raises CORRUPT_MESSAGE where a batch has a valid CRC and malformed contents.
    """

    __slots__ = ("_length", "_parts")

    def __init__(self) -> None:
        self._parts: list[tuple[RecordSource, int, int]] = []
        self._length = 0

    def append(self, source: RecordSource, start: int, end: int) -> None:
        """Add the records of a source with the numbers from `start` up to `end`."""
        if end > start:
            self._parts.append((source, start, end))
            self._length += end - start

    def extend(self, others: ConsumerRecords) -> None:
        """Add the records of another sequence."""
        self._parts += others._parts
        self._length += others._length

    @property
    def first_offset(self) -> int:
        """The offset of the first record, of which there must be one."""
        source, start, _ = self._parts[0]
        return source.offset(start)

    @property
    def last_offset(self) -> int:
        """The offset of the last record, of which there must be one."""
        source, _, end = self._parts[-1]
        return source.offset(end - 1)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[ConsumerRecord]:
        for source, start, end in self._parts:
            while start < end:
                made = source.records(start, min(start + BLOCK_RECORDS, end))
                yield from made
                start += len(made)

    @overload
    def __getitem__(self, index: int) -> ConsumerRecord: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ConsumerRecord]: ...

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, end, step = index.indices(self._length)
            return self.between(start, end) if step == 1 else list(self)[index]
        number = index + self._length if index < 0 else index
        if not 0 <= number < self._length:
            raise IndexError(f"there are {self._length} records")
        (record,) = self.between(number, number + 1)
        return record

    def between(self, start: int, end: int) -> ConsumerRecords:
        """The records with the numbers from `start` up to `end`, which are not made for this."""
        found, before = ConsumerRecords(), 0
        for source, first, last in self._parts:
            count = last - first
            found.append(source, first + max(start - before, 0), first + min(end - before, count))
            before += count
        return found

    def within(self, first_offset: int, last_offset: int) -> ConsumerRecords:
        """The records with these offsets, which are not made for this."""
        found = ConsumerRecords()
        for source, start, end in self._parts:
            first = bisect_left(range(end), first_offset, start, key=source.offset)
            found.append(source, first, bisect_left(range(end), last_offset + 1, first, key=source.offset))
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, ConsumerRecords)):
            return NotImplemented
        return len(self) == len(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[list[ConsumerRecord]], tuple[list[ConsumerRecord]]]:
        """To another process, and to a copy, go the records: a list of them."""
        return list, (list(self),)

    def __add__(self, other: Sequence[ConsumerRecord]) -> list[ConsumerRecord]:
        return [*self, *other]

    def __radd__(self, other: Sequence[ConsumerRecord]) -> list[ConsumerRecord]:
        return [*other, *self]

    def __repr__(self) -> str:
        return repr(list(self))
