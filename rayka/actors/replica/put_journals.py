"""The put journals of the partitions that this process leads: what programs write there is appended to the logs.

`rayka.storage.journal.layout` says what a journal is. A program asks for one (`OpenJournal`), and rings
(`DrainJournals`) when it writes to a journal that is not watched. A journal is watched for a few milliseconds after
each record. Requests that ask what is in a partition drain its journals first, so a program finds what another has put.

Invariants: the journals of a partition are where its log is, and only its leader reads them. A journal is removed when
the log has all of it and its program is gone, has closed it, or can't use it any more; one that can't be appended is
kept under another name. What an append refuses for now is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rayka.actors.background import BackgroundTasks
from rayka.actors.channel.link import AppendDone, Done
from rayka.actors.channel.requests import DrainJournals, OpenJournal
from rayka.actors.replica.disk import DiskThread
from rayka.actors.replica.journal_files import FoundJournal, JournalFiles, is_left
from rayka.config.definition import LONG_MAX
from rayka.errors import ErrorCode, RaykaError, may_pass
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.format.batch import stamp_producer
from rayka.storage.journal.large import LargeRecord
from rayka.storage.journal.layout import (
    CAPACITY,
    LARGE_CAPACITY,
    MOST_LARGE_RECORD_BYTES,
    MOST_RECORD_BYTES,
    SUFFIX,
    JournalState,
)
from rayka.storage.journal.reader import Journal
from rayka.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    AppendParams,
    AppendRequest,
    OpenedJournal,
    TopicPartition,
)

if TYPE_CHECKING:
    from rayka.storage.journal.records import JournalRecords

logger = logging.getLogger(__name__)

MOST_JOURNALS: Final = 64
"""The most journals in the log directory of an actor; other programs put without one. A large journal counts as
`_LARGE_COUNT`, because it takes that many times the memory."""
_LARGE_COUNT: Final = LARGE_CAPACITY // CAPACITY
_LOOK_INTERVAL_S: Final = 0.001
_IDLE_LOOKS: Final = 5
_CHECK_INTERVAL_S: Final = 1.0
_GRACE_S: Final = 30.0
"""How long a program may take to open the journal that it got."""
_MOST_READS: Final = 4
"""How many pieces of a journal are appended before another journal gets its turn."""
_TURN_S: Final = 0.01
"""How much processor time draining takes before other requests are served, unless a request needs all of it first."""
_MOST_BATCH_BYTES: Final = 512 << 10
_FAILED_SUFFIX: Final = SUFFIX + ".failed"
_PARAMS: Final = AppendParams(1, 0)
_NOT_IN_SEQUENCE: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})

Append = Callable[[Sequence[AppendRequest], AppendParams, AppendDone], None]


class _OpenJournal:
    """One open journal of a partition.

    `idle_looks` counts the looks in a row that found nothing; None while the journal is not watched. `has_more`: the
    last look has left frames. `last_look` is the number of that look.
    """

    def __init__(self, path: str, journal: Journal, topic_partition: TopicPartition) -> None:
        self.path = path
        self.journal = journal
        self.topic_partition = topic_partition
        self.idle_looks: int | None = None
        self.has_more = False
        self.last_look = 0
        self.is_closed = False
        self.due_s = time.monotonic() + _GRACE_S


class PutJournals:
    """All journals of one log directory. In the loop of the replica server, except for `find`."""

    def __init__(self, replicas: Replicas, directory: LogDirectory, disk: DiskThread, append: Append) -> None:
        self._replicas = replicas
        self._directory = directory
        self._files = JournalFiles(directory)
        self._disk = disk
        self._append = append
        self._background = BackgroundTasks("put journals")
        self._loop = asyncio.get_running_loop()
        self._journals: dict[TopicPartition, list[_OpenJournal]] = {}
        self._opening = 0
        self._looks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_checked = False
        self._is_stopped = False

    # Requests.

    def open(self, request: OpenJournal, done: Done) -> None:
        """Make a journal for a producer id, and answer with its path.

        Raises as `_check`, and THROTTLING_QUOTA_EXCEEDED where there are too many.
        """
        self._check(request)
        count = _LARGE_COUNT if request.is_large else 1
        if self._opening + sum(each.journal.capacity for each in self._all()) // CAPACITY + count > MOST_JOURNALS:
            raise RaykaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"there are {MOST_JOURNALS} put journals already")
        self._opening += count
        self._background.start("opening", self._open(request, count, done))

    def _check(self, request: OpenJournal) -> Partition:
        """Raises NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_ID, and INVALID_REQUEST for one that can't have journals."""
        partition = self._replicas.get(request.topic_partition)
        if self._is_stopped or partition.leader_epoch < 0:
            raise RaykaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{request.topic_partition} is not led here")
        if partition.topic_id.bytes != request.topic_id:
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_ID, f"{request.topic_partition} has another topic id")
        if not _may_have_journals(partition):
            reason = f"{request.topic_partition} is flushed before it is acknowledged, is internal, or has replicas"
            raise RaykaError(ErrorCode.INVALID_REQUEST, reason)
        return partition

    async def _open(self, request: OpenJournal, count: int, done: Done) -> None:
        path = os.path.join(self._directory.path, str(request.topic_partition), f"{request.producer_id}{SUFFIX}")
        try:
            journal = await self._disk.run(lambda: self._files.create(path, request))
            try:
                partition = self._check(request)
            except RaykaError:
                self._files.close(journal)
                await self._disk.run(lambda: self._files.remove(path))
                raise
            self._add(_OpenJournal(path, journal, request.topic_partition))
            most_bytes = MOST_LARGE_RECORD_BYTES if request.is_large else MOST_RECORD_BYTES
            done(OpenedJournal(path, min(most_bytes, partition.log.config.max_message_bytes // 2)))
        except RaykaError as error:
            done(error)
        finally:
            self._opening -= count

    def ring(self, request: DrainJournals, done: Done) -> None:
        """Append what is in the journals of a partition, as much as the turn allows, and watch them."""
        journals = self._of(request.topic_partition)
        for each in journals:
            self._watch(each)
        self._drain_some(journals)
        done(True)

    @property
    def are_there(self) -> bool:
        """Whether there is any."""
        return bool(self._journals)

    def drain(
        self, topic_partitions: Iterable[TopicPartition], *, may_wait: bool = False, is_part_enough: bool = False
    ) -> None:
        """Append what is in the journals of these partitions now, or, if the request may wait, at the next look.

        Where a part is enough, it is as much as the turn allows: some records, if there are any.
        """
        if self._journals:
            for topic_partition in topic_partitions:
                due = [each for each in self._of(topic_partition) if each.idle_looks is None or not may_wait]
                if is_part_enough:
                    self._drain_some(due)
                else:
                    for each in due:
                        self._drain_all(each)

    # The life of a partition.

    def find(self, directory: str) -> list[FoundJournal]:
        """As `JournalFiles.find`, in the thread of the disk."""
        return self._files.find(directory)

    def take_over(self, partition: Partition, found: Iterable[FoundJournal]) -> None:
        """Go on with the journals of an earlier process. What they have is appended when the partition is led."""
        last_sequences = {entry.producer_id: entry.last_sequence for entry in partition.log.producers.values()}
        for path, journal in found:
            if journal.topic_id != partition.topic_id:
                logger.warning("%s is a put journal of an earlier topic", path)
                self._files.close(journal)
                continue
            journal.follow_log(last_sequences.get(journal.producer_id))
            each = _OpenJournal(path, journal, partition.topic_partition)
            self._set(each, partial(journal.watch, False))
            self._set(each, partial(journal.set_state, JournalState.OPEN))
            self._add(each)

    def configured(self, partition: Partition) -> None:
        """The topic has other configs: close journals that it may not have any more."""
        if not _may_have_journals(partition):
            for each in self._of(partition.topic_partition):
                self._close(each)

    def removed(self, topic_partition: TopicPartition) -> None:
        """The partition is no longer here, and maybe its files: tell the programs."""
        for each in self._of(topic_partition):
            self._forget(each, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def stop(self) -> None:
        """Append what is there, and close the journals whose records the logs have; others stay for the next start."""
        self._is_stopped = True
        await self._background.stop()
        if self._timer is not None:
            self._timer.cancel()
        for each in self._all():
            self._close(each)
            if not each.is_closed:
                self._forget(each, ErrorCode.NONE, state=JournalState.OPEN)

    # Draining.

    def _drain(self, each: _OpenJournal) -> bool:
        """Append the next records of a journal; return whether there were any."""
        journal, is_any = each.journal, False
        each.has_more = False
        try:
            for _ in range(_MOST_READS):
                records = None if each.is_closed else journal.read()
                if records is None:
                    break
                self._append_records(each, records)
                journal.drained(records)
                is_any = True
            else:
                each.has_more = True
        except OSError as error:
            logger.error("%s: %s", each.path, self._directory.failed(error))
        except RaykaError as error:
            if not may_pass(error.code):
                self._fail(each, error)
        except Exception:  # it may not keep requests and other journals from being served
            logger.exception("%s can't be read", each.path)
        return is_any

    def _drain_some(self, journals: Sequence[_OpenJournal]) -> None:
        """Append as much as the turn of the loop allows; the rest at the next looks."""
        for each in self._in_turn(journals):
            self._drain(each)
        for each in journals:
            if each.has_more:
                self._watch(each)

    def _drain_all(self, each: _OpenJournal) -> None:
        """Append what was written before now."""
        try:
            end = each.journal.written()
        except OSError as error:
            logger.error("%s: %s", each.path, self._directory.failed(error))
            return
        while self._drain(each) and not each.journal.is_read(end):
            pass

    def _append_records(self, each: _OpenJournal, records: JournalRecords | LargeRecord) -> None:
        """Raises RaykaError; the journal knows how many were appended before."""
        journal = each.journal
        for batch, count in self._batches(each, records):
            error = self._append_batch(each.topic_partition, batch)
            if error is not None and error.code in _NOT_IN_SEQUENCE:
                logger.warning("%s: %s; its records are appended without sequence numbers", each.path, error)
                journal.is_behind = True
                stamp_producer(batch, 0, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
                error = self._append_batch(each.topic_partition, batch)
            if error is not None and error.code is not ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                raise error
            journal.appended(count)

    def _batches(self, each: _OpenJournal, records: JournalRecords | LargeRecord) -> Iterable[tuple[memoryview, int]]:
        """The records in batches, each with their number."""
        producer_id = None if each.journal.is_behind else each.journal.producer_id
        now_ms = time.time_ns() // 1_000_000
        if isinstance(records, LargeRecord):
            return ((records.sealed(producer_id, now_ms), 1),)
        from rayka.storage.journal.batches import batches_of

        max_bytes = self._replicas.get(each.topic_partition).log.config.max_message_bytes
        max_batch_size = min(max_bytes, _MOST_BATCH_BYTES)
        return batches_of(records, producer_id=producer_id, now_ms=now_ms, max_batch_size=max_batch_size)

    def _append_batch(self, topic_partition: TopicPartition, batch: memoryview) -> RaykaError | None:
        answers: list[Any] = []
        self._append([AppendRequest(topic_partition, batch)], _PARAMS, answers.append)
        if not answers:
            return None  # It is in the log. The answer waits for a flush that the topic has asked for just now.
        ((result,),) = answers
        code = ErrorCode(result.error)
        return None if code is ErrorCode.NONE else RaykaError(code, result.error_message or code.name)

    # Watching.

    def _watch(self, each: _OpenJournal) -> None:
        if each.idle_looks is None and not self._set(each, partial(each.journal.watch, True)):
            return
        each.idle_looks = 0
        if self._timer is None and not self._is_stopped:
            self._timer = self._loop.call_later(_LOOK_INTERVAL_S, self._look)

    def _look(self) -> None:
        """Look into journals that are watched. One in which nothing was for a while is not watched any longer."""
        self._timer = None
        watched = [one for one in self._all() if one.idle_looks is not None]
        for each in self._in_turn(watched):
            assert each.idle_looks is not None
            each.idle_looks = 0 if self._drain(each) else each.idle_looks + 1
            if each.idle_looks >= _IDLE_LOOKS:
                each.idle_looks = None
                if self._set(each, partial(each.journal.watch, False)) and self._drain(each):
                    self._watch(each)
        watched = [one for one in watched if one.idle_looks is not None]
        if watched and self._timer is None and not self._is_stopped:
            has_more = any(one.has_more for one in watched)
            self._timer = self._loop.call_later(0 if has_more else _LOOK_INTERVAL_S, self._look)

    def _in_turn(self, journals: Iterable[_OpenJournal]) -> Iterator[_OpenJournal]:
        """Those journals that one turn of the loop has time for; first the one with the oldest last look."""
        end_s = time.thread_time() + _TURN_S
        for each in sorted(journals, key=lambda one: one.last_look):
            each.has_more = True
            if time.thread_time() <= end_s:
                self._looks += 1
                each.last_look = self._looks
                yield each

    async def _check_all(self) -> None:
        """Append what nobody rang for, and close journals whose programs are gone, or that can't be any more."""
        for each in self._all():
            await asyncio.sleep(0)  # other requests are served between two journals
            self._drain(each)
            if not each.is_closed and (self._is_unwanted(each) or self._is_left(each)):
                self._close(each)

    def _is_unwanted(self, each: _OpenJournal) -> bool:
        """Whether the partition may have no journals: it changed while its leader or its disk was away."""
        topic_partition = each.topic_partition
        return topic_partition in self._replicas and not _may_have_journals(self._replicas.get(topic_partition))

    def _is_left(self, each: _OpenJournal) -> bool:
        return each.due_s < time.monotonic() and is_left(each.journal)

    # Ending.

    def _close(self, each: _OpenJournal) -> None:
        """Append the rest and remove the journal; it stays if that can't be done now, or the program can't be told."""
        if not self._set(each, partial(each.journal.set_state, JournalState.CLOSING)):
            return
        while self._drain(each):
            pass
        if self._has_more(each):
            self._set(each, partial(each.journal.set_state, JournalState.OPEN))
        elif self._set(each, partial(each.journal.set_state, JournalState.CLOSED)):
            self._end(each)
            self._files.remove(each.path)

    def _has_more(self, each: _OpenJournal) -> bool:
        try:
            return not each.is_closed and each.journal.has_more()
        except OSError:
            return True

    def _fail(self, each: _OpenJournal, error: RaykaError) -> None:
        """Keep the file of a journal that can't be appended, for the operator, when its program can be told."""
        kept = each.path[: -len(SUFFIX)] + _FAILED_SUFFIX
        logger.error("%s: %s; its records are kept in %s", each.path, error, kept)
        if not self._set(each, partial(each.journal.set_state, JournalState.CLOSED, error.code)):
            return
        self._end(each)
        with contextlib.suppress(OSError):
            self._files.rename(each.path, kept)

    def _forget(self, each: _OpenJournal, error: ErrorCode, state: JournalState = JournalState.CLOSED) -> None:
        self._set(each, partial(each.journal.set_state, state, error))
        self._end(each)

    def _end(self, each: _OpenJournal) -> None:
        each.is_closed = True
        journals = self._journals[each.topic_partition]
        journals.remove(each)
        if not journals:
            del self._journals[each.topic_partition]
        self._files.close(each.journal)

    def _set(self, each: _OpenJournal, write: Callable[[], None]) -> bool:
        """Write a word of the header; return whether that was possible."""
        if each.is_closed:
            return False
        try:
            write()
        except OSError as error:
            logger.error("%s: %s", each.path, self._directory.failed(error))
            return False
        return True

    def _add(self, each: _OpenJournal) -> None:
        self._journals.setdefault(each.topic_partition, []).append(each)
        if not self._is_checked:
            self._is_checked = True
            self._background.repeat("put journals", self._check_all, interval_s=_CHECK_INTERVAL_S)

    def _of(self, topic_partition: TopicPartition) -> list[_OpenJournal]:
        return list(self._journals.get(topic_partition, ()))

    def _all(self) -> list[_OpenJournal]:
        return [each for journals in self._journals.values() for each in journals]


def _may_have_journals(partition: Partition) -> bool:
    """Whether acknowledged records need only be in the leader's log: a journal promises no more."""
    return partition.log.config.flush_messages == LONG_MAX and partition.has_one_replica and not partition.is_internal
