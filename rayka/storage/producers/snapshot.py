"""The `.snapshot` file: the producers of a log at an offset.

Version i16 (1), CRC32C u32 of what follows, count i32, then 46 bytes for each entry. Source: the log storage
engine document, "Snapshot file format".

Kafka writes one entry for each producer, with its last batch, and so forgets over a restart four of the five batches
that a producer may send again. Here each batch has an entry, in their order. Kafka reads such a file too: of
several entries for a producer the last one counts. Its timestamp is the time at which the broker appended that batch;
the entries before it have the largest timestamp of their batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from crc32c import crc32c

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.producers.entry import AppendedBatch, ProducerEntry
from rayka.types import NO_OFFSET, NO_SEQUENCE, NO_TIMESTAMP

VERSION = 1
_HEADER = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_NO_BATCH = AppendedBatch(NO_SEQUENCE, NO_OFFSET, 0, NO_TIMESTAMP)
_ENTRY = struct.Struct(">qhiqiqiq")


def encode(entries: Iterable[ProducerEntry]) -> bytes:
    """The bytes of a snapshot."""
    packed = [row for entry in entries for row in _pack(entry)]
    body = b"".join([_COUNT.pack(len(packed)), *packed])
    return _HEADER.pack(VERSION, crc32c(body)) + body


def _pack(entry: ProducerEntry) -> Iterator[bytes]:
    identity = entry.producer_id, entry.producer_epoch
    *earlier, last = entry.batches or (_NO_BATCH,)
    for batch in earlier:
        yield _ENTRY.pack(*identity, *batch, entry.coordinator_epoch, NO_OFFSET)
    last = last._replace(timestamp=entry.last_seen_ms)
    yield _ENTRY.pack(*identity, *last, entry.coordinator_epoch, entry.current_txn_first_offset)


def decode(data: bytes) -> list[ProducerEntry]:
    """The producers in a snapshot. Raises CORRUPT_MESSAGE for a damaged one."""
    try:
        version, crc = _HEADER.unpack_from(data)
        (count,) = _COUNT.unpack_from(data, _HEADER.size)
        if version != VERSION or crc != crc32c(data[_HEADER.size :]):
            raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"a producer snapshot of version {version} with a wrong CRC")
        start = _HEADER.size + _COUNT.size
        entries: dict[int, ProducerEntry] = {}
        for fields in _ENTRY.iter_unpack(data[start : start + count * _ENTRY.size]):
            _unpack(fields, entries)
    except struct.error as error:
        raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"a producer snapshot of {len(data)} bytes: {error}") from None
    return list(entries.values())


def _unpack(fields: tuple[int, ...], entries: dict[int, ProducerEntry]) -> None:
    producer_id, producer_epoch, *batch, coordinator_epoch, txn_first_offset = fields
    entry = entries.setdefault(producer_id, ProducerEntry(producer_id, producer_epoch))
    entry.move_to_epoch(producer_epoch)
    metadata = AppendedBatch._make(batch)
    if metadata.last_offset != NO_OFFSET:
        entry.batches.append(metadata)
    entry.last_seen_ms = metadata.timestamp
    entry.coordinator_epoch = coordinator_epoch
    entry.current_txn_first_offset = txn_first_offset
