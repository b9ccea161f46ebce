"""Who holds items of a queue in a program: an asyncio task, or a thread where none runs.

A thread is not known by its number, which the next thread may get.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Hashable


def current_holder() -> Hashable:
    """The holder that calls: the running asyncio task, or the thread."""
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:
        return threading.current_thread()


def is_alive(holder: Hashable) -> bool:
    """Whether a holder may ask for another item."""
    if isinstance(holder, asyncio.Task):
        return not holder.done()
    return holder in threading.enumerate()
