"""How many records an actor of a pool gets with one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rayka.client.share.records import ShareRecord

_CALL_S: Final = 0.05
"""A call to an actor takes a millisecond of two processes; so long it may keep records that others could process."""
_CALL_BYTES: Final = 256 << 10
_MOST_RECORDS: Final = 16


class CallSize:
    """One record until it is known how long they take; then as many as are quickly processed, and are not large."""

    def __init__(self) -> None:
        self.records = 1
        self._record_s = 0.0
        self._record_bytes = 0.0

    def processed(self, records: Sequence[ShareRecord], seconds: float) -> None:
        """An actor took so long for the records of a call. It counts at once if it is slower than before."""
        self._record_s = _mean(self._record_s, seconds / len(records))
        self._record_bytes = _mean(self._record_bytes, sum(map(_size, records)) / len(records))
        fitting = min(_CALL_S / max(self._record_s, 1e-6), _CALL_BYTES / max(self._record_bytes, 1.0))
        self.records = max(1, min(_MOST_RECORDS, int(fitting)))


def _mean(known: float, now: float) -> float:
    return max(now, (known + now) / 2)


def _size(record: ShareRecord) -> int:
    return len(record.key or b"") + len(record.value or b"")
