"""The files of put journals in the directories of partitions: making, finding and removing them.

Everything but `remove` and `close` runs in the thread of the disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import uuid
from typing import NamedTuple

from rayka.actors.channel.requests import OpenJournal
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.journal.large import RecordRoom
from rayka.storage.journal.layout import CAPACITY, LARGE_CAPACITY, SUFFIX
from rayka.storage.journal.reader import Journal

logger = logging.getLogger(__name__)


class FoundJournal(NamedTuple):
    """A journal that an earlier process left in the directory of a partition."""

    path: str
    journal: Journal


class JournalFiles:
    """The journals of one log directory."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory
        self._files = directory.files
        self._room = RecordRoom()

    def create(self, path: str, request: OpenJournal) -> Journal:
        """Make a journal.

        Raises KAFKA_STORAGE_ERROR, UNKNOWN_TOPIC_OR_PARTITION if the directory of its partition is gone, and
        INVALID_REQUEST if the producer has one already.
        """
        _load_code()
        self._directory.check_online()
        try:
            if self._files.exists(path):
                raise RaykaError(ErrorCode.INVALID_REQUEST, f"Producer {request.producer_id} has a put journal already")
            descriptor = self._files.open(path, create=True)
        except FileNotFoundError as error:  # the partition was removed since
            reason = f"{request.topic_partition} is not held here"
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, reason) from error
        except OSError as error:
            raise self._directory.failed(error) from error
        try:
            capacity, topic_id = LARGE_CAPACITY if request.is_large else CAPACITY, uuid.UUID(bytes=request.topic_id)
            return Journal.create(self._files, descriptor, request.producer_id, topic_id, capacity, self._room)
        except OSError as error:
            self._files.close(descriptor)
            self.remove(path)
            raise self._directory.failed(error) from error

    def find(self, directory: str) -> list[FoundJournal]:
        """The journals in the directory of a partition. Raises KAFKA_STORAGE_ERROR."""
        found: list[FoundJournal] = []
        try:
            for name in self._files.list(directory):
                if name.endswith(SUFFIX):
                    self._find(os.path.join(directory, name), found)
        except OSError as error:
            for each in found:
                self.close(each.journal)
            raise self._directory.failed(error) from error
        return found

    def _find(self, path: str, found: list[FoundJournal]) -> None:
        """Add the journal of this path. One that was closed, of which the log has everything, is removed."""
        try:
            descriptor = self._files.open(path)
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            logger.warning("%s is not a put journal: %s", path, error)
            return
        try:
            journal = Journal.open(self._files, descriptor, self._room)
        except OSError:
            self._files.close(descriptor)
            raise
        if journal is not None and not journal.was_closed:
            _load_code()
            found.append(FoundJournal(path, journal))
            return
        self._files.close(descriptor)
        if journal is None:
            logger.warning("%s is not a put journal", path)
        else:
            self.remove(path)

    def rename(self, path: str, name: str) -> None:
        """Give a journal another path. Raises OSError."""
        self._files.rename(path, name)

    def remove(self, path: str) -> None:
        """Remove the file if that is possible; a closed journal that stays is removed at the next start."""
        with contextlib.suppress(OSError):
            self._files.remove_if_present(path)

    def close(self, journal: Journal) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            self._files.close(journal.descriptor)


def _load_code() -> None:
    """In the thread of the disk: an actor without journals imports no numpy, and one with them does not wait for it."""
    from rayka.storage.journal.batches import load_compiled_code

    load_compiled_code()


def is_left(journal: Journal) -> bool:
    """Whether no program holds the journal."""
    try:
        fcntl.flock(journal.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
