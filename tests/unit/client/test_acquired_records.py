"""What a share consumer makes of acquired records when it can't read all of them."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from rayka.client.share.acquired import TakenRecords, take_records
from rayka.errors import ErrorCode
from rayka.share.acquire import AcquiredRecords
from rayka.share.record_state import AcknowledgeType
from rayka.share.requests import ShareFetchResult
from rayka.storage.format.batch import seal
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import Record, build_batch
from rayka.storage.segments.reader import SegmentReader
from rayka.types import FileSlice, TopicIdPartition, TopicPartition

TASKS = TopicIdPartition(uuid.UUID(int=1), TopicPartition("tasks", 0))
GAP, RELEASE, REJECT = AcknowledgeType.GAP, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


def batches(codec: Codec = Codec.NONE) -> list[bytearray]:
    """Three batches of five records: the offsets from 0 to 14."""
    return [
        bytearray(build_batch([Record(0, 1000, None, b"value")] * 5, base_offset=base_offset, codec=codec))
        for base_offset in (0, 5, 10)
    ]


def take(data: bytes, *acquired: tuple[int, int]) -> TakenRecords:
    ranges = tuple(AcquiredRecords(*each, 1) for each in acquired or ((0, 14),))
    return take_records(SegmentReader(), TASKS, ShareFetchResult(acquired=ranges, records=data))


def offsets(taken: TakenRecords) -> list[int]:
    return [record.offset for record in taken.records]


def said(taken: TakenRecords) -> dict[int, int]:
    return {offset: acknowledgement.type for offset, acknowledgement in taken.acknowledgements.items()}


def test_acquired_offsets_without_a_record_are_gaps() -> None:
    first, _, last = batches()
    taken = take(bytes(first + last), (3, 12))
    assert offsets(taken) == [3, 4, 10, 11, 12]
    assert said(taken) == dict.fromkeys(range(5, 10), GAP)
    assert taken.unread_error is taken.damage is None


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_batch_with_a_wrong_crc_is_rejected_and_the_others_are_read(damaged: int) -> None:
    three = batches()
    three[damaged][70] ^= 1
    taken = take(b"".join(three), (1, 6), (8, 13))
    acquired = {1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13}
    rejected = acquired & {*range(5 * damaged, 5 * damaged + 5)}
    assert offsets(taken) == sorted(acquired - rejected)
    assert said(taken) == dict.fromkeys(rejected, REJECT)
    assert taken.damage is not None
    assert taken.damage.code is ErrorCode.CORRUPT_MESSAGE
    assert f"offsets {5 * damaged} to {5 * damaged + 4} of tasks-0" in taken.damage.message
    assert not taken.unread


def test_a_batch_whose_records_are_malformed_is_rejected_as_a_whole() -> None:
    three = batches()
    three[1][61] = 0x7F  # the length of its first record
    seal(three[1], 0, len(three[1]))
    taken = take(b"".join(three))
    assert offsets(taken) == [*range(5), *range(10, 15)]
    assert said(taken) == dict.fromkeys(range(5, 10), REJECT)


def test_offsets_that_a_damaged_batch_lost_are_rejected_and_are_no_gap() -> None:
    three = batches()
    three[1][26] = 2  # its last offset is 7
    taken = take(b"".join(three))
    assert offsets(taken) == [*range(5), *range(10, 15)]
    assert said(taken) == dict.fromkeys(range(5, 10), REJECT)


def test_a_batch_that_another_consumer_may_read_is_released() -> None:
    three = batches()
    three[1][22] = 7  # a codec that does not exist yet
    seal(three[1], 0, len(three[1]))
    taken = take(b"".join(three))
    assert said(taken) == dict.fromkeys(range(5, 10), RELEASE)
    assert taken.damage is not None
    assert taken.damage.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize(("place", "byte"), [(16, 7), (8, 0xFF), (8, 0x10), (0, 1)])
def test_what_lies_behind_a_broken_frame_is_given_back_and_is_no_gap(place: int, byte: int) -> None:
    """These were acknowledged as gaps: the group never saw them."""
    first, second, third = batches()
    second[place] = byte  # the magic, the length, the offset
    taken = take(bytes(first + second + third), (2, 7), (9, 14))
    is_offset = place == 0  # then either of the batches that are not in order may be wrong
    assert offsets(taken) == [2, 3, 4]
    assert taken.acknowledgements == {}
    assert taken.unread == [(5, 7), (9, 14)]
    assert taken.unread_error is not None
    assert taken.unread_error.code is ErrorCode.CORRUPT_MESSAGE
    assert ("not in order" in taken.unread_error.message) == is_offset


def test_what_lies_behind_the_end_of_the_data_is_given_back() -> None:
    first, second, _ = batches()
    for data in (first + second, first + second[:-1], first):
        taken = take(bytes(data))
        read = 10 if data == first + second else 5
        assert offsets(taken) == [*range(read)]
        assert taken.acknowledgements == {}
        assert taken.unread == [(read, 14)]
        assert taken.unread_error is not None


def test_all_is_given_back_if_the_file_can_not_be_read(tmp_path: Path) -> None:
    answer = ShareFetchResult(
        acquired=(AcquiredRecords(0, 4, 1), AcquiredRecords(6, 7, 2)), records=FileSlice(str(tmp_path / "gone"), 0, 9)
    )
    taken = take_records(SegmentReader(), TASKS, answer)
    assert taken[:3] == ([], {}, [(0, 4), (6, 7)])
    assert taken.unread_error is not None
    assert taken.unread_error.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_all_is_given_back_if_there_is_not_enough_memory() -> None:
    class Full(SegmentReader):
        def read(self, file_slice: FileSlice) -> bytes:
            raise MemoryError

    answer = ShareFetchResult(acquired=(AcquiredRecords(0, 4, 1),), records=FileSlice("log", 0, 9))
    taken = take_records(Full(), TASKS, answer)
    assert taken[:3] == ([], {}, [(0, 4)])
    assert taken.unread_error is not None
    assert "MemoryError" in taken.unread_error.message
