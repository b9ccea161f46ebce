"""Snapshots of the metadata image: `<version>-0000000000.checkpoint`, one Kafka record batch with the whole image.

The batch's CRC covers the records, its base offset repeats the version in the name. Two are kept, so that one damaged
snapshot costs nothing but time: the log reaches back to the older one.
"""

from __future__ import annotations

import contextlib
import logging
import os

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import ensure_intact, read_header
from rayka.storage.format.records import Record, build_batch, read_batch

logger = logging.getLogger(__name__)

KEPT_SNAPSHOTS = 2
_SUFFIX = "-0000000000.checkpoint"
_DAMAGED_SUFFIX = ".damaged"
_TEMPORARY_SUFFIX = ".tmp"


class Snapshots:
    """The snapshots in the directory of the metadata log. Methods raise OSError."""

    def __init__(self, files: RealFiles, directory: str) -> None:
        self._files = files
        self._directory = directory
        names = files.list(directory) if files.exists(directory) else []
        self._versions = sorted(_version(name) for name in names if _is_snapshot(name))
        self.newest_version = self._versions[-1] if self._versions else 0

    def newest(self) -> tuple[int, bytes] | None:
        """The version and the records of the newest intact snapshot. Damaged ones are renamed, and reported."""
        while self._versions:
            version = self._versions[-1]
            try:
                return version, self._read(version)
            except RaykaError as error:
                path = self._path(version)
                logger.error("metadata snapshot %s is damaged (%s); using the one before it", path, error)
                self._files.rename(path, path + _DAMAGED_SUFFIX)
                self._versions.pop()
        return None

    def write(self, version: int, records: bytes, now_ms: int) -> int | None:
        """Write a snapshot and remove those that are not kept; the version of the older kept one, if there are two.

        One that can't be removed stays until the next snapshot is written.
        """
        batch = build_batch([Record(version, now_ms, None, records)], base_offset=version)
        path = self._path(version)
        try:
            self._files.write_file(path, batch, sync=True)
        except OSError:
            with contextlib.suppress(OSError):
                self._files.remove(path + _TEMPORARY_SUFFIX)
            raise
        self._versions.append(version)
        for older in self._versions[:-KEPT_SNAPSHOTS]:
            self._remove(older)
        return self._versions[-KEPT_SNAPSHOTS] if len(self._versions) >= KEPT_SNAPSHOTS else None

    def _remove(self, version: int) -> None:
        path = self._path(version)
        try:
            self._files.remove(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning("the old metadata snapshot %s stays for now: %s", path, error)
            return
        self._versions.remove(version)

    def _read(self, version: int) -> bytes:
        data = self._files.read_file(self._path(version))
        header = read_header(data)
        ensure_intact(data, 0, header)
        (record,) = read_batch(data, 0, header)
        if record.offset != version:
            raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"it says version {record.offset}")
        return record.value or b""

    def _path(self, version: int) -> str:
        return os.path.join(self._directory, f"{version:020d}{_SUFFIX}")


def _is_snapshot(name: str) -> bool:
    return name.endswith(_SUFFIX) and name.removesuffix(_SUFFIX).isdecimal()


def _version(name: str) -> int:
    return int(name.removesuffix(_SUFFIX))
