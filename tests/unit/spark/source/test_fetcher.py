"""Fetching a range from a leader that answers with errors, or with damaged batches."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.plan import OffsetRange
from rayka.spark.source import fetcher
from rayka.spark.source.fetcher import RangeFetcher
from rayka.spark.source.options import FetchSettings
from rayka.storage.format.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, iter_headers
from rayka.storage.format.records import Record, build_batch
from rayka.types import AbortedTransaction, IsolationLevel

TIMEOUT_S = 60.0
BATCHES, BATCH_RECORDS = 6, 2
END = BATCHES * BATCH_RECORDS


class Leader:
    """Answers each fetch with the error."""

    def __init__(self, error: ErrorCode) -> None:
        self.asked = 0
        self._error = error

    def request(self, _: object) -> SimpleNamespace:
        self.asked += 1
        return _response(error_code=self._error, records=None, aborted_transactions=None)


def _response(error_code: ErrorCode = ErrorCode.NONE, **fields: object) -> SimpleNamespace:
    partition = SimpleNamespace(error_code=error_code, **fields)
    return SimpleNamespace(error_code=0, responses=[SimpleNamespace(partitions=[partition])])


@pytest.mark.parametrize(
    ("error", "raised", "times"),
    [
        (ErrorCode.CORRUPT_MESSAGE, "CORRUPT_MESSAGE: clicks-3 cannot be fetched at offset 7", 1),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, "REQUEST_TIMED_OUT: clicks-3 from offset 7 to 9: NOT_LEADER", 62),
    ],
)
def test_only_an_error_that_may_pass_is_waited_for(
    error: ErrorCode, raised: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka calls CORRUPT_MESSAGE retriable, for producers: of a reader's leader it does not pass."""
    leader, seconds = Leader(error), iter(range(1000))
    monkeypatch.setattr(fetcher._connections, "_leader", lambda settings, offsets: leader)
    settings = FetchSettings("nobody:9092", IsolationLevel.READ_COMMITTED, True, TIMEOUT_S, 1 << 20)
    reader = RangeFetcher(settings, ["value"], clock=lambda: next(seconds), sleep=lambda _: None)
    with pytest.raises(RaykaError, match=raised):
        list(reader.read(OffsetRange("clicks", 3, 7, 9)))
    assert leader.asked == times


class DamagedLog:
    """Answers each fetch with the next batches of a log that starts at offset 0."""

    def __init__(self, batches: Sequence[bytes], batches_per_answer: int) -> None:
        self.high_watermark = self.end_offset = END
        self.aborted: tuple[AbortedTransaction, ...] = ()
        self._batches = batches
        self._per_answer = batches_per_answer
        self._last_offsets = [header.last_offset for each in batches for _, header in iter_headers(each)]

    def request(self, request: Any) -> SimpleNamespace:
        position = request.topics[0].partitions[0].fetch_offset
        found = [number for number, last_offset in enumerate(self._last_offsets) if last_offset >= position]
        records = b"".join(self._batches[found[0] : found[0] + self._per_answer]) if found else None
        return _response(records=records, aborted_transactions=self.aborted, high_watermark=self.high_watermark)


def batch(base_offset: int, **how: int) -> bytearray:
    records = [Record(base_offset + i, 1000, None, b"%d" % (base_offset + i)) for i in range(BATCH_RECORDS)]
    return build_batch(records, base_offset=base_offset, **how)


def offsets_read(
    log: DamagedLog,
    monkeypatch: pytest.MonkeyPatch,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    start_offset: int = 0,
) -> tuple[list[int], str]:
    """The offsets that a reader gets, and the error that it ends with."""
    monkeypatch.setattr(fetcher._connections, "_leader", lambda *_: log)
    monkeypatch.setattr(fetcher._connections, "log_end", lambda *_: log.end_offset)
    settings = FetchSettings("nobody:9092", isolation, True, 0.0, 1 << 20)
    reader, read = RangeFetcher(settings, ["offset", "value"], sleep=lambda _: None), []
    try:
        for each in reader.read(OffsetRange("clicks", 3, start_offset, END)):
            assert each["value"].to_pylist() == [b"%d" % offset for offset in each["offset"].to_pylist()]
            read += each["offset"].to_pylist()
    except RaykaError as error:
        return read, str(error)
    return read, ""


@pytest.mark.parametrize(
    ("number", "position", "damage", "error"),
    [
        (1, 0, struct.pack(">q", 2**40), f"its partition ends at offset {END}"),
        (1, 0, struct.pack(">q", 3), "offset 5 is expected"),
        (1, 0, struct.pack(">q", 0), "offset 2 is expected"),
        (3, 0, struct.pack(">q", 0), "offset 6 is expected"),
        (1, 23, b"\x80", "The record batch at offset 2 "),
        (2, 23, b"\x80", "The record batch at offset 4 "),
        (1, 8, bytes(4), "has a batch length of 0"),
        (1, 8, b"\x01", "is longer than the leader's answer"),
    ],
)
@pytest.mark.parametrize("batches_per_answer", [2, 3, BATCHES])
def test_after_damage_to_a_header_no_record_is_left_out_moved_or_read_twice(
    number: int, position: int, damage: bytes, error: str, batches_per_answer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CRCs do not cover the base offset and the length of a batch."""
    batches = [batch(base_offset) for base_offset in range(0, END, BATCH_RECORDS)]
    log = DamagedLog(batches, batches_per_answer)
    batches[number][position : position + len(damage)] = damage
    read, raised = offsets_read(log, monkeypatch)
    assert raised.startswith("CORRUPT_MESSAGE: clicks-3 from offset ")
    assert error in raised
    assert read == list(range(len(read)))
    assert len(read) <= number * BATCH_RECORDS


def test_damage_that_a_leader_passes_over_when_it_is_asked_again_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader looks for the first batch that ends at the offset or behind it."""
    batches = [batch(base_offset) for base_offset in range(0, END, BATCH_RECORDS)]
    batches[2][23] = 0x80
    read, raised = offsets_read(DamagedLog(batches, 3), monkeypatch)
    assert read == [0, 1, 2, 3]
    assert raised.startswith(
        "CORRUPT_MESSAGE: clicks-3 from offset 4 on: The record batch at offset 4 ends at offset -"
    )


def test_damage_behind_a_range_is_none_of_its_reader_s_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [batch(base_offset) for base_offset in range(0, END + 4, BATCH_RECORDS)]
    batches[-1][8:12] = bytes(4)
    log = DamagedLog(batches[:-1], len(batches))
    log._batches = batches
    log.high_watermark = log.end_offset = END + 4
    assert offsets_read(log, monkeypatch) == ([*range(END)], "")


def test_gaps_an_early_first_batch_and_an_old_high_watermark_are_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction leaves gaps. Kafka looks at the high watermark before it reads, so that it may be an old one."""
    log = DamagedLog([batch(0), batch(4), batch(END - 1)], 2)
    log.high_watermark, log.end_offset = 5, END + 1
    assert offsets_read(log, monkeypatch, start_offset=1) == ([1, 4, 5, END - 1], "")


@pytest.mark.parametrize(("flag", "error"), [(CONTROL_FLAG, "control batch"), (TRANSACTIONAL_FLAG, "CRC")])
def test_a_batch_that_looks_like_one_that_is_left_out_must_be_intact(
    flag: int, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [batch(base_offset, producer_id=7, producer_epoch=0) for base_offset in range(0, END, BATCH_RECORDS)]
    batches[1][22] |= flag
    log = DamagedLog(batches, 1)
    log.aborted = (AbortedTransaction(7, 0),)
    read, raised = offsets_read(log, monkeypatch, IsolationLevel.READ_COMMITTED)
    assert read == [0, 1]
    assert raised.startswith("CORRUPT_MESSAGE: clicks-3 from offset 2 on: ")
    assert error in raised
