"""Interrupts (Ctrl-C), and other signals, of a thread that waits for a blocking client."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

from rayka.client.forms import Shell
from rayka.client.loop import LoopThread

_EVENTS = ("call", "c_return")
WAITING = ("rayka.client.calls", "rayka.client.forms", "rayka.client.loop")
"""The modules in which a blocking call waits for the client's thread."""


class InterruptedLoop:
    """The loop's thread as a client sees it whose own thread is interrupted just when an answer with records comes."""

    def __init__(self, client: Shell[Any], loop: LoopThread) -> None:
        self._client = client
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """As `LoopThread.run`; the first answer that is not empty raises KeyboardInterrupt instead."""
        return self._interrupted(self._loop.run(coroutine))

    def call(self, function: Callable[[], Any]) -> Any:
        """As `LoopThread.call`, and interrupted like `run`."""
        return self._interrupted(self._loop.call(function))

    def _interrupted(self, answer: Any) -> Any:
        if not answer:
            return answer
        self._client._loop = self._loop
        raise KeyboardInterrupt


class InterruptingLoop(InterruptedLoop):
    """The loop's thread as a client sees it whose own thread is interrupted before the loop begins a coroutine."""

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """As `LoopThread.run` that an interrupt ends at once."""
        coroutine.close()
        self._client._loop = self._loop
        raise KeyboardInterrupt


def interrupt_next_run(client: Shell[Any]) -> None:
    """Interrupt the client when it gives the next coroutine to the loop, before that has begun."""
    client._loop = InterruptingLoop(client, client._loop)  # type: ignore[assignment]


def interrupt_next_answer(client: Shell[Any]) -> None:
    """Interrupt the next call when its records are there, before it returns them."""
    client._loop = InterruptedLoop(client, client._loop)  # type: ignore[assignment]


def interrupted_at(
    number: int,
    modules: tuple[str, ...],
    operation: Callable[[], object],
    events: tuple[str, ...] = _EVENTS,
) -> bool:
    """Run the operation, and interrupt it (Ctrl-C) where Python looks for signals the `number`-th time, counted from 0,
    in these modules: at the begin of a function, or behind a call of C code. With "return" in `events` also at its end.
    Returns whether it came that far.
    """

    def interrupt() -> None:
        raise KeyboardInterrupt

    try:
        return signalled_at(number, modules, interrupt, operation, events)
    except KeyboardInterrupt:
        return True


def signalled_at(
    number: int,
    modules: tuple[str, ...],
    handler: Callable[[], object],
    operation: Callable[[], object],
    events: tuple[str, ...] = _EVENTS,
) -> bool:
    """As `interrupted_at`, with any handler of the signal."""
    left = number

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if event in events and frame.f_globals.get("__name__", "").startswith(modules):
            left -= 1
            if left < 0:
                sys.setprofile(None)
                handler()

    sys.setprofile(profile)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return left < 0
