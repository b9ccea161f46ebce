"""A file layer whose flush fails once, after which the system takes what it could not write for written.

It goes on showing those bytes, as long as it has them in memory, and no later flush writes them
(https://lwn.net/Articles/752063/).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from rayka.storage.files import RealFiles
from rayka.storage.format.batch import Buffer


class ForgetfulSystem(RealFiles):
    """The next flush of a `.log` fails if `fails`. `cut_power` leaves of each `.log` what is on the device.

    With `evicts` the memory is short: what was not written is gone when it was read once to its end.
    """

    def __init__(self) -> None:
        self.fails = self.evicts = False
        self._forgotten: set[str] = set()
        self._on_device: dict[str, bytearray] = {}
        self._unwritten: dict[str, list[tuple[int, bytes]]] = {}

    def write(self, descriptor: int, buffer: Buffer, position: int) -> int:  # type: ignore[override]
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.endswith(".log"):
            self._unwritten.setdefault(path, []).append((position, bytes(buffer)))
        return os.pwrite(descriptor, buffer, position)

    def sync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if not path.endswith(".log"):
            return
        unwritten = self._unwritten.pop(path, [])
        if unwritten and self.fails:
            self.fails = False
            self._forgotten.add(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        content = self._on_device.setdefault(path, bytearray())
        for position, data in unwritten:
            content.extend(bytes(max(position + len(data) - len(content), 0)))
            content[position : position + len(data)] = data

    def read(self, descriptor: int, size: int, position: int) -> bytes:  # type: ignore[override]
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        data = os.pread(descriptor, size, position)
        file_size = os.fstat(descriptor).st_size
        if self.evicts and path in self._forgotten and position < file_size == position + len(data):
            self._forgotten.remove(path)
            Path(path).write_bytes(self._on_device.get(path, b"").ljust(file_size, b"\0"))
        return data

    def cut_power(self) -> None:
        for path, content in self._on_device.items():
            Path(path).write_bytes(content)
        self._on_device.clear()
        self._unwritten.clear()
