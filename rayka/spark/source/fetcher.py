"""Reading a range of offsets over the Kafka protocol, as Arrow record batches.

A fetch brings record batches as they are in the log; the compiled decoder makes columns of them. While one answer is
decoded the next one is on its way. A process keeps its connections for all its tasks.
"""

from __future__ import annotations

import functools
import gc
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from rayka.client.kafka.cluster import KafkaCluster, existing, raise_for
from rayka.client.kafka.connection import BrokerConnection, entity
from rayka.errors import ErrorCode, RaykaError, may_pass
from rayka.ranges.plan import OffsetRange
from rayka.spark.source.options import FetchSettings
from rayka.storage.format.batch import Buffer, iter_headers
from rayka.storage.format.order import in_order
from rayka.types import AbortedTransaction, IsolationLevel, OffsetSpec

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_MAX_WAIT = timedelta(milliseconds=500)
_RETRY_S = 0.1
_TABLE_BYTES = 32 << 20
_PATIENCE_S = 5.0
"""How long a topic must be missing or replaced before its records count as lost: a broker may not know it yet."""


class _Fetched(NamedTuple):
    """A leader's answer: record batches from an offset on, and the aborted transactions among them."""

    records: Buffer
    aborted: tuple[AbortedTransaction, ...]
    high_watermark: int


class _Batches(NamedTuple):
    """Whole batches in the order of their offsets. The next ones begin at `next_offset`, and are damaged if there is an
    error."""

    records: Buffer
    aborted: tuple[AbortedTransaction, ...]
    next_offset: int
    error: RaykaError | None


class RangeFetcher:
    """Fetches ranges, each column of `columns`. `clock` is in seconds."""

    def __init__(
        self,
        settings: FetchSettings,
        columns: Sequence[str],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._columns = tuple(columns)
        self._clock = clock
        self._sleep = sleep
        self._failing_since_s: float | None = None

    def read(self, offsets: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The records of the range, in order.

        Raises RaykaError: OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_ID or UNKNOWN_TOPIC_OR_PARTITION where records are gone
        (unless that may be), CORRUPT_MESSAGE where they are damaged, REQUEST_TIMED_OUT where no leader serves them.
        """
        position = offsets.start_offset
        with ThreadPoolExecutor(1, "rayka-fetch") as ahead:
            asked: Future[_Batches] | None = None
            while position < offsets.end_offset:
                answer = self._answer(asked or ahead.submit(self._fetch, offsets, position), offsets, position)
                asked = None
                if isinstance(answer, int):
                    position = answer
                    continue
                if answer.next_offset < offsets.end_offset and answer.error is None:
                    asked = ahead.submit(self._fetch, offsets, answer.next_offset)
                yield from self._decode(offsets, position, answer)
                freeze_imports()
                position = answer.next_offset
                if answer.error is not None and position < offsets.end_offset:
                    raise _named(answer.error, offsets, position)

    def _answer(self, asked: Future[_Batches], offsets: OffsetRange, position: int) -> _Batches | int:
        """The fetched records, or the offset to ask for again."""
        try:
            fetched = asked.result()
        except RaykaError as error:
            return self._recover(offsets, position, error)
        if fetched.next_offset == position and fetched.error is None:
            return self._wait(offsets, position, _NothingToRead(f"{offsets.topic_partition} has no offset {position}"))
        self._failing_since_s = None
        return fetched

    def _decode(self, offsets: OffsetRange, position: int, fetched: _Batches) -> Iterator[pa.RecordBatch]:
        """Columns of at most some tens of MB, however well the records were compressed.

        The CRCs are checked of all batches, also of those that a reader does not see.
        """
        from rayka.storage.columns.read import read_columns

        committed = self._settings.isolation is IsolationLevel.READ_COMMITTED
        while position < min(fetched.next_offset, offsets.end_offset):
            try:
                batch, position, _ = read_columns(
                    fetched.records,
                    topic=offsets.topic,
                    partition=offsets.partition,
                    columns=self._columns,
                    start_offset=position,
                    end_offset=offsets.end_offset,
                    aborted_transactions=fetched.aborted if committed else None,
                    max_bytes=_TABLE_BYTES,
                )
            except RaykaError as error:
                raise _named(error, offsets, position) from None
            if batch.num_rows:
                yield batch

    def _fetch(self, offsets: OffsetRange, position: int) -> _Batches:
        """The batches from `position` on that are in order."""
        fetched = _connections.fetch(self._settings, offsets, position)
        batches = _leading_batches(fetched, position, fetched.high_watermark)
        if batches.error is None:
            return batches
        # Kafka looks at the high watermark before it reads, so that records may end behind it that are sound.
        high_watermark = max(_connections.log_end(self._settings, offsets), fetched.high_watermark)
        return _leading_batches(fetched, position, high_watermark)

    def _recover(self, offsets: OffsetRange, position: int, error: RaykaError) -> int:
        """The offset to continue at after a transient error. Raises any other error."""
        _connections.forget(self._settings.bootstrap_servers)
        if isinstance(error, _RecordsDeleted) and (error.is_certain or self._failing_s() > _PATIENCE_S):
            return self._pass_over(error, offsets, position)
        if not may_pass(error.code) and error.code is not ErrorCode.BROKER_NOT_AVAILABLE:
            raise error
        return self._wait(offsets, position, error)

    def _pass_over(self, gone: _RecordsDeleted, offsets: OffsetRange, position: int) -> int:
        """The offset after the deleted records. Raises the error if data loss is not allowed."""
        if self._settings.fail_on_data_loss:
            raise gone
        logger.warning("%s; continuing, because failOnDataLoss is false", gone)
        return min(max(gone.next_offset, position), offsets.end_offset)

    def _wait(self, offsets: OffsetRange, position: int, error: RaykaError) -> int:
        """Return `position` a little later. Raises REQUEST_TIMED_OUT when failures have lasted too long; records that
        the leader does not have even then are gone."""
        left = offsets.between(position, offsets.end_offset)
        if self._failing_s() <= self._settings.timeout_s:
            logger.warning("%s: %s; retrying", left, error)
            self._sleep(_RETRY_S)
            return position
        if isinstance(error, _NothingToRead) and _connections.log_end(self._settings, offsets) <= position:
            message = f"{left}: the log ends before these offsets, so their records are lost"
            return self._pass_over(
                _RecordsDeleted(ErrorCode.OFFSET_OUT_OF_RANGE, message, offsets.end_offset), offsets, position
            )
        raise RaykaError(ErrorCode.REQUEST_TIMED_OUT, f"{left}: {error}")

    def _failing_s(self) -> float:
        """How long failures have lasted, 0 for the first one."""
        now_s = self._clock()
        self._failing_since_s = now_s if self._failing_since_s is None else self._failing_since_s
        return now_s - self._failing_since_s


@functools.cache
def freeze_imports() -> None:
    """Exclude all objects of this process from garbage collection, once.

    Spark collects garbage after each task. A worker that has read records has imported what it needs, and scanning that
    again would take some hundredths of a second of each task.
    """
    gc.freeze()


class _NothingToRead(RaykaError):
    """The leader does not have the offset yet."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)


class _RecordsDeleted(RaykaError):
    """Records were deleted; those from `next_offset` on are left. `is_certain`: the leader itself has said so."""

    def __init__(self, code: ErrorCode, message: str, next_offset: int, *, is_certain: bool = False) -> None:
        super().__init__(code, message)
        self.next_offset = next_offset
        self.is_certain = is_certain


class _Connections:
    """The connections of this process, by bootstrap servers."""

    def __init__(self) -> None:
        self._clusters: dict[str, KafkaCluster] = {}
        self._leaders: dict[tuple[str, str, int], BrokerConnection] = {}

    def fetch(self, settings: FetchSettings, offsets: OffsetRange, position: int) -> _Fetched:
        """The record batches from `position` on, of the topic with the id of the range."""
        leader = self._leader(settings, offsets)
        response = leader.request(_request(settings, offsets, position))
        raise_for(response.error_code, f"{offsets.topic_partition} cannot be fetched")
        (partition,) = response.responses[0].partitions
        if partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise self._out_of_range(settings, offsets, position)
        raise_for(partition.error_code, f"{offsets.topic_partition} cannot be fetched at offset {position}")
        aborted = [
            AbortedTransaction(each.producer_id, each.first_offset) for each in partition.aborted_transactions or ()
        ]
        return _Fetched(partition.records or b"", tuple(aborted), partition.high_watermark)

    def forget(self, bootstrap_servers: str) -> None:
        """Close the connections; the next fetch connects again."""
        cluster = self._clusters.pop(bootstrap_servers, None)
        if cluster is not None:
            cluster.__exit__(None, None, None)
        self._leaders = {key: leader for key, leader in self._leaders.items() if key[0] != bootstrap_servers}

    def _leader(self, settings: FetchSettings, offsets: OffsetRange) -> BrokerConnection:
        key = (settings.bootstrap_servers, *offsets.topic_partition)
        if key not in self._leaders:
            self._leaders[key] = self._find_leader(self._cluster(settings), offsets)
        return self._leaders[key]

    def _cluster(self, settings: FetchSettings) -> KafkaCluster:
        if settings.bootstrap_servers not in self._clusters:
            self._clusters[settings.bootstrap_servers] = KafkaCluster(settings.bootstrap_servers, settings.timeout_s)
        return self._clusters[settings.bootstrap_servers]

    def _find_leader(self, cluster: KafkaCluster, offsets: OffsetRange) -> BrokerConnection:
        """The leader. Raises LEADER_NOT_AVAILABLE, and `_RecordsDeleted` if the topic was deleted or created again."""
        try:
            metadata = cluster.metadata([offsets.topic])
            partition = existing(metadata, offsets.topic_partition)
        except RaykaError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise _RecordsDeleted(error.code, f"{offsets}: the partition was deleted", offsets.end_offset) from None
            raise
        topic_id = metadata.topics[offsets.topic].topic_id
        if topic_id != offsets.topic_id:
            message = f"{offsets}: the topic was deleted and created again ({offsets.topic_id}, now {topic_id})"
            raise _RecordsDeleted(ErrorCode.UNKNOWN_TOPIC_ID, message, offsets.end_offset)
        if partition.leader not in metadata.brokers:
            raise RaykaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{offsets.topic_partition} has no leader")
        return cluster.broker(metadata.brokers[partition.leader])

    def _out_of_range(self, settings: FetchSettings, offsets: OffsetRange, position: int) -> RaykaError:
        """The reason that the leader does not have an offset: it was deleted, or the leader has not caught up."""
        earliest = self._look_up(settings, offsets, OffsetSpec.EARLIEST)
        if earliest <= position:
            return _NothingToRead(f"{offsets.topic_partition} has no offset {position}")
        end = min(earliest, offsets.end_offset)
        message = f"{offsets.between(position, end)}: the records were deleted before they were read"
        return _RecordsDeleted(ErrorCode.OFFSET_OUT_OF_RANGE, message, end, is_certain=True)

    def log_end(self, settings: FetchSettings, offsets: OffsetRange) -> int:
        """The offset after the last record, committed or not."""
        return self._look_up(settings, offsets, OffsetSpec.LATEST)

    def _look_up(self, settings: FetchSettings, offsets: OffsetRange, spec: OffsetSpec) -> int:
        from rayka.client.kafka.admin import KafkaAdmin

        partition = offsets.topic_partition
        return KafkaAdmin(self._cluster(settings)).list_offsets([partition], spec)[partition]


_connections = _Connections()


def _leading_batches(fetched: _Fetched, position: int, end_offset: int) -> _Batches:
    """Those before one whose frame is broken, or whose offsets are not in order or behind the end.

    The last batch is left to the next fetch if there is a gap before it. It may have a wrong offset, which only the
    batch after it shows.
    """
    records, aborted, _ = fetched
    size, next_offset = 0, position
    error, before = None, None
    try:
        for place, header in in_order(iter_headers(records), position, end_offset):
            before = (size, next_offset) if size and header.base_offset > next_offset else None
            size, next_offset = place + header.size_in_bytes, header.next_offset
    except RaykaError as found:
        error = found
    if records and not size and error is None:  # A leader's first batch is whole, however large it is (KIP-74).
        error = RaykaError(ErrorCode.CORRUPT_MESSAGE, "The record batch is longer than the leader's answer")
    size, next_offset = before or (size, next_offset)
    return _Batches(memoryview(records)[:size], aborted, next_offset, error)


def _named(error: RaykaError, offsets: OffsetRange, position: int) -> RaykaError:
    """The error with the records that can't be read."""
    return RaykaError(error.code, f"{offsets.topic_partition} from offset {position} on: {error.message}")


def _request(settings: FetchSettings, offsets: OffsetRange, position: int) -> Any:
    from kio.schema.fetch.v13.request import FetchPartition, FetchRequest, FetchTopic

    size = settings.fetch_bytes
    partition = FetchPartition(partition=offsets.partition, fetch_offset=position, partition_max_bytes=size)  # type: ignore[arg-type]
    topic = FetchTopic(topic_id=offsets.topic_id, partitions=(partition,))
    fields = (None, -1, _MAX_WAIT, 1, size, int(settings.isolation), 0, -1, (topic,), ())
    return entity(FetchRequest, *fields)
