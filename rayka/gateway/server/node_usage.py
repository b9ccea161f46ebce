"""What the gateways of one node use together, so that limits hold for the node and not for each process.

Theory of operation. Every process publishes its counts in a small file of its own and maps the files of the others
into memory: each file has one writer, and reading takes no lock. The file is locked for as long as its process lives;
a file that is not locked belongs to a process that has died, and the next process to find it removes it. A process
counts itself first and compares afterwards, so two that do so at the same moment may both be refused, but never
both exceed a limit. A process that cannot publish its counts (the file system is full, the directory has gone) keeps
them in memory of its own, serves its clients within the limits that it knows of, and tries again.

Connections per address are counted in a count-min sketch: of fixed size, exact but for collisions in all of its rows
(below one in 100,000 with 1,000 addresses).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import mmap
import os
import struct
import uuid
from collections.abc import Sequence
from typing import Final

from rayka.errors import RaykaError
from rayka.gateway.server.private_directory import make_private_directory

logger = logging.getLogger("rayka.gateway")

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

    def take(self, other: _Counters) -> None:
        """Continue from the counts of `other`."""
        self._memory[:] = other._memory[:]

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

    def add(self, change: int) -> None:
        """Change this process's part."""
        self._usage.own.counts[self._index] += change

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
        self._is_failing = False
        self.peers: dict[str, _Counters] = {}
        self.own = _Counters()
        self.connections = SharedCount(self, 0)
        self.bytes = SharedCount(self, 1)
        self.fetch_sessions = SharedCount(self, 2)
        self.share_sessions = SharedCount(self, 3)
        if directory is not None:
            make_private_directory(os.path.dirname(directory))
            make_private_directory(directory)
            self.refresh()

    @property
    def processes(self) -> int:
        """How many processes share the limits."""
        return len(self.peers) + 1

    def refresh(self) -> None:
        """Notice processes that have come and gone. What fails is logged once, and the peers known are kept."""
        if self._directory is None:
            return
        try:
            if not self._name or not os.path.exists(os.path.join(self._directory, self._name)):
                self._publish(self._directory)
            self._notice_peers(self._directory)
            self._is_failing = False
        except (OSError, ValueError, RaykaError) as error:
            if not self._is_failing:
                logger.warning(
                    "limits apply to each process instead of the node, because counts cannot be shared: %s", error
                )
            self._is_failing = True

    def _publish(self, directory: str) -> None:
        """Put the counts into a file, and lock it before others can see it.

        The file has all of its blocks from the beginning: a store to a mapped page that a full file system cannot
        give a block to ends the process with SIGBUS.
        """
        make_private_directory(os.path.dirname(directory))
        make_private_directory(directory)
        name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        hidden = os.path.join(directory, f".{name}")
        descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _FILE_BYTES)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            published = _Counters(descriptor)
            published.take(self.own)
            os.rename(hidden, os.path.join(directory, name))
        except (OSError, ValueError):
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(hidden)
            raise
        self.own.close()
        self.own, self._name = published, name

    def _notice_peers(self, directory: str) -> None:
        self._changed_ns = os.stat(directory).st_mtime_ns
        names = {name for name in os.listdir(directory) if not name.startswith(".")} - {self._name}
        for name in self.peers.keys() - names:
            self.peers.pop(name).close()
        for name in names - self.peers.keys():
            self._open_peer(os.path.join(directory, name), name)
        for name in [name for name, peer in self.peers.items() if peer.is_orphaned]:
            self.peers.pop(name).close()
            self._remove(name)

    def _open_peer(self, path: str, name: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            self.peers[name] = _Counters(descriptor)
        except (OSError, ValueError):
            os.close(descriptor)
            raise

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
        if self._name:
            with contextlib.suppress(OSError):
                self._remove(self._name)
        self.own.close()

    def connected(self, host: str, change: int) -> None:
        """Count a connection from an address that begins (1) or ends (-1)."""
        if not self._is_failing and self._has_changed():
            self.refresh()
        self.connections.add(change)
        for column in _columns(host):
            self.own.sketch[column] += change

    def _has_changed(self) -> bool:
        """Whether processes have come or gone since the last refresh."""
        if self._directory is None:
            return False
        try:
            return os.stat(self._directory).st_mtime_ns != self._changed_ns
        except OSError:
            return True

    def connections_from(self, host: str) -> int:
        """The connections of the node from one address."""
        processes = [self.own, *self.peers.values()]
        return min(sum(process.sketch[column] for process in processes) for column in _columns(host))


def _columns(host: str) -> Sequence[int]:
    """The places of an address in the sketch, one in each row."""
    hashes = _ROW_HASHES.unpack(hashlib.blake2b(host.encode(), digest_size=_ROW_HASHES.size).digest())
    return [row * _COLUMNS + one % _COLUMNS for row, one in enumerate(hashes)]
