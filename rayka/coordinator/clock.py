"""The time that a coordinator is given: two clocks, read together by the shell."""

from __future__ import annotations

from typing import NamedTuple


class Now(NamedTuple):
    """One moment, in milliseconds on two clocks.

    `ms` only goes forward, at the pace of real time, from a start that means nothing: deadlines are on it, so that
    setting the clock ends nobody's session. `wall_ms` is since the epoch and may jump: what is stored and shown.
    """

    ms: int
    wall_ms: int
