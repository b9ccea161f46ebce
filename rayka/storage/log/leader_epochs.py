"""Which leader epoch wrote which offsets: the `leader-epoch-checkpoint` of a log (KIP-101, KIP-279)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from rayka.storage.directory.checkpoints import read_lines, write_lines
from rayka.storage.files import RealFiles
from rayka.types import NO_LEADER_EPOCH, NO_OFFSET

FILE_NAME = "leader-epoch-checkpoint"


class EpochEntry(NamedTuple):
    """The first offset that was written in an epoch."""

    epoch: int
    start_offset: int


class LeaderEpochs:
    """The epochs of a log, rising, each with its start offset.

    An epoch is on the device before its first batch, so a checkpoint that can be read knows every epoch. `assign` and
    `write` may be called in any thread. Forgetting the start of the log needs no write at once: opening the log
    forgets it again.
    """

    def __init__(self, files: RealFiles, directory: str) -> None:
        self._files = files
        self._path = os.path.join(directory, FILE_NAME)
        self._lock = threading.Lock()
        self._is_write_due = False
        self.entries: list[EpochEntry] = []
        self.latest = NO_LEADER_EPOCH

    def load(self) -> bool:
        """Read the file. False when it is missing or makes no sense: then the log has to be asked."""
        lines = read_lines(self._files, self._path)
        entries = _parse(lines)
        self._set(entries or [])
        return entries is not None

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` writes from `start_offset` on. One below the latest comes too late and changes nothing."""
        with self._lock:
            if epoch < max(self.latest, 0) or (epoch == self.latest and self.entries[-1].start_offset <= start_offset):
                return
            kept = [entry for entry in self.entries if entry.epoch < epoch and entry.start_offset < start_offset]
            self._replace([*kept, EpochEntry(epoch, start_offset)])

    def prepend(self, entries: Sequence[EpochEntry]) -> None:
        """Put epochs before those that are known. One that is in both begins where it begins in `entries`."""
        starts: dict[int, int] = {}
        with self._lock:
            for epoch, start_offset in (*entries, *self.entries):
                starts.setdefault(epoch, start_offset)
            self._replace([EpochEntry(*each) for each in starts.items()])

    def write(self) -> None:
        """Bring the file up to what `truncate_from_start` left."""
        if self._is_write_due:
            with self._lock:
                self._replace(self.entries)

    def end_offset(self, epoch: int, log_end_offset: int) -> EpochEntry:
        """The largest epoch not above `epoch`, with its exclusive end offset; (-1, -1) if that is unknown."""
        if epoch == NO_LEADER_EPOCH or epoch > self.latest:
            return EpochEntry(NO_LEADER_EPOCH, NO_OFFSET)
        if epoch == self.latest:
            return EpochEntry(epoch, log_end_offset)
        higher = next((entry for entry in self.entries if entry.epoch > epoch), None)
        if higher is None:
            return EpochEntry(NO_LEADER_EPOCH, NO_OFFSET)
        floor = max((entry.epoch for entry in self.entries if entry.epoch <= epoch), default=epoch)
        return EpochEntry(floor, higher.start_offset)

    def epoch_of(self, offset: int) -> int:
        """The epoch in which `offset` was written, -1 if unknown."""
        return max((entry.epoch for entry in self.entries if entry.start_offset <= offset), default=NO_LEADER_EPOCH)

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that begin at or after `end_offset`."""
        self._keep(lambda entry: entry.start_offset < end_offset)

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that ended at or before `start_offset`, only in memory until `write`.

        The epoch that it lies in begins there now.
        """
        before = [entry for entry in self.entries if entry.start_offset <= start_offset]
        if before:
            entries = [EpochEntry(before[-1].epoch, start_offset), *self.entries[len(before) :]]
            if entries != self.entries:
                self._set(entries)
                self._is_write_due = True

    def validate_state(self, log_end_offset: int) -> None:
        """Epochs and their start offsets rise, and none begins beyond the log. Raises AssertionError."""
        entries = self.entries
        assert all(one.epoch < two.epoch and one.start_offset < two.start_offset for one, two in pairwise(entries))
        assert not entries or entries[-1].start_offset <= log_end_offset, (entries[-1], log_end_offset)

    def replace(self, entries: list[EpochEntry]) -> None:
        """Put a rebuilt list in the place of what was known."""
        if entries != self.entries or not self._files.exists(self._path):
            self._replace(entries, sync=bool(entries))

    def _keep(self, wanted: Callable[[EpochEntry], bool]) -> None:
        kept = [entry for entry in self.entries if wanted(entry)]
        if len(kept) != len(self.entries):
            self._replace(kept)

    def _replace(self, entries: list[EpochEntry], *, sync: bool = True) -> None:
        lines = (f"{entry.epoch} {entry.start_offset}" for entry in entries)
        write_lines(self._files, self._path, lines, sync=sync)
        self._set(entries)
        self._is_write_due = False

    def _set(self, entries: list[EpochEntry]) -> None:
        self.entries = entries
        self.latest = entries[-1].epoch if entries else NO_LEADER_EPOCH


def _parse(lines: list[list[str]] | None) -> list[EpochEntry] | None:
    if lines is None:
        return None
    entries = []
    for fields in lines:
        if len(fields) != 2 or not all(field.isdecimal() for field in fields):
            return None
        entries.append(EpochEntry(int(fields[0]), int(fields[1])))
    rising = all(one.epoch < two.epoch and one.start_offset < two.start_offset for one, two in pairwise(entries))
    return entries if rising else None
