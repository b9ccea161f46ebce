"""In the executor's Python worker: reading splits and yielding Arrow batches for Spark.

The worker process is used for many tasks and connects to Ray once. The file descriptor over which the
batches go to the JVM is on this machine; the tables themselves are mapped from the object store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from rayka.client.joined import RayCluster
from rayka.client.offset_ranges import OffsetRange
from rayka.client.range_reader import RangeReader
from rayka.types import IsolationLevel

BATCH_ROWS = 65_536
Decode = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class SplitReader:
    """A function for `mapInArrow` over splits, each the fields of an `OffsetRange` as JSON."""

    ray_cluster: RayCluster
    columns: tuple[str, ...]
    isolation: IsolationLevel
    decode: Decode | None
    batch_rows: int = BATCH_ROWS

    def __call__(self, splits: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        broker = self.ray_cluster.connection().broker
        reader = RangeReader(broker, self.columns, self.isolation, namespace=self.ray_cluster.namespace)
        for batch in splits:
            for split in batch.column(0).to_pylist():
                for records in reader.read(OffsetRange(*json.loads(split))):
                    yield from _pieces(records, self.batch_rows, self.decode)


def _pieces(records: pa.RecordBatch, rows: int, decode: Decode | None) -> Iterator[pa.RecordBatch]:
    for start in range(0, records.num_rows, rows):
        piece = records.slice(start, rows)
        yield piece if decode is None else decode(piece)
