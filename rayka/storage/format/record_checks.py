"""Which records of a batch a topic's configs reject, without building any record (KIP-467).

Only topics whose configs speak of single records need this: a compacted topic, whose records have keys, and topics
that bound timestamps or the size of decompressed records. The batches of all others are checked by their header.

A process that has checked many records should call `COMPILED.load`, in a thread: then batches without fault, which are
nearly all, are checked by compiled code, and only the others record by record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD, BatchHeader, read_header
from rayka.storage.format.records import NULL_ZIGZAG, corrupt_batch
from rayka.storage.format.varint import continue_unsigned
from rayka.types import NO_TIMESTAMP, RecordError, TopicPartition

MAX_REJECTED = 10_000
"""Rejected records that are named; the rest of the batch is not looked at."""


class RecordValidationError(RaykaError):
    """A batch with records that the topic does not take; `record_errors` names them (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, record_errors: Sequence[RecordError]) -> None:
        super().__init__(code, message)
        self.record_errors = tuple(record_errors)


class RecordRules(NamedTuple):
    """What records must be. Timestamps in milliseconds, both bounds allowed; `max_size` in bytes."""

    needs_key: bool
    min_timestamp: int
    max_timestamp: int
    max_size: int


class Rejected(NamedTuple):
    """A record that breaks a rule: it has no key, or, if it has one, its timestamp is out of bounds."""

    batch_index: int
    timestamp: int
    has_no_key: bool


class CompiledChecks:
    """The compiled checks of this process, if it has loaded them, and how many records it has checked without."""

    LOAD_AFTER_RECORDS = 1_000_000
    """Checking so many takes as long as the loading."""

    def __init__(self) -> None:
        self.accepts: Callable[[bytes, BatchHeader, RecordRules], bool] | None = None
        self.walked_records = 0

    @property
    def is_worth_loading(self) -> bool:
        """Whether this process checks enough records."""
        return self.accepts is None and self.walked_records >= self.LOAD_AFTER_RECORDS

    def load(self) -> None:
        """Import the compiler, and compile if no process has before. Takes from half a second to some seconds."""
        from rayka.storage.format.compiled_checks import accepts

        accepts(b"", read_header(bytes(RECORD_BATCH_OVERHEAD)), RecordRules(False, 0, 0, 0))
        self.accepts = accepts


COMPILED = CompiledChecks()


def check_records(data: bytes, header: BatchHeader, rules: RecordRules, topic_partition: TopicPartition) -> None:
    """Check the decompressed records of a batch.

    Raises RecordValidationError in Kafka's words, which some clients show: INVALID_TIMESTAMP if it is about
    timestamps too, else INVALID_RECORD. Raises INVALID_RECORD for a record above `max_size` or whose offset delta is
    not its own, and CORRUPT_MESSAGE where the bytes are not records.
    """
    rejected = find_rejected(data, header, rules)
    if not rejected:
        return
    errors = [RecordError(one.batch_index, _reason(one, header, rules, topic_partition)) for one in rejected]
    prefix = "One or more records have been rejected due to"
    if not all(one.has_no_key for one in rejected):
        raise RecordValidationError(ErrorCode.INVALID_TIMESTAMP, f"{prefix} invalid timestamp", errors)
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{message}')" for index, message in errors[:3])
    raise RecordValidationError(
        ErrorCode.INVALID_RECORD,
        f"{prefix} {len(errors)} record errors in total, and only showing the first three errors at most: [{shown}]",
        errors,
    )


def _reason(one: Rejected, header: BatchHeader, rules: RecordRules, topic_partition: TopicPartition) -> str:
    if one.has_no_key:
        return f"Compacted topic cannot accept message without key in topic partition {topic_partition}"
    return (
        f"Timestamp {one.timestamp} of message with offset {header.base_offset + one.batch_index} is out of range."
        f" The timestamp should be within [{rules.min_timestamp}, {rules.max_timestamp}]"
    )


def find_rejected(data: bytes, header: BatchHeader, rules: RecordRules) -> list[Rejected]:
    """The records that break the rules, at most `MAX_REJECTED`; errors as `check_records`."""
    if COMPILED.accepts is not None and COMPILED.accepts(data, header, rules):
        return []
    COMPILED.walked_records += header.record_count
    try:
        return _find_rejected(data, header, rules)
    except IndexError:
        raise corrupt_batch(header, "ends within a record") from None


def _find_rejected(data: bytes, header: BatchHeader, rules: RecordRules) -> list[Rejected]:
    """One loop that calls nothing for sizes and offset deltas of two bytes: a call costs as much as a record."""
    needs_key, earliest, latest, max_size = rules
    base_timestamp = header.base_timestamp
    rejected: list[Rejected] = []
    position = 0
    for index in range(header.record_count):
        number = data[position]
        position += 1
        if number > 0x7F:
            if (byte := data[position]) < 0x80:
                number += (byte << 7) - 0x80
                position += 1
            else:
                number, position = continue_unsigned(data, position, number)
        length = (number >> 1) ^ -(number & 1)
        end = position + length
        position += 1  # the attributes
        number = data[position]
        position += 1
        if number > 0x7F:
            number, position = continue_unsigned(data, position, number)
        timestamp = base_timestamp + ((number >> 1) ^ -(number & 1))
        offset = data[position]
        position += 1
        if offset > 0x7F:
            if (byte := data[position]) < 0x80:
                offset += (byte << 7) - 0x80
                position += 1
            else:
                offset, position = continue_unsigned(data, position, offset)
        has_no_key = needs_key and data[position] == NULL_ZIGZAG
        if end <= position:
            raise corrupt_batch(header, f"has a record of {length} bytes")
        if length > max_size:
            raise RaykaError(ErrorCode.INVALID_RECORD, f"Record {index} of the batch has {length} bytes")
        if offset != index + index:  # it is a zig-zag varint
            delta = (offset >> 1) ^ -(offset & 1)
            raise RaykaError(ErrorCode.INVALID_RECORD, f"Record {index} of the batch has the offset delta {delta}")
        if has_no_key or not (earliest <= timestamp <= latest or timestamp == NO_TIMESTAMP):
            rejected.append(Rejected(index, timestamp, has_no_key))
            if len(rejected) == MAX_REJECTED:
                return rejected
        position = end
    if position != len(data):
        raise corrupt_batch(header, f"has {len(data) - position} bytes after its {header.record_count} records")
    return rejected
