"""The items of a queue that one program holds: fetched ahead, delivered to a holder, and done with.

A holder is a thread or an asyncio task of the program. Items are fetched ahead only while the program takes them
quickly: the window grows when it has taken the items of a fetch within `_QUICK_MS`, and is one item again after items
had to be given back. Nothing more is fetched ahead while `_MOST_BYTES` are here. An item that is fetched ahead and not
delivered within `_IDLE_MS` goes back to the queue, for others.

Time is an argument, in milliseconds of a clock that never goes back.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from rayka.client.share.records import RecordAcknowledgement
from rayka.queue.settings import MOST_AHEAD, Lease
from rayka.share.record_state import AcknowledgeType

ACCEPT = RecordAcknowledgement(AcknowledgeType.ACCEPT)
_QUICK_MS = 100
_IDLE_MS = 100
_GROWTH = 4
_MOST_BYTES = 32 << 20
_ENDED = None
"""Stands for all holders that have ended."""


class Item(NamedTuple):
    """One item under a lease: where it is, its bytes, and how often it was delivered with this time."""

    partition: int
    offset: int
    value: bytes
    delivery_count: int = 1


Acknowledgements = Mapping[int, Mapping[int, RecordAcknowledgement]]
"""By partition and offset."""


class Leases:
    """What a program holds of a queue."""

    def __init__(self, lease: Lease, prefetch: int = MOST_AHEAD) -> None:
        """At most `prefetch` items are fetched ahead."""
        self._lease = lease
        self._prefetch = prefetch
        self._ready: deque[Item] = deque()
        self._held: dict[Hashable, deque[Item]] = defaultdict(deque)
        self._said: dict[int, dict[int, RecordAcknowledgement]] = defaultdict(dict)
        self._lost: set[tuple[int, int]] = set()
        self._ready_bytes = 0
        self._window = 1
        self._is_dry = False
        self._fetched_ms = -_QUICK_MS
        self._taken_ms = 0

    @property
    def ready_count(self) -> int:
        """Items that are fetched and not delivered."""
        return len(self._ready)

    @property
    def count(self) -> int:
        """Items whose leases have not ended, as far as is known here."""
        leased = sum(map(len, self.held().values())) + sum(map(len, self._said.values()))
        return self.ready_count + leased

    @property
    def has_said(self) -> bool:
        """Whether there are acknowledgements to send."""
        return bool(self._said)

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to send and nothing to give back."""
        return not (self._ready or self._said)

    def wanted(self, waiting_count: int) -> int:
        """How many items to fetch now; `waiting_count` holders wait for one."""
        if len(self._ready) > self._window // 2 or self._ready_bytes >= _MOST_BYTES:
            return 0
        ahead = self._window if waiting_count or (self._window > 1 and not self._is_dry) else 0
        return max(ahead, waiting_count) - len(self._ready)

    def add(self, items: Sequence[Item], now_ms: int, wanted: int = 1) -> None:
        """Items were fetched: fewer than wanted, if there are no more."""
        for item in items:
            self._ready.append(item)
            self._ready_bytes += len(item.value)
            self._lost.discard((item.partition, item.offset))
        self._is_dry = len(items) < wanted
        if not items:
            return
        if now_ms - self._fetched_ms < _QUICK_MS:
            self._window = min(self._window * _GROWTH, self._prefetch)
        self._fetched_ms = self._taken_ms = now_ms

    def take(self, holder: Hashable, now_ms: int) -> Item | None:
        """Deliver the next item; None if none is here."""
        items = self.take_many(holder, 1, now_ms)
        return items[0] if items else None

    def take_many(self, holder: Hashable, count: int, now_ms: int) -> Sequence[Item] | None:
        """Deliver so many items, or none if fewer are here."""
        if len(self._ready) < count:
            return None
        items = [self._ready.popleft() for _ in range(count)]
        self._ready_bytes -= sum(len(item.value) for item in items)
        self._held[self._key(holder)].extend(items)
        self._taken_ms = now_ms
        return items

    def next_get(self, holder: Hashable) -> None:
        """The holder asks for an item: its last ones are done, if their lease ends so."""
        if self._lease is Lease.NEXT_GET and (held := self._held.pop(holder, None)):
            self._acknowledge(held, ACCEPT)

    def settle(self, holder: Hashable, acknowledgement: RecordAcknowledgement) -> bool:
        """Acknowledge the oldest item that the holder has, else the oldest of those that have ended.

        False if there is none.
        """
        held = self._held.get(self._key(holder)) or self._held.get(_ENDED)
        if not held:
            return False
        self._acknowledge([held.popleft()], acknowledgement)
        return True

    def settle_item(self, holder: Hashable, item: Item, acknowledgement: RecordAcknowledgement) -> None:
        """Acknowledge this item, if the holder has it still."""
        held = self._held.get(self._key(holder), deque())
        if item in held:
            held.remove(item)
            self._acknowledge([item], acknowledgement)

    def end_holders(self, is_alive: Callable[[Hashable], bool]) -> None:
        """A thread or task that has ended asks for no other item: its items are done, unless it had to say so."""
        for holder in [one for one in self._held if one is not _ENDED and not is_alive(one)]:
            held = self._held.pop(holder)
            if self._lease is Lease.NEXT_GET:
                self._acknowledge(held, ACCEPT)
            else:
                self._held[_ENDED].extend(held)

    def end(self) -> None:
        """The program ends, or has let go of the queue: what was delivered is done, unless it had to say so."""
        if self._lease is not Lease.TASK_DONE:
            for held in self._held.values():
                self._acknowledge(held, ACCEPT)
        self._held.clear()
        self._lost.clear()

    def take_said(self) -> Acknowledgements:
        """The acknowledgements to send now."""
        said, self._said = self._said, defaultdict(dict)
        return dict(said)

    def say_again(self, said: Acknowledgements) -> None:
        """Acknowledgements could not be sent, and are sent again."""
        for partition, acknowledgements in said.items():
            self._said[partition] = {**acknowledgements, **self._said.get(partition, {})}

    def take_idle(self, now_ms: int) -> dict[int, list[tuple[int, int]]]:
        """What nobody has taken for a while, to be given back: first and last offsets by partition."""
        if not self._ready or now_ms - self._taken_ms < _IDLE_MS:
            return {}
        return self.take_ready()

    def take_ready(self) -> dict[int, list[tuple[int, int]]]:
        """All that is not delivered, to be given back as `take_idle`."""
        ready, self._ready, self._ready_bytes = self._ready, deque(), 0
        self._window = 1
        return ranges_of(ready)

    def held(self) -> dict[int, list[int]]:
        """The offsets that are delivered and not acknowledged, by partition: their leases are to be renewed."""
        found: dict[int, list[int]] = defaultdict(list)
        for held in self._held.values():
            for item in held:
                if (item.partition, item.offset) not in self._lost:
                    found[item.partition].append(item.offset)
        return found

    def lose(self, partition: int, offset: int) -> None:
        """The lease of an item has ended while a holder has it: there is nothing to renew until it is got again."""
        self._lost.add((partition, offset))

    def forget_ready(self, partitions: Iterable[int] | None = None) -> None:
        """The leases of what is not delivered have ended, in these partitions or in all."""
        lost = None if partitions is None else set(partitions)
        self._ready = deque(item for item in self._ready if lost is not None and item.partition not in lost)
        self._ready_bytes = sum(len(item.value) for item in self._ready)

    def _key(self, holder: Hashable) -> Hashable:
        return _ENDED if self._lease is Lease.PROGRAM else holder

    def _acknowledge(self, items: Iterable[Item], acknowledgement: RecordAcknowledgement) -> None:
        for item in items:
            self._said[item.partition][item.offset] = acknowledgement
            self._lost.discard((item.partition, item.offset))


def ranges_of(items: Iterable[Item]) -> dict[int, list[tuple[int, int]]]:
    """Runs of offsets, each the first and the last one, by partition."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    numbered = enumerate(sorted(items))
    for (partition, _), run in groupby(numbered, key=lambda pair: (pair[1].partition, pair[1].offset - pair[0])):
        offsets = [item.offset for _, item in run]
        found[partition].append((offsets[0], offsets[-1]))
    return dict(found)
