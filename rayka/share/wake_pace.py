"""When to wake a fetch that waits for records, if these come one by one and quickly.

A fetch costs the leader and the member as much as dozens of records. So the records of a few milliseconds are gathered
for one fetch that allows it, as network cards gather packets for one interrupt. A record that comes after a pause is
fetched at once. So is one that nothing follows until it is fetched, as with a program that waits for each answer:
gathering that has brought nothing is left out, ever longer, before it is tried again.

Time is an argument, in seconds of a clock that never goes back.
"""

from __future__ import annotations

import math
from typing import Final

_MOST_LEFT_OUT: Final = 63


class WakePace:
    """The pace of one share-partition."""

    def __init__(self) -> None:
        self._woken_s = -math.inf
        self._gathered = 0
        self._left_out = 0
        self._to_leave_out = 0

    def on_records(self, now_s: float, longest_s: float) -> float | None:
        """Records came: how long to gather before a fetch is woken that allows `longest_s` between two wakes.

        0: wake it now; None: they are gathered already.
        """
        if self._gathered:
            self._gathered += 1
            return None
        gather_s = self._woken_s + longest_s - now_s
        if gather_s > 0 and not self._to_leave_out:
            self._gathered = 1
            return gather_s
        if gather_s > 0:
            self._to_leave_out -= 1
        self._woken_s = now_s
        return 0.0

    def gathered(self, now_s: float) -> None:
        """The gathering time is over and a fetch is woken."""
        self._left_out = 0 if self._gathered > 1 else min(2 * self._left_out + 1, _MOST_LEFT_OUT)
        self._to_leave_out = self._left_out
        self._gathered = 0
        self._woken_s = now_s
