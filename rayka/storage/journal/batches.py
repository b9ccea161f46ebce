"""The records of a put journal as the record batches of an idempotent producer."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from rayka.storage.columns.rows import NO_FIELDS, Rows, nulls, unsealed_batches
from rayka.storage.format.records import seal_batch
from rayka.storage.journal.layout import SEQUENCE_MASK, record_frame
from rayka.storage.journal.records import JournalRecords, records_in
from rayka.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

MOST_BATCH_RECORDS: Final = 100
"""Readers that share a partition take parts of a batch, and each of them reads all of it: so batches are small."""
_MANY: Final = 2000
_MOST_OF_MANY: Final = 500
"""A batch costs the leader about as much as a hundred records. So more than `_MANY` records get larger batches."""
_PRODUCER_EPOCH = 0


class JournalBatch(NamedTuple):
    """A record batch and the number of its records."""

    buffer: memoryview
    record_count: int


def batches_of(
    records: JournalRecords, *, producer_id: int | None, now_ms: int, max_batch_size: int
) -> Iterator[JournalBatch]:
    """The records, created now, in batches of at most `max_batch_size` bytes; or of one record that is larger.

    Without a producer id they have no sequence numbers.
    """
    step = MOST_BATCH_RECORDS if records.record_count <= _MANY else _MOST_OF_MANY
    for first in range(0, records.record_count, step):
        piece = records.slice(first, first + step)
        yield from _encoded(piece, producer_id, now_ms, max_batch_size)


def _encoded(
    records: JournalRecords, producer_id: int | None, now_ms: int, max_batch_size: int
) -> Iterator[JournalBatch]:
    count = records.record_count
    timestamps = np.full(count, now_ms, np.int64)
    rows = Rows(nulls(count), records.values, np.zeros(count + 1, np.int64), NO_FIELDS, NO_FIELDS, timestamps)
    for unsealed, first, record_count, _ in unsealed_batches(rows, max_batch_size, is_brief=True):
        batch = seal_batch(
            unsealed,
            record_count=record_count,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            producer_id=NO_PRODUCER_ID if producer_id is None else producer_id,
            producer_epoch=NO_PRODUCER_EPOCH if producer_id is None else _PRODUCER_EPOCH,
            base_sequence=NO_SEQUENCE if producer_id is None else (records.base_sequence + first) & SEQUENCE_MASK,
        )
        yield JournalBatch(batch, record_count)


@functools.cache
def load_compiled_code() -> None:
    """Load what reading and appending need, which takes a moment: in a thread that nobody waits for."""
    records = records_in(record_frame(0, b""), 0, 0)
    assert records is not None
    list(batches_of(records, producer_id=None, now_ms=0, max_batch_size=1))
