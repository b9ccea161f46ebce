"""What a share consumer makes of the records that a leader says it has acquired.

Each acquired offset is a record, or is acknowledged by the consumer itself, or is given back. Offsets without a record
are gaps. The records of a damaged batch are rejected, as Kafka's consumer does, so that they hold up no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from rayka.client.share.records import RecordAcknowledgement, ShareRecord, acquired_records, rejection_headers
from rayka.errors import ErrorCode, RaykaError
from rayka.share.acquire import AcquiredRecords
from rayka.share.record_state import AcknowledgeType
from rayka.share.requests import ShareFetchResult
from rayka.storage.format.batch import iter_headers
from rayka.storage.format.order import in_order
from rayka.storage.segments.reader import SegmentReader
from rayka.types import FileSlice, TopicIdPartition

_GAP: Final = RecordAcknowledgement(AcknowledgeType.GAP)
_RELEASED: Final = RecordAcknowledgement(AcknowledgeType.RELEASE)


class TakenRecords(NamedTuple):
    """The records of one partition of an answer.

    acknowledgements: of offsets that the program does not get.
    unread: ranges of offsets to give back, because `unread_error` kept them from being read.
    damage: why some of the acknowledgements reject, or release, the records of a batch; of several batches, the last.
    """

    records: Sequence[ShareRecord]
    acknowledgements: Mapping[int, RecordAcknowledgement]
    unread: Sequence[tuple[int, int]] = ()
    unread_error: RaykaError | None = None
    damage: RaykaError | None = None


def take_records(reader: SegmentReader, partition: TopicIdPartition, answer: ShareFetchResult) -> TakenRecords:
    """Read what was acquired."""
    acquired = answer.acquired
    try:
        data = reader.read(answer.records) if isinstance(answer.records, FileSlice) else answer.records or b""
        try:
            records = list(acquired_records(partition, data, acquired))
        except RaykaError:
            return _take_by_batch(partition, data, acquired)
    except RaykaError as error:  # such as too many open files
        return TakenRecords([], {}, answer.acquired_offsets, error)
    except Exception as error:  # such as a lack of memory
        reason = f"{partition.topic_partition} can't be read: {error!r}"
        return TakenRecords([], {}, answer.acquired_offsets, RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR, reason))
    return TakenRecords(records, _gaps(acquired, records))


def _take_by_batch(partition: TopicIdPartition, data: bytes, acquired: Sequence[AcquiredRecords]) -> TakenRecords:
    """As `take_records`, where some of the data is damaged.

    Where a damaged batch ends is as uncertain as what it holds: offsets up to the next batch are taken for its own.
    """
    records: list[ShareRecord] = []
    left_out: dict[int, RecordAcknowledgement] = {}
    damage: RaykaError | None = None
    next_offset = acquired[0].first_offset
    unread_error = RaykaError(ErrorCode.CORRUPT_MESSAGE, f"{partition.topic_partition} ends within a record batch")
    is_after_damage = False
    try:
        for place, header in in_order(iter_headers(data), next_offset, check_counts=False):
            if is_after_damage and damage is not None:
                between = _within(acquired, next_offset, header.base_offset - 1)
                left_out |= dict.fromkeys(_offsets(between), _left_out(damage))
            next_offset = header.next_offset
            wanted = _within(acquired, header.base_offset, header.last_offset)
            try:
                records += list(acquired_records(partition, data[place : place + header.size_in_bytes], wanted))
                is_after_damage = False
            except RaykaError as error:
                what = f"offsets {header.base_offset} to {header.last_offset} of {partition.topic_partition}"
                damage, is_after_damage = RaykaError(error.code, f"{what}: {error.message}"), True
                left_out |= dict.fromkeys(_offsets(wanted), _left_out(damage))
    except RaykaError as error:
        unread_error = error
    unread = [(first, last) for first, last, _ in _within(acquired, next_offset, acquired[-1].last_offset)]
    gaps = _gaps(_within(acquired, acquired[0].first_offset, next_offset - 1), records)
    return TakenRecords(records, gaps | left_out, unread, unread_error if unread else None, damage)


def _left_out(damage: RaykaError) -> RecordAcknowledgement:
    """Reject damaged records. What this consumer can't read for another reason, another one may read."""
    if damage.code is not ErrorCode.CORRUPT_MESSAGE:
        return _RELEASED
    return RecordAcknowledgement(AcknowledgeType.REJECT, headers=rejection_headers(damage.message))


def _gaps(acquired: Sequence[AcquiredRecords], records: Sequence[ShareRecord]) -> dict[int, RecordAcknowledgement]:
    if len(records) == sum(last - first + 1 for first, last, _ in acquired):
        return {}
    return dict.fromkeys(set(_offsets(acquired)).difference(record.offset for record in records), _GAP)


def _within(acquired: Sequence[AcquiredRecords], first_offset: int, last_offset: int) -> list[AcquiredRecords]:
    """The part of the acquired ranges that lies between two offsets."""
    return [
        AcquiredRecords(max(first, first_offset), min(last, last_offset), delivery_count)
        for first, last, delivery_count in acquired
        if first <= last_offset and last >= first_offset
    ]


def _offsets(acquired: Sequence[AcquiredRecords]) -> Iterator[int]:
    return chain.from_iterable(range(first, last + 1) for first, last, _ in acquired)
