"""Ranges of a partition as Arrow tables in the object store, for readers that want columns.

A reader walks a range from its start: each answer holds the next tables and where they end. A table is cut where a
batch ends, so that it is decoded once and then shared by all readers that come to the same offset. It is kept for
`TTL_S` after its last use. The tables that are kept and those that readers still hold have no more than `max_bytes`
together, as far as that depends on what is kept. The log is the truth: a table that is gone is made again.

Decoding runs in a thread; its compiled part and the copy into the object store hold no GIL. The first reader
loads compiled code and pyarrow, not the start of the actor.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import ray

from rayka.actors.channel.requests import PublishRange
from rayka.actors.replica.remote_tier import RemoteTier
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.image import MetadataImage
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.format.batch import Buffer, iter_headers
from rayka.storage.format.order import in_order
from rayka.storage.format.records import Record, build_batch
from rayka.storage.log.log import Log
from rayka.storage.remote.remote_range import RemoteRange
from rayka.storage.segments.reader import SegmentReader
from rayka.types import NO_LEADER_EPOCH, AbortedTransaction, FileSlice, IsolationLevel, TopicPartition

TTL_S = 300.0
_DECODERS = 2
"""Threads that decode: a node has about half as many partition actors as cores."""
_TABLE_BYTES = 32 * 1024 * 1024
_MIN_TABLE_BYTES = 1024 * 1024
_MIN_TABLES = 16
"""The cache has room for at least this many tables: each reader has two in hand and asks for the next two meanwhile."""
_MAX_LOG_BYTES = 32 * 1024 * 1024
_TABLES_PER_ANSWER = 2
_PART_OF_STORE = 0.45
"""Ray begins to write objects to disk at 80 %; Ray Data's blocks take up to 50 % where their reader is slower."""
_LEFT_BYTES = 64 * 1024 * 1024
"""How much of a small store is left to others, up to nine tenths: where Ray has to spill for each table, all wait."""
_FIRST_RATIO = 8.0
"""How much larger than its log a table is taken to be, before one of the partition has been made."""


class PublishedRange(NamedTuple):
    """A table with the visible records from `start_offset` up to `end_offset`; `size` in bytes."""

    start_offset: int
    end_offset: int
    size: int
    ref: Any


@dataclass(slots=True)
class Published:
    """Tables that readers asked for: those in the cache, and those made, with the seconds of each step."""

    misses: int = 0
    hits: int = 0
    read_s: float = 0.0
    decode_s: float = 0.0
    put_s: float = 0.0


class TableStore(Protocol):
    """Where tables are, for readers in other processes."""

    def put(self, table: Any) -> Any:
        """Put a table in, and return a ref."""

    def key(self, ref: Any) -> str:
        """The name of a ref, which does not keep the table."""

    def referenced(self) -> Container[str]:
        """The names of all refs that this or any other process holds."""


class RayTables:
    """`TableStore` in Ray's object store. This process owns the tables, so it knows who holds refs."""

    def put(self, table: Any) -> Any:
        """See `TableStore.put`."""
        return ray.put(table)

    def key(self, ref: Any) -> str:
        """See `TableStore.key`."""
        return str(ref.hex())

    def referenced(self) -> Container[str]:
        """See `TableStore.referenced`."""
        worker: Any = cast(Any, ray)._private.worker.global_worker.core_worker
        return {name.decode() for name in worker.get_all_reference_counts()}


class _Key(NamedTuple):
    topic_id: bytes
    partition: int
    start_offset: int
    columns: tuple[str, ...]
    isolation: IsolationLevel
    leader_epoch: int
    """Another leader in between may have had other records, after an unclean election."""


class PublishedRanges:
    """The cache of one actor. `max_bytes` is asked for at every use: it follows the cluster."""

    def __init__(
        self,
        replicas: Replicas,
        max_bytes: Callable[[], int],
        *,
        clock: Callable[[], float] = time.monotonic,
        store: TableStore | None = None,
        remote: RemoteTier | None = None,
    ) -> None:
        self._remote = remote
        self._store = RayTables() if store is None else store
        self._lent: dict[str, int] = {}
        self._replicas = replicas
        self._max_bytes = max_bytes
        self._clock = clock
        self._ranges: OrderedDict[_Key, tuple[PublishedRange, float]] = OrderedDict()
        self._making: dict[tuple[_Key, int], asyncio.Future[PublishedRange | None]] = {}
        self._ratios: dict[tuple[bytes, int, tuple[str, ...]], float] = {}
        self._decoder = ThreadPoolExecutor(_DECODERS, "rayka-decoder")
        self._reader = SegmentReader()
        self._expiry: asyncio.TimerHandle | None = None
        self.size = 0
        self.published = Published()

    async def publish(self, request: PublishRange) -> list[PublishedRange] | RemoteRange:
        """The next tables from `start_offset` on: some that are there, or one made now; none at the end.

        With `may_be_remote` it is said where the records are, if they are only in the remote store.
        An empty range only makes the actor ready to decode. Raises RaykaError as a fetch does, INCONSISTENT_TOPIC_ID
        if the topic has another id than `topic_id`, and INVALID_REQUEST for an unknown column.
        """
        topic_partition, start_offset, end_offset, columns, isolation, topic_id, may_be_remote = request
        if start_offset >= end_offset:
            await asyncio.get_running_loop().run_in_executor(self._decoder, _load_decoder)
            return []
        partition = self._leader(topic_partition)
        if topic_id is not None and partition.topic_id != topic_id:
            message = f"{topic_partition} has topic id {partition.topic_id}, not {topic_id}"
            raise RaykaError(ErrorCode.INCONSISTENT_TOPIC_ID, message)
        number, epoch = topic_partition.partition, partition.leader_epoch
        key = _Key(partition.topic_id.bytes, number, start_offset, tuple(columns), isolation, epoch)
        if self._remote is None or not self._is_remote(partition.log, start_offset):
            partition.log.read(start_offset, 0, _bound(partition.log, isolation), False)
        elif may_be_remote:
            located = await self._remote.locate(partition, start_offset, end_offset, isolation)
            if located is not None:
                return located
        found: list[PublishedRange] = []
        while key.start_offset < end_offset and len(found) < _TABLES_PER_ANSWER:
            published = self._cached(key, end_offset)
            if published is None and not found:
                published = await self._make_once(key, partition, end_offset)
            if published is None:
                break
            found.append(published)
            key = key._replace(start_offset=published.end_offset)
        return found

    def _is_remote(self, log: Log, offset: int) -> bool:
        """Whether an offset is only in the remote store (KIP-405)."""
        return self._remote is not None and log.log_start_offset <= offset < log.local_log_start_offset

    def close(self) -> None:
        """Drop every table."""
        self._decoder.shutdown(wait=False, cancel_futures=True)
        if self._expiry is not None:
            self._expiry.cancel()
        self._ranges.clear()
        self.size = 0

    def _leader(self, topic_partition: TopicPartition) -> Partition:
        partition = self._replicas.get(topic_partition)
        if partition.leader_epoch == NO_LEADER_EPOCH:
            raise RaykaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic_partition} has another leader")
        return partition

    def _cached(self, key: _Key, end_offset: int) -> PublishedRange | None:
        entry = self._ranges.get(key)
        if entry is None or entry[0].end_offset > end_offset:
            return None
        self._ranges[key] = entry[0], self._clock()
        self._ranges.move_to_end(key)
        self.published.hits += 1
        return entry[0]

    async def _make_once(self, key: _Key, partition: Partition, end_offset: int) -> PublishedRange | None:
        """Readers that want the same table wait for the same work."""
        making = self._making.get((key, end_offset))
        if making is None:
            making = self._making[key, end_offset] = asyncio.ensure_future(self._make(key, partition, end_offset))
            making.add_done_callback(lambda _: self._making.pop((key, end_offset)))
        return await asyncio.shield(making)

    async def _make(self, key: _Key, partition: Partition, end_offset: int) -> PublishedRange | None:
        log, start_offset, isolation = partition.log, key.start_offset, key.isolation
        end_offset = min(end_offset, _bound(log, isolation))
        ratio_key = (key.topic_id, key.partition, key.columns)
        table_bytes = max(_MIN_TABLE_BYTES, min(_TABLE_BYTES, self._max_bytes() // _MIN_TABLES))
        max_bytes = min(_MAX_LOG_BYTES, int(table_bytes / self._ratios.get(ratio_key, _FIRST_RATIO)))
        if self._remote is not None and self._is_remote(log, start_offset):
            file_slice, aborted = await self._remote.read(partition, start_offset, max_bytes, isolation)
        else:
            file_slice = _slice(log, start_offset, end_offset, max_bytes)
            committed = isolation is IsolationLevel.READ_COMMITTED
            aborted = log.aborted_transactions(start_offset, file_slice) if committed else None
        if file_slice is None:
            return None
        wanted = (start_offset, end_offset)
        arguments = (partition.topic_partition, file_slice, wanted, key.columns, aborted, table_bytes)
        published, size_in_log = await asyncio.get_running_loop().run_in_executor(
            self._decoder, self._decode, *arguments, log.high_watermark
        )
        self._ratios[ratio_key] = max(published.size / size_in_log, 0.01)
        self._hold(key, published)
        return published

    def _decode(
        self,
        topic_partition: TopicPartition,
        file_slice: FileSlice,
        wanted: tuple[int, int],
        columns: Sequence[str],
        aborted: tuple[AbortedTransaction, ...] | None,
        table_bytes: int,
        high_watermark: int,
    ) -> tuple[PublishedRange, int]:
        """In the thread: from bytes in a segment to a table in the object store, and how many bytes those were.

        Raises CORRUPT_MESSAGE.
        """
        from rayka.storage.columns.read import read_columns

        began = time.perf_counter()
        records = self._reader.read(file_slice)
        was_read = time.perf_counter()
        start_offset, end_offset = wanted
        try:
            _require_order(records, start_offset, high_watermark)
            batch, next_offset, size_in_log = read_columns(
                records,
                topic=topic_partition.topic,
                partition=topic_partition.partition,
                columns=columns,
                start_offset=start_offset,
                end_offset=end_offset,
                aborted_transactions=aborted,
                max_bytes=table_bytes,
            )
        except RaykaError as error:
            reason = f"{topic_partition} from offset {start_offset} on: {error.message}"
            raise RaykaError(error.code, reason) from None
        decoded = time.perf_counter()
        ref = self._store.put(batch)
        done = self.published
        done.misses += 1
        done.read_s += was_read - began
        done.decode_s += decoded - was_read
        done.put_s += time.perf_counter() - decoded
        return PublishedRange(start_offset, min(next_offset, end_offset), batch.nbytes, ref), size_in_log

    def _hold(self, key: _Key, published: PublishedRange) -> None:
        limit = self._max_bytes()
        if published.size > limit:
            return
        replaced = self._ranges.pop(key, None)
        if replaced is not None:
            self.size -= replaced[0].size
            self._lent[self._store.key(replaced[0].ref)] = replaced[0].size
        self.size += published.size
        self._ranges[key] = published, self._clock()
        while self._ranges and self.size + self._lent_bytes() > limit:
            self._drop_oldest()
        self._expire()

    def _drop_oldest(self) -> None:
        _, (published, _) = self._ranges.popitem(last=False)
        self.size -= published.size
        self._lent[self._store.key(published.ref)] = published.size

    def _lent_bytes(self) -> int:
        """The size of the tables that are not kept here, and that readers hold."""
        if self._lent:
            referenced = self._store.referenced()
            self._lent = {name: size for name, size in self._lent.items() if name in referenced}
        return sum(self._lent.values())

    def _expire(self) -> None:
        """Drop what was not used for `TTL_S`, and look again when the next one's time is over."""
        now = self._clock()
        while self._ranges and (oldest := next(iter(self._ranges.values()))[1]) + TTL_S <= now:
            self._drop_oldest()
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = None
        if self._ranges:
            oldest = next(iter(self._ranges.values()))[1]
            self._expiry = asyncio.get_running_loop().call_later(oldest + TTL_S - now, self._expire)


def _load_decoder() -> None:
    """In the thread: import what decodes and load its machine code, which takes most of a second of a core."""
    from rayka.storage.columns.read import read_columns

    batch = build_batch([Record(0, 0, b"key", b"value")])
    read_columns(batch, topic="", partition=0, max_bytes=1)


def share_of_store(image: MetadataImage, broker_id: int) -> int:
    """How many bytes one actor may hold: its part of what readers may take of the node's object store."""
    leaders = {
        partition.leader_actor
        for topic in image.topics.values()
        for partition in topic.partitions
        if partition.leader == broker_id
    }
    store_bytes = _store_bytes()
    held_bytes = max(min(store_bytes * _PART_OF_STORE, store_bytes - _LEFT_BYTES), store_bytes / 10)
    return int(held_bytes) // max(len(leaders), 1)


@functools.cache
def _store_bytes() -> int:
    own, nodes = ray.get_runtime_context().get_node_id(), cast(Any, ray.nodes)()
    return int(next(node["Resources"].get("object_store_memory", 0) for node in nodes if node["NodeID"] == own))


def _slice(log: Log, start_offset: int, end_offset: int, max_bytes: int) -> FileSlice | None:
    """The bytes from `start_offset` on, at most to the end of the batch that has the record before `end_offset`.

    Where compaction has left no such record it is the batch after it, whose records are beyond the range.
    """
    high_watermark = log.high_watermark
    file_slice = log.read(start_offset, max_bytes, high_watermark)
    if file_slice is None or start_offset >= end_offset:
        return None
    last = log.read(end_offset - 1, 1, high_watermark)
    if last is None or last.path != file_slice.path:
        return file_slice
    return file_slice._replace(size=min(file_slice.size, last.position + last.size - file_slice.position))


def _require_order(records: Buffer, start_offset: int, end_offset: int) -> None:
    """Require that the batches are in order and end before `end_offset`.

    A reader continues behind the last, and would leave out records or read them twice. Raises CORRUPT_MESSAGE.
    """
    for _ in in_order(iter_headers(records), start_offset, end_offset):
        pass


def _bound(log: Log, isolation: IsolationLevel) -> int:
    return log.last_stable_offset if isolation is IsolationLevel.READ_COMMITTED else log.high_watermark
