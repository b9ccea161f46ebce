"""A queue for Ray programs with the interface of `ray.util.queue`, whose items are records of a topic.

`Empty` and `Full` are Ray's own classes. Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayka.lazy import lazy_names

if TYPE_CHECKING:
    from ray.util.queue import Empty, Full

    from rayka.queue.queue import Queue

__all__ = ["Empty", "Full", "Queue"]

__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, "rayka.queue.queue"))
