"""The `.txnindex` of a segment: the transactions that were aborted in it (KIP-98). Entries of 34 bytes."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from rayka.storage.files import RealFiles

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
_PIECE_ENTRIES = 64


class AbortedTxn(NamedTuple):
    """An aborted transaction; `last_offset` is its marker's, `last_stable_offset` that of the log just after it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


_last_offset = attrgetter("last_offset")


class TransactionIndex:
    """The file, which exists only once a transaction was aborted. With `must_exist` a missing one is an error.

    New entries are in memory until `write`: an append whose batch is in the log already can't fail any more.
    """

    ENTRY_BYTES: Final = _ENTRY.size

    def __init__(self, files: RealFiles, path: str, *, must_exist: bool = False) -> None:
        self._files = files
        self.path = path
        self._must_exist = must_exist
        self._entries: list[AbortedTxn] | None = None
        self._written = 0

    def append(self, aborted: AbortedTxn) -> None:
        """Add an entry; one that is there already is not added again."""
        entries = self.load()
        if not entries or entries[-1].last_offset < aborted.last_offset:
            entries.append(aborted)

    def begin(self) -> None:
        """Begin empty, for a new segment, which has no file: recovery has removed those without a segment."""
        self._entries, self._written = [], 0

    def reset(self) -> None:
        """Begin empty, whatever the file holds: a power cut may have left an entry without the one before it."""
        self._files.remove_if_present(self.path)
        self.begin()

    def write(self) -> None:
        """Bring the file up to what is in memory."""
        entries = self._entries or []
        if self._written < len(entries):
            data = b"".join(_ENTRY.pack(_VERSION, *aborted) for aborted in entries[self._written :])
            self._files.write_at(self.path, data, self._written * _ENTRY.size)
            self._written = len(entries)

    def freeze(self) -> None:
        """Write the last entries and give the memory back: no more will come for now.

        That there are none stays known, so that readers need not look for a file.
        """
        self.write()
        self._entries = self._entries and None

    def load(self, suffix: str = "") -> list[AbortedTxn]:
        """The entries in memory, where they can be appended to. `suffix` is what the name of the file still ends in."""
        if self._entries is None:
            self._entries = self._read_file(suffix)
            self._written = len(self._entries)
        return self._entries

    @property
    def is_known_empty(self) -> bool:
        """Whether there are no entries, as far as can be told without the file."""
        return self._entries is not None and not self._entries

    def read(self) -> list[AbortedTxn]:
        """All whole entries."""
        return self._read_file() if self._entries is None else list(self._entries)

    def ending_from(self, offset: int) -> Iterator[AbortedTxn]:
        """The transactions that end at or after `offset`, in the order of their ends. No others are read."""
        entries = self._entries
        if entries is None:
            yield from self._ending_from_in_file(offset)
        else:
            yield from entries[bisect_left(entries, offset, key=_last_offset) :]

    def _ending_from_in_file(self, offset: int) -> Iterator[AbortedTxn]:
        try:
            descriptor = self._files.open(self.path, read_only=True)
        except FileNotFoundError:
            if self._must_exist:
                raise
            self._entries, self._written = [], 0
            return
        try:
            count = self._files.size(self.path) // _ENTRY.size
            slot = bisect_left(range(count), offset, key=lambda one: self._end_of(descriptor, one))
            yield from self._pieces(descriptor, slot, count)
        finally:
            self._files.close(descriptor)

    def _end_of(self, descriptor: int, slot: int) -> int:
        return next(self._pieces(descriptor, slot, slot + 1)).last_offset

    def _pieces(self, descriptor: int, slot: int, end: int) -> Iterator[AbortedTxn]:
        """The entries from `slot` up to `end`, a few at a time, since few may be wanted."""
        for first in range(slot, end, _PIECE_ENTRIES):
            size = min(end - first, _PIECE_ENTRIES) * _ENTRY.size
            data = self._files.read(descriptor, size, first * _ENTRY.size)
            for entry in _ENTRY.iter_unpack(data[: len(data) - len(data) % _ENTRY.size]):
                yield AbortedTxn._make(entry[1:])

    def _read_file(self, suffix: str = "") -> list[AbortedTxn]:
        try:
            data = self._files.read_file(self.path + suffix)
        except FileNotFoundError:
            if self._must_exist:
                raise
            return []
        whole = data[: len(data) - len(data) % _ENTRY.size]
        return [AbortedTxn._make(entry[1:]) for entry in _ENTRY.iter_unpack(whole)]

    def truncate_to(self, offset: int) -> None:
        """Drop the transactions that end at or after `offset`."""
        entries = self.load()
        kept = [aborted for aborted in entries if aborted.last_offset < offset]
        if len(kept) != len(entries):
            self._files.cut(self.path, len(kept) * _ENTRY.size)
            self._entries, self._written = kept, len(kept)
