"""Memory that a client shares with the leaders on its node, so that large batches need not go through a socket.

Theory of operation. A client encodes batches into a memory file (`memfd_create`), one for each process. Over the local
channel it tells a leader the number of the file's descriptor, once for each connection, and the leader maps the file
for reading. From then on an append has the 61-byte header of each batch, and says where in the file its records are.
The leader copies them into memory of its own, checks the batch there, and writes that copy to the log.

The leader trusts nothing in the file. It checks and writes its own copy, so a client that changes bytes meanwhile can't
bring a corrupt batch into the log. The header travels in the request, and its CRC covers the records. So a request that
the leader reads late, when other records lie in their place, is refused as CORRUPT_MESSAGE: memory needs no generation.
The file is sealed, so that a client can't make it shorter, which would end the leader with SIGBUS.

Where memory can't be shared (another node, another PID namespace or user, no room in the file), batches go through the
socket. The file is gone when the client and the leaders have closed it.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import fcntl
import mmap
import os
import threading
import weakref
from collections.abc import Callable

from rayka.errors import ErrorCode, RaykaError

FILE_BYTES = 40 << 20
"""Room for as many batches as the default `buffer_memory`, 32 MB, holds: one of a megabyte takes up to nine units."""
MOST_REQUEST_BYTES = 16 << 20
"""The most that one request may have in shared memory: so much the leader keeps for its copy."""
_UNIT_BYTES = 128 << 10
_SMALLEST_BYTES = 128 << 10
"""Fewer bytes than this go through the socket in as little time."""
_MOST_BYTES = 64 << 20
"""The largest file of a peer that a leader maps."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class _Block(weakref.ref["ctypes.Array[ctypes.c_char]"]):
    """Tells when nobody has the `count` units from `start` on any more. Ctrl-C may come between any two lines here."""

    __slots__ = ("count", "start")
    start: int
    count: int

    def __new__(
        cls, block: ctypes.Array[ctypes.c_char], free: Callable[[_Block], None], start: int, count: int
    ) -> _Block:
        self = super().__new__(cls, block, free)
        self.start, self.count = start, count
        return self

    def __init__(self, *_: object) -> None:
        """Does nothing: that of `weakref.ref` takes no further arguments."""


class MemoryFile:
    """The memory of one process. Any thread may use it. A part is free again when no view of it exists."""

    def __init__(self, size: int = FILE_BYTES) -> None:
        """Raises OSError."""
        self.descriptor = os.memfd_create("rayka-records", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
            self._mapping = mmap.mmap(self.descriptor, size)
        except OSError:
            os.close(self.descriptor)
            raise
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self._units = bytearray(size // _UNIT_BYTES)
        self._taken: dict[int, _Block] = {}
        self._free: collections.deque[_Block] = collections.deque()
        """Blocks that nobody has any more. Compiled code notes them, which Ctrl-C can't interrupt."""
        self._kinds: dict[int, type[ctypes.Array[ctypes.c_char]]] = {}
        self._lock = threading.Lock()

    def take(self, size: int) -> memoryview | None:
        """Memory of `size` bytes that nobody else has; None if there is not enough, or it is not worth it."""
        if size < _SMALLEST_BYTES:
            return None
        count = -(-size // _UNIT_BYTES)
        with self._lock:
            self._take_back()
            start = self._units.find(bytes(count))
            if start < 0:
                return None
            kind = self._kinds.setdefault(count, ctypes.c_char * (count * _UNIT_BYTES))
            block = kind.from_buffer(self._mapping, start * _UNIT_BYTES)
            self._taken[start] = _Block(block, self._free.append, start, count)
            self._units[start : start + count] = b"\1" * count
        return memoryview(block).cast("B")[:size]

    def _take_back(self) -> None:
        while self._free:
            block = self._free[0]
            self._units[block.start : block.start + block.count] = bytes(block.count)
            self._taken.pop(block.start, None)
            self._free.popleft()

    def position_of(self, view: memoryview) -> int | None:
        """Where in the file these bytes are; None if they are elsewhere."""
        if not view or view.readonly or not isinstance(view.obj, ctypes.Array):
            return None
        position = ctypes.addressof(ctypes.c_char.from_buffer(view)) - self._address
        return position if 0 <= position <= len(self._mapping) - len(view) else None


class PeerMemory:
    """A peer's memory file as the leader has it."""

    def __init__(self, process_id: int, descriptor: int) -> None:
        """Raises INVALID_REQUEST for what can't be opened from here, is no memory file, too large or not sealed."""
        try:
            opened = os.open(f"/proc/{process_id}/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise _refused(f"the descriptor {descriptor} of process {process_id}: {error}") from error
        try:
            size = os.fstat(opened).st_size
            if not 0 < size <= _MOST_BYTES or not fcntl.fcntl(opened, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise _refused(f"{size} bytes, or a file that is not sealed")
            self._mapping = mmap.mmap(opened, size, prot=mmap.PROT_READ)
        except OSError as error:  # only files in memory have seals
            raise _refused(str(error)) from error
        finally:
            os.close(opened)
        self._view = memoryview(self._mapping)

    def read(self, target: memoryview, position: int) -> None:
        """Copy the bytes at `position` to `target`. Raises INVALID_REQUEST if not all of them are in the file."""
        if not 0 <= position <= len(self._view) - len(target):
            raise _refused(f"{len(target)} bytes at position {position} of {len(self._view)}")
        target[:] = self._view[position : position + len(target)]

    def close(self) -> None:
        """Unmap the file. Safe to repeat."""
        self._view.release()
        self._mapping.close()


def _refused(what: str) -> RaykaError:
    return RaykaError(ErrorCode.INVALID_REQUEST, f"The peer's memory can't be read: {what}")


_own: MemoryFile | None = None
_is_impossible = False
_creating = threading.Lock()


def own_memory_file() -> MemoryFile | None:
    """That of this process, if `take_memory` has made one."""
    return _own


def take_memory(size: int) -> memoryview | None:
    """As `MemoryFile.take`, in the file of this process, which is made when it is first needed."""
    global _own, _is_impossible
    if _own is None and not _is_impossible:
        with _creating:
            if _own is None:
                try:
                    _own = MemoryFile()
                except OSError:
                    _is_impossible = True
    return None if _own is None else _own.take(size)


def _forget_in_fork() -> None:
    """What is in the file is the parent's, and a fork makes another file."""
    global _own, _creating
    if _own is not None:
        with contextlib.suppress(OSError):
            os.close(_own.descriptor)
    _own, _creating = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_in_fork)
