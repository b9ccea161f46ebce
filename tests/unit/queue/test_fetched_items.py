"""The items of a fetch: values out of record batches, by what was acquired of them."""

from __future__ import annotations

import pytest

from rayka.errors import ErrorCode
from rayka.queue.fetched_items import acquired_items
from rayka.queue.leases import ItemRun
from rayka.share.acquire import AcquiredRecords
from rayka.storage.format.batch import read_header
from rayka.storage.format.records import Record, build_batch, read_records
from tests.support.batches import rebuild_batch


def batch(first_offset: int, *values: bytes | None, is_control: bool = False) -> bytes:
    records = [Record(first_offset + number, 1_000 + number, None, value) for number, value in enumerate(values)]
    return bytes(build_batch(records, base_offset=first_offset, is_control=is_control))


def test_items_of_neighbouring_batches_are_one_run() -> None:
    data = batch(5, b"5", b"6", b"7") + batch(8, b"8", None)
    runs, _ = acquired_items(3, data, [AcquiredRecords(6, 9, 1)])
    assert runs == [ItemRun(3, 6, [b"6", b"7", b"8", b""], 1)]


def test_items_with_other_delivery_counts_and_those_after_a_gap_are_apart() -> None:
    data = batch(0, b"0", b"1", b"2") + batch(7, b"7", b"8")
    acquired = [AcquiredRecords(0, 0, 1), AcquiredRecords(1, 1, 3), AcquiredRecords(2, 8, 1)]
    runs = [
        ItemRun(0, 0, [b"0"], 1),
        ItemRun(0, 1, [b"1"], 3),
        ItemRun(0, 2, [b"2"], 1),
        ItemRun(0, 7, [b"7", b"8"], 1),
    ]
    assert acquired_items(0, data, acquired) == (runs, None)


def test_offsets_without_a_record_have_no_item_and_control_batches_none_at_all() -> None:
    whole = batch(0, b"0", b"1", b"2", b"3")
    left = [record for record in read_records(whole) if record.offset != 1]
    data = bytes(rebuild_batch(read_header(whole), left)) + batch(4, b"4", is_control=True) + batch(5, b"5")
    runs = [ItemRun(0, 0, [b"0"]), ItemRun(0, 2, [b"2", b"3"]), ItemRun(0, 5, [b"5"])]
    assert acquired_items(0, data, [AcquiredRecords(0, 5, 1)]) == (runs, None)


@pytest.mark.parametrize("place", [8, 11, *range(16, len(batch(0, b"0", b"1")))])
def test_items_of_a_damaged_batch_are_not_delivered(place: int) -> None:
    """Nor are their offsets gaps. What no CRC covers, the offset and the leader epoch, is left out."""
    damaged = bytearray(batch(2, b"2", b"3"))
    damaged[place] ^= 0x10
    data = batch(0, b"0", b"1") + damaged + batch(4, b"4")
    runs, damage = acquired_items(0, data, [AcquiredRecords(0, 4, 1)])
    assert runs[0] == ItemRun(0, 0, [b"0", b"1"])
    assert runs[1:] in ([], [ItemRun(0, 4, [b"4"])])
    assert damage is not None


def test_items_behind_a_damaged_batch_are_delivered() -> None:
    damaged = batch(2, b"2", b"3").replace(b"3", b"?")
    runs, damage = acquired_items(0, damaged + batch(4, b"4"), [AcquiredRecords(2, 4, 1)])
    assert runs == [ItemRun(0, 4, [b"4"])]
    assert damage is not None
    assert damage.code is ErrorCode.CORRUPT_MESSAGE


def test_a_batch_that_is_cut_off_is_damage() -> None:
    data = batch(0, b"0") + batch(1, b"1")
    for missing in (1, len(batch(1, b"1")) - 1):
        runs, damage = acquired_items(0, data[:-missing], [AcquiredRecords(0, 1, 1)])
        assert runs == [ItemRun(0, 0, [b"0"])]
        assert damage is not None
