"""Parts of segments in the remote store as local files, so that readers get them like parts of local segments.

A part begins and ends where batches do, and is kept only if it came whole and the CRCs of all its batches are right.
The CRC does not cover the base offset of a batch, so offsets have to rise within the part, and to lie where the indexes
have them.
The files are removed least recently used first. One that was handed out stays readable through an open descriptor; a
reader that comes too late to open it asks again. No name is used twice: while one thread removes a file, another may
fetch the same part again. All methods may be called in any thread.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from rayka.storage.files import RealFiles
from rayka.storage.remote.shared_loads import SharedLoads
from rayka.storage.remote.store import RemoteStore
from rayka.storage.segments.scan import iter_batches


class DamagedObject(OSError):
    """What the store answered are not the records that the indexes tell of: one of both is wrong."""


class CachedChunk(NamedTuple):
    """A file with the bytes of a segment from `start` up to `end`."""

    path: str
    inode: int
    start: int
    end: int


class ChunkCache:
    """`throttle` is called with the bytes about to be fetched. Files of an earlier run are deleted at the start."""

    def __init__(
        self, files: RealFiles, path: str, store: RemoteStore, max_bytes: int, throttle: Callable[[int], None]
    ) -> None:
        self.size = 0
        self._files = files
        self._path = path
        self._store = store
        self._max_bytes = max_bytes
        self._throttle = throttle
        self._lock = threading.Lock()
        self._chunks: OrderedDict[tuple[str, int], CachedChunk] = OrderedDict()
        self._loads: SharedLoads[CachedChunk] = SharedLoads()
        self._numbers = count()
        if files.exists(path):
            files.remove_directory(path)
        files.make_directory(path)

    def load(self, name: str, start: int, end: int, offsets: range) -> CachedChunk:
        """The chunk of an object, whose records have these offsets. It is fetched if it is not cached.

        Callers share one fetch. Raises OSError.
        """
        key = (name, start)
        return self._cached(key) or self._loads.load(key, lambda: self._cached(key) or self._fetch(key, end, offsets))

    def _cached(self, key: tuple[str, int]) -> CachedChunk | None:
        with self._lock:
            chunk = self._chunks.get(key)
            if chunk is not None:
                self._chunks.move_to_end(key)
            return chunk

    def _fetch(self, key: tuple[str, int], end: int, offsets: range) -> CachedChunk:
        chunk = self._write(key, end, offsets)
        with self._lock:
            self._chunks[key] = chunk
            self.size += chunk.end - chunk.start
            removed = self._surplus()
        for oldest in removed:
            self._files.remove_if_present(oldest.path)
        return chunk

    def _surplus(self) -> list[CachedChunk]:
        removed = []
        while self.size > self._max_bytes and len(self._chunks) > 1:
            _, oldest = self._chunks.popitem(last=False)
            self.size -= oldest.end - oldest.start
            removed.append(oldest)
        return removed

    def _write(self, key: tuple[str, int], end: int, offsets: range) -> CachedChunk:
        name, start = key
        self._throttle(end - start)
        data = self._store.get(name, start, end - start)
        if len(data) != end - start:
            raise DamagedObject(f"{name} has fewer than {end} bytes in the remote store")
        if not _is_intact(data, offsets):
            raise DamagedObject(f"{name} is damaged in the remote store, between {start} and {end}")
        path = os.path.join(self._path, f"{name.replace('/', '_')[-200:]}.{start:020d}.{next(self._numbers)}")
        try:
            self._files.write_at(path, data, 0)
            return CachedChunk(path, self._files.status(path).inode, start, end)
        except OSError:
            self._files.remove_if_present(path)
            raise


def _is_intact(data: bytes, offsets: range) -> bool:
    """Whether these are whole batches with the right CRCs, whose offsets rise within `offsets`."""
    end, next_offset = 0, offsets.start
    for batch in iter_batches(lambda size, position: data[position : position + size], 0, len(data), len(data)):
        if not batch.is_intact() or batch.header.base_offset < next_offset:
            return False
        end, next_offset = batch.end, batch.header.next_offset
    return end == len(data) and next_offset <= offsets.stop
