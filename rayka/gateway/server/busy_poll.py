"""Stays awake between the requests of a client that sends the next one as soon as it has its answer.

Sleeping until a request comes and waking up again takes tens of microseconds, on a virtual machine most of the time
of a single record. So the event loop polls for the next request without sleeping as long as requests keep coming within
`WINDOW_S`; the first late one ends that. A client that sends a few requests a second, or none, costs nothing. One that
sends one after the other costs at most one core, which would otherwise wait for it.

The client may be on the same core: one that polls for its answer too (`actors/channel/blocking_channel.py`), or one
whose threads the system puts beside the process that wakes them up. A thread of it that is ready to send may then wait
until the loop's time is over. So the loop gives way in each turn, which costs nothing where nobody waits for the core.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from rayka.gateway.server.cores import usable_cores

WINDOW_S = 250e-6
"""How long after an answer the next request is waited for without sleeping.

A client with threads of its own, such as librdkafka, wakes up three times between an answer and its next request, which
takes up to 200 µs on a virtual machine.
"""
SMALL_BYTES = 4096
"""Clients that send more at once wait for throughput, and need the cores themselves."""


class BusyPoll:
    """The waiting of the event loop that `call_soon` belongs to. A single core is left to the client."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        cores: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._is_useful = (usable_cores() if cores is None else cores) > 1
        self._answered_s = -WINDOW_S
        self._came_soon = False
        self.is_awake = False
        """Whether the loop is kept from sleeping."""

    def request_came(self, size: int) -> None:
        """A request of `size` bytes is about to be handled."""
        self._came_soon = size <= SMALL_BYTES and self._clock() - self._answered_s <= WINDOW_S

    def answered(self) -> None:
        """It was answered: stay awake for the next one if it came soon itself."""
        self._answered_s = self._clock()
        if self._came_soon and self._is_useful and not self.is_awake:
            self.is_awake = True
            self._call_soon(self._look)

    def _look(self) -> None:
        """Once for each turn of the loop, which does not sleep while it has something to call."""
        if self._came_soon and self._clock() - self._answered_s <= WINDOW_S:
            self._call_soon(self._look)
            os.sched_yield()
        else:
            self.is_awake = False
