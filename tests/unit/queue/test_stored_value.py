"""Large items stay in the log until a program takes them."""

from __future__ import annotations

import gc
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from rayka.queue.fetched_items import acquired_items
from rayka.queue.items import loads
from rayka.queue.stored_value import SMALLEST_BYTES, StoredValue, UnreadableItem
from rayka.share.acquire import AcquiredRecords
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import Record, build_batch
from rayka.types import FileSlice

LARGE = os.urandom(SMALLEST_BYTES)


def batch(offset: int, *values: bytes, key: bytes | None = None, codec: Codec = Codec.NONE) -> bytes:
    records = [Record(offset + index, 5, key, value) for index, value in enumerate(values)]
    return bytes(build_batch(records, base_offset=offset, codec=codec))


def stored(path: Path, *batches: bytes) -> FileSlice:
    """A slice of a segment that has other bytes before and behind it."""
    data = b"".join(batches)
    path.write_bytes(b"before" + data + b"behind")
    return FileSlice(str(path), len(b"before"), len(data))


def values_of(records: FileSlice, last: int) -> list[bytes | StoredValue]:
    runs, damage = acquired_items(0, records, [AcquiredRecords(0, last, 1)])
    assert damage is None
    return [value for run in runs for value in run.values]


@pytest.mark.parametrize(
    "item",
    [LARGE, "ä" * SMALLEST_BYTES, np.arange(SMALLEST_BYTES), [LARGE, LARGE[1:], 7], bytearray(LARGE)],
    ids=["bytes", "text", "array", "list", "bytearray"],
)
def test_large_items_are_unpickled_from_the_log(item: object, tmp_path: Path) -> None:
    (value,) = values_of(stored(tmp_path / "log", batch(0, pickle.dumps(item, 5))), 0)
    assert isinstance(value, StoredValue)
    assert np.array_equal(loads(value), item)


def test_a_large_item_has_the_bytes_that_were_put(tmp_path: Path) -> None:
    first, second = values_of(stored(tmp_path / "log", batch(0, LARGE), batch(1, LARGE[::-1])), 1)
    assert isinstance(first, StoredValue)
    assert isinstance(second, StoredValue)
    assert (len(first), first.read(), second.read()) == (len(LARGE), LARGE, LARGE[::-1])


def test_what_follows_large_items_is_read_at_once(tmp_path: Path) -> None:
    records = stored(tmp_path / "log", batch(0, LARGE), batch(1, b"small", b"smaller"), batch(3, LARGE))
    first, *others = values_of(records, 3)
    assert isinstance(first, StoredValue)
    assert others == [b"small", b"smaller", LARGE]


@pytest.mark.parametrize(
    "other",
    [batch(0, LARGE, LARGE), batch(0, LARGE, key=b"key"), batch(0, LARGE * 2, codec=Codec.LZ4)],
    ids=["two records", "key", "compressed"],
)
def test_other_batches_are_read_at_once(other: bytes, tmp_path: Path) -> None:
    assert all(isinstance(value, bytes) for value in values_of(stored(tmp_path / "log", other), 1))


def test_only_acquired_large_items_are_there(tmp_path: Path) -> None:
    records = stored(tmp_path / "log", batch(0, LARGE), batch(1, LARGE[::-1]))
    ((run,), _) = acquired_items(4, records, [AcquiredRecords(1, 1, 2)])
    (value,) = run.values
    assert (run.partition, run.first_offset, run.delivery_count, run.size) == (4, 1, 2, len(LARGE))
    assert isinstance(value, StoredValue)
    assert value.read() == LARGE[::-1]


def test_another_file_that_gets_the_name_of_a_deleted_segment_is_not_read(tmp_path: Path) -> None:
    (value,) = values_of(stored(tmp_path / "log", batch(0, LARGE)), 0)
    os.unlink(tmp_path / "log")
    stored(tmp_path / "log", batch(0, LARGE[::-1]))
    assert isinstance(value, StoredValue)
    assert value.read() == LARGE


def open_descriptors(path: Path) -> int:
    """Those of this process."""
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return sum(os.path.lexists(link) and os.readlink(link) == str(path) for link in links)


def test_a_segment_is_closed_after_its_last_item(tmp_path: Path) -> None:
    values = values_of(stored(tmp_path / "log", batch(0, LARGE), batch(1, LARGE)), 1)
    assert open_descriptors(tmp_path / "log") == 1
    values.pop()
    assert open_descriptors(tmp_path / "log") == 1
    values.pop()
    gc.collect()
    assert open_descriptors(tmp_path / "log") == 0


def test_a_segment_that_became_shorter_is_not_the_fault_of_the_item(tmp_path: Path) -> None:
    (value,) = values_of(stored(tmp_path / "log", batch(0, pickle.dumps(LARGE))), 0)
    assert isinstance(value, StoredValue)
    os.truncate(tmp_path / "log", SMALLEST_BYTES // 2)
    with pytest.raises(UnreadableItem):
        value.read()
    with pytest.raises(UnreadableItem):
        value.unpickle()


@pytest.mark.parametrize("place", [17, 35, 90, 5_000, SMALLEST_BYTES])
@pytest.mark.parametrize(
    "item", [LARGE, "ä" * SMALLEST_BYTES, ["x", 1.5] * SMALLEST_BYTES], ids=["bytes", "text", "list"]
)
def test_a_damaged_item_is_not_delivered_and_not_at_fault(item: object, place: int, tmp_path: Path) -> None:
    """CRC, last offset delta, the pickle's frame and data: whatever the damage is, the item comes again."""
    data = bytearray(batch(0, pickle.dumps(item, 5)))
    data[place] ^= 0x10
    runs, damage = acquired_items(0, stored(tmp_path / "log", bytes(data)), [AcquiredRecords(0, 0, 1)])
    if damage is not None:
        assert not runs
        return
    (value,) = runs[0].values
    assert isinstance(value, StoredValue)
    with pytest.raises(UnreadableItem):
        value.unpickle()
    with pytest.raises(UnreadableItem):
        value.read()


def test_an_item_of_a_foreign_producer_may_have_bytes_behind_its_pickle(tmp_path: Path) -> None:
    (value,) = values_of(stored(tmp_path / "log", batch(0, pickle.dumps([LARGE], 5) + bytes(50_000))), 0)
    assert isinstance(value, StoredValue)
    assert value.unpickle() == [LARGE]
