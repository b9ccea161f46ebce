"""The frames of one batch that sinks write: the function of a stream may give a sink several of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rayka.errors import ErrorCode, RaykaError


class Frames:
    """How many frames of a batch are written, for each topic, directory or table that they go to."""

    def __init__(self) -> None:
        self._written: Counter[str] = Counter()
        self._begun: set[str] = set()
        self._ids: dict[str, str] = {}
        self._threads: dict[str, threading.Thread] = {}  # not their ids, which later threads may have too

    @contextmanager
    def attempt(self, place: str) -> Iterator[None]:
        """Make a frame and write it, by `next` once it is known where to.

        Raises INVALID_REQUEST in another thread than that of the first frame, and behind a frame that has failed: what
        comes next may be any frame, also one that is written.
        """
        thread = threading.current_thread()
        if self._threads.setdefault(place, thread) is not thread:
            raise _refused(f"Two threads write frames of one batch to {place}: call the sinks one after the other")
        if place in self._begun:
            raise _refused(f"A frame of this batch for {place} has failed: let the batch fail, so that it comes again")
        self._begun.add(place)
        yield
        self._begun.remove(place)

    @contextmanager
    def next(self, place: str) -> Iterator[int]:
        """Write a frame; its number, from 0, tells it from the others when the batch comes again.

        So their order must be the same then. Raises as `attempt` does.
        """
        with self.attempt(place):
            yield self._written[place]
            self._written[place] += 1

    def require_same(self, place: str, place_id: str) -> None:
        """Raises INVALID_REQUEST if a place was made again since it got an earlier frame, which it has not any more."""
        if self._ids.setdefault(place, place_id) != place_id:
            raise _refused(f"{place} was made again during the batch: let the batch fail, so that it comes again")

    @contextmanager
    def only(self, place: str) -> Iterator[None]:
        """Write the only frame. Raises INVALID_REQUEST for a second one, which would be mistaken for the first."""
        if self._written[place]:
            raise _refused(
                f"A frame of this batch is in {place}, and there can be one: unite them, or use another place"
            )
        self._written[place] += 1
        try:
            yield
        except BaseException:
            self._written[place] -= 1
            raise


def _refused(message: str) -> RaykaError:
    return RaykaError(ErrorCode.INVALID_REQUEST, message)
