"""Sinks for `stream_topic` that contain each batch once, however often it runs."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.checkpoint import require_local
from rayka.spark.running import NO_TOPIC_IDS, BatchIdentity, Sink, batch_of, frames_of
from rayka.storage.files import RealFiles

_STREAM = "_stream.json"
_OFFSETS = "_offsets.json"
_TOPICS = "_topics.json"
"""Names that begin with an underscore are hidden from Spark's readers."""


def parquet_sink(path: str | os.PathLike[str], transform: Callable[[DataFrame], DataFrame] | None = None) -> Sink:
    """Write each batch as the folder `batch_id=N` of Parquet files below `path`, which driver and executors share.

    A batch is written under a temporary name, synced, and renamed to its folder in one step. So a reader sees the whole
    batch or nothing of it, the batch survives a power cut once it is committed, and files that a killed run left behind
    are never read (`spark.read.parquet(path)` skips hidden folders).

    The path belongs to the stream that writes to it first. Another stream, or one whose checkpoint was deleted, has
    batches with the same numbers, which would be mistaken for the existing ones: its first batch raises
    INVALID_REQUEST. So does an existing batch that comes with other offsets, because its checkpoint was copied or
    restored, and a second frame of one batch.
    """
    return ParquetSink(Path(require_local(path)).absolute(), transform)


class ParquetSink:
    """See `parquet_sink`."""

    def __init__(self, directory: Path, transform: Callable[[DataFrame], DataFrame] | None) -> None:
        self._directory = directory
        self._transform = transform
        self._files = RealFiles()

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write a batch, unless it is there; on disk when this returns. Raises INVALID_REQUEST outside of a stream."""
        batch = batch_of(df, batch_id)
        if batch is None:
            message = "parquet_sink is for streams, in the thread of their function: write a batch with df.write"
            raise RaykaError(ErrorCode.INVALID_REQUEST, message)
        self._require_owner(batch.stream_id)
        with frames_of(df, batch).only(f"{self._directory} of a parquet_sink"):
            self._write_once(df, batch)

    def _write_once(self, df: DataFrame, batch: BatchIdentity) -> None:
        target = self._directory / f"batch_id={batch.batch_id}"
        if not target.exists():
            self._write(df, target, batch)
        elif (written := target / _OFFSETS).exists():
            topics = target / _TOPICS
            topic_ids = json.loads(topics.read_text()) if topics.exists() else NO_TOPIC_IDS
            batch.require_same(json.loads(written.read_text()), target, topic_ids)
        self._files.sync_path(os.fspath(self._directory))

    def _require_owner(self, stream_id: str) -> None:
        owner = self._directory / _STREAM
        if not owner.exists() and not any(self._directory.glob("batch_id=*")):
            self._claim(owner, stream_id)
        found = json.loads(owner.read_text())["stream_id"] if owner.exists() else "unknown"
        if found != stream_id:
            raise RaykaError(
                ErrorCode.INVALID_REQUEST,
                f"{self._directory} holds the batches of another stream ({found}, the checkpoint is of {stream_id}): "
                "use the checkpoint that belongs to the path, or another path",
            )

    def _claim(self, owner: Path, stream_id: str) -> None:
        """Write the owner's file. If two streams do so at the same moment, the path belongs to the first one."""
        self._directory.mkdir(parents=True, exist_ok=True)
        mine = self._directory / f"_stream-{uuid.uuid4().hex}"
        self._files.write_file(os.fspath(mine), json.dumps({"stream_id": stream_id}).encode(), sync=True)
        try:
            os.link(mine, owner)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            mine.rename(owner)
        mine.unlink(missing_ok=True)
        self._files.sync_path(os.fspath(self._directory))

    def _write(self, df: DataFrame, target: Path, batch: BatchIdentity) -> None:
        attempt = self._directory / f"_attempt-{batch.batch_id}-{uuid.uuid4().hex}"
        (df if self._transform is None else self._transform(df)).write.parquet(f"file://{attempt}")  # not escaped
        for old in self._directory.glob("_attempt-*"):
            if old != attempt:
                shutil.rmtree(old, ignore_errors=True)
        (attempt / _OFFSETS).write_text(json.dumps(batch.offsets))
        (attempt / _TOPICS).write_text(json.dumps(dict(batch.topic_ids)))
        self._sync(attempt)
        attempt.rename(target)

    def _sync(self, directory: Path) -> None:
        """Wait until all files below a directory, and their names, are on the device."""
        for folder, _, names in os.walk(directory):
            for name in names:
                self._files.sync_path(os.path.join(folder, name))
            self._files.sync_path(folder)
