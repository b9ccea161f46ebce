"""`boot-id`, a file of rayka's own: whether the machine has rebooted since a log directory was recovered.

After a stop that was not clean everything that a write took is still there as long as the kernel runs. The file is
written when recovery is done; it names the partitions that were found but not opened, which still need it. It is
written again at a clean stop, whose marker does not hold for those that were opened and not closed, or not opened since
a stop that was not clean.

After a flush that failed the kernel shows bytes as written that are not on the device, and no later flush writes them.
After an append that the device refused the file system may have given them up altogether. A note behind the id says so:
the next start then checks every log as after a reboot, and writes it once more. If the disk has no room for the note,
or the process no file descriptor, the file gets another name, which says the same. A file system that takes no change
at all, such as one that the kernel has made read-only, loses the note: whoever repairs it without a reboot deletes the
file, as the log says.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable

from rayka.storage.files import RealFiles
from rayka.types import TopicPartition

BOOT_ID_FILE = "boot-id"
SYSTEM_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
FLUSH_FAILED = " flush failed"
FLUSH_FAILED_SUFFIX = ".flush-failed"

logger = logging.getLogger(__name__)


class BootRecord:
    """The record of a directory as it was found, which any thread may write. Methods raise OSError."""

    def __init__(self, files: RealFiles, directory: str) -> None:
        self.is_same_boot = False
        self.is_flush_failed = False
        """Whether the kernel is the same, but a flush failed."""
        self.unrecovered: set[str] = set()
        self._files = files
        self._path = os.path.join(directory, BOOT_ID_FILE)
        self._boot_id = _read_boot_id(files)
        self._lock = threading.Lock()
        self._has_failed_now = False
        self._is_of_this_run = False
        self._read()

    def _read(self) -> None:
        is_renamed = not self._files.exists(self._path)
        try:
            found = self._files.read_file(self._path + FLUSH_FAILED_SUFFIX if is_renamed else self._path)
            line, *unrecovered = found.decode("ascii").splitlines()
        except (FileNotFoundError, ValueError):
            return
        self.unrecovered = set(unrecovered)
        boot_id = line.removesuffix(FLUSH_FAILED)
        is_same_boot = bool(boot_id) and boot_id == self._boot_id
        has_failed = is_renamed or line != boot_id
        self.is_flush_failed = is_same_boot and has_failed
        self.is_same_boot = is_same_boot and not has_failed

    def write(self, found: Iterable[TopicPartition], opened: Iterable[TopicPartition], *, was_clean: bool) -> None:
        """From now on every partition but those that were never opened is as the last writes left it."""
        if not was_clean and not self.is_same_boot:
            self.unrecovered = set(map(str, found))
        self._write_without(opened)
        self._is_of_this_run = True

    def forget(self, topic_partition: TopicPartition) -> None:
        """The partition was deleted. Until `write` the file speaks of the last run and stays as it is."""
        name = str(topic_partition)
        if name in self.unrecovered:
            self.unrecovered.discard(name)
            if self._is_of_this_run:
                self._write_without(())

    def write_at_clean_stop(self, in_doubt: Iterable[TopicPartition], closed: Iterable[TopicPartition]) -> None:
        """Those that are closed are on the device. Of those in doubt nobody knows."""
        self.unrecovered |= set(map(str, in_doubt))
        self._write_without(closed)

    def _write_without(self, recovered: Iterable[TopicPartition]) -> None:
        self.unrecovered -= set(map(str, recovered))
        with self._lock:
            is_flush_failed = self._has_failed_now or (self.is_flush_failed and bool(self.unrecovered))
            self._write(is_flush_failed=is_flush_failed, sync=True)

    def flush_failed(self) -> None:
        """Note it as far as the disk still lets us. The note counts only while the kernel runs."""
        with self._lock:
            self._has_failed_now = True
            try:
                self._write(is_flush_failed=True, sync=False)
            except OSError:
                self._rename()

    def _rename(self) -> None:
        try:
            self._files.rename(self._path, self._path + FLUSH_FAILED_SUFFIX)
        except OSError as error:
            what = "records may not be on the disk: delete this file, or reboot, before the next start"
            logger.error("%s can't note (%s) that %s", self._path, error, what)

    def _write(self, *, is_flush_failed: bool, sync: bool) -> None:
        line = self._boot_id + FLUSH_FAILED if is_flush_failed else self._boot_id
        text = "".join(f"{line}\n" for line in (line, *sorted(self.unrecovered)))
        self._files.write_file(self._path, text.encode("ascii"), sync=sync)
        self._files.remove_if_present(self._path + FLUSH_FAILED_SUFFIX)


def _read_boot_id(files: RealFiles) -> str:
    """The id of this run of the kernel; empty where the system has none."""
    try:
        return files.read_file(SYSTEM_BOOT_ID_FILE).decode("ascii").strip()
    except OSError:
        return ""
