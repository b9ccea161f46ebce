"""A disk that the test fills up, and on which it closes the supply of file descriptors."""

from __future__ import annotations

import errno
from typing import Any

from rayka.storage.files import RealFiles


class FullDisk(RealFiles):
    """While `is_full`, every write fails with ENOSPC; while `lacks_descriptors`, syncing a path fails with EMFILE."""

    def __init__(self) -> None:
        self.is_full = False
        self.lacks_descriptors = False

    def write_fully(self, descriptor: int, data: Any, position: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write_fully(descriptor, data, position)

    def sync_path(self, path: str) -> None:
        if self.lacks_descriptors:
            raise OSError(errno.EMFILE, "Too many open files", path)
        super().sync_path(path)
