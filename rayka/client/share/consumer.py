"""The share consumer: individual records, each under a lock, from partitions that other consumers read too (KIP-932).

In implicit mode the next poll accepts the records of the last one. In explicit mode the program accepts, releases (for
another delivery) or rejects each record before it polls again. Kafka's protocol has no delays of released records and
no reasons of rejected ones. They reach the leader because this consumer talks to rayka's actors directly.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypedDict, TypeVar

from rayka.client.forms import AsyncClosing, at_home
from rayka.client.group.subscription import subscription_of
from rayka.client.share.arrivals import Arrivals
from rayka.client.share.held_records import ACCEPTED, Acknowledgements, Aside, HeldRecords, Results
from rayka.client.share.leaders import RENEWED, Caller, MemberLeaders
from rayka.client.share.member import ShareConsumerMember
from rayka.client.share.processing import RETRIABLE, Retriable, processing
from rayka.client.share.records import RecordAcknowledgement, ShareRecord, rejection_headers
from rayka.client.unpicklable import Unpicklable
from rayka.config.shares import MAX_RETRY_DELAY_MS
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.share.acknowledge import GROUP_BACKOFF
from rayka.share.config import AcquireMode
from rayka.share.record_state import AcknowledgeType
from rayka.share.requests import ShareFetchResult
from rayka.types import TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)

_MODES: Final = ("implicit", "explicit")
_ACQUIRE_MODES: Final = tuple(mode.name.lower() for mode in AcquireMode)
_TO_RESEND_S: Final = 5.0
"""So long `close` sends acknowledgements again that were refused for now."""
_HELD_S: Final = 0.6
"""If the last acknowledgements take longer, `close` gives back other records before they are sent. By then no fetch
that it has ended waits at a leader any more, which could acquire them again."""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0
_KINDS: Final = frozenset({AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT})

R = TypeVar("R")
CommitResults = dict[TopicPartition, RaykaError | None]


class ShareConsumerOptions(TypedDict, total=False):
    """The keyword arguments of a share consumer, as `AsyncShareConsumer` explains them."""

    acknowledgement_mode: str
    max_poll_records: int
    acquire_mode: str


class AsyncShareConsumer(Unpicklable, AsyncClosing):
    """To be awaited in any event loop, by one task at a time.

    acknowledgement_mode: "implicit": the next `poll` or `commit` accepts the records of the last poll. "explicit":
        the program accepts, releases or rejects each record before it polls again.
    max_poll_records: of one poll. A poll gets the records that were sent together as a whole, so perhaps more,
        unless acquire_mode is "record_limit" instead of "batch_optimized".

    It lives in the event loop where it is made. Raises INVALID_CONFIG, and INVALID_TOPIC_EXCEPTION for topics that are
    not a list of names.
    """

    def __init__(
        self,
        broker: Broker,
        group_id: str,
        topics: Iterable[str],
        *,
        acknowledgement_mode: str = "implicit",
        max_poll_records: int = 500,
        acquire_mode: str = "batch_optimized",
    ) -> None:
        _check("acknowledgement_mode", acknowledgement_mode, _MODES)
        _check("acquire_mode", acquire_mode, _ACQUIRE_MODES)
        self._is_implicit = acknowledgement_mode == "implicit"
        self._max_poll_records = max_poll_records
        self._is_limited = AcquireMode[acquire_mode.upper()] is AcquireMode.RECORD_LIMIT
        subscription = subscription_of(topics, None).topics
        for topic in subscription:
            if topic not in broker.image.topics:
                logger.warning("the topic %s does not exist: group %s waits for it", topic, group_id)
        self._member = ShareConsumerMember(broker, group_id, subscription)
        self._leaders = MemberLeaders(
            broker.share_leaders, group_id, self._member.member_id, AcquireMode[acquire_mode.upper()], max_poll_records
        )
        self.home = asyncio.get_running_loop()
        self._held = HeldRecords()
        self._requests: set[asyncio.Task[Any]] = set()
        self._committing: set[Aside] = set()
        self._arrivals = Arrivals(self._leaders, self._member, self._held, self._start)
        self._ending: asyncio.Task[None] | None = None
        self._is_interrupted = asyncio.Event()

    async def poll(self, timeout_ms: float = 0) -> list[ShareRecord]:
        """Return records to process; an empty list if none arrives within `timeout_ms`.

        A leader that does not answer delays it by a second more; by longer, once records came too late for the next
        poll as well. Records that arrive later, or when the poll was cancelled, are returned by the next poll, if half
        of their lock is left.

        Raises INVALID_REQUEST after `close`, and in explicit mode while records of the last poll are not acknowledged.
        Also raises the error that ended the membership, and an error of a partition that is not temporary. Raises
        CORRUPT_MESSAGE once for damaged records, which it has rejected; the next poll continues behind them.
        """
        self.end_last_poll()
        return self.give(await self.arrived(timeout_ms))

    @at_home
    async def arrived(self, timeout_ms: float) -> list[ShareRecord]:
        """The records of the next poll. Until `give` has them, the next call returns them again."""
        self._raise_damage()
        records = await self._await_records(timeout_ms, self._max_poll_records)
        if not records:
            self._raise_damage()
        return records

    def _raise_damage(self) -> None:
        damage, self._arrivals.damage = self._arrivals.damage, None
        if damage is not None:
            raise damage

    async def poll_more(self, timeout_ms: float, max_records: int | None = None) -> list[ShareRecord]:
        """As `poll`, for a program that holds records of earlier polls, and continues to hold them.

        Damaged records are rejected without an error. With `acquire_mode` `record_limit` there are no more than
        `max_records`.
        """
        records = await self._await_records(timeout_ms, max_records or self._max_poll_records)
        self._arrivals.damage = None
        if records:
            arrived, self._arrivals.records = self._arrivals.records, ()
            if not arrived:  # given back meanwhile: see `give`
                return []
        return records

    @at_home
    async def _await_records(self, timeout_ms: float, max_records: int) -> list[ShareRecord]:
        arrivals = self._arrivals
        until_s = self.home.time() + timeout_ms / 1000
        while True:
            self._require_open()
            if self._member.error is not None:
                raise self._member.error
            await arrivals.wait(until_s, max_records)
            self._require_open()  # It was perhaps `close` that ended the fetch.
            if self._is_limited:
                arrivals.limit(max_records)
            if arrivals.records or arrivals.damage or self.home.time() >= until_s:
                return list(arrivals.records)

    @property
    def lock_duration_ms(self) -> int:
        """The lock duration of the group, as the last answer of a leader has it; 0 before the first."""
        return self._leaders.lock_duration_ms

    @property
    def is_assigned(self) -> bool:
        """Whether the group has given it partitions."""
        return bool(self._member.assignment)

    def give(self, records: list[ShareRecord]) -> list[ShareRecord]:
        """Return the records that have arrived to the program, which has to acknowledge them.

        None of them if it was so slow to take them that they were given back.
        """
        if records:  # Without, a fetch may be in progress. Between the next lines no signal handler runs.
            arrived, self._arrivals.records = self._arrivals.records, ()
            if not arrived:
                return []
            self._held.given = records
        return records

    def end_last_poll(self) -> None:
        """Accept what the program was given."""
        self._held.end_poll(is_implicit=self._is_implicit)

    def _require_open(self) -> None:
        if self._ending is not None:
            raise RaykaError(ErrorCode.INVALID_REQUEST, "The share consumer is closed")

    def _start(self, request: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        task = self.home.create_task(request)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        return task

    def acknowledge(
        self, record: ShareRecord, kind: AcknowledgeType | RecordAcknowledgement = AcknowledgeType.ACCEPT
    ) -> None:
        """Accept, release or reject a record; the acknowledgement is sent with the next poll or commit.

        Raises INVALID_RECORD_STATE for a record that is not from the last poll, or that was already acknowledged, and
        INVALID_REQUEST for another kind, such as RENEW: see `renew`.
        """
        acknowledgement = kind if isinstance(kind, RecordAcknowledgement) else RecordAcknowledgement(kind)
        if acknowledgement.type not in _KINDS:
            reason = f"Invalid value {kind!r} for kind: it must be ACCEPT, RELEASE or REJECT; `renew` restarts a lock"
            raise RaykaError(ErrorCode.INVALID_REQUEST, reason)
        self._held.acknowledge(record, acknowledgement)

    def accept(self, record: ShareRecord) -> None:
        """Accept the record: it is done. See `acknowledge`."""
        self._held.acknowledge(record, ACCEPTED)

    def release(self, record: ShareRecord, delay_ms: int | None = None) -> None:
        """Let the record be delivered again, to any consumer, unless this was its last delivery. See `acknowledge`.

        The record waits for `delay_ms`, at most a day; without it for the group's retry backoff. Other records do not
        wait for it. Raises INVALID_REQUEST for any other delay.
        """
        if delay_ms is None:
            delay_ms = GROUP_BACKOFF
        elif not 0 <= delay_ms <= MAX_RETRY_DELAY_MS:
            reason = f"Invalid value {delay_ms} for delay_ms: it must be between 0 and {MAX_RETRY_DELAY_MS}"
            raise RaykaError(ErrorCode.INVALID_REQUEST, reason)
        self._held.acknowledge(record, RecordAcknowledgement(AcknowledgeType.RELEASE, delay_ms))

    def reject(self, record: ShareRecord, reason: str | BaseException | None = None) -> None:
        """Let the record never be delivered again. See `acknowledge`.

        If the group has a dead-letter topic, the record goes there, with the reason in the header
        `__dlq.errors.message`. The class and the traceback of an exception are in `__dlq.errors.exception.class.name`
        and `__dlq.errors.exception.stacktrace`.
        """
        self._held.acknowledge(record, RecordAcknowledgement(AcknowledgeType.REJECT, headers=rejection_headers(reason)))

    def holds(self, record: ShareRecord) -> bool:
        """Whether the record is of the last poll and not yet acknowledged."""
        return record in self._held

    def processing(
        self, record: ShareRecord, *, retriable: Retriable = RETRIABLE, delay_ms: int | None = None
    ) -> AbstractContextManager[ShareRecord]:
        """Acknowledge the record when the `with` block ends, unless the block has done so.

        The record is accepted if the block succeeds. It is released with `delay_ms` after an error of the `retriable`
        types or a retriable `RaykaError`, and rejected with its traceback after any other error. The error is logged,
        and the program continues with the next record. A BaseException that is not an `Exception`, such as
        KeyboardInterrupt, is raised, and the record is released.
        """
        return processing(self, record, retriable, delay_ms)

    def commit(self) -> Coroutine[Any, Any, CommitResults]:
        """Send all acknowledgements up to this call, and wait until they are durable.

        The result has an error or None for each partition. In implicit mode the records of the last poll are accepted
        first. Acknowledgements that an earlier poll could not deliver are sent too. If they are refused again for a
        temporary reason, the next poll or commit sends them once more; so it does if this call is cancelled or
        interrupted, and nobody hears of the reason.
        """
        return self._hear(self.begin_commit(), Caller())

    def begin_commit(self) -> Aside:
        """What a commit sends that is called now, for `finish_commit`."""
        if self._is_implicit:
            self.end_last_poll()
        return self._held.set_aside()

    async def _hear(self, aside: Aside, caller: Caller) -> CommitResults:
        try:
            results = await self.finish_commit(aside, caller)
            caller.has_heard = True
            return results
        except BaseException:
            caller.has_heard = False
            raise

    @property
    def acknowledged_partitions(self) -> list[TopicIdPartition]:
        """The partitions with acknowledgements that were not sent yet."""
        return self._held.acknowledged_partitions

    def commit_partition(self, partition: TopicIdPartition) -> Coroutine[Any, Any, RaykaError | None]:
        """As `commit`, for one partition, without what earlier polls could not deliver; returns the leader's error."""
        return self._acknowledge_partition(partition, self._held.take_acknowledgements_of(partition))

    @at_home
    async def finish_commit(self, aside: Aside, caller: Caller) -> CommitResults:
        """A caller that is cancelled, or interrupted, does not cancel it."""
        return await asyncio.shield(self._start(self._commit_all(aside, caller)))

    async def _commit_all(self, last: Aside, caller: Caller) -> CommitResults:
        """Send what was set aside, or wait for who has taken it; then send again what fetches could not deliver."""
        taken = await self._send_asides(last, caller)
        results = _errors(await self._leaders.send_refused())
        for aside in {*taken, last}:
            for partition, error in _errors_of(aside).items():
                results[partition] = error or results.get(partition)
        return results

    async def _send_asides(self, last: Aside, caller: Caller | None) -> list[Aside]:
        """Returns those that nobody else had taken."""
        earlier = tuple(self._committing)
        taken = self._held.take_aside(last)
        self._committing.update(taken)
        await asyncio.gather(*(self._send_aside(aside, caller) for aside in taken))
        if last.acknowledgements:
            await last.settled()
        for aside in earlier:
            await aside.settled()
        await self._arrivals.acknowledged()
        return taken

    async def _send_aside(self, aside: Aside, caller: Caller | None) -> None:
        try:
            await self._leaders.acknowledge_or_tell(aside.acknowledgements, aside.results, caller)
        finally:
            aside.settle()
            self._committing.discard(aside)

    async def acknowledge_records(
        self, acknowledged: Sequence[tuple[ShareRecord, RecordAcknowledgement]]
    ) -> RaykaError | None:
        """Acknowledge records of one partition, and wait until that is durable; returns the leader's error."""
        by_offset = {record.offset: acknowledgement for record, acknowledgement in acknowledged}
        return await self._acknowledge_partition(acknowledged[0][0].topic_id_partition, by_offset)

    async def _acknowledge_partition(
        self, partition: TopicIdPartition, by_offset: dict[int, RecordAcknowledgement]
    ) -> RaykaError | None:
        results = await self._acknowledge({partition: by_offset} if by_offset else {})
        return results.get(partition.topic_partition)

    async def renew(self, record: ShareRecord) -> None:
        """Restart the record's lock with its whole duration. Raises the leader's error."""
        for error in (await self.renew_all([record])).values():
            if error is not None:
                raise error

    async def renew_all(self, records: Iterable[ShareRecord]) -> CommitResults:
        """Like `renew`, for several records: all of a partition, or none if there is an error."""
        acknowledgements: Acknowledgements = defaultdict(dict)
        for record in records:
            acknowledgements[record.topic_id_partition][record.offset] = RENEWED
        return await self._acknowledge(acknowledgements)

    @at_home
    async def _acknowledge(self, acknowledgements: Acknowledgements) -> CommitResults:
        if not acknowledgements:
            return {}
        return _errors(await asyncio.shield(self._start(self._leaders.acknowledge(acknowledgements))))

    @at_home
    async def close(self) -> None:
        """Send the acknowledgements, give back all other records, and leave the group. Safe to repeat.

        In implicit mode the records of the last poll are given back too, unless `commit` was called. Waits for commits
        in progress. For up to five seconds after the first answers it sends acknowledgements again that are refused for
        now, say because the group's state can't be stored. If it is cancelled, or interrupted, it goes on, and the next
        call waits for its end.
        """
        if self._ending is not None:
            await asyncio.wait([self._ending])
            return
        self._ending = self.home.create_task(self._end())
        try:
            await asyncio.shield(self._ending)
        except asyncio.CancelledError:
            self._is_interrupted.set()
            self._ending.add_done_callback(self._log_failure)  # nobody else hears of it
            raise

    def _log_failure(self, ending: asyncio.Task[None]) -> None:
        if not ending.cancelled() and (error := ending.exception()) is not None:
            logger.warning("group %s: closing failed: %r", self._member.group_id, error)

    async def _end(self) -> None:
        """Leave the group when the requests have ended; at once if `close` is interrupted: the process may end soon."""
        requests = self.home.create_task(self._end_requests())
        interrupted = self.home.create_task(self._is_interrupted.wait())
        try:
            await asyncio.wait([requests, interrupted], return_when=asyncio.FIRST_COMPLETED)
        finally:
            interrupted.cancel()
            try:
                await self._member.leave()
            finally:
                await requests

    async def _end_requests(self) -> None:
        giving_back: asyncio.Task[None] | None = None
        try:
            await self._arrivals.close()
            giving_back = self.home.create_task(self._give_back_held())
            await self._send_last()
            if self._requests:
                await asyncio.wait(set(self._requests))
        except Exception:  # not if it is cancelled: then the client's event loop ends
            await self._leaders.end_session()
            raise
        else:
            await self._leaders.end_session()
        finally:
            if giving_back is not None:
                giving_back.cancel()

    async def _give_back_held(self) -> None:
        """The end of the session would do that, but acknowledgements that are still sent need the session."""
        await asyncio.sleep(_HELD_S)
        await self._leaders.give_back(self._held.unacknowledged())

    async def _send_last(self) -> None:
        """Send the acknowledgements. Nobody hears of those that are refused for now, so they are sent again."""
        await self._send_asides(self._held.set_aside(), None)
        pause_s = _FIRST_PAUSE_S
        try:
            async with asyncio.timeout(_TO_RESEND_S):
                await self._leaders.send_refused()
                while self._leaders.may_succeed:
                    await asyncio.sleep(pause_s)
                    await self._leaders.send_refused()
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        except TimeoutError:
            logger.warning("group %s: no leader takes the last acknowledgements", self._member.group_id)


def _errors_of(aside: Aside) -> CommitResults:
    """The errors by partition; REQUEST_TIMED_OUT where there was no answer."""
    unanswered = ShareFetchResult(
        acknowledge_error=ErrorCode.REQUEST_TIMED_OUT, acknowledge_error_message="The leader has not answered"
    )
    return _errors({partition: aside.results.get(partition, unanswered) for partition in aside.acknowledgements})


def _errors(results: Results) -> CommitResults:
    """The errors by partition; of several topics that had its name one after the other, one error."""
    found: CommitResults = {}
    for (_, partition), result in results.items():
        error = None
        if result.acknowledge_error:
            error = RaykaError(ErrorCode(result.acknowledge_error), result.acknowledge_error_message or "")
        found[partition] = found.get(partition) or error
    return found


def _check(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        reason = f"Invalid value {value!r} for {name}: it must be one of {', '.join(allowed)}"
        raise RaykaError(ErrorCode.INVALID_CONFIG, reason)
