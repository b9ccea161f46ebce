"""Reads the files of a partition directory and says what is damaged.

Works on any Kafka log directory, without a broker. A segment is scanned once; its indexes are then held
against the scan. What follows the first damaged byte of a segment is not trusted, as in recovery. Kafka
preallocates the indexes of an active segment: the zeros after the last entry are not damage.
"""

from __future__ import annotations

import mmap
import re
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from crc32c import crc32c

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.batch import LOG_OVERHEAD, MAGIC, BatchHeader, ensure_intact, read_header

SEGMENT = re.compile(r"(\d{20})\.log(?:\.deleted|\.swap|\.cleaned)?")
MAGIC_OFFSET = 16
MESSAGE_OVERHEAD = 14
"""Bytes of the smallest old message: CRC, magic, attributes, key length and value length."""
_MESSAGE_HEAD = struct.Struct(">qiIb")
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_ABORTED_ENTRY = struct.Struct(">hqqqq")
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_CRC_START = 6
SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not as it must be: the file, the byte where it begins, and what is wrong."""

    path: Path
    position: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}: byte {self.position}: {self.message}"


@dataclass(frozen=True, slots=True)
class OldMessage:
    """A message (or compressed message set) of magic 0 or 1."""

    offset: int
    size_in_bytes: int
    magic: int


@dataclass(slots=True)
class Scan:
    """What a segment holds: for each batch its position, its last offset and the largest timestamp so far."""

    positions: list[int] = field(default_factory=list)
    last_offsets: list[int] = field(default_factory=list)
    max_timestamps: list[int] = field(default_factory=list)
    size: int = 0
    damage: Damage | None = None

    def add(self, position: int, last_offset: int, max_timestamp: int) -> None:
        """Notes one batch."""
        newest = max(max_timestamp, self.max_timestamps[-1]) if self.max_timestamps else max_timestamp
        self.positions.append(position)
        self.last_offsets.append(last_offset)
        self.max_timestamps.append(newest)


def segments(directory: Path) -> list[Path]:
    """The segments of a partition directory, in order."""
    return sorted(path for path in directory.iterdir() if SEGMENT.fullmatch(path.name))


def base_offset_of(path: Path) -> int:
    """The offset in the name of a segment's file."""
    return int(path.name[:20])


def contents(path: Path) -> bytes | mmap.mmap:
    """The bytes of a file, mapped if there are any."""
    with path.open("rb") as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file cannot be mapped
            return b""


def scan_segment(path: Path, buffer: bytes | mmap.mmap, scan: Scan) -> Iterator[tuple[int, BatchHeader | OldMessage]]:
    """Every batch with its position, up to the first damage, which is left in `scan`."""
    position, last_offset = 0, base_offset_of(path) - 1
    while position < len(buffer):
        try:
            found = _read(buffer, position)
        except RaykaError as error:
            scan.damage = Damage(path, position, error.message)
            return
        first, last = (found.offset, found.offset) if isinstance(found, OldMessage) else _bounds(found)
        if first <= last_offset and isinstance(found, BatchHeader):
            scan.damage = Damage(path, position, f"offset {first} comes after offset {last_offset}")
            return
        last_offset = max(last, last_offset)
        scan.add(position, last_offset, found.max_timestamp if isinstance(found, BatchHeader) else -1)
        yield position, found
        position += found.size_in_bytes
        scan.size = position


def _bounds(header: BatchHeader) -> tuple[int, int]:
    return header.base_offset, header.last_offset


def _read(buffer: bytes | mmap.mmap, position: int) -> BatchHeader | OldMessage:
    magic = buffer[position + MAGIC_OFFSET] if position + MAGIC_OFFSET < len(buffer) else MAGIC
    if magic < MAGIC and len(buffer) - position >= LOG_OVERHEAD + MESSAGE_OVERHEAD:
        return _read_old(buffer, position)
    header = read_header(buffer, position)
    ensure_intact(buffer, position, header)
    return header


def _read_old(buffer: bytes | mmap.mmap, position: int) -> OldMessage:
    offset, size, crc, magic = _MESSAGE_HEAD.unpack_from(buffer, position)
    end = position + LOG_OVERHEAD + size
    if size < MESSAGE_OVERHEAD or end > len(buffer):
        raise RaykaError(
            ErrorCode.CORRUPT_MESSAGE, f"a message of {size} bytes, but only {len(buffer) - position} are left"
        )
    with memoryview(buffer) as view, view[position + MAGIC_OFFSET : end] as covered:
        actual = zlib.crc32(covered)
    if actual != crc:
        raise RaykaError(ErrorCode.CORRUPT_MESSAGE, f"the message has CRC {actual:#010x}, its header says {crc:#010x}")
    return OldMessage(offset, LOG_OVERHEAD + size, magic)


def check_offset_index(path: Path, scan: Scan) -> tuple[int, list[Damage]]:
    """Entries and damage of an `.index`: each must lead to a batch, with no offset at or above it before."""
    entries = _entries(path, _OFFSET_ENTRY)
    base, damage, previous = base_offset_of(path), list[Damage](), (-1, -1)
    if (torn := path.stat().st_size % _OFFSET_ENTRY.size) != 0:
        damage.append(Damage(path, path.stat().st_size - torn, f"{torn} bytes of an entry"))
    for slot, (relative, position) in enumerate(entries):
        if wrong := _wrong_offset_entry(base + relative, position, scan) or _not_rising(previous, (relative, position)):
            damage.append(Damage(path, slot * _OFFSET_ENTRY.size, wrong))
        previous = (relative, position)
    return len(entries), damage


def _wrong_offset_entry(offset: int, position: int, scan: Scan) -> str | None:
    if position >= scan.size:
        return None if scan.damage else f"offset {offset} leads to byte {position}, the segment has {scan.size}"
    batch = bisect_left(scan.positions, position)
    if batch == len(scan.positions) or scan.positions[batch] != position:
        return f"offset {offset} leads to byte {position}, where no batch begins"
    if batch and scan.last_offsets[batch - 1] >= offset:
        return f"offset {offset} leads to byte {position}, but lies before it"
    return None


def _not_rising(previous: tuple[int, int], entry: tuple[int, int]) -> str | None:
    return None if entry[0] > previous[0] and entry[1] >= previous[1] else f"{entry} does not follow {previous}"


def check_time_index(path: Path, scan: Scan) -> tuple[int, list[Damage]]:
    """Entries and damage of a `.timeindex`: no record up to the entry's offset may have a later timestamp."""
    entries = _entries(path, _TIME_ENTRY)
    base, damage, previous = base_offset_of(path), list[Damage](), (-1, -1)
    if (torn := path.stat().st_size % _TIME_ENTRY.size) != 0:
        damage.append(Damage(path, path.stat().st_size - torn, f"{torn} bytes of an entry"))
    for slot, (timestamp, relative) in enumerate(entries):
        wrong = _wrong_time_entry(timestamp, base + relative, scan)
        if wrong is None and slot and (timestamp < previous[0] or relative < previous[1]):
            wrong = f"{(timestamp, relative)} does not follow {previous}"
        if wrong:
            damage.append(Damage(path, slot * _TIME_ENTRY.size, wrong))
        previous = (timestamp, relative)
    return len(entries), damage


def _wrong_time_entry(timestamp: int, offset: int, scan: Scan) -> str | None:
    batch = bisect_right(scan.last_offsets, offset) - 1
    if batch >= 0 and scan.max_timestamps[batch] > timestamp:
        return f"up to offset {offset} the latest is {timestamp}, but a batch has {scan.max_timestamps[batch]}"
    if not scan.damage and scan.last_offsets and offset > scan.last_offsets[-1]:
        return f"offset {offset} is not in the segment, which ends with {scan.last_offsets[-1]}"
    return None


def _entries(path: Path, entry: struct.Struct) -> list[tuple[int, int]]:
    """The entries up to the zeros of a preallocated file."""
    data = path.read_bytes()
    used = len(data.rstrip(b"\0"))
    whole = min(-(-used // entry.size), len(data) // entry.size)
    return [(one, two) for one, two in entry.iter_unpack(data[: whole * entry.size])]


def check_aborted_index(path: Path) -> tuple[list[tuple[int, ...]], list[Damage]]:
    """The entries (version, producer id, first, last and last stable offset) of a `.txnindex`, and its damage."""
    data = path.read_bytes()
    whole = len(data) // _ABORTED_ENTRY.size * _ABORTED_ENTRY.size
    damage = [] if whole == len(data) else [Damage(path, whole, f"{len(data) - whole} bytes of an entry")]
    entries: list[tuple[int, ...]] = list(_ABORTED_ENTRY.iter_unpack(data[:whole]))
    for slot, (version, _, first, last, _) in enumerate(entries):
        if version != 0 or first > last:
            damage.append(Damage(path, slot * _ABORTED_ENTRY.size, f"version {version}, offsets {first} to {last}"))
    return entries, damage


def check_snapshot(path: Path) -> tuple[list[tuple[int, ...]], list[Damage]]:
    """The producers in a `.snapshot` (fields as in `SNAPSHOT_ENTRY`), and its damage."""
    data = path.read_bytes()
    if len(data) < _SNAPSHOT_HEAD.size:
        return [], [Damage(path, 0, f"{len(data)} bytes are too few for a snapshot")]
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    actual = crc32c(data[_SNAPSHOT_CRC_START:])
    if version != 1 or actual != crc or len(data) != _SNAPSHOT_HEAD.size + count * SNAPSHOT_ENTRY.size:
        found = f"version {version}, CRC {actual:#010x} where {crc:#010x} is written, {count} producers"
        return [], [Damage(path, 0, f"{found} in {len(data)} bytes")]
    return list(SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size :])), []
