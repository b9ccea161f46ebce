"""Batches of records that a benchmark or a test makes up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rayka.storage.format.builder import RecordBatchBuilder
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import Record


def build_batches(
    records: Iterable[Record], *, max_batch_size: int, base_offset: int = 0, codec: Codec = Codec.NONE
) -> Iterator[bytearray]:
    """Batches of at most `max_batch_size` bytes before compression (more if one record is larger alone).

    The records get the offsets from `base_offset` on.
    """
    builder = RecordBatchBuilder(codec)
    for _, timestamp, key, value, headers, _ in records:
        if not builder.has_room_for(key, value, headers, max_batch_size):
            yield builder.build(base_offset=base_offset)
            base_offset += builder.record_count
            builder = RecordBatchBuilder(codec)
        builder.append(key, value, timestamp, headers)
    if builder.record_count:
        yield builder.build(base_offset=base_offset)
