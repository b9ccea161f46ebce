"""A topic without an end, block by block, with a memory of what is done."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from rayka.actors.node.spec import DEFAULT_NAMESPACE
from rayka.client.consumer.range_reader import COLUMNS, RangeReader
from rayka.client.joined import RayCluster
from rayka.ranges.batches import EndlessRead, MicroBatches
from rayka.ranges.checkpoint import PlannedBatch
from rayka.ranges.plan import Places

_BLOCK_OFFSETS = 100_000


def iter_topic(
    topics: str | Iterable[str] | None = None,
    *,
    checkpoint: str | os.PathLike[str],
    pattern: str | None = None,
    starting: Places = "earliest",
    columns: Sequence[str] = COLUMNS,
    max_offsets_per_block: int = _BLOCK_OFFSETS,
    poll_interval_s: float = 0.2,
    idle_timeout_s: float | None = None,
    read_committed: bool = True,
    namespace: str = DEFAULT_NAMESPACE,
) -> Iterator[pa.Table]:
    """The records of topics as Arrow tables, on and on, as they arrive.

    A block is committed to the directory `checkpoint` when the next one is asked for: by then it is done downstream.
    One that was taken and not done comes again after a restart, with the same records. Ends after `idle_timeout_s`
    without new records, or when it is closed.
    """
    ray_cluster = RayCluster.here(namespace)
    read = EndlessRead.of(topics, pattern, starting, read_committed, max_offsets_per_block)
    reader = RangeReader(ray_cluster.connection().broker, columns, read.isolation, namespace=namespace)
    with MicroBatches(ray_cluster.join(), read, checkpoint) as batches:
        last_news = time.monotonic()
        while True:
            batch = batches.next(batches.latest())
            if batch is not None:
                yield _table(reader, batch)
                batches.commit(batch)
                last_news = time.monotonic()
            elif idle_timeout_s is not None and time.monotonic() - last_news >= idle_timeout_s:
                return
            else:
                time.sleep(poll_interval_s)


def _table(reader: RangeReader, batch: PlannedBatch) -> pa.Table:
    return pa.Table.from_batches([records for each in batch.ranges for records in reader.read(each)])
