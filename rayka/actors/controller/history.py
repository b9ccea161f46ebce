"""Reading the files of the metadata log before they are opened, to find damage before recovery cuts it off.

The rule is at the top of `rayka.actors.controller.log`.
"""

from __future__ import annotations

import os

from rayka.errors import ErrorCode, RaykaError
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import MAGIC, RECORD_BATCH_OVERHEAD, is_intact, read_header
from rayka.storage.segments.scan import intact_batches
from rayka.storage.segments.segment import LOG_SUFFIX

_MAGIC_POSITION = 16


class MetadataLogDamaged(RaykaError):
    """Records that were synced are missing or unreadable. The controller must not run on what is left."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata log is damaged: {message}")


def verified_end(files: RealFiles, directory: str, synced_offset: int) -> tuple[int, int]:
    """The first offset of the log and the offset after its last intact batch; (0, 0) for a log that is new.

    What follows the last intact batch is an append that a crash tore. Raises MetadataLogDamaged if it is more than
    that, and OSError.
    """
    names = sorted(files.list(directory)) if files.exists(directory) else []
    segments = [name for name in names if name.endswith(LOG_SUFFIX)]
    begin = end = int(segments[0].removesuffix(LOG_SUFFIX)) if segments else 0
    for name in segments:
        base_offset = int(name.removesuffix(LOG_SUFFIX))
        path = os.path.join(directory, name)
        if base_offset != end:
            raise MetadataLogDamaged(f"offsets {end} to {base_offset} are missing before {path}")
        end = _verified_segment_end(files, path, base_offset, is_last=name == segments[-1])
    if end < synced_offset:
        raise MetadataLogDamaged(f"{directory} was synced up to offset {synced_offset} but reads up to {end} only")
    return begin, end


def _verified_segment_end(files: RealFiles, path: str, base_offset: int, *, is_last: bool) -> int:
    data = files.read_file(path)
    end, size = base_offset, 0
    for batch in intact_batches(
        lambda count, position: data[position : position + count],
        0,
        len(data),
        base_offset=base_offset,
        next_offset=base_offset,
        may_have_gaps=False,
    ):
        end, size = batch.header.next_offset, batch.end
    if size < len(data):
        if not is_last:
            raise MetadataLogDamaged(f"{path} does not read from position {size} on, and another segment follows")
        if (position := _intact_batch_after(data, size, end)) is not None:
            raise MetadataLogDamaged(
                f"{path} does not read from position {size} on (offset {end}), but at {position} is an intact batch"
            )
    return end


def _intact_batch_after(data: bytes, position: int, offset: int) -> int | None:
    """The position of the next batch with a right CRC and at least this offset, wherever it begins."""
    at = data.find(MAGIC, position + _MAGIC_POSITION)
    while at >= 0 and at - _MAGIC_POSITION + RECORD_BATCH_OVERHEAD <= len(data):
        start = at - _MAGIC_POSITION
        header = read_header(data, start)
        if header.base_offset >= offset and is_intact(data, start, header):
            return start
        at = data.find(MAGIC, at + 1)
    return None
