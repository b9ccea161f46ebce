"""A queue for Ray programs with the interface of `ray.util.queue`, whose items are records of a topic.

`Empty` and `Full` are Ray's own classes. Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.util.queue import Empty, Full

    from rayka.queue.queue import Queue

__all__ = ["Empty", "Full", "Queue"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rayka.queue import queue

    value = globals()[name] = getattr(queue, name)
    return value
