"""Reading ranges of offsets as Arrow record batches that the partition actors hold in the object store.

The batches are mapped from shared memory without a copy. A reader asks again when a leader has died or moved.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import ray
import ray.exceptions

from rayka.actors.channel.requests import PublishRange
from rayka.actors.node.spec import DEFAULT_NAMESPACE
from rayka.client.consumer.offsets import UNKNOWN_FOR_S
from rayka.client.consumer.remote_ranges import RangeRecords, RemoteRanges
from rayka.errors import ErrorCode, RaykaError, may_pass
from rayka.gateway.ports import Broker
from rayka.metadata.image import MetadataImage
from rayka.ranges.plan import NO_TOPIC_ID, OffsetRange
from rayka.storage.remote.remote_range import RemoteRange
from rayka.types import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from rayka.actors.replica.published_ranges import PublishedRange

logger = logging.getLogger(__name__)

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns without headers, as Spark's Kafka source has them by default."""
_RETRY_S = 0.1
_UNHEARD_FOR_S = 15.0
"""How long a topic that the planner of a range has seen may be missing here before it is taken for deleted: the
metadata of this process may be behind."""
_LOST = (
    ray.exceptions.ActorDiedError,
    ray.exceptions.ActorUnavailableError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.GetTimeoutError,
)


class TopicDeleted(RaykaError):
    """The topic of a range was deleted. UNKNOWN_TOPIC_ID says that another one has its name."""


class Leaders(Protocol):
    """Partition actors by name, and what they put into the object store."""

    def publish(self, name: str, request: PublishRange) -> Any:
        """Call `PartitionActor.publish` and return the ref of its answer. Raises LEADER_NOT_AVAILABLE."""

    def get(self, ref: Any, timeout_s: float) -> Any:
        """The object of a ref. Raises the exceptions of `ray.get`."""

    def forget(self) -> None:
        """Look the actors up again."""


class RayLeaders:
    """`Leaders` as Ray has them."""

    def __init__(self, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._namespace = namespace
        self._actors: dict[str, Any] = {}

    def publish(self, name: str, request: PublishRange) -> Any:
        """See `Leaders.publish`."""
        if name not in self._actors:
            try:
                self._actors[name] = ray.get_actor(name, namespace=self._namespace)
            except ValueError:
                raise RaykaError(ErrorCode.LEADER_NOT_AVAILABLE, f"there is no actor {name}") from None
        return self._actors[name].publish.remote(request)

    def get(self, ref: Any, timeout_s: float) -> Any:
        """See `Leaders.get`."""
        return ray.get(ref, timeout=timeout_s)

    def forget(self) -> None:
        """See `Leaders.forget`."""
        self._actors.clear()


class RangeReader:
    """Reads ranges.

    `timeout_s` is how long it keeps asking after the first failure in a row; a leader restarts in about a second.
    Where retention has overtaken the reader, it continues at the offset that `earliest` gives; without it
    OFFSET_OUT_OF_RANGE is raised. With `remote`, records that are only in the remote store are read there; if that
    fails, the rest of the range comes from the leader.
    """

    def __init__(
        self,
        broker: Broker,
        columns: Sequence[str] = COLUMNS,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
        *,
        leaders: Leaders,
        earliest: Callable[[TopicPartition], int] | None = None,
        remote: Callable[[], RemoteRanges] | None = None,
        timeout_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._broker = broker
        self._columns = tuple(columns)
        self._isolation = isolation
        self._leaders = leaders
        self._earliest = earliest
        self._remote = remote
        self._may_be_remote = False
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._failing_since_s: float | None = None
        self._known_topics: set[str] = set()
        """Topics that were in the metadata of this process: their absence means that they were deleted."""

    def read(self, offsets: OffsetRange) -> Iterator[RangeRecords]:
        """The records of the range, in order, in batches of up to some tens of MB.

        While one is in use the next is being fetched. Raises RaykaError: OFFSET_OUT_OF_RANGE where the records are
        gone, `TopicDeleted`, REQUEST_TIMED_OUT where no leader serves them.
        """
        position, asked = offsets.start_offset, None
        self._failing_since_s = None
        self._may_be_remote = self._remote is not None
        while position < offsets.end_offset:
            try:
                asked = asked or self._ask(offsets, position)
                published: list[PublishedRange] | RemoteRange = self._leaders.get(asked, self._timeout_s)
                if isinstance(published, RemoteRange):
                    asked = None
                    for records in self._read_remote(published):
                        position = records.end_offset
                        self._failing_since_s = None
                        yield records
                    continue
                tail = published[-1].end_offset if published else position
                asked = self._ask(offsets, tail) if position < tail < offsets.end_offset else None
                for each in published:
                    batch = self._leaders.get(each.ref, self._timeout_s)
                    position = each.end_offset
                    self._failing_since_s = None
                    yield RangeRecords(position, batch)
                if not published:
                    self._wait(offsets, position, "nothing to read")
            except (*_LOST, RaykaError) as error:
                asked = None
                position = self._recover(offsets, position, error)

    def _read_remote(self, wanted: RemoteRange) -> Iterator[RangeRecords]:
        """The records, as far as the store gives them to this process."""
        assert self._remote is not None
        try:
            yield from self._remote().read(wanted, self._columns)
        except (OSError, RaykaError) as error:
            logger.warning(
                "%s: asking the leader instead, because the remote store failed: %s", wanted.topic_partition, error
            )
            self._may_be_remote = False

    def _ask(self, offsets: OffsetRange, position: int) -> Any:
        topic_id = None if offsets.topic_id == NO_TOPIC_ID else offsets.topic_id
        leader = _leader(self._broker.image, offsets.topic_partition, topic_id)
        self._known_topics.add(offsets.topic)
        request = PublishRange(
            offsets.topic_partition,
            position,
            offsets.end_offset,
            self._columns,
            self._isolation,
            topic_id,
            self._may_be_remote,
        )
        return self._leaders.publish(leader, request)

    def _recover(self, offsets: OffsetRange, position: int, error: Exception) -> int:
        """Where to continue after an error. Raises it if it is not one that passes."""
        cause = getattr(error, "cause", error)
        if isinstance(cause, RaykaError):
            if cause.code is ErrorCode.OFFSET_OUT_OF_RANGE and self._earliest is not None:
                return self._skip(offsets, position)
            if not may_pass(cause.code) or isinstance(cause, TopicDeleted):
                raise cause
        self._leaders.forget()
        self._wait(offsets, position, error)
        return position

    def _skip(self, offsets: OffsetRange, position: int) -> int:
        assert self._earliest is not None
        earliest = self._earliest(offsets.topic_partition)
        if earliest <= position:
            self._wait(offsets, position, "the leader has no such offset")
            return position
        lost = offsets.between(position, min(earliest, offsets.end_offset))
        logger.warning("%s: the records were deleted before they were read", lost)
        return lost.end_offset

    def _wait(self, offsets: OffsetRange, position: int, reason: object) -> None:
        now_s = self._clock()
        self._failing_since_s = now_s if self._failing_since_s is None else self._failing_since_s
        left = offsets.between(position, offsets.end_offset)
        failing_s = now_s - self._failing_since_s
        if offsets.topic not in self._broker.image.topics and failing_s > self._absence_s(offsets):
            raise TopicDeleted(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{left}: topic {offsets.topic} was deleted")
        if failing_s > self._timeout_s:
            raise RaykaError(ErrorCode.REQUEST_TIMED_OUT, f"{left}: {reason}")
        logger.warning("%s: %s; retrying", left, reason)
        self._sleep(_RETRY_S)

    def _absence_s(self, offsets: OffsetRange) -> float:
        """How long the topic may be missing from the metadata before it counts as deleted."""
        if offsets.topic in self._known_topics:
            return UNKNOWN_FOR_S
        return float("inf") if offsets.topic_id == NO_TOPIC_ID else _UNHEARD_FOR_S


def prepare_leaders(broker: Broker, namespace: str = DEFAULT_NAMESPACE) -> None:
    """Let all partition actors load what they need to decode, and wait until they have."""
    partitions = [partition for topic in broker.image.topics.values() for partition in topic.partitions]
    names = {partition.leader_actor for partition in partitions if partition.leader_actor}
    leaders, nothing = RayLeaders(namespace), PublishRange(TopicPartition("", 0), 0, 0, (), IsolationLevel(0))
    ray.get([leaders.publish(name, nothing) for name in names])


def _leader(image: MetadataImage, topic_partition: TopicPartition, topic_id: uuid.UUID | None) -> str:
    """The name of the leader's actor. Raises LEADER_NOT_AVAILABLE, `TopicDeleted`."""
    topic = image.topics.get(topic_partition.topic)
    if topic is not None and topic_id not in (None, topic.topic_id):
        message = f"topic {topic.name} was deleted and created again (topic id {topic_id}, now {topic.topic_id})"
        raise TopicDeleted(ErrorCode.UNKNOWN_TOPIC_ID, message)
    partition = image.partition(topic_partition)
    if partition is None or partition.leader_actor is None:
        raise RaykaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic_partition} has no leader")
    return partition.leader_actor
