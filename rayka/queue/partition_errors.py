"""The errors of a queue's partitions: when each is logged, and when a get raises it.

Items of the other partitions are delivered meanwhile. An error that does not pass is raised when it is found, and then
by a get that waits long or has no more time. So a program that catches it and gets again waits for the other items. One
that may pass is raised by a get that has no more time, if it has lasted: the queue may not be empty. A leader's fault
that has lasted long, such as the damaged state of a share-partition, counts as one that does not pass. Then
fetches have to have met it again and again: a fault before a time without fetches may have been over meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from math import inf
from typing import Final

from rayka.errors import ErrorCode, RaykaError, may_pass

logger = logging.getLogger(__name__)

AGAIN_S: Final = 10.0
"""How long a get waits for items after an error before the same partition's error is raised again."""
_LOG_AGAIN_S: Final = 600.0
_FAULT_S: Final = 1.0
_LONG_FAULT_S: Final = 60.0
"""Until then a fault is waited for. As long as Kafka's clients wait for an answer (default.api.timeout.ms)."""
_MOST_MISSED: Final = 3
"""A fault lasts though as many fetches in a row did not have it."""
_UNSEEN_S: Final = 35.0
"""A fault has not lasted long if there was no fetch for this time. Where a leader stands still, one takes 30 s."""
_MOVE_S: Final = 30.0
"""As long a leader may be away until the next one is there."""
_FAULTS: Final = frozenset({ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR})
"""What a leader did not expect. It may be over with the next request, or with the next leader."""


@dataclass(slots=True)
class _Standing:
    error: RaykaError
    since_s: float
    is_lasting: bool

    def is_over(self, patience_s: float, now_s: float) -> bool:
        return now_s - self.since_s >= patience_s


@dataclass(slots=True)
class _Fault:
    """What is known of the faults of a partition. `missed`: fetches since the last one that had a fault."""

    since_s: float
    missed: int = 0


class PartitionErrors:
    """Those that one handle of a queue has met. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._standing: dict[int, _Standing] = {}
        self._faults: dict[int, _Fault] = {}
        self._noted_s = -inf
        self._raised_s: dict[int, float] = {}
        self._logged_s: dict[tuple[int, ErrorCode], float] = {}

    def note(self, refused: Mapping[int, RaykaError], unreadable: Mapping[int, RaykaError]) -> None:
        """The errors of a fetch by partition, of leaders and of items that could not be read again and again.

        The other partitions have none now.
        """
        now_s = self._clock()
        if now_s - self._noted_s > _UNSEEN_S:
            self._faults = {}
        self._noted_s = now_s
        before, self._standing = self._standing, {}
        found = {**refused, **unreadable}
        self._note_faults({number for number, error in found.items() if error.code in _FAULTS}, now_s)
        for number, error in found.items():
            last = before.get(number)
            since_s = now_s if last is None or last.error.code is not error.code else last.since_s
            is_lasting = number in unreadable or not (may_pass(error.code) or error.code in _FAULTS)
            self._standing[number] = _Standing(error, since_s, is_lasting)
            self._log(number, self._standing[number], now_s)

    def _note_faults(self, numbers: Set[int], now_s: float) -> None:
        for fault in self._faults.values():
            fault.missed += 1
        self._faults = {number: fault for number, fault in self._faults.items() if fault.missed <= _MOST_MISSED}
        for number in numbers:
            self._faults.setdefault(number, _Fault(now_s)).missed = 0

    def _has_long_fault(self, number: int, now_s: float) -> bool:
        fault = self._faults.get(number)
        return fault is not None and not fault.missed and now_s - fault.since_s >= _LONG_FAULT_S

    def _log(self, number: int, standing: _Standing, now_s: float) -> None:
        error = standing.error
        is_move = not standing.is_lasting and error.code not in _FAULTS
        is_new = now_s - self._logged_s.get((number, error.code), -inf) >= _LOG_AGAIN_S
        if is_new and standing.is_over(_MOVE_S if is_move else 0.0, now_s):
            self._logged_s[number, error.code] = now_s
            logger.warning("no items are delivered of %s (%s)", error.message, error.code.name)

    def take_due(self) -> RaykaError | None:
        """The error for those who wait: one that does not pass, or has not for long, and that nobody got lately."""
        now_s = self._clock()
        for number, standing in self._standing.items():
            is_due = standing.is_lasting or self._has_long_fault(number, now_s)
            if is_due and now_s - self._raised_s.get(number, -inf) >= AGAIN_S:
                self._raised_s[number] = now_s
                return standing.error
        return None

    def take_lasting(self) -> RaykaError | None:
        """The error for a get that has no more time; None if the queue is empty, as far as anybody knows."""
        now_s = self._clock()
        for number, standing in sorted(self._standing.items(), key=lambda each: not each[1].is_lasting):
            patience_s = _FAULT_S if standing.error.code in _FAULTS else _MOVE_S
            if standing.is_lasting or standing.is_over(patience_s, now_s):
                self._raised_s[number] = now_s
                return standing.error
        return None
