"""Acknowledges, renews and gives back the items of a queue that one program holds.

In the loop of the broker's ports. A tick sends the acknowledgements that no fetch has taken along, and gives back items
that no thread takes. It also starts the renewal of leases. A leader that stands still delays neither acknowledgements
nor renewals at the others.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final

from rayka.actors.background import BackgroundTasks
from rayka.client.loop import LoopThread
from rayka.gateway.ports import Broker
from rayka.queue.holders import is_alive
from rayka.queue.leased_offsets import LeasedOffsets, RangeAcknowledgement
from rayka.queue.leases import Leases
from rayka.queue.member import QueueMember
from rayka.queue.settings import SHORTEST_LEASE_S, QueueSettings
from rayka.queue.topic import QueueTopic

logger = logging.getLogger(__name__)

RETRY_S: Final = 0.05
_FAILED_S: Final = 1.0
_TICK_S: Final = 0.02
_PATIENCE_S: Final = 1.0
"""How long a tick, or a fetch, waits for a leader: what is acknowledged meanwhile is for the next tick.

Not less than `_FAILED_S`, so that what has failed is not sent again at once.
"""
_RENEWALS: Final = 3
"""How often a lease is renewed within its duration."""


class LeaseKeeper:
    """The leases of one member of the queue's share group. `_lock` guards `_leases`, which threads use too."""

    def __init__(self, broker: Broker, loop: LoopThread, topic: QueueTopic, settings: QueueSettings) -> None:
        self._broker = broker
        self._loop = loop
        self._topic = topic
        lease_s = settings.lease_s or SHORTEST_LEASE_S
        self._member = QueueMember(broker, topic, lease_s, self._send_again, self._lose, self._still_due)
        self._leases = Leases(settings.lease, settings.prefetch)
        self._lock = threading.Lock()
        self._background = BackgroundTasks(f"queue {topic.name}")
        self._renewing: asyncio.TimerHandle | None = None
        self._giving_back = asyncio.Lock()
        self._fetches: dict[asyncio.Future[None], float] = {}  # under way, and how long each waits at the leaders
        self._ticking = False
        self._acknowledging: set[asyncio.Task[None]] = set()  # what was sent without a fetch
        self._is_closed = False

    @property
    def _is_fetching(self) -> bool:
        return bool(self._fetches)

    @property
    def _on_their_way(self) -> Set[object]:
        """What is on its way to the leaders with acknowledgements."""
        return {*self._acknowledging, *self._member.sending}

    def _send_again(self, acknowledgements: Sequence[RangeAcknowledgement]) -> None:
        with self._lock:
            self._leases.send_again(acknowledgements)

    def _still_due(self, acknowledgements: Sequence[RangeAcknowledgement]) -> Sequence[RangeAcknowledgement]:
        with self._lock:
            return self._leases.still_due(acknowledgements)

    def _lose(self, place: LeasedOffsets) -> None:
        with self._lock:
            self._leases.lose(place.partition, place.first_offset)

    def _start_ticking(self) -> None:
        if not self._ticking and not self._is_closed:
            self._ticking = True
            self._loop.loop.call_later(_TICK_S, lambda: self._background.start("tick", self._settle()))
            self._renew_later()

    def _renew_later(self) -> None:
        if self._renewing is None and not self._is_closed:
            delay_s = self._member.lease_s / _RENEWALS
            self._renewing = self._loop.loop.call_later(
                delay_s, lambda: self._background.start("renewal", self._renew())
            )

    async def _settle(self) -> None:
        """Send acknowledgements, and give back items that no thread takes; repeat soon unless nothing is left.

        What a leader does not answer soon continues beside the next ticks.
        """
        try:
            with self._lock:
                self._leases.end_holders(is_alive)
                acknowledgements = self._leases.take_acknowledgements(also_again=not self._is_fetching)
            sent = [self._start_acknowledging(part) for part in self._member.by_leader(acknowledgements)]
            if self._leases.is_idle(now_ms()):
                sent.append(self._start("idle items", partial(self._give_back, self._take_idle)))
            if sent:
                await asyncio.wait(sent, timeout=_PATIENCE_S)
        except Exception:
            await self._pause_after_error()
        finally:
            self._ticking = False
            self._start_settling()
            self._renew_later()  # A renewal may have found nothing just before an item was delivered.
            if not self._leases.is_settled:
                self._start_ticking()

    def _start_acknowledging(self, acknowledgements: Sequence[RangeAcknowledgement]) -> asyncio.Task[None]:
        sending = self._start("acknowledgements", partial(self._member.acknowledge, acknowledgements))
        self._acknowledging.add(sending)
        sending.add_done_callback(self._acknowledged)
        return sending

    def _acknowledged(self, sending: asyncio.Task[None]) -> None:
        self._acknowledging.discard(sending)
        self._start_settling()

    def _start_settling(self) -> None:
        for number in self._member.to_settle():
            self._start("refused acknowledgements", partial(self._member.settle_refused, number))

    def _start(self, name: str, send: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        return self._background.start(name, self._try(send))

    async def _try(self, send: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Send something. What is left then, or fails, is for the next tick."""
        try:
            await send()
        except Exception:
            await self._pause_after_error()
        finally:
            if self._member.to_settle() or self._leases.has_acknowledgements:
                self._start_ticking()

    async def _pause_after_error(self) -> None:
        logger.exception("cannot acknowledge items of the queue %s", self._topic.name)
        await asyncio.sleep(_FAILED_S)

    async def _renew(self) -> None:
        """Renew the leases of delivered items; repeat later unless there were none."""
        self._renewing = None
        with self._lock:
            self._leases.end_holders(is_alive)
            delivered = self._leases.begin_renewal()
        if self._leases.has_acknowledgements:  # of holders that have ended
            self._start_ticking()
        if delivered:
            self._renew_later()
            await self._member.renew(delivered)

    async def give_back(self) -> None:
        """Give back all items that are fetched and not delivered."""
        await self._give_back(self._leases.take_ready)

    def _take_idle(self) -> Mapping[int, Sequence[tuple[int, int]]]:
        """Take idle items, unless a fetch is in progress: its items would come before those that go back now."""
        return {} if self._fetches else self._leases.take_idle(now_ms())

    async def _give_back(self, take: Callable[[], Mapping[int, Sequence[tuple[int, int]]]]) -> None:
        """Fetches wait meanwhile, but for a second at most: a leader takes what goes back before a later fetch."""
        async with self._giving_back:
            with self._lock:
                ranges = take()
            returning = self._background.start("items that go back", self._member.give_back(ranges))
            await asyncio.wait([returning], timeout=_PATIENCE_S)

    async def _send_first(self) -> None:
        """Send acknowledgements, and wait for the first answers to all that are on their way then.

        What comes back meanwhile is sent again: another leader may stand still.
        """
        self._send_due()
        first = self._on_their_way
        while not first.isdisjoint(self._on_their_way):
            sent = [one for one in self._acknowledging if one in first]
            await (asyncio.wait(sent, timeout=RETRY_S) if sent else asyncio.sleep(RETRY_S))
            self._send_due()

    async def _send_last(self) -> None:
        """Send acknowledgements until none is left. Those of a tick, or of a fetch in another thread, may come back."""
        while self._has_unsettled():
            self._send_due()
            await asyncio.sleep(RETRY_S)

    def _has_unsettled(self) -> bool:
        with self._lock:  # A thread takes them and notes that in one step.
            return bool(self._on_their_way or self._leases.has_acknowledgements or self._member.has_refused)

    def _send_due(self) -> None:
        with self._lock:
            acknowledgements = self._leases.take_acknowledgements()
        for part in self._member.by_leader(acknowledgements):
            self._start_acknowledging(part)
        self._start_settling()


def now_ms() -> int:
    """Milliseconds of the clock for leases."""
    return time.monotonic_ns() // 1_000_000
