"""In the executor's Python worker: reading splits and yielding Arrow batches for Spark.

The worker process is used for many tasks. It maps tables of the partition actors, for which it connects to Ray once;
or it fetches record batches from the broker's port and decodes them, for which it does not import Ray.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from rayka.ranges.batches import OnDataLoss
from rayka.ranges.plan import OffsetRange
from rayka.spark.source.columns import BATCH_ROWS
from rayka.spark.source.fetcher import RangeFetcher, freeze_imports
from rayka.spark.source.options import FetchSettings
from rayka.storage.columns.read import read_columns
from rayka.storage.format.records import Record, build_batch
from rayka.types import IsolationLevel

if TYPE_CHECKING:
    from rayka.client.joined import RayCluster

SPLIT = "_split"
_CHEAPEST_COLUMN = "partition"
Decode = Callable[[pa.RecordBatch], pa.RecordBatch]


class Tables(NamedTuple):
    """Tables that partition actors keep in the object store, as a `SplitReader` reads them."""

    ray_cluster: RayCluster
    isolation: IsolationLevel
    on_data_loss: OnDataLoss

    def read(self, columns: tuple[str, ...]) -> Callable[[OffsetRange], Iterator[pa.RecordBatch]]:
        """The function that reads a range."""
        connect(self.ray_cluster)
        reader = self.ray_cluster.reader(columns, self.isolation, self.on_data_loss)
        return lambda offsets: (records.batch for records in reader.read(offsets))


class Fetches(NamedTuple):
    """Record batches that the worker fetches and decodes, as a `SplitReader` reads them."""

    settings: FetchSettings

    def read(self, columns: tuple[str, ...]) -> Callable[[OffsetRange], Iterator[pa.RecordBatch]]:
        """The function that reads a range."""
        return RangeFetcher(self.settings, columns).read


@dataclass(frozen=True, slots=True)
class SplitReader:
    """A function for `mapInArrow` over splits, each its number and the fields of an `OffsetRange` as JSON.

    It yields the columns, and the number of the split as a last one.
    """

    source: Tables | Fetches
    columns: tuple[str, ...]
    decode: Decode | None
    batch_rows: int = BATCH_ROWS

    def __call__(self, splits: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = self.source.read(self.columns or (_CHEAPEST_COLUMN,))
        for batch in splits:
            for split in batch.column(0).to_pylist():
                number, *offsets = json.loads(split)
                numbers = _repeated(number, self.batch_rows)
                for records in read(OffsetRange.from_json(offsets)):
                    yield from self._pieces(records, numbers)

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


def connect(ray_cluster: RayCluster) -> None:
    """Connect this worker to Ray."""
    ray_cluster.connection()
    freeze_imports()


def load_decoder() -> None:
    """Load the machine code that decodes records, so that processes forked from this one have it."""
    read_columns(build_batch([Record(0, 0, b"key", b"value")]), topic="", partition=0, max_bytes=1)


@dataclass(frozen=True, slots=True)
class StartWorker:
    """A function for `mapInArrow` that makes the worker ready, connected to Ray if there is one, and yields nothing."""

    ray_cluster: RayCluster | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self.ray_cluster is not None:
            connect(self.ray_cluster)
        for _ in batches:
            yield from ()
