"""In the executor's Python worker: reading splits and yielding Arrow batches for Spark.

The worker process is used for many tasks and connects to Ray once. The file descriptor over which the
batches go to the JVM is on this machine; the tables themselves are mapped from the object store.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rayka.client.connection import ClusterConnection
from rayka.client.joined import RayCluster
from rayka.ranges.batches import OnDataLoss
from rayka.ranges.plan import OffsetRange
from rayka.types import IsolationLevel

BATCH_ROWS = 8_192
"""Batches of about a megabyte: what the worker writes is still in the processor's cache when the JVM reads it."""
SPLIT = "_split"
_CHEAPEST_COLUMN = "partition"
Decode = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class SplitReader:
    """A function for `mapInArrow` over splits, each its number and the fields of an `OffsetRange` as JSON.

    It yields the columns, and the number of the split as a last one.
    """

    ray_cluster: RayCluster
    columns: tuple[str, ...]
    isolation: IsolationLevel
    decode: Decode | None
    on_data_loss: OnDataLoss = "fail"
    batch_rows: int = BATCH_ROWS

    def __call__(self, splits: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _connect(self.ray_cluster)
        reader = self.ray_cluster.reader(self.columns or (_CHEAPEST_COLUMN,), self.isolation, self.on_data_loss)
        for batch in splits:
            for split in batch.column(0).to_pylist():
                number, *offsets = json.loads(split)
                numbers = _repeated(number, self.batch_rows)
                for records in reader.read(OffsetRange.from_json(offsets)):
                    yield from self._pieces(records.batch, numbers)

    def _pieces(self, records: pa.RecordBatch, numbers: pa.Array) -> Iterator[pa.RecordBatch]:
        for start in range(0, records.num_rows, self.batch_rows):
            piece = records.slice(start, self.batch_rows)
            if self.decode is not None:
                piece = self.decode(piece)
            columns, names = (piece.columns, piece.schema.names) if self.columns else ([], [])
            rows = numbers.slice(0, piece.num_rows)
            yield pa.RecordBatch.from_arrays([*columns, rows], [*names, SPLIT])


def _repeated(number: int, rows: int) -> pa.Array:
    """The number in each row. `pa.scalar` and `pa.array` import pandas to look at what they are given."""
    return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(np.full(rows, number, np.int32))], 0)


def _connect(ray_cluster: RayCluster) -> ClusterConnection:
    """The connection of this worker.

    Spark collects garbage after each task; once all is imported and connected it need not look at that again, which
    would take a tenth of a second of each task.
    """
    connection = ray_cluster.connection()
    if not gc.get_freeze_count():
        gc.freeze()
    return connection


@dataclass(frozen=True, slots=True)
class ConnectWorker:
    """A function for `mapInArrow` that connects the worker to Ray and yields nothing."""

    ray_cluster: RayCluster

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _connect(self.ray_cluster)
        for _ in batches:
            yield from ()
