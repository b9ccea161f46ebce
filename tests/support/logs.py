"""Logs for tests: small batches, opening and closing, reading everything back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rayka.config import LogConfig
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import RECORD_BATCH_OVERHEAD, Buffer, is_intact, iter_headers, read_header
from rayka.storage.format.records import Record, build_batch, read_records
from rayka.storage.log.log import Log
from rayka.storage.log.recovery import LastRun
from rayka.storage.segments.reader import SegmentReader
from rayka.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TopicPartition

NOW_MS = 1_700_000_000_000
ORDERS = TopicPartition("orders", 0)


def records(*values: bytes, timestamp: int = NOW_MS, key: bytes | None = b"k") -> list[Record]:
    """Records that differ in value, a millisecond apart."""
    return [Record(0, timestamp + index, key, value) for index, value in enumerate(values)]


def batch(
    *values: bytes,
    timestamp: int = NOW_MS,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    **how: Any,
) -> bytearray:
    """A batch as a producer sends it."""
    return build_batch(
        records(*values, timestamp=timestamp),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        **how,
    )


def open_log(directory: Path | str, *, files: RealFiles | None = None, now_ms: int = NOW_MS, **how: Any) -> Log:
    """The log in a directory; keywords of `LogConfig`, `LastRun` and `Log.open` go where they belong."""

    def take(kind: type[LogConfig] | type[LastRun]) -> dict[str, Any]:
        return {name: how.pop(name) for name in set(how).intersection(kind.__dataclass_fields__)}

    config, last_run = LogConfig(**take(LogConfig)), LastRun(**take(LastRun))
    return Log.open(str(directory), ORDERS, config, files or RealFiles(), now_ms=now_ms, last_run=last_run, **how)


def valid_prefix(buffer: Buffer) -> int:
    """How many bytes at the start are whole batches with a right CRC."""
    position = 0
    while position + RECORD_BATCH_OVERHEAD <= len(buffer):
        header = read_header(buffer, position)
        if not is_intact(buffer, position, header):
            break
        position += header.size_in_bytes
    return position


def append(log: Log, *values: bytes, now_ms: int = NOW_MS, **how: Any) -> int:
    """Append one batch and make it visible; its base offset."""
    info = log.append_as_leader(batch(*values, **how), 0, now_ms)
    log.update_high_watermark(log.log_end_offset)
    return info.base_offset


def read_batches(log: Log, *, max_bytes: int = 1 << 20) -> Iterator[bytes]:
    """Every batch from the log start to the high watermark, as its bytes."""
    reader = SegmentReader()
    offset = log.log_start_offset
    while (file_slice := log.read(offset, max_bytes, log.high_watermark)) is not None:
        data = reader.read(file_slice)
        for position, header in iter_headers(data):
            yield data[position : position + header.size_in_bytes]
            offset = header.next_offset


def read_values(log: Log, *, max_bytes: int = 1 << 20) -> dict[int, bytes | None]:
    """Every visible record: offset -> value."""
    return {
        record.offset: record.value
        for data in read_batches(log, max_bytes=max_bytes)
        for record in read_records(data)
        if record.offset >= log.log_start_offset
    }


def directory_bytes(directory: Path | str) -> dict[str, bytes]:
    """Every file of a directory."""
    return {name: Path(directory, name).read_bytes() for name in sorted(os.listdir(directory))}


def check_indexes(directory: Path | str) -> None:
    """Every index entry says what a full scan of its segment says (invariant 6)."""
    for name in os.listdir(directory):
        if name.endswith(".log"):
            _check_segment(Path(directory, name))


def _check_segment(path: Path) -> None:
    base_offset = int(path.stem)
    batches = list(iter_headers(path.read_bytes()))
    last_offsets = {position: header.last_offset for position, header in batches}
    for offset, position in _entries(path.with_suffix(".index"), 8, 4):
        assert last_offsets[position] == base_offset + offset
    for timestamp, offset in _entries(path.with_suffix(".timeindex"), 12, 8):
        before = [header for _, header in batches if header.last_offset <= base_offset + offset]
        assert timestamp == max(header.max_timestamp for header in before)
        assert before[-1].max_timestamp == timestamp


def _entries(path: Path, size: int, split: int) -> list[tuple[int, int]]:
    data = path.read_bytes()
    assert len(data) % size == 0
    entries = [data[start : start + size] for start in range(0, len(data), size)]
    return [(int.from_bytes(entry[:split]), int.from_bytes(entry[split:])) for entry in entries]
