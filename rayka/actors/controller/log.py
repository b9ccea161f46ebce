"""The metadata log on the controller's disk: one batch of records for each command that changed something.

The files are those of any partition (`__cluster_metadata-0`), with one Kafka record for each batch, whose
value is the batch in msgpack; its offset is the version of the image before it. Snapshots
(`<version>-0000000000.checkpoint`) are one such record with everything, and let the log be cut.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace

from rayka.config import LogConfig
from rayka.metadata.image import MetadataImage
from rayka.metadata.records import MetadataRecord, decode_all, encode_all
from rayka.metadata.snapshot import snapshot_records
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.format.records import Record, build_batch, read_records
from rayka.storage.log.reader import SegmentReader
from rayka.types import TopicPartition

TOPIC_PARTITION = TopicPartition("__cluster_metadata", 0)
TOPIC_ID = uuid.UUID(int=1)
_CONFIG = LogConfig(retention_ms=-1, retention_bytes=-1, max_message_bytes=2**30, segment_bytes=64 * 1024 * 1024)
_READ_BYTES = 4 * 1024 * 1024


class MetadataLog:
    """Appends are on the disk when `append` returns. After so many bytes of records a snapshot is due."""

    def __init__(self, path: str, bytes_between_snapshots: int) -> None:
        self._bytes_between_snapshots = bytes_between_snapshots
        self._directory = LogDirectory.open(path, RealFiles(), now_ms=_now_ms())
        self._log = self._directory.open_log(TOPIC_PARTITION, TOPIC_ID, _CONFIG, now_ms=_now_ms())
        self._log.update_high_watermark(self._log.log_end_offset)
        self._directory.opened()
        self._path = os.path.join(path, str(TOPIC_PARTITION))
        self._since_snapshot = self._log.size

    def load(self) -> MetadataImage:
        """The image that the newest snapshot and the log after it give."""
        image = self._load_snapshot()
        reader = SegmentReader()
        while (read := self._log.read(image.version, _READ_BYTES, self._log.log_end_offset)) is not None:
            for record in read_records(reader.read(read)):
                if record.offset >= image.version:
                    image = image.apply_all(decode_all(record.value or b""))
        return image

    def append(self, records: Sequence[MetadataRecord], image: MetadataImage) -> None:
        """Make a batch durable; `image` is the one before it. Raises KAFKA_STORAGE_ERROR."""
        now_ms = _now_ms()
        batch = build_batch([Record(image.version, now_ms, None, encode_all(records))])
        self._log.append_as_leader(memoryview(batch), 0, now_ms, origin_is_client=False)
        job = self._log.begin_flush()
        job.run()
        self._log.finish_flush(job)
        self._log.update_high_watermark(self._log.log_end_offset)
        self._since_snapshot += len(batch)

    def snapshot_if_due(self, image: MetadataImage) -> None:
        """Write everything down and cut the log when it has grown enough since the last time."""
        if self._since_snapshot < self._bytes_between_snapshots:
            return
        record = Record(image.version, _now_ms(), None, encode_all(snapshot_records(image)))
        batch = build_batch([record], base_offset=image.version)
        path = os.path.join(self._path, f"{image.version:020d}-0000000000.checkpoint")
        with open(f"{path}.part", "wb") as file:
            file.write(batch)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.part", path)
        for older in self._snapshots()[:-1]:
            os.unlink(os.path.join(self._path, older))
        self._log.delete_records(image.version)
        self._log.delete_old_segments(_now_ms())
        self._directory.write_log_start_offsets({TOPIC_PARTITION: self._log.log_start_offset})
        self._since_snapshot = 0

    def close(self) -> None:
        """Close cleanly."""
        self._directory.close([self._log], now_ms=_now_ms())

    def _snapshots(self) -> list[str]:
        return sorted(name for name in os.listdir(self._path) if name.endswith(".checkpoint") and name[0].isdigit())

    def _load_snapshot(self) -> MetadataImage:
        names = self._snapshots()
        if not names:
            return MetadataImage()
        with open(os.path.join(self._path, names[-1]), "rb") as file:
            record = next(iter(read_records(file.read())))
        return replace(MetadataImage().apply_all(decode_all(record.value or b"")), version=record.offset)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
