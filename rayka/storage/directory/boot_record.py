"""`boot-id`, a file of rayka's own: whether the machine has rebooted since a log directory was recovered.

After a stop that was not clean everything that a write took is still there as long as the kernel runs. The file is
written when recovery is done; it names the partitions that were found but not opened, which still need it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from rayka.storage.files import RealFiles
from rayka.types import TopicPartition

BOOT_ID_FILE = "boot-id"
SYSTEM_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


class BootRecord:
    """The record of a directory as it was found. Methods raise OSError."""

    def __init__(self, files: RealFiles, directory: str) -> None:
        self.is_same_boot = False
        self.unrecovered: set[str] = set()
        self._files = files
        self._path = os.path.join(directory, BOOT_ID_FILE)
        self._boot_id = _read_boot_id(files)
        self._read()

    def _read(self) -> None:
        try:
            boot_id, *unrecovered = self._files.read_file(self._path).decode("ascii").splitlines()
        except (FileNotFoundError, ValueError):
            return
        self.unrecovered = set(unrecovered)
        self.is_same_boot = bool(boot_id) and boot_id == self._boot_id

    def write(self, found: Iterable[TopicPartition], opened: Iterable[TopicPartition], *, was_clean: bool) -> None:
        """From now on every partition but those that were never opened is as the last writes left it."""
        if not was_clean and not self.is_same_boot:
            self.unrecovered = set(map(str, found))
        self.unrecovered -= set(map(str, opened))
        text = "".join(f"{line}\n" for line in (self._boot_id, *sorted(self.unrecovered)))
        self._files.write_file(self._path, text.encode("ascii"), sync=True)


def _read_boot_id(files: RealFiles) -> str:
    """The id of this run of the kernel; empty where the system has none."""
    try:
        return files.read_file(SYSTEM_BOOT_ID_FILE).decode("ascii").strip()
    except OSError:
        return ""
