"""Control records: the markers that brokers write between a client's records.

Key: version i16, type i16. The value of an end-of-transaction marker: version i16, coordinator epoch i32
(KIP-98). A control batch holds exactly one record.
"""

from __future__ import annotations

import enum
import struct

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import BatchHeader, Buffer
from rayka.storage.format.records import Record, build_batch, read_batch
from rayka.types import NO_LEADER_EPOCH

_KEY = struct.Struct(">hh")
_END_TRANSACTION = struct.Struct(">hi")
_VERSION = 0


class ControlType(enum.IntEnum):
    """The type in a control record's key. Readers skip the types that they do not know."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1

    @classmethod
    def _missing_(cls, value: object) -> ControlType:
        return cls.UNKNOWN


def build_end_transaction_marker(
    control_type: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    now_ms: int,
    base_offset: int = 0,
    partition_leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """The batch that ends a transaction in one partition: `control_type` is ABORT or COMMIT."""
    key = _KEY.pack(_VERSION, control_type)
    value = _END_TRANSACTION.pack(_VERSION, coordinator_epoch)
    return build_batch(
        [Record(0, now_ms, key, value)],
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def read_control_type(buffer: Buffer, position: int, header: BatchHeader) -> ControlType:
    """What the control batch at `position` says; CORRUPT_MESSAGE if its record has no key of 4 bytes.

    Compaction may leave a control batch without a record, which says nothing: UNKNOWN.
    """
    if header.record_count == 0:
        return ControlType.UNKNOWN
    key = _control_record(buffer, position, header).key
    if key is None or len(key) < _KEY.size:
        raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"The control batch at offset {header.base_offset} has no type")
    return ControlType(_KEY.unpack_from(key)[1])


def read_coordinator_epoch(buffer: Buffer, position: int, header: BatchHeader) -> int:
    """The transaction coordinator's epoch in the marker at `position`; CORRUPT_MESSAGE if it has none."""
    value = _control_record(buffer, position, header).value
    if value is None or len(value) < _END_TRANSACTION.size:
        raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"The control batch at offset {header.base_offset} has no epoch")
    epoch: int = _END_TRANSACTION.unpack_from(value)[1]
    return epoch


def _control_record(buffer: Buffer, position: int, header: BatchHeader) -> Record:
    records = read_batch(buffer, position, header)
    if not records:
        raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"The control batch at offset {header.base_offset} is empty")
    return records[0]
