"""The share-partitions of an actor that could not be loaded, and what was logged of that.

A member fetches again and again, and each fetch tries to load the state: a fault that lasts is logged once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from rayka.actors.share.waiters import GroupPartition
from rayka.errors import ErrorCode, RaykaError

logger = logging.getLogger(__name__)

_MOST: Final = 10_000
"""A client may fetch for any number of groups that do not exist: beyond so many, the oldest fault is forgotten."""


@dataclass(slots=True)
class _Fault:
    """`logged`: its errors so far. `met_s`: when it was met last."""

    met_s: float
    logged: set[ErrorCode] = field(default_factory=set)


class LoadFaults:
    """Logs each error of a share-partition once, until the share-partition is loaded. Time is in seconds."""

    def __init__(self) -> None:
        self._faults: dict[GroupPartition, _Fault] = {}

    def __len__(self) -> int:
        return len(self._faults)

    def failed(self, key: GroupPartition, error: RaykaError, now_s: float) -> None:
        """A share-partition could not be loaded."""
        fault = self._faults.setdefault(key, _Fault(now_s))
        fault.met_s = now_s
        if len(self._faults) > _MOST:
            del self._faults[next(iter(self._faults))]
        if error.code not in fault.logged:
            fault.logged.add(error.code)
            logger.warning("cannot load %s of group %s: %s", key.topic_partition, key.group_id, error)

    def passed(self, key: GroupPartition) -> None:
        """A share-partition is loaded."""
        self._faults.pop(key, None)

    def forget_older(self, since_s: float) -> None:
        """Forget the faults that nobody has met since then: their groups may be gone."""
        self._faults = {key: fault for key, fault in self._faults.items() if fault.met_s >= since_s}
