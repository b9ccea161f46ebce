"""The transactions that are open at the cleaner's offset as it walks over a log (KIP-98).

The records of an aborted transaction go at once. A marker goes when none of its transaction's batches is left, and
after `delete.retention.ms` more, so that a reader that has seen a record sees its marker too.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from rayka.storage.format.batch import BatchHeader
from rayka.storage.format.control import ControlType
from rayka.storage.segments.transaction_index import AbortedTxn


class CleanedTransactions:
    """`aborted` are those that were aborted, in any order.

    `retained` gathers those of which a batch was met: their markers stay, and so do their index entries.
    """

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._not_begun = [(each.first_offset, each) for each in aborted]
        heapq.heapify(self._not_begun)
        self._ongoing_aborted: dict[int, AbortedTxn] = {}
        self._observed: set[int] = set()
        self._committed: set[int] = set()
        self.retained: list[AbortedTxn] = []

    def is_aborted(self, header: BatchHeader) -> bool:
        """Take in a batch of data: whether its transaction was aborted."""
        self._begin(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._ongoing_aborted:
            self._observed.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def is_left_behind(self, header: BatchHeader, control_type: ControlType) -> bool:
        """Take in a control batch: whether it is the marker of a transaction of which no batch is left."""
        self._begin(header.last_offset)
        producer_id = header.producer_id
        if header.record_count == 0:
            return True
        if control_type is ControlType.ABORT:
            return self._end_aborted(producer_id)
        if control_type is ControlType.COMMIT:
            was_observed = producer_id in self._committed
            self._committed.discard(producer_id)
            return not was_observed
        return False

    def _end_aborted(self, producer_id: int) -> bool:
        aborted = self._ongoing_aborted.pop(producer_id, None)
        if aborted is None or producer_id not in self._observed:
            return True
        self._observed.remove(producer_id)
        self.retained.append(aborted)
        return False

    def _begin(self, offset: int) -> None:
        """Begin the aborted transactions whose first offsets are at or below `offset`."""
        while self._not_begun and self._not_begun[0][0] <= offset:
            _, aborted = heapq.heappop(self._not_begun)
            self._ongoing_aborted.setdefault(aborted.producer_id, aborted)
