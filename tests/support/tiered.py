"""A log with tiered storage without actors: the shell's part is done here, one step after the other."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from rayka.config import LogConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.files import RealFiles
from rayka.storage.format.records import Record, build_batch, read_records
from rayka.storage.log.log import Log
from rayka.storage.log.recovery import LastRun
from rayka.storage.remote.copy_plan import copyable_segments, take_up
from rayka.storage.remote.directory_store import DirectoryStore
from rayka.storage.remote.metadata_records import decode, encode
from rayka.storage.remote.reader import ReaderLimits, RemoteLogReader
from rayka.storage.remote.remote_partition import RemotePartition
from rayka.storage.remote.retention import LocalState, expired
from rayka.storage.remote.steps import Author, Step, copy, copy_of, delete, delete_partition, metadata_of
from rayka.storage.remote.store import RemoteStore
from rayka.storage.segments.reader import SegmentReader
from rayka.types import TopicIdPartition
from tests.support.logs import NOW_MS, ORDERS

FILES = RealFiles()
AUTHOR = Author(0, NOW_MS)


class StoreError(OSError):
    """What the store, or the metadata log, answers when a test lets it fail."""


class FaultyStore(DirectoryStore):
    """Fails at the call that `fail_at` counts down to, before or after its work is done."""

    def __init__(self, path: Path) -> None:
        super().__init__(FILES, str(path))
        self.create()
        self.fail_at = -1
        self.is_late = False

    def count(self) -> bool:
        """Whether the call that comes now is the one to fail."""
        self.fail_at -= 1
        return self.fail_at == -1

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """See `RemoteStore.put`; an early failure leaves a part."""
        if not self.count():
            super().put(name, pieces)
        elif self.is_late:
            super().put(name, pieces)
            raise StoreError("put")
        else:
            super().put(name, _failing(pieces))

    def delete(self, name: str) -> None:
        """See `RemoteStore.delete`."""
        fails = self.count()
        if not fails or self.is_late:
            super().delete(name)
        if fails:
            raise StoreError("delete")


def _failing(pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield piece[: len(piece) // 2]
        break
    raise StoreError("put")


class TieredLog:
    """One partition, its metadata log and its store. What `crash` keeps is what would be on disks."""

    def __init__(self, path: Path, config: LogConfig, chunk_bytes: int = 300, cache_bytes: int = 2_000) -> None:
        self.path = path
        self.config = config
        self.partition = TopicIdPartition(uuid.UUID(int=1), ORDERS)
        self.store = FaultyStore(path / "store")
        self.events: list[bytes] = []
        self.is_released = False
        self._limits = ReaderLimits(chunk_bytes, cache_bytes, lambda: 4_096)
        self._last_run = LastRun()
        self.open()

    def open(self) -> None:
        """Open the log and read the metadata, as an actor does that starts."""
        self.log = Log.open(str(self.path / "log"), ORDERS, self.config, FILES, now_ms=NOW_MS, last_run=self._last_run)
        self.log.update_high_watermark(self.log.log_end_offset)
        self.reader = RemoteLogReader(FILES, str(self.path / "cache"), self.store, self._limits, lambda _: None)
        self.reload()

    def checkpoint(self) -> None:
        """What the checkpoints of the log directory hold after a crash."""
        self._last_run = LastRun(log_start_offset=self.log.log_start_offset, high_watermark=self.log.high_watermark)

    def crash(self) -> None:
        """Open the log again after the process was killed."""
        self.log.release()
        self.open()

    def reload(self) -> None:
        """Learn from the metadata log what is in the store."""
        self.remote = RemotePartition(self.partition)
        for event in self.events:
            decoded = decode(event)
            assert decoded is not None
            self.remote.replay(decoded)
        self._take_up()

    def _take_up(self) -> None:
        self.remote.validate_state()
        take_up(self.log, self.remote)
        self.log.validate_state()

    def carry_out(self, steps: Iterable[Step]) -> None:
        """Every step until one fails."""
        for step in steps:
            if callable(step):
                step(self.store)
                continue
            fails = self.store.count()
            if not fails or self.store.is_late:
                self.events.append(encode(step))
                self.remote.replay(step)
            if fails:
                raise StoreError("metadata")
        self._take_up()

    def append(self, count: int) -> None:
        """Batches of one record each; values tell offsets."""
        for _ in range(count):
            offset = self.log.log_end_offset
            self.log.append_as_leader(
                build_batch([Record(0, NOW_MS + offset, b"k", b"%d " % offset + bytes(50))]), offset // 40, NOW_MS
            )
        self.log.update_high_watermark(self.log.log_end_offset)

    def copy(self, count: int | None = None) -> None:
        """Copy every closed segment, or so many of them."""
        log = self.log
        log.write_snapshots()
        log.flush()
        plan = copyable_segments(
            log.segments, log.config, NOW_MS, copied_offset=log.copied_offset, safe_offset=log.last_stable_offset
        )
        for copyable in islice(plan, count):
            metadata = metadata_of(self.partition, log, copyable, uuid.uuid4(), AUTHOR)
            write = partial(_write, copy_of(log, copyable), metadata)
            self.carry_out(copy(metadata, write, AUTHOR))

    def retain(self, now_ms: int = NOW_MS) -> None:
        """Delete in the store what has expired or was left over."""
        log = self.log
        local = LocalState(log.leader_epochs, log.log_start_offset, log.log_end_offset, log.segments[-1].size)
        found = expired(self.remote, log.config, now_ms, local)
        self.remote.mark_for_deletion(found.segments)
        log.delete_records(max(found.log_start_offset, log.log_start_offset))
        self.checkpoint()
        for segment in found.segments:
            self.carry_out(delete(segment, AUTHOR))

    def delete(self) -> None:
        """The topic is deleted."""
        self.carry_out(delete_partition(self.remote, AUTHOR))

    def read(self, offset: int, max_bytes: int = 500) -> list[Record]:
        """One fetch, from the store or from here."""
        try:
            found = self.log.read(offset, max_bytes, self.log.high_watermark)
        except RaykaError as error:
            if error.code is not ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
                raise
            segments = self.remote.from_offset(self.log.leader_epochs, offset)
            found = self.reader.read(segments, offset, max_bytes, True).records
        return [] if found is None else _records(SegmentReader().read(found), offset)

    def read_all(self) -> Iterator[tuple[int, int]]:
        """Every record from the log start on: its offset, and what its value says."""
        offset = self.log.log_start_offset
        while offset < self.log.high_watermark:
            records = self.read(offset)
            assert records, f"nothing at {offset}"
            for record in records:
                yield record.offset, int((record.value or b"").split()[0])
            offset = records[-1].offset + 1


def _write(job: object, metadata: object, store: RemoteStore) -> None:
    job.write(FILES, store, metadata, lambda _: None)  # type: ignore[attr-defined]


def _records(data: bytes, offset: int) -> list[Record]:
    """The records of the whole batches from `offset` on."""
    return [record for record in read_records(data) if record.offset >= offset]
