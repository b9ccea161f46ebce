"""Stays awake between the requests of a client that sends the next one as soon as it has its answer.

Sleeping until a request comes and waking up again takes tens of microseconds, on a virtual machine most of the time
of a single record. So the event loop polls for the next request without sleeping as long as requests keep coming within
`WINDOW_S`; the first late one ends that. A client that sends a few requests a second, or none, costs nothing. One that
sends one after the other costs at most one core, which would otherwise wait for it.

A client that polls for its answer too (`actors/channel/blocking_channel.py`) may be on the same core. Each would keep
the other from running for as long as it polls. So both give way in each turn, which costs nothing where nobody waits
for the core. For clients that sleep, giving way is slower: they find the core free, and come to run on it, while the
other one is idle.
"""

from __future__ import annotations

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
    """The waiting of the event loop that `call_soon` belongs to. A single core is left to the client.

    `give_way` is called in each turn: `os.sched_yield` for clients that poll too.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        cores: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        give_way: Callable[[], object] | None = None,
    ) -> None:
        self._call_soon = call_soon
        self._give_way = give_way
        self._clock = clock
        self._is_useful = (usable_cores() if cores is None else cores) > 1
        self._answered_s = -WINDOW_S
        self._came_soon = False
        self.is_awake = False
        """Whether the loop is kept from sleeping."""

    def request_came(self, size: int) -> None:
        """A request with so many bytes is about to be handled."""
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
            if self._give_way is not None:
                self._give_way()
        else:
            self.is_awake = False
