"""Which batches of a segment a share group may acquire when one of them is damaged."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from math import inf
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
    "smaller delta": (26, b"\x01"),
    "control": (22, b"\x20"),
    "ahead": (0, struct.pack(">q", 7)),
    "far ahead": (0, struct.pack(">q", 2**40)),
}


def three_batches() -> list[bytearray]:
    """Of five records each."""
    return [build_batch([Record(0, 1000, None, b"value")] * 5, base_offset=5 * one) for one in range(3)]


def written(tmp_path: Path, batches: Iterable[bytes]) -> FileSlice:
    """A segment of batches."""
    path = tmp_path / "segment"
    return FileSlice(str(path), 0, path.write_bytes(b"".join(batches)))


@pytest.fixture(params=DAMAGE)
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> FileSlice:
    """Three batches; the header of the second is damaged."""
    batches = three_batches()
    place, damage = DAMAGE[request.param]
    batches[1][place : place + len(damage)] = damage
    return written(tmp_path, batches)


def test_batches_end_before_a_damaged_one(damaged: FileSlice) -> None:
    assert [(one.first_offset, one.last_offset) for one in SlicedBatches(damaged, 0, 15)] == [(0, 4)]


def test_a_batch_with_a_damaged_count_of_records_is_left_to_the_members(tmp_path: Path) -> None:
    """They see by the CRC that it is damaged, and reject it. The batch behind it shows that its offsets are right."""
    batches = three_batches()
    batches[1][57:61] = struct.pack(">i", 1 << 20)
    assert [one.last_offset for one in SlicedBatches(written(tmp_path, batches), 0, 15)] == [4, 9, 14]


def test_a_damaged_batch_is_an_error_if_it_is_the_first(damaged: FileSlice) -> None:
    with pytest.raises(RaykaError) as raised:
        list(SlicedBatches(damaged._replace(position=_BATCH, size=2 * _BATCH), 5, 15))
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("size", [_BATCH, _BATCH + 30, 2 * _BATCH - 1])
def test_a_batch_that_the_slice_cuts_off_is_left_out(tmp_path: Path, size: int) -> None:
    sound = written(tmp_path, three_batches())
    assert [one.last_offset for one in SlicedBatches(sound._replace(size=size), 0, 15)] == [4]


@pytest.mark.parametrize("left", [0, 30, 61, 100])
def test_batches_end_where_the_file_was_cut_off(tmp_path: Path, left: int) -> None:
    sound = written(tmp_path, three_batches())
    os.truncate(sound.path, 2 * _BATCH + left)
    assert [one.last_offset for one in SlicedBatches(sound, 0, 15)] == [4, 9]
    with pytest.raises(RaykaError, match="CORRUPT_MESSAGE"):
        list(SlicedBatches(sound._replace(position=2 * _BATCH, size=_BATCH), 10, 15))


@pytest.mark.parametrize("size", [1, 60, 61, _BATCH - 1])
def test_a_slice_without_a_whole_batch_is_an_error(tmp_path: Path, size: int) -> None:
    """Members would wait for ever."""
    sound = written(tmp_path, three_batches())
    with pytest.raises(RaykaError, match=f"CORRUPT_MESSAGE.* has {size} of its {_BATCH} bytes"):
        list(SlicedBatches(sound._replace(size=size), 0, 15))


@pytest.mark.parametrize("size", [2 * _BATCH, 2 * _BATCH + 30, 3 * _BATCH - 1])
@pytest.mark.parametrize("damage", [(7, b"\x06"), (0, b"\0\x01"), (26, b"\x05")])
def test_the_last_batch_of_a_slice_is_in_order_with_the_one_behind_it(
    tmp_path: Path, size: int, damage: tuple[int, bytes]
) -> None:
    """Or else the group would pass over records of that one, and hand these out with offsets of others."""
    batches = three_batches()
    batches[1][damage[0] : damage[0] + len(damage[1])] = damage[1]
    assert [one.last_offset for one in SlicedBatches(written(tmp_path, batches)._replace(size=size), 0, 15)] == [4]


@pytest.mark.parametrize("behind", [bytes(100), b"\x02" * 60, b"\x01" * 100])
def test_what_is_behind_the_slice_and_no_batch_does_not_matter(tmp_path: Path, behind: bytes) -> None:
    """As what was written ahead of the batches of a segment."""
    records = written(tmp_path, [three_batches()[0], behind])._replace(size=_BATCH)
    assert [one.last_offset for one in SlicedBatches(records, 0, 100)] == [4]


def test_batches_that_are_not_visible_yet_are_left_out(tmp_path: Path) -> None:
    """A chunk of the remote store is not cut at the high watermark, which may be low for a while."""
    chunk = written(tmp_path, three_batches())
    for visible_offset, last_offsets in ((15, [4, 9, 14]), (12, [4, 9]), (3, [])):
        batches = SlicedBatches(chunk, 0, inf, visible_offset=visible_offset)
        assert [one.last_offset for one in batches] == last_offsets


@pytest.mark.parametrize(("place", "damage"), [(43, struct.pack(">q", 1)), (22, b"\x10")], ids=["producer", "bit"])
def test_a_batch_that_only_its_damage_makes_aborted_is_not_passed_over(
    tmp_path: Path, place: int, damage: bytes
) -> None:
    batches = three_batches()
    for number, batch in enumerate(batches):
        stamp_producer(batch, 0, 1 if place == 22 else number + 1, 0, 0)
        if place == 43 or number == 0:
            stamp_transactional(batch)
    batches[1][place : place + len(damage)] = damage
    records, aborted = written(tmp_path, batches), (AbortedTransaction(1, 0),)
    outlines = visible_batches(SlicedBatches(records, 0, 15, aborted), aborted)
    assert list(outlines) == [LogBatch(0, 4, False)]


def test_a_segment_that_can_not_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RaykaError) as raised:
        list(SlicedBatches(FileSlice(str(tmp_path / "gone"), 0, 100), 0, 15))
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
