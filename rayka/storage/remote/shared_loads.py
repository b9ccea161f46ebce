"""Lets threads that need the same object wait for the one thread that fetches it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

V = TypeVar("V")

_LONGEST_LOAD_S = 300.0


class SharedLoads(Generic[V]):
    """Work that is in progress, by what it fetches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[Hashable, Future[V]] = {}

    def load(self, key: Hashable, fetch: Callable[[], V]) -> V:
        """What `fetch` returns, or what it returns in another thread that has begun before. Raises what it raises."""
        with self._lock:
            loading = self._under_way.get(key)
            is_mine = loading is None
            loading = self._under_way.setdefault(key, Future())
        if is_mine:
            try:
                loading.set_result(fetch())
            except BaseException as error:
                loading.set_exception(error)
            finally:
                with self._lock:
                    del self._under_way[key]
        return loading.result(_LONGEST_LOAD_S)
