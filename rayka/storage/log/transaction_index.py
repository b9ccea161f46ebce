"""The `.txnindex` of a segment: the transactions that were aborted in it (KIP-98). Entries of 34 bytes."""

from __future__ import annotations

import struct
from typing import NamedTuple

from rayka.storage.files import RealFiles

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


class AbortedTxn(NamedTuple):
    """An aborted transaction; `last_offset` is its marker's, `last_stable_offset` that of the log just after it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The file, which exists only once a transaction was aborted."""

    def __init__(self, files: RealFiles, path: str) -> None:
        self._files = files
        self.path = path

    def append(self, aborted: AbortedTxn) -> None:
        """Add an entry; one that is there already is not added again."""
        known = self.read()
        if not known or known[-1].last_offset < aborted.last_offset:
            self._files.write_at(self.path, _ENTRY.pack(_VERSION, *aborted), len(known) * _ENTRY.size)

    def read(self) -> list[AbortedTxn]:
        """All whole entries."""
        try:
            data = self._files.read_file(self.path)
        except FileNotFoundError:
            return []
        whole = data[: len(data) - len(data) % _ENTRY.size]
        return [AbortedTxn._make(entry[1:]) for entry in _ENTRY.iter_unpack(whole)]

    def truncate_to(self, offset: int) -> None:
        """Drop the transactions that end at or after `offset`."""
        known = self.read()
        kept = [aborted for aborted in known if aborted.last_offset < offset]
        if len(kept) != len(known):
            self._files.cut(self.path, len(kept) * _ENTRY.size)
