"""A file layer whose machine loses power at a given call."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.support.faulty_files import CrashingFiles


class PowerLost(BaseException):
    """The machine is off."""


class PowerCut(CrashingFiles):
    """Power fails before the call number `cut_at` (from 1 on) that changes something; `calls` counts those.

    `crash` then loses what was not synced: contents as `CrashingFiles` has it, and for each directory that was not
    synced since, the last of its new, renamed and removed names. A file whose renaming is lost has its old name.
    """

    def __init__(self, cut_at: int = 0) -> None:
        super().__init__()
        self.calls = 0
        self.cut_at = cut_at
        self._names: dict[str, list[Callable[[], object]]] = {}

    def write(self, descriptor, buffer, position):
        self._step()
        return super().write(descriptor, buffer, position)

    def truncate(self, descriptor, size):
        self._step()
        super().truncate(descriptor, size)

    def sync(self, descriptor):
        self._step()
        super().sync(descriptor)
        self._names.pop(self._path(descriptor), None)

    def open(self, path, *, create=False, read_only=False):
        if create and not os.path.exists(path):
            self._step()
            self._changed(path, lambda: Path(path).unlink(missing_ok=True))
        return super().open(path, create=create, read_only=read_only)

    def make_directory(self, path):
        if not os.path.exists(path):
            if not os.path.exists(os.path.dirname(path)):
                self.make_directory(os.path.dirname(path))
            self._step()
            self._changed(path, lambda: shutil.rmtree(path, ignore_errors=True))
        super().make_directory(path)

    def rename(self, source, target):
        self._step()
        put_back = _restore(target) if os.path.exists(target) else None
        super().rename(source, target)
        self._new_names = [name for name in self._new_names if name != target]

        def undo() -> None:
            if os.path.exists(target):
                os.replace(target, source)
            if put_back is not None:
                put_back()

        self._changed(target, undo)

    def remove(self, path):
        self._step()
        self._changed(path, _restore(path))
        super().remove(path)

    def crash(self, chance: random.Random) -> None:
        super().crash(chance)
        for undo in self._names.values():
            for _ in range(chance.randint(0, len(undo))):
                undo.pop()()
        self._names.clear()

    def _step(self) -> None:
        self.calls += 1
        if self.calls == self.cut_at:
            raise PowerLost

    def _changed(self, path: str, undo: Callable[[], object]) -> None:
        self._names.setdefault(os.path.dirname(path), []).append(undo)


def _restore(path: str) -> Callable[[], object]:
    """Puts back what has this name now."""
    old = Path(path).read_bytes() if os.path.exists(path) else None
    return lambda: Path(path).unlink(missing_ok=True) if old is None else Path(path).write_bytes(old)
