"""How many records wait at an actor of a pool behind the one that it processes."""

from __future__ import annotations

from typing import Final

from rayka.client.share.records import ShareRecord

_AHEAD_S: Final = 0.02
"""The way from an actor to the pool and back takes a millisecond or two, several when processors are busy."""
_AHEAD_BYTES: Final = 256 << 10
_MOST_RECORDS: Final = 16
_LONG_S: Final = 0.2
"""No record waits behind one that takes this long: the way takes a hundredth of it, and another actor may be free."""


class RecordsAhead:
    """Learns from processed records: more may wait if they are small and quick, none if they take long."""

    def __init__(self) -> None:
        self.records = 0
        self._record_s = 0.0
        self._record_bytes = 0.0

    def processed(self, record: ShareRecord, seconds: float) -> None:
        """An actor took `seconds` for a record. A slow record counts at once, a quick one by and by."""
        self._record_s = _mean(self._record_s, seconds)
        self._record_bytes = _mean(self._record_bytes, len(record.key or b"") + len(record.value or b""))
        fitting = min(_AHEAD_S / max(self._record_s, 1e-6), _AHEAD_BYTES / max(self._record_bytes, 1.0))
        self.records = 0 if self._record_s >= _LONG_S else max(1, min(_MOST_RECORDS, int(fitting)))


def _mean(known: float, now: float) -> float:
    return max(now, (known + now) / 2)
