"""Kafka's checkpoint files: a version line, a count line, then one entry a line.

A file that is missing, empty, cut or damaged reads as None, and the caller rebuilds its content.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Mapping

from rayka.storage.files import RealFiles
from rayka.types import TopicPartition

VERSION = "0"


def read_lines(files: RealFiles, path: str) -> list[list[str]] | None:
    """The fields of each entry, or None if the file does not hold what it says."""
    try:
        lines = files.read_file(path).decode("utf-8").splitlines()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    entries = [line.split(" ") for line in lines[2:]]
    if len(lines) < 2 or lines[0] != VERSION or lines[1] != str(len(entries)):
        return None
    return entries


def write_lines(files: RealFiles, path: str, entries: Iterable[str], *, sync: bool = True) -> None:
    """Replace the file at once."""
    lines = list(entries)
    text = "\n".join([VERSION, str(len(lines)), *lines, ""])
    files.write_file(path, text.encode("utf-8"), sync=sync)


def read_offsets(files: RealFiles, path: str) -> dict[TopicPartition, int]:
    """An offset checkpoint of a log directory; without the entries that cannot be read."""
    offsets = {}
    for fields in read_lines(files, path) or ():
        if len(fields) == 3 and fields[1].isdecimal() and fields[2].isdecimal():
            offsets[TopicPartition(fields[0], int(fields[1]))] = int(fields[2])
    return offsets


def is_damaged(files: RealFiles, path: str) -> bool:
    """Whether an offset checkpoint is there, but entries of it cannot be read."""
    lines = read_lines(files, path)
    return files.exists(path) if lines is None else len(read_offsets(files, path)) < len(lines)


def write_offsets(files: RealFiles, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Write an offset checkpoint and wait until it is on the device."""
    write_lines(files, path, (f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items()))


def read_number(files: RealFiles, path: str) -> int | None:
    """The one number of a file that `write_number` wrote."""
    match read_lines(files, path):
        case [[text]] if text.isdecimal():
            return int(text)
    return None


def write_number(files: RealFiles, path: str, number: int) -> None:
    """Replace the file at once, without waiting for the device."""
    write_lines(files, path, (str(number),), sync=False)


def encode_uuid(value: uuid.UUID) -> str:
    """Kafka's 22 characters for a UUID."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def decode_uuid(text: str) -> uuid.UUID:
    """The reverse of `encode_uuid`; ValueError for anything else."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
