"""The compiled form of the usual outcome of `record_checks`: that a batch has no record to reject.

Importing this module imports numpy. Processes that check few records do without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rayka.config.definition import LONG_MAX
from rayka.storage.columns.compiled import compiled
from rayka.storage.columns.decode import Bytes, read_length, read_varint
from rayka.storage.format.records import NULL_ZIGZAG
from rayka.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from rayka.storage.format.batch import BatchHeader
    from rayka.storage.format.record_checks import RecordRules


def accepts(data: bytes, header: BatchHeader, rules: RecordRules) -> bool:
    """Whether the decompressed records of a batch are well-formed, and all within the rules."""
    earliest, latest = max(rules.min_timestamp, -LONG_MAX), min(rules.max_timestamp, LONG_MAX)
    records = np.frombuffer(data, np.uint8)
    return _accepts(
        records, header.record_count, header.base_timestamp, rules.needs_key, earliest, latest, rules.max_size
    )


@compiled
def _accepts(
    data: Bytes, count: int, base_timestamp: int, needs_key: bool, earliest: int, latest: int, max_size: int
) -> bool:
    position = 0
    end = len(data)
    for index in range(count):
        length, position = read_length(data, position, end)
        if position < 0 or length < 1 or length > max_size:
            return False
        record_end = position + length
        timestamp_delta, position = read_varint(data, position + 1, record_end)
        if position < 0:
            return False
        offset_delta, position = read_varint(data, position, record_end)
        if position < 0 or position >= record_end or offset_delta != index:
            return False
        if needs_key and data[position] == NULL_ZIGZAG:
            return False
        timestamp = base_timestamp + timestamp_delta
        if timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest:
            return False
        position = record_end
    return position == end
