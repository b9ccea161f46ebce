"""Building record batches: the records of one, as a producer has them, and a batch again with another codec."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from rayka.storage.format.batch import (
    CODEC_MASK,
    HEADER,
    LOG_OVERHEAD,
    RECORD_BATCH_OVERHEAD,
    BatchHeader,
    Buffer,
    seal,
)
from rayka.storage.format.compression import DEFAULT_MAX_SIZE, Codec, compress
from rayka.storage.format.records import KeyOrValue, encode_record, record_bytes
from rayka.storage.format.varint import SMALL, VARINTS, encode_varint
from rayka.types import NO_TIMESTAMP

MAX_RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 5
"""Length, attributes, timestamp and offset delta, key and value length, header count: each at its longest."""
MAX_HEADER_OVERHEAD = 5 + 5


def max_record_size(key: KeyOrValue, value: KeyOrValue, headers: Sequence[tuple[str, bytes | None]] = ()) -> int:
    """The most bytes that a record with these fields can take in a batch."""
    size = MAX_RECORD_OVERHEAD + (0 if key is None else len(key)) + (0 if value is None else len(value))
    for name, header_value in headers:
        size += MAX_HEADER_OVERHEAD + len(name.encode()) + (0 if header_value is None else len(header_value))
    return size


def append_records(
    values: Sequence[KeyOrValue],
    keys: Sequence[KeyOrValue],
    headers: Sequence[Sequence[tuple[str, bytes | None]]],
    timestamps: Sequence[int],
) -> bytearray:
    """The records of one batch behind 61 bytes for its header; `keys` and `headers` may end early."""
    batch, base_timestamp = bytearray(RECORD_BATCH_OVERHEAD), timestamps[0] if timestamps else NO_TIMESTAMP
    columns = zip_longest(values, timestamps, keys, headers)
    for index, (value, timestamp, key, of_record) in enumerate(columns):
        record = encode_record(index, timestamp - base_timestamp, key, value, of_record or ())
        size = len(record)
        batch += VARINTS[size] if size < SMALL else encode_varint(size)
        batch += record
    return batch


def recompress(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    codec: Codec,
    level: int | None = None,
    max_size: int = DEFAULT_MAX_SIZE,
) -> bytearray:
    """Compress the records of a batch with another codec: for topics whose `compression.type` is not "producer".

    Only length, attributes and CRC of the header change. `max_size` bounds the bytes of records in between.
    Raises CORRUPT_MESSAGE if they do not decompress.
    """
    records = compress(codec, record_bytes(buffer, position, header, max_size), level)
    batch = bytearray(RECORD_BATCH_OVERHEAD)
    batch += records
    changed = header._replace(
        batch_length=len(batch) - LOG_OVERHEAD, attributes=header.attributes & ~CODEC_MASK | codec, crc=0
    )
    HEADER.pack_into(batch, 0, *changed)
    seal(batch, 0, len(batch))
    return batch
