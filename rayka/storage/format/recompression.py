"""Another codec for a batch whose records stay as they are: topics whose `compression.type` is not "producer"."""

from __future__ import annotations

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
from rayka.storage.format.records import record_bytes


def recompress(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    codec: Codec,
    level: int | None = None,
    max_size: int = DEFAULT_MAX_SIZE,
) -> bytearray:
    """The batch with its records compressed by `codec`; only length, attributes and CRC of the header change.

    `max_size` bounds the bytes of records in between. CORRUPT_MESSAGE if they do not decompress.
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
