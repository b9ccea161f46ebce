"""The work of a flush: it waits for the device, in a thread or not, while appends continue."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rayka.storage.files import RealFiles
from rayka.storage.segments.segment import Segment
from rayka.storage.segments.spare import SpareFile


class FlushedRange(NamedTuple):
    """A segment that a flush puts on the device up to `offset`; with its indexes if it gets no more appends."""

    segment: Segment
    offset: int
    with_indexes: bool


class FlushJob:
    """Flushes everything that was appended before the job was made (group commit).

    `run` may be called in a thread, once, and never raises: `error` is for `Log.finish_flush`, and `on_error` is called
    with it at once. The log may roll, truncate, delete segments or close meanwhile: a file that is gone needs no flush.
    What a roll leaves to be written of the indexes is written first, while `is_syncing` is False.
    """

    def __init__(
        self,
        files: RealFiles,
        ranges: Sequence[FlushedRange] = (),
        directories: Sequence[str] = (),
        descriptor: int | None = None,
        truncations: int = 0,
        spare: SpareFile | None = None,
    ) -> None:
        self.ranges = ranges
        self.directories = directories
        self.truncations = truncations
        self.error: OSError | None = None
        self.is_syncing = False
        self.on_error: Callable[[FlushJob, OSError], object] = lambda job, error: None
        self._files = files
        self._descriptor = descriptor
        self._spare = spare

    def run(self) -> None:
        """Wait until the files are on the device. After an error nothing is known of what is."""
        try:
            self._write_indexes()
            self.is_syncing = True
            self._sync()
            self._make_spare()
        except OSError as error:
            self.error = error
        finally:
            self._close()
        if self.error is not None:
            self.on_error(self, self.error)

    def give_up(self) -> None:
        """Give the descriptor back, if `run` has not: this job will not run. An error is that of a flush, as there."""
        if self._descriptor is None:
            return
        self.is_syncing = True
        self._close()
        if self.error is not None:
            self.on_error(self, self.error)

    def _make_spare(self) -> None:
        """After a roll, get ready for the next one."""
        if self._spare is not None and any(with_indexes for _, _, with_indexes in self.ranges):
            self._spare.make()

    def _close(self) -> None:
        """A close that fails says that bytes of before were not written, so the flush has failed too."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            self._files.close(descriptor)
        except OSError as error:
            self.error = self.error or error

    def _write_indexes(self) -> None:
        for segment, _, with_indexes in self.ranges:
            with contextlib.suppress(FileNotFoundError):
                segment.write_indexes() if with_indexes else segment.create_indexes()

    def _sync(self) -> None:
        for segment, _, with_indexes in self.ranges:
            if with_indexes:
                self._sync_paths(segment.paths)
        if self._descriptor is not None:
            self._files.sync(self._descriptor)
        self._sync_paths(self.directories)

    def _sync_paths(self, paths: Sequence[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self._files.sync_path(path)
