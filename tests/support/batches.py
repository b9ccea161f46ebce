"""Batches as compaction leaves them, record by record: what the compiled cleaner is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from rayka.storage.format.batch import (
    CODEC_MASK,
    DELETE_HORIZON_FLAG,
    LOG_APPEND_TIME_FLAG,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
)
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import Record, encode_record, seal_batch
from rayka.storage.format.varint import encode_varint
from rayka.types import NO_TIMESTAMP


def rebuild_batch(
    header: BatchHeader,
    records: Sequence[Record],
    *,
    codec: Codec | None = None,
    level: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytearray:
    """The batch of `header` with only `records` left, for compaction: they keep their offsets, and the batch
    its first and last offset, epoch and producer. `delete_horizon_ms` goes where the base timestamp was (KIP-534).
    """
    flags = header.attributes & ~CODEC_MASK
    base_timestamp = header.base_timestamp
    if delete_horizon_ms is not None:
        flags |= DELETE_HORIZON_FLAG
        base_timestamp = delete_horizon_ms
    batch = bytearray(RECORD_BATCH_OVERHEAD)
    for offset, timestamp, key, value, headers, _ in records:
        record = encode_record(offset - header.base_offset, timestamp - base_timestamp, key, value, headers)
        batch += encode_varint(len(record)) + record
    is_create_time = not flags & LOG_APPEND_TIME_FLAG
    newest = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    return seal_batch(
        batch,
        record_count=len(records),
        base_timestamp=base_timestamp,
        max_timestamp=newest if is_create_time else header.max_timestamp,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        codec=header.codec if codec is None else codec,
        level=level,
        partition_leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        flags=flags,
    )
