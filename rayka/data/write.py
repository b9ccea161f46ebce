"""Writes a dataset to a topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import ray.data
from ray.data.block import BlockAccessor
from ray.data.datasource import Datasink

from rayka.actors.node.spec import DEFAULT_NAMESPACE
from rayka.client.joined import RayCluster
from rayka.errors import ErrorCode, RaykaError

_LINGER_MS = 5


def write_topic(
    dataset: ray.data.Dataset,
    topic: str,
    *,
    value: str = "value",
    key: str | None = None,
    partition: str | None = None,
    timestamp: str | None = None,
    headers: str | None = None,
    producer: Mapping[str, Any] | None = None,
    namespace: str = DEFAULT_NAMESPACE,
) -> int:
    """Send every row as a record, from the dataset's tasks, and return how many were acknowledged (acks=all).

    The arguments are names of columns: `value` and `key` are binary or text, `timestamp` is a timestamp or ms since the
    epoch. Without a `partition` the key chooses it, as in Kafka. `producer` are the producer's settings. A task that
    Ray repeats sends its rows again: at least once.
    """
    chosen = {"value": value, "key": key, "partition": partition, "timestamp": timestamp, "headers": headers}
    columns = {name: column for name, column in chosen.items() if column is not None}
    sink = TopicDatasink(RayCluster.here(namespace), topic, columns, dict(producer or {}))
    dataset.write_datasink(sink)
    return sink.sent


class TopicDatasink(Datasink[int]):
    """Sends blocks; `columns` gives the column of the block for each part of a record."""

    def __init__(
        self, ray_cluster: RayCluster, topic: str, columns: Mapping[str, str], settings: Mapping[str, Any]
    ) -> None:
        self.sent = 0
        self._ray_cluster = ray_cluster
        self._topic = topic
        self._columns = columns
        self._settings = settings

    def write(self, blocks: Iterable[Any], ctx: Any) -> int:
        """One task: all its blocks, acknowledged when this returns. Raises RaykaError."""
        with self._ray_cluster.join().producer(**{"linger_ms": _LINGER_MS, **self._settings}) as producer:
            return sum(
                future.result().record_count
                for block in blocks
                for future in producer.send_table(self._topic, self._records(block))
            )

    def on_write_complete(self, write_result: Any) -> None:
        """Add up what the tasks sent."""
        self.sent = sum(write_result.write_returns)

    def get_name(self) -> str:
        """The name of the write in Ray Data's reports."""
        return "Topic"

    def _records(self, block: Any) -> pa.Table:
        table = BlockAccessor.for_block(block).to_arrow()
        if not table.num_rows:
            return pa.table({"value": pa.array([], pa.binary())})
        missing = sorted(set(self._columns.values()) - set(table.column_names))
        if missing:
            message = f"the dataset has no column {', '.join(missing)} (it has {', '.join(table.column_names)})"
            raise RaykaError(ErrorCode.INVALID_REQUEST, message)
        return pa.table({name: table.column(column) for name, column in self._columns.items()})
