"""Reading ranges of offsets as Arrow record batches that the partition actors hold in the object store.

The batches are mapped from shared memory without a copy. A reader asks again when a leader
has died or moved.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import ray
import ray.exceptions

from rayka.actors.node.spec import DEFAULT_NAMESPACE
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.ranges.plan import OffsetRange
from rayka.types import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from rayka.actors.replica.published_ranges import PublishedRange

logger = logging.getLogger(__name__)

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns without headers, as Spark's Kafka source has them by default."""
_RETRY_S = 0.1
_LOST = (
    ray.exceptions.ActorDiedError,
    ray.exceptions.ActorUnavailableError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.GetTimeoutError,
)


class RangeReader:
    """`timeout_s` is how long it goes on asking without getting anything; a leader comes back in about a second."""

    def __init__(
        self,
        broker: Broker,
        columns: Sequence[str] = COLUMNS,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        timeout_s: float = 60.0,
    ) -> None:
        self._broker = broker
        self._columns = tuple(columns)
        self._isolation = int(isolation)
        self._namespace = namespace
        self._timeout_s = timeout_s
        self._leaders: dict[TopicPartition, Any] = {}

    def read(self, offsets: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The records of the range, in order, in batches of up to some tens of MB.

        While one is in use the next is being fetched. Raises RaykaError: OFFSET_OUT_OF_RANGE where the records are
        gone, REQUEST_TIMED_OUT where no leader serves them.
        """
        position = offsets.start_offset
        deadline = time.monotonic() + self._timeout_s
        asked: Any = None
        while position < offsets.end_offset:
            try:
                asked = asked or self._ask(offsets, position)
                published: list[PublishedRange] = ray.get(asked, timeout=self._timeout_s)
                tail = published[-1].end_offset if published else position
                asked = self._ask(offsets, tail) if position < tail < offsets.end_offset else None
                for each in published:
                    batch = ray.get(each.ref, timeout=self._timeout_s)
                    position = each.end_offset
                    deadline = time.monotonic() + self._timeout_s
                    yield batch
                if not published:
                    self._wait(offsets, position, deadline, "nothing to read")
            except (*_LOST, RaykaError) as error:
                asked = None
                _require_transient(error)
                self._leaders.pop(offsets.topic_partition, None)
                self._wait(offsets, position, deadline, error)

    def _ask(self, offsets: OffsetRange, position: int) -> Any:
        leader = self._leader(offsets.topic_partition)
        return leader.publish.remote(
            offsets.topic, offsets.partition, position, offsets.end_offset, self._columns, self._isolation
        )

    def _leader(self, topic_partition: TopicPartition) -> Any:
        if topic_partition not in self._leaders:
            partition = self._broker.image.partition(topic_partition)
            name = None if partition is None else partition.leader_actor
            if name is None:
                raise RaykaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic_partition} has no leader")
            self._leaders[topic_partition] = _actor(name, self._namespace)
        return self._leaders[topic_partition]

    def _wait(self, offsets: OffsetRange, position: int, deadline: float, reason: object) -> None:
        if time.monotonic() > deadline:
            raise RaykaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{offsets.topic_partition} from offset {position} to {offsets.end_offset}: {reason}",
            )
        logger.warning("%s at offset %d: %s; asking again", offsets.topic_partition, position, reason)
        time.sleep(_RETRY_S)


def prepare_leaders(broker: Broker, namespace: str = DEFAULT_NAMESPACE) -> None:
    """Let all partition actors load what they need to decode, and wait until they have."""
    leaders = {
        partition.leader_actor: (topic.name, partition.partition)
        for topic in broker.image.topics.values()
        for partition in topic.partitions
        if partition.leader_actor is not None
    }
    ray.get([_actor(name, namespace).publish.remote(*each, 0, 0, (), 0) for name, each in leaders.items() if name])


def _actor(name: str, namespace: str) -> Any:
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:
        raise RaykaError(ErrorCode.LEADER_NOT_AVAILABLE, f"there is no actor {name}") from None


def _require_transient(error: Exception) -> None:
    cause = getattr(error, "cause", error)
    if isinstance(cause, RaykaError) and not cause.code.retriable:
        raise cause
