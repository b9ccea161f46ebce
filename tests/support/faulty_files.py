"""File layers that fail as disks do."""

from __future__ import annotations

import errno
import os
import random
import shutil

from rayka.storage.files import RealFiles
from rayka.storage.format.batch import Buffer

_CALLS = ("open", "truncate", "sync", "rename", "remove", "make_directory", "list", "size")
_CALLS_THAT_NEED_NO_SPACE = ("duplicate", "exists", "is_directory")


class FaultyFiles(RealFiles):
    """The call number `fail_at` (from 1 on) raises `error`, and so do the `repeat - 1` calls after it.

    A write that fails with ENOSPC has taken a part of the bytes. A close that fails has closed the descriptor, as on
    Linux. `calls` counts; with ENOSPC it leaves out the calls that never fail so.
    """

    def __init__(self, fail_at: int = 0, error: int = errno.EIO, repeat: int = 1) -> None:
        self.calls = 0
        self.fail_at = fail_at
        self._error = error
        self._repeat = repeat

    def _count(self, path: object = None) -> bool:
        self.calls += 1
        return 0 < self.fail_at <= self.calls < self.fail_at + self._repeat

    def _check(self) -> None:
        if self._count():
            raise OSError(self._error, os.strerror(self._error))

    def write(self, descriptor: int, buffer: Buffer, position: int) -> int:  # type: ignore[override]
        if self._count():
            if self._error == errno.ENOSPC:
                os.pwrite(descriptor, memoryview(buffer)[: len(buffer) // 2], position)
            raise OSError(self._error, os.strerror(self._error))
        return os.pwrite(descriptor, buffer, position)

    def read(self, descriptor: int, size: int, position: int) -> bytes:  # type: ignore[override]
        self._check()
        return os.pread(descriptor, size, position)

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        if self._error != errno.ENOSPC:
            self._check()


def _failing(name: str, *, needs_space: bool) -> object:
    def call(self: FaultyFiles, *args: object, **kwargs: object) -> object:
        if needs_space or self._error != errno.ENOSPC:
            self._check()
        return getattr(RealFiles, name)(self, *args, **kwargs)

    return call


for _name in (*_CALLS, *_CALLS_THAT_NEED_NO_SPACE):
    setattr(FaultyFiles, _name, _failing(_name, needs_space=_name in _CALLS))


class BadSector(RealFiles):
    """The bytes from `position` of the files whose names end in `suffix` on can't be read.

    As on Linux a read that begins before them returns what comes before them.
    """

    def __init__(self, suffix: str, position: int) -> None:
        self._suffix = suffix
        self._position = position

    def read(self, descriptor: int, size: int, position: int) -> bytes:  # type: ignore[override]
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(self._suffix):
            if position >= self._position:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            size = min(size, self._position - position)
        return os.pread(descriptor, size, position)


class ShortWrites(RealFiles):
    """Every write takes at most `most` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most

    def write(self, descriptor: int, buffer: Buffer, position: int) -> int:  # type: ignore[override]
        return os.pwrite(descriptor, memoryview(buffer)[: self._most], position)


class CrashingFiles(RealFiles):
    """Remembers what was not synced, so that a power cut can lose or tear it.

    Contents are lost unless the file was synced. A new name is lost, with all that is below it, unless its directory
    was synced; of the others the first ones in the order of the calls stay, as in a journaling file system. Renames
    and removals of old names stay.
    """

    def __init__(self) -> None:
        self._durable: dict[str, bytes] = {}
        self._pending: dict[str, list[tuple[int, bytes] | int]] = {}
        self._new_names: list[str] = []

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        if create and not os.path.exists(path):
            self._new_names.append(path)
        return super().open(path, create=create, read_only=read_only)

    def make_directory(self, path: str) -> None:
        if not os.path.exists(path):
            if not os.path.exists(os.path.dirname(path)):
                self.make_directory(os.path.dirname(path))
            self._new_names.append(path)
        super().make_directory(path)

    def _path(self, descriptor: int) -> str:
        return os.readlink(f"/proc/self/fd/{descriptor}")

    def _note(self, descriptor: int, change: tuple[int, bytes] | int) -> None:
        path = self._path(descriptor)
        if path not in self._pending:
            self._durable.setdefault(path, b"")
            self._pending[path] = []
        self._pending[path].append(change)

    def write(self, descriptor: int, buffer: Buffer, position: int) -> int:  # type: ignore[override]
        written = os.pwrite(descriptor, buffer, position)
        self._note(descriptor, (position, bytes(memoryview(buffer)[:written])))
        return written

    def truncate(self, descriptor: int, size: int) -> None:
        super().truncate(descriptor, size)
        self._note(descriptor, size)

    def sync(self, descriptor: int) -> None:
        path = self._path(descriptor)
        if os.path.isfile(path):
            with open(path, "rb") as file:
                self._durable[path] = file.read()
            self._pending.pop(path, None)
        else:
            self._new_names = [name for name in self._new_names if os.path.dirname(name) != path]

    def rename(self, source: str, target: str) -> None:
        is_new = not os.path.exists(target)
        super().rename(source, target)
        self._new_names = [name for name in self._new_names if name != source]
        if is_new:
            self._new_names.append(target)
        for state in (self._durable, self._pending):
            if source in state:
                state[target] = state.pop(source)  # type: ignore[attr-defined]
            else:
                state.pop(target, None)  # type: ignore[attr-defined]

    def remove(self, path: str) -> None:
        super().remove(path)
        self._durable.pop(path, None)
        self._pending.pop(path, None)
        self._new_names = [name for name in self._new_names if name != path]

    def lose_all(self) -> None:
        """Cut the power: nothing stays that was not synced."""
        for path in self._pending:
            if os.path.exists(path):
                with open(path, "wb") as file:
                    file.write(self._durable.get(path, b""))
        self._pending.clear()
        self._lose_names(0)

    def _lose_names(self, kept: int) -> None:
        for name in self._new_names[kept:]:
            if os.path.isdir(name):
                shutil.rmtree(name)
            elif os.path.exists(name):
                os.unlink(name)
        self._new_names.clear()

    def crash(self, chance: random.Random) -> None:
        """Cut the power: each change that was not synced is kept, dropped or torn."""
        for path, changes in self._pending.items():
            if not os.path.exists(path):
                continue
            content = bytearray(self._durable.get(path, b""))
            for change in changes:
                _apply(content, change, chance)
            with open(path, "wb") as file:
                file.write(content)
        self._pending.clear()
        self._lose_names(chance.randint(0, len(self._new_names)))


def _apply(content: bytearray, change: tuple[int, bytes] | int, chance: random.Random) -> None:
    fate = chance.random()
    if fate < 0.3:
        return
    if isinstance(change, int):
        del content[change:]
        content.extend(bytes(change - len(content)))
        return
    position, data = change
    if fate < 0.5:
        data = data[: chance.randrange(len(data) + 1)]
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data
