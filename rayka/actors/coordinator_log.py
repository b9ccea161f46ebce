"""The log under a coordinator: an internal partition that this process leads, and what to keep of it.

Of each key only the newest record counts. When much more than what counts has been written, all that counts
is appended once more and what lies before is deleted, so that loading stays quick after months. A crash in
between leaves both, which says the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from rayka.actors.replica_server import ReplicaServer
from rayka.storage.builder import build_batches
from rayka.storage.partition import Partition
from rayka.storage.reader import SegmentReader
from rayka.storage.records import Record, build_batch, read_records

_READ_BYTES = 1024 * 1024
_SMALLEST_BYTES = 16 * 1024 * 1024
_GROWTH = 4
_BATCH_BYTES = 512 * 1024


class CoordinatorLog:
    """Appends (key, value) pairs; a value of None forgets the key."""

    def __init__(self, partition: Partition, server: ReplicaServer) -> None:
        self.partition = partition
        self._server = server
        self._reader = SegmentReader()
        self._live: dict[bytes, bytes | None] = {}
        self._live_bytes = 0
        self._bytes = 0

    def read(self) -> Iterator[list[tuple[int, bytes, bytes | None]]]:
        """All records, a slice of the log at a time, as (offset, key, value)."""
        log = self.partition.log
        offset = log.log_start_offset
        while (found := log.read(offset, _READ_BYTES, log.log_end_offset)) is not None:
            records = [record for record in read_records(self._reader.read(found)) if record.offset >= offset]
            for record in records:
                self._remember(record.key or b"", record.value)
            yield [(record.offset, record.key or b"", record.value) for record in records]
            if not records:
                return
            offset = records[-1].offset + 1

    def append(self, records: Sequence[tuple[bytes, bytes | None]]) -> int:
        """Append one batch; returns its base offset. Raises RaykaError, and then nothing was appended."""
        now_ms = time.time_ns() // 1_000_000
        batch = build_batch([Record(0, now_ms, key, value) for key, value in records])
        base_offset = self._server.append_own(self.partition, memoryview(batch), now_ms)
        for key, value in records:
            self._remember(key, value)
        return base_offset

    def when_durable(self, done: Callable[[], None]) -> None:
        """Call `done` when everything appended so far is as safe as the topic asks for."""
        self._server.when_visible(self.partition, self.partition.log.log_end_offset, done)

    def shorten(self) -> bool:
        """Write what counts once more and let go of the rest, if that is worth it; tells whether it was done."""
        if self._bytes < max(_SMALLEST_BYTES, _GROWTH * self._live_bytes):
            return False
        start = self.partition.log.log_end_offset
        self._bytes = self._live_bytes
        self._rewrite(list(self._live.items()))
        self.when_durable(lambda: self._server.delete_own(self.partition, start))
        return True

    def _rewrite(self, live: Iterable[tuple[bytes, bytes | None]]) -> None:
        now_ms = time.time_ns() // 1_000_000
        records = [Record(0, now_ms, key, value) for key, value in live]
        for batch in build_batches(records, max_batch_size=_BATCH_BYTES):
            self._server.append_own(self.partition, memoryview(batch), now_ms)

    def _remember(self, key: bytes, value: bytes | None) -> None:
        """Keys stand in the order of their newest records, as compaction leaves them."""
        self._bytes += len(key) + len(value or b"")
        before = self._live.pop(key, None)
        self._live_bytes -= len(key) + len(before) if before is not None else 0
        if value is not None:
            self._live[key] = value
            self._live_bytes += len(key) + len(value)
