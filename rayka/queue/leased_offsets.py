"""Offsets of a queue's items under leases, and their acknowledgements: as ranges, and as the protocol has them."""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from rayka.client.share.records import RecordAcknowledgement
from rayka.share.acknowledge import AcknowledgementBatch


class LeasedOffsets(NamedTuple):
    """Offsets of a partition, from the first to the last one."""

    partition: int
    first_offset: int
    last_offset: int

    @property
    def length(self) -> int:
        """How many offsets."""
        return self.last_offset - self.first_offset + 1

    def overlaps(self, other: LeasedOffsets) -> bool:
        """Whether they have an offset in common."""
        return (
            self.partition == other.partition
            and self.first_offset <= other.last_offset
            and other.first_offset <= self.last_offset
        )

    def without(self, other: LeasedOffsets) -> list[LeasedOffsets]:
        """What is left below and above other offsets."""
        if not self.overlaps(other):
            return [self]
        below = self._replace(last_offset=min(self.last_offset, other.first_offset - 1))
        above = self._replace(first_offset=max(self.first_offset, other.last_offset + 1))
        return [part for part in (below, above) if part.length > 0]


class RangeAcknowledgement(NamedTuple):
    """One acknowledgement for all items in a range of offsets.

    `number` is that of the last fetch before it: of the lease that it ends, or of a later one.
    """

    place: LeasedOffsets
    acknowledgement: RecordAcknowledgement
    number: int = 0


NumberedOffsets: TypeAlias = tuple[LeasedOffsets, int]
"""Offsets, and the number of the fetch that has leased them."""


def without_older(
    acknowledgements: Iterable[RangeAcknowledgement], leased: Iterable[NumberedOffsets]
) -> list[RangeAcknowledgement]:
    """What is left of acknowledgements without the offsets that a fetch with a higher number has leased.

    One pass over both in the order of their offsets: there may be thousands of each.
    """
    rest: list[RangeAcknowledgement] = []
    coming = deque(sorted(leased))
    passing: list[NumberedOffsets] = []
    for one in sorted(acknowledgements, key=lambda each: each.place):
        partition, first_offset, last_offset = one.place
        while coming and coming[0][0][:2] <= (partition, last_offset):
            passing.append(coming.popleft())
        passing = [each for each in passing if (each[0].partition, each[0].last_offset) >= (partition, first_offset)]
        parts = [one.place]
        for place, number in passing:
            if number > one.number and parts:
                parts[-1:] = parts[-1].without(place)  # the parts before are below all places that come
        rest += [one._replace(place=part) for part in parts]
    return rest


def without(
    acknowledgements: Iterable[RangeAcknowledgement], places: Iterable[LeasedOffsets]
) -> list[RangeAcknowledgement]:
    """The acknowledgements of all other offsets."""
    return without_older(acknowledgements, [(place, sys.maxsize) for place in places])


def ranges_of(places: Iterable[LeasedOffsets]) -> dict[int, list[tuple[int, int]]]:
    """Runs of offsets, each the first and the last one, by partition."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for partition, first_offset, last_offset in sorted(places):
        runs = found[partition]
        if runs and runs[-1][1] + 1 == first_offset:
            runs[-1] = runs[-1][0], last_offset
        else:
            runs.append((first_offset, last_offset))
    return dict(found)


def acknowledgement_batches(
    acknowledgements: Iterable[RangeAcknowledgement],
) -> dict[int, tuple[AcknowledgementBatch, ...]]:
    """Acknowledgements as the protocol has them, by partition: in order, neighbours of one kind together."""
    found: dict[int, list[AcknowledgementBatch]] = defaultdict(list)
    for place, (kind, delay_ms, headers), _ in sorted(acknowledgements, key=lambda each: each.place):
        batches = found[place.partition]
        first_offset = place.first_offset
        if batches and batches[-1][1:] == (first_offset - 1, (kind,), delay_ms, headers):
            first_offset = batches.pop().first_offset
        batches.append(AcknowledgementBatch(first_offset, place.last_offset, (kind,), delay_ms, headers))
    return {partition: tuple(batches) for partition, batches in found.items()}


def halves_of(
    acknowledgements: Sequence[RangeAcknowledgement],
) -> tuple[list[RangeAcknowledgement], list[RangeAcknowledgement]]:
    """The first and the second half of acknowledgements of more than one item."""
    if len(acknowledgements) > 1:
        middle = len(acknowledgements) // 2
        return list(acknowledgements[:middle]), list(acknowledgements[middle:])
    (one,) = acknowledgements
    place = one.place
    lower = place._replace(last_offset=place.first_offset + place.length // 2 - 1)
    (upper,) = place.without(lower)
    return [one._replace(place=lower)], [one._replace(place=upper)]
