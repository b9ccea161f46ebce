"""Sinks for `stream_topic` that have each batch once, however often it runs."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from rayka.spark.stream import Sink


def parquet_sink(path: str | os.PathLike[str], transform: Callable[[DataFrame], DataFrame] | None = None) -> Sink:
    """Each batch as the folder `batch_id=N` of Parquet files below `path`, which driver and executors share.

    A batch is written under a name of its own and gets its folder by one rename, so a reader sees all of it or
    nothing, and what a killed run left behind is never read (`spark.read.parquet(path)` passes hidden folders by).
    """
    directory = Path(path).absolute()

    def write(df: DataFrame, batch_id: int) -> None:
        target = directory / f"batch_id={batch_id}"
        if target.exists():
            return
        attempt = directory / f"_attempt-{batch_id}-{uuid.uuid4().hex}"
        (df if transform is None else transform(df)).write.parquet(attempt.as_uri())
        for old in directory.glob("_attempt-*"):
            if old != attempt:
                shutil.rmtree(old, ignore_errors=True)
        attempt.rename(target)

    return write
