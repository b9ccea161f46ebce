"""Which batches of a segment a share group may acquire when one of them is damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rayka.actors.share.batches import SlicedBatches
from rayka.errors import ErrorCode, RaykaError
from rayka.share.acquire import LogBatch
from rayka.share.isolation import visible_batches
from rayka.storage.format.batch import stamp_producer, stamp_transactional
from rayka.storage.format.records import Record, build_batch
from rayka.types import AbortedTransaction, FileSlice

_BATCH = len(build_batch([Record(0, 1000, None, b"value")] * 5))
DAMAGE = {
    "magic": (16, b"\x07"),
    "short": (8, bytes(4)),
    "negative length": (8, b"\xff"),
    "delta": (23, b"\x80"),
    "control": (22, b"\x20"),
    "ahead": (0, struct.pack(">q", 7)),
    "far ahead": (0, struct.pack(">q", 2**40)),
}


@pytest.fixture(params=DAMAGE)
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> FileSlice:
    """Three batches of five records; the header of the second is damaged."""
    batches = [build_batch([Record(0, 1000, None, b"value")] * 5, base_offset=5 * one) for one in range(3)]
    place, damage = DAMAGE[request.param]
    batches[1][place : place + len(damage)] = damage
    path = tmp_path / "segment"
    path.write_bytes(b"".join(batches))
    return FileSlice(str(path), 0, 3 * _BATCH)


def test_batches_end_before_a_damaged_one(damaged: FileSlice) -> None:
    assert [(one.first_offset, one.last_offset) for one in SlicedBatches(damaged, 0, 15)] == [(0, 4)]


def test_a_damaged_batch_is_an_error_if_it_is_the_first(damaged: FileSlice) -> None:
    with pytest.raises(RaykaError) as raised:
        list(SlicedBatches(damaged._replace(position=_BATCH, size=2 * _BATCH), 5, 15))
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_batch_that_the_slice_cuts_off_is_left_out(damaged: FileSlice) -> None:
    assert [one.last_offset for one in SlicedBatches(damaged._replace(size=_BATCH + 100), 0, 15)] == [4]


@pytest.mark.parametrize(("place", "damage"), [(43, struct.pack(">q", 1)), (22, b"\x10")], ids=["producer", "bit"])
def test_a_batch_that_only_its_damage_makes_aborted_is_not_passed_over(
    tmp_path: Path, place: int, damage: bytes
) -> None:
    batches = [build_batch([Record(0, 1000, None, b"value")] * 5, base_offset=5 * one) for one in range(3)]
    for number, batch in enumerate(batches):
        stamp_producer(batch, 0, 1 if place == 22 else number + 1, 0, 0)
        if place == 43 or number == 0:
            stamp_transactional(batch)
    batches[1][place : place + len(damage)] = damage
    path = tmp_path / "segment"
    path.write_bytes(b"".join(batches))
    records, aborted = FileSlice(str(path), 0, 3 * _BATCH), (AbortedTransaction(1, 0),)
    outlines = visible_batches(SlicedBatches(records, 0, 15, aborted), aborted)
    assert list(outlines) == [LogBatch(0, 4, False)]


def test_a_segment_that_can_not_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RaykaError) as raised:
        list(SlicedBatches(FileSlice(str(tmp_path / "gone"), 0, 100), 0, 15))
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
