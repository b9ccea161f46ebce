"""Key -> last offset, in bounded memory: a table of key hashes with open addressing.

A slot has 24 bytes, as in Kafka's: 16 for the hash of a key and 8 for the offset of its last record. The map knows the
keys of the records from where the log is dirty up to `latest_offset`, at most `max_entries` of them.
Source: the log storage engine document; `log.cleaner.dedupe.buffer.size`, `log.cleaner.io.buffer.load.factor`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rayka.storage.cleaner.hashing import Words
from rayka.storage.columns.compiled import compiled
from rayka.storage.columns.decode import Longs
from rayka.types import NO_OFFSET

SLOT_BYTES = 24
_MAX_SLOTS = 2**32 - 1

Table: TypeAlias = npt.NDArray[np.uint64]


class OffsetMap:
    """At most `memory_bytes`, and no more than `max_records` need."""

    def __init__(self, memory_bytes: int, load_factor: float, secret: tuple[int, int], max_records: int) -> None:
        load_factor = min(max(load_factor, 0.01), 1.0)
        slots = max(min(memory_bytes // SLOT_BYTES, int(max_records / load_factor) + 2, _MAX_SLOTS), 2)
        self.max_entries = min(int(slots * load_factor), slots - 1)
        self.table: Table = np.zeros((slots, 3), np.uint64)
        """Rows of two words of hash and the offset plus one, 0 in an empty slot: what is not in use is not memory."""
        self.entries: Longs = np.zeros(1, np.int64)
        self.secret: Words = np.array(secret, np.uint64)
        self.latest_offset = NO_OFFSET
        """The last offset up to which the map knows every key."""


@compiled
def slot_of(first: Any, second: Any, table: Table) -> Any:
    """The slot of the key with this hash, or the empty one where it belongs. There is always an empty one."""
    slots: Any = np.uint64(len(table))
    slot: Any = ((first >> np.uint64(32)) * slots) >> np.uint64(32)
    while table[slot, 2] and (table[slot, 0] != first or table[slot, 1] != second):
        slot += np.uint64(1)
        if slot == slots:
            slot = np.uint64(0)
    return slot


@compiled
def put(first: Any, second: Any, offset: int, table: Table, entries: Longs, max_entries: int) -> bool:
    """Note the offset of a key's newest record. False, and nothing noted, when the map is full."""
    if entries[0] >= max_entries:
        return False
    slot = slot_of(first, second, table)
    if not table[slot, 2]:
        entries[0] += 1
        table[slot, 0] = first
        table[slot, 1] = second
    table[slot, 2] = max(table[slot, 2], np.uint64(offset + 1))
    return True


@compiled
def last_offset_of(first: Any, second: Any, table: Table) -> int:
    """The offset of a key's newest record in the map, -1 if it has none."""
    found: Any = np.int64(table[slot_of(first, second, table), 2])
    return int(found - 1)
