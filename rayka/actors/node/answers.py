"""Waits for actors to start, and names those that did not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import ray
import ray.exceptions

from rayka.errors import ErrorCode, RaykaError

START_TIMEOUT_S = 240.0
"""Bounds the start of a node's actors: on a crowded machine each process takes half a minute to import what it runs."""


def answers(calls: Mapping[str, Any], timeout_s: float = START_TIMEOUT_S) -> list[Any]:
    """What calls of actors return; the keys say what is waited for. Raises REQUEST_TIMED_OUT, which names them."""
    refs = list(calls.values())
    try:
        found: list[Any] = ray.get(refs, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        _, late = ray.wait(refs, num_returns=len(refs), timeout=0)
        if late:
            raise no_answer((what for what, ref in calls.items() if ref in late), timeout_s) from None
        # The last answer came between the two calls: nothing is late after all.
        found = ray.get(refs)
    return found


def no_answer(awaited: Iterable[str], timeout_s: float) -> RaykaError:
    """The error for what has not answered in time. It tells how busy the machine is, the most common reason."""
    load = f"the load of this machine is {os.getloadavg()[0]:.0f}, and it has {os.cpu_count()} processors"
    return RaykaError(ErrorCode.REQUEST_TIMED_OUT, f"no answer within {timeout_s:g} s: {', '.join(awaited)} ({load})")
