"""The `.snapshot` file: the producers of a log at an offset.

Version i16 (1), CRC32C u32 of what follows, count i32, then 46 bytes for each producer. Source: the log
storage engine document, "Snapshot file format".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from crc32c import crc32c

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.producers.entry import BatchMetadata, ProducerEntry
from rayka.types import NO_OFFSET

VERSION = 1
_HEADER = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


def encode(entries: Iterable[ProducerEntry]) -> bytes:
    """The bytes of a snapshot. Only the last batch of each producer is kept, as in Kafka."""
    packed = [_pack(entry) for entry in entries]
    body = b"".join([_COUNT.pack(len(packed)), *packed])
    return _HEADER.pack(VERSION, crc32c(body)) + body


def _pack(entry: ProducerEntry) -> bytes:
    return _ENTRY.pack(
        entry.producer_id,
        entry.producer_epoch,
        entry.last_sequence,
        entry.last_offset,
        entry.batches[-1].offset_delta if entry.batches else 0,
        entry.last_timestamp,
        entry.coordinator_epoch,
        entry.current_txn_first_offset,
    )


def decode(data: bytes) -> list[ProducerEntry]:
    """The producers in a snapshot. Raises CORRUPT_MESSAGE for a damaged one."""
    try:
        version, crc = _HEADER.unpack_from(data)
        (count,) = _COUNT.unpack_from(data, _HEADER.size)
        if version != VERSION or crc != crc32c(data[_HEADER.size :]):
            raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"a producer snapshot of version {version} with a wrong CRC")
        start = _HEADER.size + _COUNT.size
        return [_unpack(data, start + index * _ENTRY.size) for index in range(count)]
    except struct.error as error:
        raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"a producer snapshot of {len(data)} bytes: {error}") from None


def _unpack(data: bytes, position: int) -> ProducerEntry:
    fields = _ENTRY.unpack_from(data, position)
    producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first_offset = fields
    entry = ProducerEntry(producer_id, epoch)
    if offset != NO_OFFSET:
        entry.batches.append(BatchMetadata(sequence, offset, delta, timestamp))
    entry.last_timestamp = timestamp
    entry.coordinator_epoch = coordinator_epoch
    entry.current_txn_first_offset = txn_first_offset
    return entry
