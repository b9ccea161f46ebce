"""The items of a queue that one program holds: prefetched, delivered to a holder, or finished.

A holder is a thread or an asyncio task of the program. Items are prefetched only while the program takes them quickly.
The window grows when the program has taken the items of a fetch within `_QUICK_MS`. It shrinks to one item after items
had to be given back. Nothing more is prefetched while `_MOST_BYTES` are here. Prefetched items go back to the queue
when the program has taken nothing for `_IDLE_MS`, or has not reached them within `_LONGEST_AHEAD_MS`. A lease that ends
here would count as a delivery, so an item could reach its limit without ever being delivered.

Consecutive items of a partition are one object, here and in requests: a batch costs little more than an item.

A lease is counted from before its fetch was sent, so that a process that was paused does not rely on a lease that has
ended in the meantime.

Time is an argument, in milliseconds of a clock that never goes back.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from rayka.client.share.records import RecordAcknowledgement
from rayka.queue.leased_offsets import (
    LeasedOffsets,
    NumberedOffsets,
    RangeAcknowledgement,
    ranges_of,
    without_older,
)
from rayka.queue.settings import MOST_AHEAD, Lease
from rayka.queue.stored_value import Value
from rayka.share.record_state import AcknowledgeType

ACCEPT = RecordAcknowledgement(AcknowledgeType.ACCEPT)
RELEASE = RecordAcknowledgement(AcknowledgeType.RELEASE)
_QUICK_MS = 100
_IDLE_MS = 100
_LONGEST_AHEAD_MS = 4000
"""With the wait of its fetch this is less than half of the shortest lease, from when on a lease is not relied on."""
_GROWTH = 4
_MOST_BYTES = 32 << 20
_ENDED = None
"""Stands for all holders that have ended."""


class Item(NamedTuple):
    """One leased item: its location, its bytes or where they are, and its delivery count, this delivery included."""

    partition: int
    offset: int
    value: Value
    delivery_count: int = 1


class ItemRun(NamedTuple):
    """Consecutive leased items of a partition with the same delivery count."""

    partition: int
    first_offset: int
    values: Sequence[Value]
    delivery_count: int = 1

    @property
    def end_offset(self) -> int:
        """The offset after the last item."""
        return self.first_offset + len(self.values)

    @property
    def size(self) -> int:
        """Bytes of all items."""
        return len(self.values[0]) if len(self.values) == 1 else sum(map(len, self.values))

    @property
    def place(self) -> LeasedOffsets:
        """The location of the items."""
        return LeasedOffsets(self.partition, self.first_offset, self.end_offset - 1)

    def items(self) -> Iterator[Item]:
        """The items one by one."""
        for offset, value in enumerate(self.values, self.first_offset):
            yield Item(self.partition, offset, value, self.delivery_count)


class ReadyRun(NamedTuple):
    """Items that are not delivered; the fetch that brought them began at `since_ms` and ended at `added_ms`."""

    run: ItemRun
    since_ms: int
    added_ms: int
    number: int
    """Of the fetch. An acknowledgement with a lower number is for an earlier lease."""


class Leases:
    """The items of a queue that a program holds."""

    def __init__(self, lease: Lease, prefetch: int = MOST_AHEAD) -> None:
        """At most `prefetch` items are prefetched."""
        self._lease = lease
        self._prefetch = prefetch
        self._ready: deque[ReadyRun] = deque()
        self._taken = 0  # of the first run
        self._delivered: dict[Hashable, deque[NumberedOffsets]] = defaultdict(deque)
        self._number = 0  # of the last fetch that has brought items
        self._acknowledgements: list[RangeAcknowledgement] = []
        self._again: list[RangeAcknowledgement] = []  # were sent before
        self._renewing: list[LeasedOffsets] = []
        self._lost: set[tuple[int, int]] = set()
        self.ready_count = 0
        """Items that are fetched and not delivered."""
        self._ready_bytes = 0
        self._window = 1
        self._is_dry = False
        self._fetched_ms = -_QUICK_MS
        self._taken_ms = 0
        self._has_ended = False

    @property
    def count(self) -> int:
        """The number of items whose leases have not ended, as far as is known here."""
        delivered = sum(last - first + 1 for ranges in self.delivered().values() for first, last in ranges)
        return (
            self.ready_count + delivered + sum(one.place.length for one in chain(self._again, self._acknowledgements))
        )

    @property
    def is_quick(self) -> bool:
        """Whether the program takes items quickly, so that more than one is fetched at a time."""
        return self._window > 1

    @property
    def has_acknowledgements(self) -> bool:
        """Whether there are acknowledgements to send."""
        return bool(self._again or self._acknowledgements)

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to send and nothing to give back."""
        return not (self._ready or self.has_acknowledgements)

    def wanted(self, waiting_count: int) -> int:
        """How many items to fetch now; `waiting_count` holders wait for one."""
        if self.ready_count > self._window // 2 or self._ready_bytes >= _MOST_BYTES:
            return 0
        ahead = self._window if waiting_count or (self._window > 1 and not self._is_dry) else 0
        return max(ahead, waiting_count) - self.ready_count

    def add(self, runs: Sequence[ItemRun], now_ms: int, *, since_ms: int | None = None, is_dry: bool = False) -> None:
        """Add fetched items, maybe none, of a fetch that began at `since_ms`. `is_dry`: there are no more now.

        After the end nothing is added: others may get the items.
        """
        if self._has_ended:
            return
        self._is_dry = is_dry or not runs
        if not runs:
            return
        self._number += 1
        for run in runs:
            self._ready.append(ReadyRun(run, now_ms if since_ms is None else since_ms, now_ms, self._number))
            self.ready_count += len(run.values)
            self._ready_bytes += run.size
            self._clear_renewal(run.place)
        if self._again:
            self._again = without_older(self._again, [(run.place, self._number) for run in runs])
        if now_ms - self._fetched_ms < _QUICK_MS:
            self._window = min(self._window * _GROWTH, self._prefetch)
        self._fetched_ms = self._taken_ms = now_ms

    def take(self, holder: Hashable, now_ms: int, taken: list[Item] | None = None) -> Item | None:
        """Deliver the next item; None if there is none here. `taken` has it too, even if Ctrl-C comes meanwhile."""
        if not self._ready:
            return None
        (partition, first_offset, values, delivery_count), _, _, number = self._ready[0]
        offset = first_offset + self._taken
        item = Item(partition, offset, values[self._taken], delivery_count)
        if taken is not None:
            taken.append(item)
        self._taken_ms = now_ms
        self._took(1, len(values), len(item.value))
        self._add_delivered(holder, LeasedOffsets(partition, offset, offset), number)
        return item

    def take_many(
        self, holder: Hashable, count: int, now_ms: int, taken: list[ItemRun] | None = None
    ) -> Sequence[ItemRun] | None:
        """Deliver `count` items, or none if fewer are here. `taken` is as in `take`."""
        if self.ready_count < count:
            return None
        runs = [] if taken is None else taken
        self._taken_ms = now_ms
        while count > 0:
            number = self._ready[0].number
            run = self._take_run(count)
            runs.append(run)
            count -= len(run.values)
            self._add_delivered(holder, run.place, number)
        return runs

    def _take_run(self, most: int) -> ItemRun:
        partition, first_offset, values, delivery_count = self._ready[0].run
        taken = self._taken
        part = values if not taken and len(values) <= most else values[taken : taken + most]
        run = ItemRun(partition, first_offset + taken, part, delivery_count)
        self._took(len(part), len(values), run.size)
        return run

    def _took(self, count: int, run_count: int, size: int) -> None:
        """Note that `count` more items of the first run, which has `run_count`, were taken.

        A Ctrl-C can come after a call: so the only call comes last.
        """
        self.ready_count -= count
        self._ready_bytes -= size
        if self._taken + count < run_count:
            self._taken += count
            return
        self._taken = 0
        self._ready.popleft()

    def _add_delivered(self, holder: Hashable, place: LeasedOffsets, number: int) -> None:
        """Add delivered items to those of the holder. Neighbours are one object, with the lower of two numbers.

        So an acknowledgement may count as one of this lease though it is of an earlier one, but not the reverse.
        """
        delivered = self._delivered[self._key(holder)]
        if delivered:
            (partition, first_offset, last_offset), before = delivered[-1]
            if partition == place.partition and last_offset + 1 == place.first_offset:
                delivered[-1] = LeasedOffsets(partition, first_offset, place.last_offset), min(before, number)
                return
        delivered.append((place, number))

    def next_get(self, holder: Hashable) -> None:
        """The holder asks for an item: its last items are finished, if `lease` says so."""
        if self._lease is Lease.NEXT_GET and (delivered := self._delivered.pop(holder, None)):
            self._acknowledge(delivered, ACCEPT)

    def settle(self, holder: Hashable, acknowledgement: RecordAcknowledgement) -> bool:
        """Acknowledge the oldest item of the holder, or else the oldest one of holders that have ended.

        False if there is none.
        """
        delivered = self._delivered.get(self._key(holder)) or self._delivered.get(_ENDED)
        if not delivered:
            return False
        oldest, number = delivered.popleft()
        if oldest.length > 1:
            delivered.appendleft((oldest._replace(first_offset=oldest.first_offset + 1), number))
        self._acknowledge([(oldest._replace(last_offset=oldest.first_offset), number)], acknowledgement)
        return True

    def settle_item(self, holder: Hashable, item: Item, acknowledgement: RecordAcknowledgement) -> None:
        """Acknowledge this item, if the holder still has it."""
        place = LeasedOffsets(item.partition, item.offset, item.offset)
        delivered = self._delivered.get(self._key(holder), deque())
        for index, (each, number) in enumerate(delivered):
            if each.overlaps(place):
                del delivered[index]
                for part in reversed(each.without(place)):
                    delivered.insert(index, (part, number))
                self._acknowledge([(place, number)], acknowledgement)
                return

    def end_holders(self, is_alive: Callable[[Hashable], bool]) -> None:
        """Finish the items of threads and tasks that have ended, unless only `task_done` ends leases."""
        for holder in [one for one in self._delivered if one is not _ENDED and not is_alive(one)]:
            delivered = self._delivered.pop(holder)
            if self._lease is Lease.NEXT_GET:
                self._acknowledge(delivered, ACCEPT)
            else:
                self._delivered[_ENDED].extend(delivered)

    def end(self, *, is_exit: bool = False) -> dict[int, list[tuple[int, int]]]:
        """The program ends, or no longer uses the queue: finish its items, unless only `task_done` ends leases.

        Returns the other items, as `take_idle`. They go back as if they had not been delivered. At the exit of a
        program they count as delivered, so that an item that ends every program reaches its limit.
        """
        if self._lease is not Lease.TASK_DONE or is_exit:
            acknowledgement = RELEASE if self._lease is Lease.TASK_DONE else ACCEPT
            self._acknowledge(chain.from_iterable(self._delivered.values()), acknowledgement)
            self._delivered.clear()
        others = ranges_of([*self._delivered_places(), *self._ready_places()])
        self._delivered.clear()
        self._lost.clear()
        self.forget_ready()
        self._has_ended = True
        return others

    def take_acknowledgements(self, *, also_again: bool = True) -> Sequence[RangeAcknowledgement]:
        """The acknowledgements to send now; `also_again`: with those that were sent before.

        Those may have been taken, and only the answer was lost. So they are not sent while a fetch is under way, which
        may have leased their items anew: they would end that lease.
        """
        acknowledgements, self._acknowledgements = self._acknowledgements, []
        if also_again and self._again:
            acknowledgements = self._again + acknowledgements
            self._again = []
        return acknowledgements

    def send_again(self, acknowledgements: Iterable[RangeAcknowledgement]) -> None:
        """Send acknowledgements again that could not be sent, as far as they are still due."""
        due = self.still_due(acknowledgements)
        older = without_older(self._again, [(place, number) for place, _, number in due])
        self._again = older + due

    def still_due(self, acknowledgements: Iterable[RangeAcknowledgement]) -> list[RangeAcknowledgement]:
        """Acknowledgements of an earlier time, except those of items that were leased anew since, or acknowledged.

        Another holder may still have such an item from an earlier lease: that one does not count.
        """
        before = list(acknowledgements)
        oldest = min((one.number for one in before), default=0)
        newer = [(place, number + 1) for place, _, number in chain(self._again, self._acknowledgements)]
        if oldest < self._number:
            newer += (one for delivered in self._delivered.values() for one in delivered if one[1] > oldest)
            numbers = (ready.number for ready in self._ready)
            newer += zip(self._ready_places(), numbers, strict=True)
        return without_older(before, newer) if newer else before

    def take_idle(self, now_ms: int) -> dict[int, list[tuple[int, int]]]:
        """Take the items that are due to be given back: first and last offsets by partition."""
        return self.take_ready() if self.is_idle(now_ms) else {}

    def is_idle(self, now_ms: int) -> bool:
        """Whether the program takes no items, or so slowly that some have been here for long."""
        if not self._ready:
            return False
        return now_ms - self._taken_ms >= _IDLE_MS or now_ms - self._ready[0].added_ms >= _LONGEST_AHEAD_MS

    def take_ready(self) -> dict[int, list[tuple[int, int]]]:
        """Take all undelivered items, to give them back; the result is that of `take_idle`."""
        ready = self._ready_places()
        self._ready.clear()
        self._taken = self.ready_count = self._ready_bytes = 0
        self._window = 1
        return ranges_of(ready)

    def delivered(self) -> dict[int, list[tuple[int, int]]]:
        """The items that are delivered and not acknowledged; the result is that of `take_idle`."""
        places = self._delivered_places()
        for partition, offset in self._lost:
            lost = LeasedOffsets(partition, offset, offset)
            places = [rest for place in places for rest in place.without(lost)]
        return ranges_of(places)

    def begin_renewal(self) -> list[LeasedOffsets]:
        """The leases to renew now: those of delivered items that are not acknowledged."""
        self._renewing = [
            LeasedOffsets(partition, *offsets) for partition, ranges in self.delivered().items() for offsets in ranges
        ]
        return self._renewing

    def lose(self, partition: int, offset: int) -> None:
        """A lease could not be renewed because it has ended: do not renew it until the item is fetched again.

        The answer may be late: by then the item may be finished, or may have been fetched again.
        """
        place = LeasedOffsets(partition, offset, offset)
        if any(one.overlaps(place) for one in self._renewing):
            self._lost.add((partition, offset))

    def forget_ready(self, partitions: Iterable[int] | None = None) -> None:
        """The leases of undelivered items have ended, in these partitions or in all."""
        lost = None if partitions is None else set(partitions)
        self._keep(lambda ready: lost is not None and ready.run.partition not in lost)

    def forget_older(self, since_ms: int) -> None:
        """The leases of undelivered items that were fetched before that time may have ended."""
        if self._ready and self._ready[0].since_ms < since_ms:
            self._keep(lambda ready: ready.since_ms >= since_ms)

    def _keep(self, is_kept: Callable[[ReadyRun], bool]) -> None:
        if self._taken:
            self._ready[0] = self._ready[0]._replace(run=self._rest_of_first())
            self._taken = 0
        self._ready = deque(filter(is_kept, self._ready))
        self.ready_count = sum(len(ready.run.values) for ready in self._ready)
        self._ready_bytes = sum(ready.run.size for ready in self._ready)

    def _rest_of_first(self) -> ItemRun:
        run, taken = self._ready[0].run, self._taken
        return run._replace(first_offset=run.first_offset + taken, values=run.values[taken:])

    def _delivered_places(self) -> list[LeasedOffsets]:
        return [place for delivered in self._delivered.values() for place, _ in delivered]

    def _ready_places(self) -> list[LeasedOffsets]:
        places = [ready.run.place for ready in self._ready]
        if self._taken:
            places[0] = self._rest_of_first().place
        return places

    def validate_state(self) -> None:
        """Raise AssertionError if an item is ready twice, or the counts do not match the items."""
        delivered = self._delivered_places()
        ready = self._ready_places()
        assert all(place.length > 0 for place in (*ready, *delivered)), "an empty range"
        assert not any(one.overlaps(other) for one, other in pairwise(sorted(ready))), "an item is ready twice"
        assert self.ready_count == sum(place.length for place in ready)
        assert self._ready_bytes == sum(ready.run.size for ready in self._ready) - self._taken_bytes()
        assert 1 <= self._window <= max(self._prefetch, 1)

    def _taken_bytes(self) -> int:
        return sum(map(len, self._ready[0].run.values[: self._taken])) if self._taken else 0

    def _key(self, holder: Hashable) -> Hashable:
        return _ENDED if self._lease is Lease.PROGRAM else holder

    def _acknowledge(self, delivered: Iterable[NumberedOffsets], acknowledgement: RecordAcknowledgement) -> None:
        for place, _ in delivered:
            self._acknowledgements.append(RangeAcknowledgement(place, acknowledgement, self._number))
            self._clear_renewal(place)

    def _clear_renewal(self, place: LeasedOffsets) -> None:
        """The items were fetched again or acknowledged: how the renewal of an earlier lease ended no longer matters."""
        if self._lost:
            self._lost -= {one for one in self._lost if place.overlaps(LeasedOffsets(*one, one[1]))}
        if self._renewing:
            self._renewing = [rest for one in self._renewing for rest in one.without(place)]
