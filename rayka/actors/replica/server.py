"""Serves the replicas of one process to other processes, through `FrameService`, and to its own, by direct calls.

The decisions are in `rayka.replica`; this adds the clock, the event loop and the disk's threads. Appends and reads
happen in the loop, so the loop is the lock. No other disk work does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import zip_longest
from typing import Any, Protocol, TypeVar

from rayka.actors.background import BackgroundTasks, answered
from rayka.actors.channel.link import CALL_TIMEOUT_S, AppendDone, Done, FetchDone
from rayka.actors.channel.requests import (
    CheckRecords,
    Coordinate,
    DeleteRecords,
    DescribeLogDir,
    DescribeProducers,
    DescribeShareRecords,
    DrainJournals,
    EndShareSession,
    FetchParams,
    FindEpochEnds,
    LeaderRequest,
    ListOffsets,
    MeasureShareDepth,
    OpenJournal,
    ReturnShareRecords,
    ShareFetch,
    ShareRequest,
    WriteTxnMarkers,
)
from rayka.actors.replica.disk import DiskThread, delete_old_segments
from rayka.actors.replica.group_commit import GroupCommit
from rayka.actors.replica.markers import MarkerAppends, WriteMarker
from rayka.actors.replica.put_journals import PutJournals
from rayka.actors.replica.reads import Reads
from rayka.actors.replica.transactional_appends import TransactionalAppends, Verify
from rayka.errors import ErrorCode, RaykaError
from rayka.replica.partition import Appended, Partition
from rayka.replica.purgatory import DelayedProduce, Purgatory
from rayka.replica.replicas import Replicas
from rayka.storage.directory.disk_state import State
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.log.log import Log
from rayka.storage.producers.verification import Verification
from rayka.types import (
    AppendParams,
    AppendRequest,
    AppendResult,
    FileSlice,
    LogDirDescription,
    ReplicaDescription,
    TopicPartition,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")


class PartitionUsers(Protocol):
    """What works on the partitions that this process leads, beside clients' reads: share-partitions."""

    def ask(self, request: ShareRequest, done: Done) -> None:
        """Carry out a request, now or later."""

    def more_bytes(self, topic_partition: TopicPartition) -> None:
        """There is more to read."""

    def released(self, topic_partition: TopicPartition) -> None:
        """The partition changed its role, left or failed."""


class ReplicaServer:
    """Implements `LeaderClient`."""

    is_in_process = True

    def __init__(self, replicas: Replicas, directory: LogDirectory, disk: DiskThread) -> None:
        self._replicas = replicas
        self._directory = directory
        self._disk = disk
        self._background = BackgroundTasks("replica server")
        self._purgatory = Purgatory()
        self._waiting_for_flush = Purgatory()
        self._loop = asyncio.get_running_loop()
        self.reads = Reads(replicas)
        self._group_commit = GroupCommit(self._flushed, self._flush_failed)
        self._unflushed_bytes: dict[TopicPartition, int] = {}
        self._coordinators: dict[str, Callable[..., None]] = {}
        self.share_partitions: PartitionUsers | None = None
        self._marker_appends = MarkerAppends(replicas, self)
        self._transactional_appends = TransactionalAppends(replicas, self._append, self._background)
        self.put_journals = PutJournals(replicas, directory, disk, self._append)

    def offer(self, coordinator: str, service: Callable[..., None]) -> None:
        """Serve the requests to a kind of coordinator: `service(partition, message, done)` may answer later."""
        self._coordinators[coordinator] = service

    def offer_markers(self, topic: str, write: WriteMarker) -> None:
        """Let the coordinators on a topic write the markers of its partitions, since they must know of them."""
        self._marker_appends.coordinators[topic] = write

    def verify_with(self, verify: Verify) -> None:
        """Set how to ask transaction coordinators."""
        self._transactional_appends.verify = verify

    def append_position(self, topic_partition: TopicPartition) -> int:
        """As `Replicas.append_position`."""
        return self._replicas.append_position(topic_partition)

    def append(self, requests: Sequence[AppendRequest], params: AppendParams, done: AppendDone) -> None:
        """Append; answer at once, or after the flush that the topic requires. Then wake readers that wait for records.

        What programs have put into journals comes first: they may send this because of it.

        A batch that begins a transaction in its partition is appended after the coordinator has confirmed the
        transaction.
        """
        if self.put_journals.are_there:
            self.put_journals.drain([request.topic_partition for request in requests])
        if params.transactional_id is None:
            self._append(requests, params, done)
        else:
            self._transactional_appends.append(requests, params, done)

    def _append(
        self,
        requests: Sequence[AppendRequest],
        params: AppendParams,
        done: AppendDone,
        verifications: Sequence[Verification | None] = (),
    ) -> None:
        now_ms = time.time_ns() // 1_000_000
        appended = []
        results = []
        are_visible = True
        for request, verification in zip_longest(requests, verifications):
            one = self._replicas.append(request, params, now_ms, verification)
            appended.append(one)
            results.append(one.result)
            are_visible = are_visible and one.is_visible
        if are_visible:
            done(results)
        else:
            self._delay_produce(requests, appended, params.timeout_ms, done)
        for request, one in zip(requests, appended, strict=True):
            if one.size:
                self._announce(request.topic_partition, one)

    def _delay_produce(
        self, requests: Sequence[AppendRequest], appended: Sequence[Appended], timeout_ms: int, done: AppendDone
    ) -> None:
        """Answer when the flush is done or the time is over."""

        def respond(results: list[AppendResult]) -> None:
            timer.cancel()
            done(results)

        delayed = DelayedProduce.of(respond, [request.topic_partition for request in requests], appended)
        self._purgatory.add_produce(delayed)
        self._group_commit.flush(self._replicas.get(topic_partition) for topic_partition in delayed.required_offsets)
        timer = self._loop.call_later(max(0, timeout_ms) / 1000, self._produce_timed_out, delayed)

    def _produce_timed_out(self, produce: DelayedProduce) -> None:
        self._purgatory.time_out_produce(produce)
        produce.answer()

    def _announce(self, topic_partition: TopicPartition, appended: Appended) -> None:
        """Tell waiting readers of new bytes, now or when they are flushed."""
        if appended.is_visible:
            self._more_bytes(topic_partition, appended.size)
        else:
            unflushed = self._unflushed_bytes.get(topic_partition, 0)
            self._unflushed_bytes[topic_partition] = unflushed + appended.size

    def _more_bytes(self, topic_partition: TopicPartition, size: int) -> None:
        self.reads.more_bytes(topic_partition, size)
        if self.share_partitions is not None:
            self.share_partitions.more_bytes(topic_partition)

    def _flushed(self, partition: Partition) -> None:
        """A flush is done: make the flushed records visible and answer the requests that waited for it."""
        if not self._replicas.holds(partition):
            return
        topic_partition = partition.topic_partition
        partition.advance_high_watermark()
        _answer(self._purgatory.high_watermark_at(topic_partition, partition.log.high_watermark))
        _answer(self._waiting_for_flush.high_watermark_at(topic_partition, partition.log.recovery_point))
        self._more_bytes(topic_partition, self._unflushed_bytes.pop(topic_partition, 0))

    def _flush_failed(self, partition: Partition, error: RaykaError) -> None:
        if not self._replicas.holds(partition):
            return
        logger.error("%s: %s", partition.topic_partition, error)
        self.release(partition.topic_partition, ErrorCode.KAFKA_STORAGE_ERROR)

    def append_as_coordinator(
        self,
        partition: Partition,
        records: memoryview,
        now_ms: int,
        verification: Verification | None = None,
        transaction_version: int = 0,
    ) -> int:
        """Append batches that this process made; returns the base offset. Raises RaykaError."""
        appended = partition.append_as_coordinator(records, now_ms, verification, transaction_version)
        self._announce(partition.topic_partition, appended)
        if not appended.is_visible:
            self._group_commit.flush((partition,))
        return appended.result.base_offset

    def when_visible(self, partition: Partition, offset: int, done: Callable[[ErrorCode], None]) -> None:
        """Call `done` with NONE when the high watermark is at `offset`, at once if it is.

        If the partition fails or is no longer led here before that, `done` gets the error of an append.
        """
        if partition.log.high_watermark >= offset:
            done(ErrorCode.NONE)
        else:
            self._purgatory.add_produce(_delay(partition, offset, done))

    def when_flushed(self, partition: Partition, offset: int, done: Callable[[ErrorCode], None]) -> None:
        """Flush, and call `done` with NONE when all records below `offset` are on the device, else with the error."""
        if partition.log.recovery_point >= offset:
            done(ErrorCode.NONE)
        else:
            self._waiting_for_flush.add_produce(_delay(partition, offset, done))
            self._group_commit.flush((partition,))

    def delete_records_before(self, partition: Partition, offset: int) -> None:
        """Move the log start offset of a partition up and delete its old segments, in the background.

        What replaces the deleted records must be on the device: this reaches the device too.
        """
        self._background.start("delete old segments", self._delete_old_segments(partition, offset))

    async def _delete_old_segments(self, partition: Partition, offset: int) -> None:
        partition.log.delete_records(offset)
        await delete_old_segments(self._directory, self._disk, partition.log)
        await self._disk.run(lambda: self._directory.write_log_starts([partition.log]))

    def fetch(self, params: FetchParams, done: FetchDone) -> Hashable:
        """As `Reads.fetch`."""
        return self.reads.fetch(params, done)

    def cancel(self, key: Hashable) -> None:
        """As `Reads.cancel`."""
        self.reads.cancel(key)

    def release(self, topic_partition: TopicPartition, error: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """The partition changed its role, left or failed: answer everything that waits for it."""
        if topic_partition not in self._replicas:
            self._unflushed_bytes.pop(topic_partition, None)
        for purgatory in (self._purgatory, self._waiting_for_flush):
            _answer(purgatory.fail_produces_of(topic_partition, error))
        self.reads.released(topic_partition)
        if self.share_partitions is not None:
            self.share_partitions.released(topic_partition)

    def flush(self, partitions: Iterable[Partition]) -> None:
        """Flush in the background."""
        self._group_commit.flush(partitions)

    async def stop(self) -> None:
        """Close the put journals and wait for the flush in progress; leave other disk work to the next start."""
        await self.put_journals.stop()
        await self._group_commit.stop()
        await self._background.stop()

    def close(self) -> None:
        """Do nothing: the replicas live as long as their process."""

    def ask(self, request: LeaderRequest, done: Done, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Answer one of the rarer requests, now or later."""
        try:
            _ASK[type(request)](self, request, done)
        except RaykaError as error:
            done(error)

    def _coordinate(self, request: Coordinate, done: Done) -> None:
        service = self._coordinators.get(request.coordinator)
        if service is None:
            raise RaykaError(ErrorCode.INVALID_REQUEST, f"there are no coordinators of kind {request.coordinator!r}")
        service(request.partition, request.message, done)

    def _share(self, request: ShareRequest, done: Done) -> None:
        if self.share_partitions is None:
            raise RaykaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the actor is starting")
        may_wait = isinstance(request, ShareFetch) and request.params.max_wait_s > 0
        is_part_enough = isinstance(request, ShareFetch) and not request.params.min_records
        self.put_journals.drain(_partitions_of(request), may_wait=may_wait, is_part_enough=is_part_enough)
        self.share_partitions.ask(request, done)

    def _write_txn_markers(self, request: WriteTxnMarkers, done: Done) -> None:
        self._marker_appends.append(request.markers, done)

    def _describe_producers(self, request: DescribeProducers, done: Done) -> None:
        done(self._replicas.active_producers(request.partitions))

    def _open_journal(self, request: OpenJournal, done: Done) -> None:
        self.put_journals.open(request, done)

    def _drain_journals(self, request: DrainJournals, done: Done) -> None:
        self.put_journals.ring(request, done)

    def _list_offsets(self, request: ListOffsets, done: Done) -> None:
        self.put_journals.drain(query.topic_partition for query in request.queries)
        self.reads.list_offsets(request.queries, request.isolation, done)

    def _find_epoch_ends(self, request: FindEpochEnds, done: Done) -> None:
        done(self._replicas.epoch_end_offsets(request.queries))

    def _delete_records(self, request: DeleteRecords, done: Done) -> None:
        """Answer when the log start offsets are on the device. Segments below them are deleted after that."""
        answers = self._replicas.delete_records(request.offsets)
        moved = [
            self._replicas.get(topic_partition).log
            for (topic_partition, _), answer in zip(request.offsets, answers, strict=True)
            if not answer.error
        ]
        self._answer_from_disk(lambda: self._directory.write_log_starts(moved), lambda _: answers, done)
        for log in moved:
            self._background.start("delete old segments", self._delete_segments(log))

    async def _delete_segments(self, log: Log) -> None:
        try:
            await delete_old_segments(self._directory, self._disk, log)
        except RaykaError:
            if not log.is_released:
                raise

    def _describe_log_dir(self, request: DescribeLogDir, done: Done) -> None:
        path, strays = str(self._directory.path), tuple(self._directory.stray_partitions)
        replicas = tuple(ReplicaDescription(each.topic_partition, each.log.size) for each in self._replicas)
        if self._directory.disk.state is State.OFFLINE:
            done(LogDirDescription(ErrorCode.KAFKA_STORAGE_ERROR, path, replicas, strays=strays))
        else:
            self._answer_from_disk(
                self._directory.space, lambda space: LogDirDescription(0, path, replicas, *space, strays), done
            )

    def check_records(self, found: Iterable[FileSlice | bytes | None]) -> None:
        """Read records whose read failed elsewhere."""
        for records in found:
            if isinstance(records, FileSlice):
                self.ask(CheckRecords(records), lambda _: None)

    def _check_records(self, request: CheckRecords, done: Done) -> None:
        self._answer_from_disk(lambda: self._directory.check_records(request.records), lambda size: size, done)

    def _answer_from_disk(self, work: Callable[[], T], answer: Callable[[T], Any], done: Done) -> None:
        async def run() -> None:
            found = await answered(self._disk.run(work))
            done(found if isinstance(found, RaykaError) else answer(found))

        self._background.start("disk", run())


def _partitions_of(request: ShareRequest) -> Iterable[TopicPartition]:
    """The partitions whose records a request asks for."""
    match request:
        case ShareFetch():
            return (each.topic_partition for each in request.partitions)
        case MeasureShareDepth() | DescribeShareRecords():
            return (request.topic_partition,)
        case _:
            return ()


def _answer(delayed: Iterable[DelayedProduce]) -> None:
    """Answer appends that waited. One that fails with its answer keeps no other, and no reader, from its own."""
    for produce in delayed:
        try:
            produce.answer()
        except Exception:
            logger.exception("an append that waited can't be answered: %s", produce.topic_partitions)


def _delay(partition: Partition, offset: int, done: Callable[[ErrorCode], None]) -> DelayedProduce:
    """For a purgatory: calls `done` when the partition gets to `offset`, or with the error if it fails before."""
    name = partition.topic_partition
    return DelayedProduce(lambda results: done(ErrorCode(results[0].error)), [name], [AppendResult(0)], {name: offset})


_ASK: dict[type, Callable[[ReplicaServer, Any, Done], None]] = {
    ListOffsets: ReplicaServer._list_offsets,
    FindEpochEnds: ReplicaServer._find_epoch_ends,
    DeleteRecords: ReplicaServer._delete_records,
    DescribeLogDir: ReplicaServer._describe_log_dir,
    CheckRecords: ReplicaServer._check_records,
    Coordinate: ReplicaServer._coordinate,
    ShareFetch: ReplicaServer._share,
    EndShareSession: ReplicaServer._share,
    ReturnShareRecords: ReplicaServer._share,
    MeasureShareDepth: ReplicaServer._share,
    DescribeShareRecords: ReplicaServer._share,
    WriteTxnMarkers: ReplicaServer._write_txn_markers,
    DescribeProducers: ReplicaServer._describe_producers,
    OpenJournal: ReplicaServer._open_journal,
    DrainJournals: ReplicaServer._drain_journals,
}
