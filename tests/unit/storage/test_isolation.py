"""Control batches, and what a read_committed reader sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayka.errors import RaykaError
from rayka.storage.format.batch import Buffer, iter_headers, read_header
from rayka.storage.format.control import (
    ControlType,
    build_end_transaction_marker,
    read_control_type,
    read_coordinator_epoch,
)
from rayka.storage.format.isolation import iter_visible
from rayka.storage.format.records import Record, build_batch, read_batch, read_records
from rayka.types import AbortedTransaction
from tests.support.logs import valid_prefix

LOG = (Path(__file__).parent / "logs" / "transactions.log").read_bytes()


def aborted_in(log: Buffer) -> list[AbortedTransaction]:
    """The aborted transactions of a log, found as the broker's transaction index finds them."""
    first_offsets: dict[int, int] = {}
    aborted = []
    for position, header in iter_headers(log):
        if not header.is_control:
            first_offsets.setdefault(header.producer_id, header.base_offset)
            continue
        first_offset = first_offsets.pop(header.producer_id)
        if read_control_type(log, position, header) is ControlType.ABORT:
            aborted.append(AbortedTransaction(header.producer_id, first_offset))
    return aborted


def values(log: Buffer, aborted: list[AbortedTransaction] | None) -> list[bytes | None]:
    return [
        r.value
        for position, header in iter_visible(log, iter_headers(log), aborted)
        for r in read_batch(log, position, header)
    ]


def test_the_markers_of_kafka_are_read() -> None:
    assert valid_prefix(LOG) == len(LOG)
    markers = [
        (header.base_offset, read_control_type(LOG, position, header), read_coordinator_epoch(LOG, position, header))
        for position, header in iter_headers(LOG)
        if header.is_control
    ]
    assert markers == [
        (6, ControlType.COMMIT, 0),
        (7, ControlType.ABORT, 0),
        (9, ControlType.COMMIT, 0),
        (11, ControlType.ABORT, 0),
    ]


def test_read_uncommitted_sees_all_but_the_markers() -> None:
    assert len(values(LOG, None)) == 8
    assert [record.value for record in read_records(LOG)] == values(LOG, None)
    assert len(list(read_records(LOG, include_control=True))) == 12


def test_read_committed_sees_what_was_committed() -> None:
    assert values(LOG, aborted_in(LOG)) == [b"committed 2", b"committed 3", b"committed 8"]


def test_read_committed_starting_in_the_middle_of_an_aborted_transaction() -> None:
    start = next(position for position, header in iter_headers(LOG) if header.base_offset == 4)
    assert values(LOG[start:], aborted_in(LOG)) == [b"committed 8"]


def test_our_marker_is_the_marker_of_kafka() -> None:
    for position, header in iter_headers(LOG):
        if header.is_control:
            marker = build_end_transaction_marker(
                read_control_type(LOG, position, header),
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                coordinator_epoch=0,
                now_ms=header.max_timestamp,
                base_offset=header.base_offset,
                partition_leader_epoch=header.partition_leader_epoch,
            )
            ours, theirs = read_header(marker), header
            assert ours._replace(crc=0, batch_length=0) == theirs._replace(crc=0, batch_length=0)
            assert read_control_type(marker, 0, ours) is read_control_type(LOG, position, header)
            assert read_coordinator_epoch(marker, 0, ours) == 0


def test_unknown_control_types_are_skipped_and_broken_ones_refused() -> None:
    unknown = build_batch([Record(0, 0, b"\x00\x00\x00\x63", b"")], is_control=True)
    assert read_control_type(unknown, 0, read_header(unknown)) is ControlType.UNKNOWN
    assert list(iter_visible(unknown, iter_headers(unknown), [])) == []
    emptied = build_batch([], is_control=True)
    assert read_control_type(emptied, 0, read_header(emptied)) is ControlType.UNKNOWN, "compaction leaves such a batch"
    for records in ([Record(0, 0, None, None)], [Record(0, 0, b"\x00", b"\x00")]):
        broken = build_batch(records, is_control=True)
        with pytest.raises(RaykaError):
            read_control_type(broken, 0, read_header(broken))
        with pytest.raises(RaykaError):
            read_coordinator_epoch(broken, 0, read_header(broken))
