"""Interrupts (Ctrl-C) of a thread that waits for a blocking client."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from rayka.client.loop import LoopThread, Shell


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


def interrupt_next_answer(client: Shell[Any]) -> None:
    """Interrupt the next call when its records are there, before it returns them."""
    client._loop = InterruptedLoop(client, client._loop)  # type: ignore[assignment]
