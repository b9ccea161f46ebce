"""What a log knows of its producers: sequences for idempotence, open transactions, snapshots of both.

A batch is first checked, then written to the log, and only then remembered. A restart loads the last
snapshot and the batches after it. Source: the log storage engine document, "ProducerStateManager".
"""

from __future__ import annotations

import os
import threading
from bisect import insort
from collections.abc import Collection, Iterable, Sequence

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchHeader, Buffer
from rayka.storage.format.control import ControlType, read_control_type, read_coordinator_epoch
from rayka.storage.producers import snapshot as producer_snapshot
from rayka.storage.producers.entry import AppendedBatch, ProducerEntry
from rayka.storage.producers.verification import Verification
from rayka.storage.segments.segment import SNAPSHOT_SUFFIX, file_name
from rayka.storage.segments.transaction_index import AbortedTxn
from rayka.types import NO_OFFSET

DEFAULT_EXPIRATION_MS = 86_400_000
"""`producer.id.expiration.ms`"""


class ProducerState:
    """Producers by id, their transactions, and the snapshot files in the log's directory."""

    def __init__(self, files: RealFiles, directory: str, expiration_ms: int = DEFAULT_EXPIRATION_MS) -> None:
        self._files = files
        self._directory = directory
        self._expiration_ms = expiration_ms
        self.entries: dict[int, ProducerEntry] = {}
        self.ongoing: dict[int, int] = {}
        """First offset of each open transaction -> its producer id, in the order of the offsets."""
        self.unreplicated: dict[int, int] = {}
        """First offset of each ended transaction -> its marker's offset, until the high watermark is above that."""
        self.verifications: dict[int, Verification] = {}
        """By producer id, until the transaction begins or its marker is appended."""
        self.snapshots: list[int] = []
        """Offsets of the snapshots, rising."""
        self._unwritten: dict[int, list[ProducerEntry] | None] = {}
        """Snapshots to be written, and with None those to be removed, by offset."""
        self._change_lock = threading.Lock()
        self._write_lock = threading.Lock()

    # -- appending ------------------------------------------------------------------------------

    def begin_verification(
        self, producer_id: int, producer_epoch: int, base_sequence: int, now_ms: int
    ) -> Verification | None:
        """What a batch needs that may begin a transaction; None if the producer's transaction is open here."""
        entry = self.entries.get(producer_id)
        if entry is not None and entry.current_txn_first_offset >= 0 and entry.producer_epoch == producer_epoch:
            return None
        known = self.verifications.get(producer_id)
        if known is None:
            known = self.verifications[producer_id] = Verification(producer_epoch, base_sequence, now_ms)
        else:
            known.seen(producer_epoch, base_sequence, now_ms)
        return known

    def end_verification(self, producer_id: int, verification: Verification) -> None:
        """The producer has no such transaction: forget that it was asked about."""
        if self.verifications.get(producer_id) is verification:
            del self.verifications[producer_id]

    def check(
        self, headers: Sequence[BatchHeader], *, from_client: bool, verification: Verification | None = None
    ) -> AppendedBatch | None:
        """Whether the batches may be appended; the batch of before if one was appended already.

        `verification`: the coordinator has confirmed that the transaction is open and has this partition.
        Raises as `ProducerEntry.check`, and INVALID_TXN_STATE. Changes nothing.
        """
        tried: dict[int, ProducerEntry] = {}
        for header in headers:
            entry = tried.get(header.producer_id) or self.entries.get(header.producer_id)
            if header.producer_id < 0 or header.attributes & CONTROL_FLAG:
                continue
            if not from_client:
                self._check_own(header, entry, verification)
                continue
            if entry is not None:
                is_next = entry.is_next(header)
                if not is_next:
                    duplicate = entry.find_duplicate(header)
                    if duplicate is not None:
                        return duplicate
                if not is_next or entry.current_txn_first_offset >= 0:
                    entry.check(header)
            if header.attributes & TRANSACTIONAL_FLAG:
                self._check_transaction(header, entry, verification)
            if len(headers) > 1:
                entry = ProducerEntry(header.producer_id) if entry is None else entry.copy()
                entry.append(header, NO_OFFSET, entry.last_seen_ms)
                tried[header.producer_id] = entry
        return None

    def _check_own(self, header: BatchHeader, entry: ProducerEntry | None, verification: Verification | None) -> None:
        """A batch of a coordinator on behalf of a producer has no sequence; the epoch and the transaction count."""
        if entry is not None and header.producer_epoch < entry.producer_epoch:
            raise RaykaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch {header.producer_epoch} of producer {header.producer_id} is older than the last seen epoch"
                f" {entry.producer_epoch}",
            )
        if verification is not None:
            self._check_transaction(header, entry, verification)

    def _check_transaction(
        self, header: BatchHeader, entry: ProducerEntry | None, verification: Verification | None
    ) -> None:
        """Whether the transaction is open here, or may begin with this batch (KIP-890)."""
        if entry is not None and entry.current_txn_first_offset >= 0:
            return
        if verification is None or self.verifications.get(header.producer_id) is not verification:
            raise RaykaError(
                ErrorCode.INVALID_TXN_STATE,
                f"A batch of producer {header.producer_id} is not part of an ongoing transaction",
            )
        if entry is None or not entry.batches:
            verification.check_sequence(header)

    def check_marker(self, header: BatchHeader, coordinator_epoch: int, transaction_version: int = 0) -> None:
        """Whether a marker may be appended: neither its producer nor its coordinator was replaced.

        With transaction version 2 a marker has a new epoch. One that has the present epoch while a transaction is open
        is an old one that was delayed; without an open transaction it is a repeat, which does no harm (KIP-1228).
        Raises INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED.
        """
        entry = self.entries.get(header.producer_id)
        if entry is None:
            return
        is_old = transaction_version >= 2 and entry.current_txn_first_offset >= 0
        if header.producer_epoch < entry.producer_epoch + is_old:
            raise RaykaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"The marker for producer {header.producer_id} is of epoch {header.producer_epoch},"
                f" the last seen epoch is {entry.producer_epoch}",
            )
        if coordinator_epoch < entry.coordinator_epoch:
            raise RaykaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Coordinator epoch {coordinator_epoch} of producer {header.producer_id} is older than"
                f" {entry.coordinator_epoch}",
            )

    def append(
        self,
        header: BatchHeader,
        base_offset: int,
        records: Buffer,
        position: int,
        seen_ms: int,
        transaction_version: int = 0,
    ) -> AbortedTxn | None:
        """Remember a batch that was appended at `seen_ms`; the transaction that it aborts, if it does.

        `transaction_version` is that of a marker.
        """
        producer_id = header.producer_id
        if producer_id < 0:
            return None
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id, header.producer_epoch)
        if header.attributes & CONTROL_FLAG:
            aborted = self._end_transaction(entry, header, base_offset, records, position, seen_ms)
            self._end_verifications_before(header, transaction_version)
            return aborted
        entry.append(header, base_offset + header.last_offset_delta, seen_ms)
        if header.attributes & TRANSACTIONAL_FLAG and entry.current_txn_first_offset < 0:
            self.verifications.pop(producer_id, None)
            entry.current_txn_first_offset = base_offset
            self.ongoing[base_offset] = producer_id
        return None

    def _end_transaction(
        self, entry: ProducerEntry, header: BatchHeader, offset: int, records: Buffer, position: int, seen_ms: int
    ) -> AbortedTxn | None:
        control_type = read_control_type(records, position, header)
        if control_type not in (ControlType.ABORT, ControlType.COMMIT):
            return None
        entry.move_to_epoch(header.producer_epoch)
        entry.coordinator_epoch = read_coordinator_epoch(records, position, header)
        entry.last_seen_ms = seen_ms
        first_offset, entry.current_txn_first_offset = entry.current_txn_first_offset, NO_OFFSET
        if first_offset < 0:
            return None
        self.ongoing.pop(first_offset, None)
        self.unreplicated[first_offset] = offset
        if control_type is ControlType.COMMIT:
            return None
        return AbortedTxn(header.producer_id, first_offset, offset, next(iter(self.ongoing), offset + 1))

    def _end_verifications_before(self, marker: BatchHeader, transaction_version: int) -> None:
        """With transaction version 2 a marker has the epoch of the next transaction, which may be asked about.

        Batches of the one that has ended have a lower epoch and are refused for that.
        """
        verification = self.verifications.get(marker.producer_id)
        if verification is None:
            return
        if transaction_version < 2 or verification.producer_epoch < marker.producer_epoch:
            del self.verifications[marker.producer_id]

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that is open or whose marker is not yet replicated."""
        first_ongoing = next(iter(self.ongoing)) if self.ongoing else None
        if not self.unreplicated:
            return first_ongoing
        first_ended = min(self.unreplicated)
        return first_ended if first_ongoing is None else min(first_ongoing, first_ended)

    def high_watermark_at(self, offset: int) -> None:
        """Forget ended transactions whose markers are below the high watermark."""
        if self.unreplicated:
            self.unreplicated = {first: last for first, last in self.unreplicated.items() if last >= offset}

    def remove_expired(self, now_ms: int) -> None:
        """Forget producers without an open transaction of which nothing came for `producer.id.expiration.ms`."""
        limit = now_ms - self._expiration_ms
        self.entries = {
            producer_id: entry
            for producer_id, entry in self.entries.items()
            if entry.current_txn_first_offset >= 0 or entry.last_seen_ms > limit
        }
        self.verifications = {
            producer_id: verification
            for producer_id, verification in self.verifications.items()
            if verification.last_seen_ms > limit
        }

    def validate_state(self, log_end_offset: int) -> None:
        """Open transactions and their producers name each other; nothing lies beyond the log. Raises AssertionError."""
        for first_offset, producer_id in self.ongoing.items():
            assert self.entries[producer_id].current_txn_first_offset == first_offset, (producer_id, first_offset)
        for entry in self.entries.values():
            assert entry.current_txn_first_offset < 0 or entry.current_txn_first_offset in self.ongoing, (
                entry.producer_id
            )
            assert entry.last_offset < log_end_offset, (entry.producer_id, entry.last_offset, log_end_offset)
        assert self.snapshots == sorted(set(self.snapshots)), self.snapshots

    # -- snapshots ------------------------------------------------------------------------------

    def snapshot_path(self, offset: int) -> str:
        """The file of the snapshot at `offset`."""
        return os.path.join(self._directory, file_name(offset, SNAPSHOT_SUFFIX))

    def take_snapshot(self, offset: int) -> None:
        """Take the state after the batches below `offset`, unless it is there; `write_snapshots` writes it."""
        if offset not in self.snapshots:
            self._change(offset, [entry.copy() for entry in self.entries.values()])
            insort(self.snapshots, offset)

    def _change(self, offset: int, entries: list[ProducerEntry] | None) -> None:
        with self._change_lock:
            self._unwritten[offset] = entries

    @property
    def has_unwritten_snapshots(self) -> bool:
        """Whether `write_snapshots` has something to do."""
        return bool(self._unwritten)

    def is_unwritten(self, offset: int) -> bool:
        """Whether the snapshot at `offset` was taken and is not in its file yet."""
        return self._unwritten.get(offset) is not None

    def write_snapshots(self) -> None:
        """Put the snapshots that were taken on the device, and remove those that were released. Any thread may.

        After a crash before that, recovery begins from an earlier snapshot.
        """
        with self._write_lock:
            while changes := list(self._unwritten.items()):
                for offset, entries in changes:
                    self._write_snapshot(offset, entries)

    def _write_snapshot(self, offset: int, entries: list[ProducerEntry] | None) -> None:
        if entries is None:
            self._files.remove_if_present(self.snapshot_path(offset))
        else:
            self._files.write_file(self.snapshot_path(offset), producer_snapshot.encode(entries), sync=True)
        with self._change_lock:
            if offset in self._unwritten and self._unwritten[offset] is entries:
                del self._unwritten[offset]

    def keep_snapshots(self, offsets: Collection[int]) -> None:
        """Remove every snapshot but those at `offsets`."""
        for offset in [offset for offset in self.snapshots if offset not in offsets]:
            self.release_snapshot(offset)

    def release_snapshot(self, offset: int) -> None:
        """Remove the snapshot at `offset`, if there is one, with the next `write_snapshots`."""
        if offset in self.snapshots:
            self._change(offset, None)
            self.snapshots.remove(offset)

    def forget_snapshots(self, offsets: Iterable[int]) -> tuple[str, ...]:
        """Leave the files of these snapshots to be deleted by the caller; their paths."""
        forgotten = set(offsets).intersection(self.snapshots)
        self.snapshots = [offset for offset in self.snapshots if offset not in forgotten]
        with self._change_lock:
            for offset in forgotten:
                self._unwritten.pop(offset, None)
        return tuple(map(self.snapshot_path, sorted(forgotten)))

    def load_snapshot(self, limit: int, now_ms: int) -> int | None:
        """Begin again from the last readable snapshot at or below `limit`; its offset, None if there is none.

        Snapshots that can't be read are removed.
        """
        self.write_snapshots()
        self.entries, self.ongoing, self.unreplicated = {}, {}, {}
        for offset in reversed([offset for offset in self.snapshots if offset <= limit]):
            try:
                entries = producer_snapshot.decode(self._files.read_file(self.snapshot_path(offset)))
            except (RaykaError, FileNotFoundError):
                self.release_snapshot(offset)
                continue
            self._restore(entries, now_ms)
            return offset
        return None

    def _restore(self, entries: Sequence[ProducerEntry], now_ms: int) -> None:
        self.entries = {entry.producer_id: entry for entry in entries}
        self.remove_expired(now_ms)
        opened = (entry for entry in self.entries.values() if entry.current_txn_first_offset >= 0)
        self.ongoing = {
            entry.current_txn_first_offset: entry.producer_id
            for entry in sorted(opened, key=lambda entry: entry.current_txn_first_offset)
        }
