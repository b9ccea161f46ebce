"""A topic as a Ray Data dataset.

Each split is a read task that copies its records out of the tables which the partition actor publishes. Columns that
the pipeline does not use are not read (Ray Data pushes a projection down).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from rayka.actors.node.spec import DEFAULT_NAMESPACE
from rayka.client.cluster import Cluster
from rayka.client.consumer.range_reader import COLUMNS
from rayka.client.consumer.topic_offsets import TopicOffsets, isolation_of
from rayka.client.joined import RayCluster, node_ids
from rayka.data.pieces import even_pieces
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.records import ConfigResource, ResourceType
from rayka.ranges.plan import OffsetRange, Positions, plan_ranges, split
from rayka.storage.columns.read import SCHEMA, require_columns
from rayka.types import IsolationLevel

_CHEAPEST_COLUMN = "partition"
_NODE_LABEL = "ray.io/node-id"
"""Ray's own label. Reading and a `map_batches` after it stay one task with it."""
_ANYWHERE: list[dict[str, Any]] = [{"label_selector": {}}]
"""Where a read task runs if the node of the leader is gone: the partition has another leader then."""
_RECORD_BYTES = 200
"""What a record is taken to need in memory, which nobody knows before it has been decoded."""
_BLOCKS_PER_TASK = 32
"""How many blocks of each task that may run at once must fit into the object store."""
_MIN_BLOCK_BYTES = 1024 * 1024


def read_topic(
    topics: str | Iterable[str] | None = None,
    *,
    pattern: str | None = None,
    starting: Positions = "earliest",
    ending: Positions = "latest",
    columns: Sequence[str] = COLUMNS,
    min_splits: int | None = None,
    read_committed: bool = True,
    namespace: str = DEFAULT_NAMESPACE,
) -> ray.data.Dataset:
    """The records of topics, or of those whose whole name matches `pattern`, as a lazy dataset.

    `starting` and `ending` are as for `rayka.spark.read_topic`, and are fixed when this returns: a dataset that is
    executed again has the same records. `min_splits` asks for more and smaller read tasks than there are partitions.
    A read of topics that are compacted fails if the worker of a read task dies: the task could find fewer records.
    Raises UNKNOWN_TOPIC_OR_PARTITION, OFFSET_OUT_OF_RANGE, INVALID_REQUEST; UNSUPPORTED_VERSION for a compacted topic
    if this Ray always repeats read tasks.
    """
    require_columns(columns)
    ray_cluster = RayCluster.here(namespace)
    cluster = ray_cluster.join()
    offsets = TopicOffsets(cluster.admin(), topics, pattern, isolation_of(read_committed))
    splits = split(plan_ranges(offsets.topic_ids(), offsets.list_offsets, starting, ending), min_splits or 1)
    by_node = _by_node(cluster, splits)
    once = _no_retries() if _may_lose_records(cluster, {each.topic for each in splits}) else None
    parts = [
        ray.data.read_datasource(
            TopicDatasource(ray_cluster, each, tuple(columns), offsets.isolation),
            override_num_blocks=max(len(each), 1),
            ray_remote_args=once,
            label_selector={_NODE_LABEL: node_id} if len(by_node) > 1 else None,
            fallback_strategy=_ANYWHERE if len(by_node) > 1 else None,
        )
        for node_id, each in by_node.items()
    ]
    for part in parts:
        _limit_blocks(part.context)
    whole: ray.data.Dataset = parts[0].union(*parts[1:]) if len(parts) > 1 else parts[0]
    return whole


def _by_node(cluster: Cluster, splits: Sequence[OffsetRange]) -> dict[str, list[OffsetRange]]:
    """The splits by the node of their leader; an empty read is this node's."""
    nodes = node_ids(cluster)
    here = ray.get_runtime_context().get_node_id()
    topics = cluster.admin().describe_topics({each.topic for each in splits})
    leaders = {(topic.name, each.partition): each.leader for topic in topics for each in topic.partitions}
    found: dict[str, list[OffsetRange]] = {}
    for each in splits:
        found.setdefault(nodes.get(leaders[each.topic, each.partition], here), []).append(each)
    return found or {here: []}


def _may_lose_records(cluster: Cluster, topics: Iterable[str]) -> bool:
    """Whether compaction can remove records in the middle of a split between two runs of its task."""
    name, admin = "cleanup.policy", cluster.admin()
    policies = [admin.describe_configs(ConfigResource(ResourceType.TOPIC, topic), [name])[name] for topic in topics]
    return any("compact" in (policy.value or "") for policy in policies)


def _no_retries() -> dict[str, Any]:
    """What makes Ray run each read task once; Ray 2.60 warns that it becomes unknown, and has nothing instead.

    Raises UNSUPPORTED_VERSION if this Ray does not know it: `read_datasource` ignores what it does not know.
    """
    if "ray_remote_args" not in inspect.signature(ray.data.read_datasource).parameters:
        message = (
            f"Ray {ray.__version__} cannot read a compacted topic: it would repeat a read task whose worker dies, which"
            " could then find fewer records. Use an older Ray"
        )
        raise RaykaError(ErrorCode.UNSUPPORTED_VERSION, message)
    return {"max_retries": 0}


def _limit_blocks(context: ray.data.DataContext) -> None:
    """Cut blocks, which have 128 MB by default, so that the object store has room for many of each task."""
    resources: dict[str, float] = cast(Any, ray).cluster_resources()
    limit = int(resources.get("object_store_memory", 0.0) / max(resources.get("CPU", 1.0), 1.0) / _BLOCKS_PER_TASK)
    if context.target_max_block_size is not None:
        context.target_max_block_size = min(context.target_max_block_size, max(limit, _MIN_BLOCK_BYTES))


class TopicDatasource(Datasource):
    """Reads exactly these ranges."""

    def __init__(
        self,
        ray_cluster: RayCluster,
        splits: Sequence[OffsetRange],
        columns: tuple[str, ...],
        isolation: IsolationLevel,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ray_cluster = ray_cluster
        self._splits = splits
        self._columns = columns
        self._isolation = isolation
        self._projection_map = {name: name for name in columns}

    def get_name(self) -> str:
        """The name of the read in Ray Data's reports."""
        return "Topic"

    def estimate_inmemory_data_size(self) -> int:
        """A guess from the number of offsets."""
        return sum(map(len, self._splits)) * _RECORD_BYTES

    def supports_projection_pushdown(self) -> bool:
        """Columns that nobody wants are not decoded."""
        return True

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """One task for each range, however many are asked for: they were cut when the read was planned."""
        wanted = self._get_data_columns()
        columns = self._columns if wanted is None else tuple(wanted)
        splits: Sequence[OffsetRange | None] = self._splits or [None]
        return [
            ReadTask(
                SplitRead(self._ray_cluster, each, columns, self._isolation),
                BlockMetadata(None, len(each or ()) * _RECORD_BYTES, None, None),
                per_task_row_limit=per_task_row_limit,
            )
            for each in splits
        ]


@dataclass(frozen=True, slots=True)
class SplitRead:
    """A read task's function: yields its range in pieces that are the same in every run (see `pieces`)."""

    ray_cluster: RayCluster
    offsets: OffsetRange | None
    columns: tuple[str, ...]
    isolation: IsolationLevel

    def __call__(self) -> Iterator[pa.Table]:
        if self.offsets is None:
            yield pa.schema([SCHEMA.field(name) for name in self.columns]).empty_table()
            return
        columns = self.columns or (_CHEAPEST_COLUMN,)
        batches = (each.batch for each in self.ray_cluster.reader(columns, self.isolation).read(self.offsets))
        yield from even_pieces(batches, pa.schema([SCHEMA.field(name) for name in columns]))
