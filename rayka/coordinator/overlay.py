"""A mapping with changes on top of another mapping, which stays unchanged."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, ValuesView
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_GONE: Any = object()


class Overlay(MutableMapping[K, V]):
    """Reads from `base` what was not changed. Making one costs the same however large the base is.

    `merge` puts the changes into the base, at a cost that depends on their number alone.
    """

    __slots__ = ("_base", "_changes", "_size")

    def __init__(self, base: MutableMapping[K, V]) -> None:
        self._base = base
        self._changes: dict[K, V] = {}
        self._size = len(base)

    def __getitem__(self, key: K) -> V:
        value = self._changes[key] if key in self._changes else self._base[key]
        if value is _GONE:
            raise KeyError(key)
        return value

    def get(self, key: K, default: Any = None) -> Any:
        """The value of `key`, or `default`."""
        value = self._changes[key] if key in self._changes else self._base.get(key, default)
        return default if value is _GONE else value

    def __setitem__(self, key: K, value: V) -> None:
        self._size += key not in self
        self._changes[key] = value

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self._size -= 1
        self._changes[key] = _GONE

    def pop(self, key: K, default: Any = _GONE) -> Any:
        """Remove `key` and return its value; `default`, if there is one, where it is not there."""
        value = self.get(key, _GONE)
        if value is not _GONE:
            self._size -= 1
            self._changes[key] = _GONE
        elif default is _GONE:
            raise KeyError(key)
        return default if value is _GONE else value

    def __contains__(self, key: object) -> bool:
        if key in self._changes:
            return self._changes[key] is not _GONE
        return key in self._base

    def __iter__(self) -> Iterator[K]:
        yield from (key for key in self._base if self._changes.get(key) is not _GONE)
        yield from (key for key, value in self._changes.items() if value is not _GONE and key not in self._base)

    def values(self) -> ValuesView[V]:
        """The values as they are now; later changes need not show."""
        if not self._changes:
            return self._base.values()
        merged = {**self._base, **self._changes}
        if len(merged) == self._size:
            return merged.values()
        return {key: value for key, value in merged.items() if value is not _GONE}.values()

    def __len__(self) -> int:
        return self._size

    def merge(self) -> MutableMapping[K, V]:
        """Put the changes into the base, and return it. The overlay is of no use any more."""
        for key, value in self._changes.items():
            if value is not _GONE:
                self._base[key] = value
            else:
                self._base.pop(key, None)
        return self._base
