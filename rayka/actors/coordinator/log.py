"""The log under a coordinator: an internal partition that this process leads.

Where only the newest record of each key counts, the topic is compacted, and the log cleaner keeps it short. In a log
that is not compacted, the coordinator says where the records that count begin.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from rayka.actors.replica.markers import write_marker
from rayka.actors.replica.server import ReplicaServer
from rayka.coordinator.result import ProducerIdAndEpoch
from rayka.errors import ErrorCode, RaykaError
from rayka.replica.partition import Partition
from rayka.storage.format.batch import BatchHeader, Buffer, iter_headers
from rayka.storage.format.control import ControlType, read_control_type
from rayka.storage.format.records import Record, build_batch, read_batch
from rayka.storage.producers.verification import Verification
from rayka.storage.segments.reader import SegmentReader
from rayka.types import NO_PRODUCER_ID, FileSlice, TxnMarker

_READ_BYTES = 1024 * 1024
_BATCH_BYTES = 512 * 1024
_RECORD_OVERHEAD_BYTES = 24

logger = logging.getLogger(__name__)


class Entry(NamedTuple):
    """A record of the log; one with a producer id counts when its transaction has committed."""

    offset: int
    key: bytes
    value: bytes | None
    producer_id: int = NO_PRODUCER_ID


class Marker(NamedTuple):
    """The end of a producer's transaction."""

    producer_id: int
    is_committed: bool


class CoordinatorLog:
    """Appends (key, value) pairs; a value of None deletes the key."""

    def __init__(self, partition: Partition, server: ReplicaServer) -> None:
        self.partition = partition
        self._server = server
        self._reader = SegmentReader()
        self._needed_from: int | None = None  # everything that counts is at or above it
        self._is_flushing = False
        self.skipped_batches = 0
        """Batches that the last `read` could not parse."""

    async def read(self) -> AsyncIterator[list[Entry | Marker]]:
        """All entries of the log, a slice of them at a time, read and decoded in a thread.

        Batches that can't be parsed are logged and skipped. Raises CORRUPT_MESSAGE where a batch does not end within
        the log, so that what follows it can't be found: a coordinator without that would answer with old state, and
        might delete the rest. Raises KAFKA_STORAGE_ERROR.
        """
        log = self.partition.log
        offset = log.log_start_offset
        self.skipped_batches = 0
        while (found := log.read(offset, _READ_BYTES, log.log_end_offset)) is not None:
            before = offset
            try:
                entries, offset = await asyncio.to_thread(self._read, found, offset)
            except RaykaError:
                self._server.check_records([found])
                raise
            yield entries
            if offset == before:
                raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"{self._name} has no whole batch at offset {offset}")

    def _read(self, found: FileSlice, from_offset: int) -> tuple[list[Entry | Marker], int]:
        """The entries of a slice, and where the next one begins."""
        entries: list[Entry | Marker] = []
        offset, buffer = from_offset, self._reader.read(found)
        for position, header in iter_headers(buffer):
            entries += self._entries(buffer, position, header, from_offset)
            offset = header.next_offset
        return entries, offset

    def _entries(self, buffer: Buffer, position: int, header: BatchHeader, from_offset: int) -> list[Entry | Marker]:
        try:
            return list(_entries(buffer, position, header, from_offset))
        except (RaykaError, ValueError, IndexError, struct.error) as error:
            self.skipped_batches += 1
            logger.error("%s: skipped the batch at offset %d: %s", self._name, header.base_offset, error)
            return []

    @property
    def _name(self) -> str:
        return str(self.partition.topic_partition)

    def split(self, records: Iterable[tuple[bytes, bytes | None]]) -> Iterator[list[tuple[bytes, bytes | None]]]:
        """The records in pieces that each fit into a batch."""
        batch: list[tuple[bytes, bytes | None]] = []
        size = 0
        for key, value in records:
            added = len(key) + len(value or b"") + _RECORD_OVERHEAD_BYTES
            if batch and size + added > _BATCH_BYTES:
                yield batch
                batch, size = [], 0
            batch.append((key, value))
            size += added
        if batch:
            yield batch

    def append(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        producer: ProducerIdAndEpoch | None = None,
        verification: Verification | None = None,
    ) -> int:
        """Append one batch, to a producer's transaction if there is one, and return its base offset.

        Raises RaykaError if nothing was appended.
        """
        now_ms = time.time_ns() // 1_000_000
        entries = [Record(0, now_ms, key, value) for key, value in records]
        if producer is None:
            batch = build_batch(entries)
        else:
            batch = build_batch(
                entries,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=0,
                is_transactional=True,
            )
        return self._server.append_as_coordinator(self.partition, memoryview(batch), now_ms, verification)

    def append_marker(self, marker: TxnMarker) -> None:
        """Append the end of a transaction. Raises RaykaError if it was not appended."""
        write_marker(self._server, self.partition, marker)

    @property
    def is_durable(self) -> bool:
        """Whether everything appended so far is as safe as the topic asks for."""
        log = self.partition.log
        return log.high_watermark >= log.log_end_offset

    def when_durable(self, done: Callable[[ErrorCode], None]) -> None:
        """Call `done` with NONE when everything appended so far is as safe as the topic asks for, else with an error.

        The error is that of an append.
        """
        self._server.when_visible(self.partition, self.partition.log.log_end_offset, done)

    def delete_before(self, offset: int | None) -> None:
        """Delete what lies before an offset once all from there on is on the device; None: nothing.

        If the flush fails nothing is deleted, and the next call flushes again.
        """
        if self._needed_from is None and offset is not None and offset > self.partition.log.log_start_offset:
            self._needed_from = offset
        if self._needed_from is not None:
            self._flush_needed()

    def _flush_needed(self) -> None:
        """Flush what counts, unless that is in progress."""
        if not self._is_flushing:
            self._is_flushing = True
            self._server.when_flushed(self.partition, self.partition.log.log_end_offset, self._needed_flushed)

    def _needed_flushed(self, error: ErrorCode) -> None:
        self._is_flushing = False
        if error is not ErrorCode.NONE:
            logger.error("%s: nothing is deleted yet, since the flush failed: %s", self._name, error.name)
        elif self._needed_from is not None:
            self._server.delete_records_before(self.partition, self._needed_from)
            self._needed_from = None


def _entries(buffer: Buffer, position: int, header: BatchHeader, from_offset: int) -> Iterator[Entry | Marker]:
    """The entries of one batch, from an offset on."""
    if header.is_control:
        kind = read_control_type(buffer, position, header)
        if kind in (ControlType.ABORT, ControlType.COMMIT) and header.base_offset >= from_offset:
            yield Marker(header.producer_id, kind is ControlType.COMMIT)
        return
    producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
    for record in read_batch(buffer, position, header):
        if record.offset >= from_offset:
            yield Entry(record.offset, record.key or b"", record.value, producer_id)
