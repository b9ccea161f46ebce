"""Which batches hold records for a share group."""

from __future__ import annotations

import pytest

from rayka.share.isolation import BatchOutline, visible_batches
from rayka.types import AbortedTransaction


def outline(offset: int, producer_id: int = -1, *, control: bool = False) -> BatchOutline:
    return BatchOutline(offset, offset + 9, producer_id, producer_id >= 0, control)


BATCHES = [
    outline(0),
    outline(10, 1),
    outline(20, 2),
    outline(30, 1, control=True),
    outline(40, 1),
    outline(50, 2, control=True),
]


@pytest.mark.parametrize(
    ("aborted", "visible"),
    [
        ([], [0, 10, 20, 40]),
        ([AbortedTransaction(1, 10)], [0, 20, 40]),
        ([AbortedTransaction(2, 20)], [0, 10, 40]),
        ([AbortedTransaction(1, 10), AbortedTransaction(2, 20)], [0, 40]),
        ([AbortedTransaction(1, 40)], [0, 10, 20]),
        ([AbortedTransaction(1, 15)], [0, 20, 40]),
    ],
    ids=["none", "first", "second", "both", "the second of a producer", "begins within a batch"],
)
def test_control_batches_and_aborted_ones_are_left_out(aborted: list[AbortedTransaction], visible: list[int]) -> None:
    batches = list(visible_batches(BATCHES, aborted))
    assert [batch.first_offset for batch in batches if batch.is_visible] == visible
    assert len(batches) == len(BATCHES)
