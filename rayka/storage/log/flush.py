"""Putting a log on the device. One job covers every append before it began (group commit)."""

from __future__ import annotations

from collections.abc import Sequence

from rayka.storage.files import RealFiles


class FlushJob:
    """Syncs files through descriptors of its own, so the log may roll, truncate or close meanwhile.

    `run` may be called in a thread, once, and never raises: `error` is for `Log.finish_flush`.
    `offset` is the first offset that the job does not cover.
    """

    def __init__(self, files: RealFiles, descriptors: Sequence[int], offset: int, truncations: int) -> None:
        self.offset = offset
        self.truncations = truncations
        self.error: OSError | None = None
        self._files = files
        self._descriptors = descriptors

    def run(self) -> None:
        """Wait until the files are on the device. After an error nothing is known of what is."""
        try:
            for descriptor in self._descriptors:
                self._files.sync(descriptor)
        except OSError as error:
            self.error = error
        finally:
            for descriptor in self._descriptors:
                self._files.close(descriptor)
            self._descriptors = ()
