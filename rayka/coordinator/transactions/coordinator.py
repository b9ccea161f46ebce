"""The coordinator of the transactional ids of one `__transaction_state` partition, as a `spec.Coordinator`.

The life of a transaction:

    Empty or Complete* --AddPartitions--> Ongoing --EndTxn, timeout or a new producer--> PrepareCommit or PrepareAbort
    --all markers are written--> CompleteCommit or CompleteAbort

The outcome is decided when the Prepare record is in the log; from then on nothing changes it. A coordinator that loads
a Prepare record asks for the markers again, which readers do not mind. Kafka's pending states are not needed here, as a
record is in the log before the next request is examined: PrepareEpochFence is passed on the way to PrepareAbort.

`take_markers` gives the shell the markers to write once the log is durable; `markers_written` ends the transaction.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from rayka.coordinator.clock import Now
from rayka.coordinator.result import Completion, Pending, Result, Retry, append_error
from rayka.coordinator.spec import CoordinatorConfigs
from rayka.coordinator.timers import TimerQueue
from rayka.coordinator.topics import Topics
from rayka.coordinator.transactions import listing
from rayka.coordinator.transactions.adding import check_addition, verified
from rayka.coordinator.transactions.ending import begins_to_end
from rayka.coordinator.transactions.metadata import (
    FIRST_WITH_EPOCH_BUMP,
    NO_TIMEOUT_MS,
    TransactionMetadata,
    is_epoch_exhausted,
)
from rayka.coordinator.transactions.records import TransactionRecord
from rayka.coordinator.transactions.requests import (
    AddPartitionsRequest,
    AddPartitionsResponse,
    DescribeTransactionRequest,
    DescribeTransactionResponse,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
    MarkersWrittenRequest,
    MarkersWrittenResponse,
    ProducerIdResponse,
)
from rayka.coordinator.transactions.settings import TransactionSettings
from rayka.coordinator.transactions.state import ONGOING, PREPARE_COMMIT
from rayka.coordinator.transactions.steps import (
    Move,
    MovePartitions,
    TransactionMarkers,
    TransactionTimer,
    TransactionTimerKey,
    Wait,
)
from rayka.errors import ErrorCode, RaykaError
from rayka.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

NONE = ErrorCode.NONE
_RETRY_BACKOFF_MS = 500
_EXPIRED_IN_ONE_STEP = 1000


class TransactionCoordinator:
    """The transactional ids of one partition."""

    def __init__(self, settings: TransactionSettings) -> None:
        self.settings = settings
        self.transactions: dict[str, TransactionMetadata] = {}
        self._timers: TimerQueue[TransactionTimerKey] = TimerQueue()
        self._waiting: dict[str, dict[int, Wait]] = {}
        self._markers: dict[str, None] = {}
        self._request_ids = itertools.count(1)

    # -- the log --------------------------------------------------------------------------------

    def replay(self, record: TransactionRecord, record_offset: int = -1, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply a record of the log."""
        if record.metadata is None:
            self.transactions.pop(record.transactional_id, None)
        else:
            self.transactions[record.transactional_id] = record.metadata

    def end_transaction(self, producer_id: int, is_committed: bool) -> None:
        """Do nothing: records of this log are never part of a transaction."""

    def on_loaded(self, now: Now) -> None:
        """Set the deadlines of open transactions, and ask for the markers of those that are decided."""
        for transactional_id, metadata in self.transactions.items():
            if metadata.state is ONGOING:
                open_ms = max(0, now.wall_ms - metadata.start_ms)
                self._set_timeout(transactional_id, now.ms + max(0, metadata.timeout_ms - open_ms))
            elif metadata.state.is_prepared:
                self._markers[transactional_id] = None
        self._schedule_expiry(now)

    def on_new_metadata_image(self, topics: Topics) -> Result[None]:
        """Do nothing: deleted partitions are left out when markers are written."""
        return Result(None)

    def on_new_configs(self, configs: CoordinatorConfigs) -> None:
        """Take over the settings."""
        self.settings = TransactionSettings.parse(configs.broker)

    def unload(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> tuple[Completion, ...]:
        """Answer all waiting requests; a retry gets the error of the coordinator."""
        self._timers.clear()
        self._markers.clear()
        waiting, self._waiting = self._waiting, {}
        return tuple(Completion(wait.request_id, wait.late) for waits in waiting.values() for wait in waits.values())

    def commit(self, step: Any, now: Now) -> tuple[Completion, ...]:
        """The records of the step have been replayed."""
        if isinstance(step, Wait):
            self._begin_to_wait(step, now)
            return ()
        if isinstance(step, Move) and step.wait is not None:
            self._begin_to_wait(step.wait, now)
        return self._moved(step.transactional_id, now)

    def _begin_to_wait(self, wait: Wait, now: Now) -> None:
        transactional_id = wait.request.transactional_id
        self._waiting.setdefault(transactional_id, {})[wait.request_id] = wait
        self._timers.schedule(
            TransactionTimerKey(TransactionTimer.WAIT, transactional_id, wait.request_id), now.ms + wait.max_wait_ms
        )

    def _moved(self, transactional_id: str, now: Now) -> tuple[Completion, ...]:
        metadata = self.transactions[transactional_id]
        if metadata.state is ONGOING:
            if self._timers.deadline(TransactionTimerKey(TransactionTimer.TRANSACTION, transactional_id)) is None:
                self._set_timeout(transactional_id, now.ms + metadata.timeout_ms)
            return ()
        self._timers.cancel(TransactionTimerKey(TransactionTimer.TRANSACTION, transactional_id))
        if metadata.state.is_prepared:
            self._markers[transactional_id] = None
            return ()
        return self._end_waiting(transactional_id)

    def _end_waiting(self, transactional_id: str) -> tuple[Completion, ...]:
        waiting = self._waiting.pop(transactional_id, {})
        for request_id in waiting:
            self._timers.cancel(TransactionTimerKey(TransactionTimer.WAIT, transactional_id, request_id))
        return tuple(Completion(wait.request_id, Retry(wait.request)) for wait in waiting.values())

    def rollback(self, step: Any, error: ErrorCode, now: Now) -> Result[Any] | None:
        """The records of the step could not be appended: the state stays as it was."""
        failed = append_error(error)
        match step:
            case MovePartitions():
                return Result(AddPartitionsResponse((failed,) * step.count))
            case Move(transactional_id=transactional_id, failure=failure):
                if failure is not None:
                    return Result(failure(failed))
                self._set_timeout(transactional_id, now.ms + _RETRY_BACKOFF_MS)
                return Result(None)
        return None

    def first_needed_offset(self) -> int | None:
        """None: the log is compacted."""
        return None

    def validate_state(self) -> None:
        """Check the invariants. Raises AssertionError."""
        for transactional_id, metadata in self.transactions.items():
            may_end = metadata.state is ONGOING and metadata.times_out
            assert (TransactionTimerKey(TransactionTimer.TRANSACTION, transactional_id) in self._timers) == may_end, (
                transactional_id
            )
            assert not metadata.state.is_idle or not metadata.partitions, transactional_id
            assert metadata.state.is_prepared or metadata.next_producer_id == NO_PRODUCER_ID, transactional_id

    def take_markers(self) -> tuple[TransactionMarkers, ...]:
        """The markers of all transactions that were decided since the last call."""
        taken, self._markers = self._markers, {}
        decided = ((transactional_id, self.transactions[transactional_id]) for transactional_id in taken)
        return tuple(_markers(transactional_id, metadata) for transactional_id, metadata in decided)

    # -- deadlines ------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When to call `expire` next, as `Now.ms`."""
        return self._timers.next_deadline()

    def expire(self, now: Now) -> Result[None] | None:
        """Handle due deadlines until there is something to append or to answer; None: nothing more is due."""
        while (due := self._timers.pop(now.ms)) is not None:
            key, _ = due
            match key.timer:
                case TransactionTimer.TRANSACTION:
                    metadata = self.transactions[key.transactional_id].fence(now.wall_ms)
                    record = TransactionRecord(key.transactional_id, metadata)
                    return Result(None, (record,), step=Move(key.transactional_id))
                case TransactionTimer.WAIT:
                    return Result(None, completions=(self._stop_waiting(key),))
                case TransactionTimer.EXPIRY:
                    records = tuple(self._expired(now))
                    self._schedule_expiry(now, goes_on=len(records) == _EXPIRED_IN_ONE_STEP)
                    if records:
                        return Result(None, records, is_atomic=False)
        return None

    def _stop_waiting(self, key: TransactionTimerKey) -> Completion:
        waiting = self._waiting[key.transactional_id]
        wait = waiting.pop(key.request_id)
        if not waiting:
            del self._waiting[key.transactional_id]
        return Completion(key.request_id, wait.late)

    def _set_timeout(self, transactional_id: str, deadline_ms: int) -> None:
        if self.transactions[transactional_id].times_out:
            self._timers.schedule(TransactionTimerKey(TransactionTimer.TRANSACTION, transactional_id), deadline_ms)

    def _schedule_expiry(self, now: Now, *, goes_on: bool = False) -> None:
        """Check for expired ids again after the interval, or soon if some are left."""
        pause_ms = _RETRY_BACKOFF_MS if goes_on else self.settings.remove_expired_interval_ms
        self._timers.schedule(TransactionTimerKey(TransactionTimer.EXPIRY), now.ms + pause_ms)

    def _expired(self, now: Now) -> Iterator[TransactionRecord]:
        before_ms = now.wall_ms - self.settings.expiration_ms
        expired = (
            TransactionRecord(transactional_id, None)
            for transactional_id, metadata in self.transactions.items()
            if metadata.state.is_idle and metadata.last_update_ms <= before_ms
        )
        return itertools.islice(expired, _EXPIRED_IN_ONE_STEP)

    # -- commands -------------------------------------------------------------------------------

    def init_producer_id(self, request: InitProducerIdRequest, now: Now) -> Result[ProducerIdResponse]:
        """InitProducerId with a transactional id. Ends the transaction that another producer has left open."""
        error = self._check_init(request)
        if error is not NONE:
            return Result(ProducerIdResponse(error))
        metadata = self.transactions.get(request.transactional_id)
        timeout_ms = NO_TIMEOUT_MS if request.is_two_phase else request.timeout_ms
        if metadata is None:
            if request.new_producer_id == NO_PRODUCER_ID:
                return Result(ProducerIdResponse(needs_producer_id=True))
            created = TransactionMetadata(request.new_producer_id, 0, timeout_ms, now.wall_ms)
            return self._give_producer_id(request.transactional_id, created)
        if not _may_continue(metadata, request):
            return Result(ProducerIdResponse(ErrorCode.PRODUCER_FENCED))
        if metadata.state is ONGOING:
            return self._fence(request, metadata, now)
        if metadata.state.is_prepared:
            return self._wait(request, ProducerIdResponse(ErrorCode.CONCURRENT_TRANSACTIONS))
        return self._begin(request, metadata, timeout_ms, now)

    def _check_init(self, request: InitProducerIdRequest) -> ErrorCode:
        if not request.transactional_id:
            return ErrorCode.INVALID_REQUEST
        if request.is_two_phase and not self.settings.is_two_phase_commit_enabled:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if request.keeps_prepared:
            return ErrorCode.UNSUPPORTED_VERSION
        if not request.is_two_phase and not 0 < request.timeout_ms <= self.settings.max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return NONE

    def _fence(
        self, request: InitProducerIdRequest, metadata: TransactionMetadata, now: Now
    ) -> Result[ProducerIdResponse]:
        """Abort the transaction, whose producer is replaced, and continue when that is done.

        Kafka lets an old epoch do this too; here a request that was delayed can't abort a later transaction.
        """
        if request.producer_id != NO_PRODUCER_ID and request.producer_epoch != metadata.producer_epoch:
            return Result(ProducerIdResponse(ErrorCode.PRODUCER_FENCED))
        record = TransactionRecord(request.transactional_id, metadata.fence(now.wall_ms))
        return self._wait(request, ProducerIdResponse(ErrorCode.CONCURRENT_TRANSACTIONS), record)

    def _begin(
        self, request: InitProducerIdRequest, metadata: TransactionMetadata, timeout_ms: int, now: Now
    ) -> Result[ProducerIdResponse]:
        """The next epoch, or a new id if there is none. An id may be given back that a lost response had."""
        expected = request.producer_epoch if request.producer_id != NO_PRODUCER_ID else NO_PRODUCER_EPOCH
        if metadata.needs_new_id(expected):
            if request.new_producer_id == NO_PRODUCER_ID:
                return Result(ProducerIdResponse(needs_producer_id=True))
            begun = metadata.rotate_producer_id(request.new_producer_id, expected, timeout_ms, now.wall_ms)
            return self._give_producer_id(request.transactional_id, begun)
        try:
            begun = metadata.increment_epoch(timeout_ms, expected, now.wall_ms)
        except RaykaError as fenced:
            return Result(ProducerIdResponse(fenced.code))
        return self._give_producer_id(request.transactional_id, begun)

    def _give_producer_id(self, transactional_id: str, metadata: TransactionMetadata) -> Result[ProducerIdResponse]:
        response = ProducerIdResponse(NONE, metadata.producer_id, metadata.producer_epoch)
        record = TransactionRecord(transactional_id, metadata)
        return Result(response, (record,), step=Move(transactional_id, ProducerIdResponse))

    def _wait(
        self, request: InitProducerIdRequest | AddPartitionsRequest, late: Any, record: TransactionRecord | None = None
    ) -> Result[Any]:
        """Carry out the request when all markers are written, those of `record` too. A request waits at most once."""
        wait = None
        if request.max_wait_ms > 0:
            again = dataclasses.replace(request, max_wait_ms=0)
            wait = Wait(next(self._request_ids), again, late, request.max_wait_ms)
        response = late if wait is None else Pending(wait.request_id)
        if record is None:
            return Result(response, step=wait)
        return Result(response, (record,), step=Move(request.transactional_id, ProducerIdResponse, wait))

    def add_partitions(self, request: AddPartitionsRequest, now: Now) -> Result[AddPartitionsResponse]:
        """AddPartitionsToTxn, AddOffsetsToTxn, and the partitions that a produce adds; or verification only."""
        metadata = self.transactions.get(request.transactional_id)
        error = check_addition(metadata, request)
        response = AddPartitionsResponse((error,) * len(request.partitions))
        if error is ErrorCode.CONCURRENT_TRANSACTIONS:
            return self._wait(request, response)
        if error is not NONE or metadata is None:
            return Result(response)
        if request.is_verify_only:
            return Result(verified(metadata, request))
        partitions = frozenset(request.partitions)
        if metadata.state is ONGOING and partitions <= metadata.partitions:
            return Result(response)
        added = metadata.add_partitions(partitions, request.transaction_version, now.wall_ms)
        step = MovePartitions(request.transactional_id, len(request.partitions))
        return Result(response, (TransactionRecord(request.transactional_id, added),), step=step)

    def end_txn(self, request: EndTxnRequest, now: Now) -> Result[ProducerIdResponse]:
        """EndTxn. The response is sent when the outcome is durable; the markers are written after that."""
        if not request.transactional_id:
            return Result(ProducerIdResponse(ErrorCode.INVALID_REQUEST))
        metadata = self.transactions.get(request.transactional_id)
        if metadata is None:
            return Result(ProducerIdResponse(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
        try:
            if not begins_to_end(metadata, request):
                return Result(ProducerIdResponse(NONE, metadata.producer_id, metadata.producer_epoch))
        except RaykaError as refused:
            return Result(ProducerIdResponse(refused.code))
        needs_id = request.transaction_version >= FIRST_WITH_EPOCH_BUMP and metadata.is_epoch_exhausted
        if needs_id and request.new_producer_id == NO_PRODUCER_ID:
            return Result(ProducerIdResponse(needs_producer_id=True))
        decided = metadata.decide(
            is_committed=request.is_committed,
            transaction_version=request.transaction_version,
            next_producer_id=request.new_producer_id if needs_id else NO_PRODUCER_ID,
            now_ms=now.wall_ms,
        )
        after = decided.complete(now.wall_ms)
        response = ProducerIdResponse(NONE, after.producer_id, after.producer_epoch)
        record = TransactionRecord(request.transactional_id, decided)
        return Result(response, (record,), step=Move(request.transactional_id, ProducerIdResponse))

    def markers_written(self, request: MarkersWrittenRequest, now: Now) -> Result[MarkersWrittenResponse]:
        """All markers of a transaction are written. Does nothing for a transaction that has already ended."""
        metadata = self.transactions.get(request.transactional_id)
        if metadata is None or not metadata.state.is_prepared:
            return Result(MarkersWrittenResponse())
        if (metadata.producer_id, metadata.producer_epoch) != (request.producer_id, request.producer_epoch):
            return Result(MarkersWrittenResponse())
        record = TransactionRecord(request.transactional_id, metadata.complete(now.wall_ms))
        return Result(MarkersWrittenResponse(), (record,), step=Move(request.transactional_id, MarkersWrittenResponse))

    # -- queries --------------------------------------------------------------------------------

    def list_transactions(self, request: ListTransactionsRequest) -> ListTransactionsResponse:
        """ListTransactions."""
        return listing.list_transactions(self.transactions, request)

    def describe_transaction(self, request: DescribeTransactionRequest) -> DescribeTransactionResponse:
        """DescribeTransactions, for one id."""
        metadata = self.transactions.get(request.transactional_id)
        return DescribeTransactionResponse(listing.describe(request.transactional_id, metadata))


def _may_continue(metadata: TransactionMetadata, request: InitProducerIdRequest) -> bool:
    """Whether a request that names a producer is of the present one, or repeats one that gave it a new id."""
    if request.producer_id in (NO_PRODUCER_ID, metadata.producer_id):
        return True
    return request.producer_id == metadata.previous_producer_id and is_epoch_exhausted(request.producer_epoch)


def _markers(transactional_id: str, metadata: TransactionMetadata) -> TransactionMarkers:
    return TransactionMarkers(
        transactional_id,
        metadata.producer_id,
        metadata.producer_epoch,
        metadata.state is PREPARE_COMMIT,
        metadata.client_transaction_version,
        tuple(sorted(metadata.partitions)),
    )
