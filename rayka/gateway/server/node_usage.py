"""What the gateways of one node use together, so that limits hold for the node and not for each process.

Theory of operation. Every process publishes its counts in a small file of its own and maps the files of the others
into memory: each file has one writer, and reading takes no lock. The file is locked for as long as its process lives;
a file that is not locked belongs to a process that has died, and the next process to find it removes it. A process
counts itself first and compares afterwards, so two that do so at the same moment may both be refused, but never
both exceed a limit.

Connections per address are counted in a count-min sketch: of fixed size, exact but for collisions in all of its rows
(below one in 100,000 with 1,000 addresses).
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import struct
import uuid
from collections.abc import Sequence
from typing import Final

from rayka.gateway.server.private_directory import make_private_directory

_COUNTS: Final = 4
_ROWS: Final = 4
_COLUMNS: Final = 1 << 14
_SKETCH_OFFSET: Final = _COUNTS * 8
_FILE_BYTES: Final = _SKETCH_OFFSET + _ROWS * _COLUMNS * 4
_ROW_HASHES: Final = struct.Struct(f"<{_ROWS}H")


class _Counters:
    """The counts of one process: memory that is mapped from its file, or anonymous."""

    def __init__(self, descriptor: int = -1) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _FILE_BYTES)
        view = memoryview(self._memory)
        self.counts = view[:_SKETCH_OFFSET].cast("q")
        self.sketch = view[_SKETCH_OFFSET:].cast("I")

    @property
    def is_orphaned(self) -> bool:
        """Whether the process that wrote them is gone. Takes the lock for a moment if so."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        return True

    def close(self) -> None:
        """Unlock the file. The memory is unmapped with the last reference."""
        if self.descriptor >= 0:
            os.close(self.descriptor)


class SharedCount:
    """One count: `own` is this process's part, `others` that of the node's other processes."""

    def __init__(self, usage: NodeUsage, index: int) -> None:
        self._usage = usage
        self._index = index

    @property
    def own(self) -> int:
        """This process's part."""
        return self._usage.own.counts[self._index]

    @own.setter
    def own(self, value: int) -> None:
        self._usage.own.counts[self._index] = value

    @property
    def others(self) -> int:
        """The sum over the other processes."""
        peers = self._usage.peers
        return sum(peer.counts[self._index] for peer in peers.values()) if peers else 0


class NodeUsage:
    """The counts of this process and its peers in `directory`; without a directory there are no peers."""

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory
        self._changed_ns = 0
        self._name = ""
        self.peers: dict[str, _Counters] = {}
        self.own = _Counters() if directory is None else self._publish(directory)
        self.connections = SharedCount(self, 0)
        self.bytes = SharedCount(self, 1)
        self.fetch_sessions = SharedCount(self, 2)

    @property
    def processes(self) -> int:
        """How many processes share the limits."""
        return len(self.peers) + 1

    def _publish(self, directory: str) -> _Counters:
        """Make a file of zeros, and lock it before others can see it."""
        make_private_directory(os.path.dirname(directory))
        make_private_directory(directory)
        self._name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        hidden = os.path.join(directory, f".{self._name}")
        descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.ftruncate(descriptor, _FILE_BYTES)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.rename(hidden, os.path.join(directory, self._name))
        return _Counters(descriptor)

    def refresh(self) -> None:
        """Notice processes that have come and gone."""
        if self._directory is None:
            return
        self._changed_ns = os.stat(self._directory).st_mtime_ns
        names = {name for name in os.listdir(self._directory) if not name.startswith(".")} - {self._name}
        for name in self.peers.keys() - names:
            self.peers.pop(name).close()
        for name in names - self.peers.keys():
            self._open_peer(name)
        for name in [name for name, peer in self.peers.items() if peer.is_orphaned]:
            self.peers.pop(name).close()
            self._remove(name)

    def _open_peer(self, name: str) -> None:
        assert self._directory is not None
        try:
            descriptor = os.open(os.path.join(self._directory, name), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        self.peers[name] = _Counters(descriptor)

    def _remove(self, name: str) -> None:
        assert self._directory is not None
        try:
            os.unlink(os.path.join(self._directory, name))
        except FileNotFoundError:
            return

    def close(self) -> None:
        """Withdraw this process's counts."""
        for peer in self.peers.values():
            peer.close()
        self.peers.clear()
        if self._directory is not None:
            self._remove(self._name)
        self.own.close()

    def connected(self, host: str, change: int) -> None:
        """Count a connection from an address that begins (1) or ends (-1)."""
        if self._directory is not None and os.stat(self._directory).st_mtime_ns != self._changed_ns:
            self.refresh()
        self.connections.own += change
        for column in _columns(host):
            self.own.sketch[column] += change

    def connections_from(self, host: str) -> int:
        """The connections of the node from one address."""
        processes = [self.own, *self.peers.values()]
        return min(sum(process.sketch[column] for process in processes) for column in _columns(host))


def _columns(host: str) -> Sequence[int]:
    """The places of an address in the sketch, one in each row."""
    hashes = _ROW_HASHES.unpack(hashlib.blake2b(host.encode(), digest_size=_ROW_HASHES.size).digest())
    return [row * _COLUMNS + one % _COLUMNS for row, one in enumerate(hashes)]
