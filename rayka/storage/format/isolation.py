"""Which batches of a fetch answer a reader sees: never control batches, and under read_committed no aborted ones.

The broker answers with the aborted transactions of the range by first offset. A transaction's batches are
left out from there on, until the abort marker of the same producer (KIP-98).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rayka.storage.format.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchHeader, Buffer
from rayka.storage.format.control import ControlType, read_control_type
from rayka.types import AbortedTransaction


def iter_visible(
    buffer: Buffer,
    headers: Iterable[tuple[int, BatchHeader]],
    aborted_transactions: Sequence[AbortedTransaction] | None = None,
) -> Iterator[tuple[int, BatchHeader]]:
    """Those of the batches of `buffer`, given by position and header, that a reader may see.

    `aborted_transactions` is None under read_uncommitted.
    """
    to_come = sorted(aborted_transactions or (), key=lambda transaction: transaction.first_offset, reverse=True)
    aborting: set[int] = set()
    for position, header in headers:
        while to_come and to_come[-1].first_offset <= header.last_offset:
            aborting.add(to_come.pop().producer_id)
        if header.attributes & CONTROL_FLAG:
            if header.producer_id in aborting and read_control_type(buffer, position, header) is ControlType.ABORT:
                aborting.remove(header.producer_id)
        elif not (header.attributes & TRANSACTIONAL_FLAG and header.producer_id in aborting):
            yield position, header
