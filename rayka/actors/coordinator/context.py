"""A coordinator: one partition of an internal topic that this process leads, with a core of `spec` on top.

A command returns records and a response. The records are appended, then replayed, and the response is sent when they
are as durable as the topic's settings require. If the append fails, the state stays as it was. If only the flush fails,
the records stay and count, and the requests get an append error. An unexpected exception fails only its own request,
and is logged.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from rayka.actors.background import BackgroundTasks, StopLoop
from rayka.actors.coordinator.deadline_timer import DeadlineTimer, monotonic_ms
from rayka.actors.coordinator.log import CoordinatorLog, Entry, Marker
from rayka.actors.coordinator.outside import OnceOnly, Outside
from rayka.coordinator.clock import Now
from rayka.coordinator.request import Request, TransactionalRequest
from rayka.coordinator.result import Completion, Pending, Result, Retry, append_error
from rayka.coordinator.spec import C, CoordinatorConfigs, CoordinatorSpec
from rayka.coordinator.topics import Topics
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.producers.verification import Verification
from rayka.types import NO_PRODUCER_ID, TxnMarker

logger = logging.getLogger(__name__)

_LOGGED_RECORDS = 10
_TURN_S = 0.01
_LOAD_TURN_S = 0.001
"""How long a coordinator loads before other requests are served."""
_EFFECT_RETRY_S = 0.5

T = TypeVar("T")
Respond = Callable[[Any], None]
"""Takes the response, or a RaykaError as a value."""


@dataclasses.dataclass(slots=True, eq=False)
class DelayedResponse:
    """The response to a request, and those to requests that waited: they are sent when the log is durable."""

    respond: Respond | None
    response: Any
    completions: Sequence[Completion]

    def failed(self, error: ErrorCode) -> DelayedResponse:
        """The response if the log does not become durable, because of this error of its partition."""
        refusal = RaykaError(append_error(error))
        completions = [Completion(request_id, refusal) for request_id, _ in self.completions]
        return DelayedResponse(self.respond, refusal, completions)


class CoordinatorContext(Generic[C]):
    """The shell of one core. `topics` and `configs` return the newest values.

    Without `outside`, transactional requests are refused, and effects stay with the core.
    """

    def __init__(
        self,
        spec: CoordinatorSpec[C],
        log: CoordinatorLog,
        topics: Callable[[], Topics],
        configs: Callable[[], CoordinatorConfigs],
        outside: Callable[[], Outside | None] = lambda: None,
    ) -> None:
        self._spec = spec
        self._log = log
        self._topics = topics
        self._configs = configs
        self._outside = outside
        self._core = spec.create(configs())
        self._waiting: dict[int, Respond] = {}
        self._verifying: dict[OnceOnly, None] = {}
        self._delayed: dict[DelayedResponse, None] = {}
        self._loop = asyncio.get_running_loop()
        self._background = BackgroundTasks(self._name)
        self._timer = DeadlineTimer(self._next_deadline, self._handle_deadlines)
        self._error: ErrorCode | None = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self.skipped_records = 0
        """Records and batches of the log that could not be applied."""

    def start(self) -> asyncio.Task[None]:
        """Load in the background; try again after a failure."""
        return self._background.repeat(f"load of {self._name}", self._load_once)

    async def _load_once(self) -> None:
        await self.load()
        raise StopLoop

    async def load(self) -> None:
        """Replay the log and start to coordinate. Other requests are served in between."""
        started = time.monotonic()
        self._core = self._spec.create(self._configs())
        count = self.skipped_records = 0
        turn_end_s = self._loop.time() + _LOAD_TURN_S
        async for entries in self._log.read():
            for entry in entries:
                self._replay(entry)
                if self._loop.time() >= turn_end_s:
                    await asyncio.sleep(0)
                    turn_end_s = self._loop.time() + _LOAD_TURN_S
            count += len(entries)
        self.skipped_records += self._log.skipped_batches
        self._error = None
        self.on_new_configs()
        self.on_new_metadata_image()
        self._core.on_loaded(_now())
        self._begin_effects()
        self._timer.schedule()
        if count:
            duration_s = time.monotonic() - started
            logger.info("%s: loaded %d records in %.2f s", self._name, count, duration_s)
        if self.skipped_records:
            logger.error("%s: skipped %d malformed records", self._name, self.skipped_records)

    def _replay(self, entry: Entry | Marker) -> None:
        """Apply one entry of the log; a malformed one is skipped, so that it can't disable the whole partition."""
        if isinstance(entry, Marker):
            self._core.end_transaction(*entry)
            return
        try:
            record = self._spec.decode(entry.key, entry.value)
            if record is not None:
                self._core.replay(record, entry.offset, entry.producer_id)
        except Exception as error:
            self.skipped_records += 1
            if self.skipped_records <= _LOGGED_RECORDS:
                logger.error("%s: skipped the record at offset %d: %r", self._name, entry.offset, error)

    def resign(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Stop coordinating, and answer every waiting request with the error."""
        self._error = error
        self._background.cancel()
        self._timer.cancel()
        self._deliver(self._core.unload(error))
        delayed = [one.respond for one in self._delayed if one.respond is not None]
        unanswered: list[Respond] = [*delayed, *self._waiting.values(), *self._verifying]
        self._delayed.clear()
        self._waiting.clear()
        self._verifying.clear()
        for respond in unanswered:
            respond(RaykaError(error))

    def execute(self, request: Request[Any], respond: Respond) -> None:
        """Carry out a request; `respond` gets the response, or a RaykaError, when it can be sent."""
        if self._error is None and isinstance(request, TransactionalRequest):
            self._start_verification(request, respond)
        else:
            self._execute(request, respond)

    def _start_verification(self, request: TransactionalRequest[Any], respond: Respond) -> None:
        outside = self._outside()
        if outside is None:
            respond(request.refused(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        answer = OnceOnly(respond)
        self._verifying[answer] = None
        self._background.start("verification", self._execute_verified(outside, request, answer))

    async def _execute_verified(self, outside: Outside, request: TransactionalRequest[Any], answer: OnceOnly) -> None:
        """Carry out a request if its transaction is open."""
        try:
            error, verification = await outside.verified(self._log.partition, request)
        except Exception as failure:
            logger.exception("%s: cannot verify the transaction of %s", self._name, type(request).__name__)
            answer(RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{type(failure).__name__} in the coordinator"))
            return
        finally:
            self._verifying.pop(answer, None)
        if error is not ErrorCode.NONE:
            answer(request.refused(error))
        else:
            self._execute(request, answer, verification)

    def _execute(self, request: Request[Any], respond: Respond, verification: Verification | None = None) -> None:
        query = self._spec.queries.get(type(request))
        command = self._spec.commands.get(type(request))
        if self._error is not None:
            respond(RaykaError(self._error))
        elif query is not None:
            response = self._attempt(request, query, self._core, request)
            self._answer_when_durable(respond, response, ())
        elif command is not None:
            result = self._attempt(request, command, self._core, request, _now())
            if isinstance(result, RaykaError):
                respond(result)
            else:
                self._carry_out(result, respond, verification)
        else:
            reason = f"a {self._spec.name} coordinator has no request {type(request).__name__}"
            respond(RaykaError(ErrorCode.INVALID_REQUEST, reason))

    def _attempt(self, what: object, function: Callable[..., T], *arguments: Any) -> T | RaykaError:
        """Call the core, which changes nothing before `commit`; return an error instead of raising it."""
        try:
            return function(*arguments)
        except RaykaError as error:
            return error
        except Exception as error:
            logger.exception("%s: %s failed", self._name, type(what).__name__)
            return RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{type(error).__name__} in the coordinator")

    def on_new_metadata_image(self) -> None:
        """Topics were created, deleted or grew."""
        if self._error is None:
            topics = self._topics()
            self._carry_out_unasked(self._attempt(topics, self._core.on_new_metadata_image, topics))

    def on_new_configs(self) -> None:
        """The configs of the broker or of groups have changed."""
        configs = self._configs()
        self._attempt(configs, self._core.on_new_configs, configs)

    def _carry_out_unasked(self, result: Result[None] | RaykaError) -> None:
        """Carry out a result that belongs to no request."""
        if not isinstance(result, RaykaError):
            self._carry_out(result, None)

    def _carry_out(
        self, result: Result[Any], respond: Respond | None, verification: Verification | None = None
    ) -> Result[Any]:
        """Append and answer; return the result, or its replacement if the append failed."""
        result = self._append(result, verification)
        if isinstance(result.response, Pending):
            if respond is not None:
                self._waiting[result.response.request_id] = respond
            respond = None
        if respond is not None or result.completions:
            self._answer_when_durable(respond, result.response, result.completions)
        self._begin_effects()
        self._timer.schedule()
        return result

    def _append(self, result: Result[Any], verification: Verification | None) -> Result[Any]:
        """Append, replay and commit, or roll back. The result has the answer."""
        now = _now()
        try:
            entries = [self._spec.encode(record) for record in result.records]
        except Exception:
            logger.exception("%s: records can't be encoded", self._name)
            return self._core.rollback(result.step, ErrorCode.UNKNOWN_SERVER_ERROR, now) or result
        try:
            self._write(result, entries, verification)
            completions = self._core.commit(result.step, now) if result.step is not None else ()
        except RaykaError as error:
            logger.error("%s: %s", self._name, error)
            return self._core.rollback(result.step, error.code, now) or result
        except Exception:
            logger.exception("%s: the state may not agree with the log: loading it again", self._name)
            self.resign(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            self.start()
            return Result(RaykaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        return dataclasses.replace(result, completions=(*result.completions, *completions)) if completions else result

    def _write(
        self, result: Result[Any], entries: Sequence[tuple[bytes, bytes | None]], verification: Verification | None
    ) -> None:
        """Append the records and replay each batch. A RaykaError comes before the first replay of an atomic result."""
        batches = [entries] if result.is_atomic else self._log.split(entries)
        records = iter(result.records)
        for batch in filter(None, batches):
            base_offset = self._log.append(batch, result.producer, verification)
            producer_id = NO_PRODUCER_ID if result.producer is None else result.producer.producer_id
            for offset in range(base_offset, base_offset + len(batch)):
                self._core.replay(next(records), offset, producer_id)

    def write_marker(self, marker: TxnMarker, done: Callable[[ErrorCode], None]) -> None:
        """Write the end of a transaction to the log and apply it; `done` gets NONE when it is durable."""
        if self._error is not None:
            done(self._error)
            return
        try:
            self._log.append_marker(marker)
        except RaykaError as error:
            done(error.code)
            return
        self._core.end_transaction(marker.producer_id, marker.is_committed)
        self._log.when_durable(done)

    def _begin_effects(self) -> None:
        """Perform the effects that the core asks for, once everything appended so far is durable."""
        outside = self._outside()
        if self._spec.take_effects is None or outside is None:
            return
        effects = self._spec.take_effects(self._core)
        if effects:
            self._start_when_durable(self._core, outside, effects)

    def _start_when_durable(self, core: C, outside: Outside, effects: Sequence[Any]) -> None:
        self._log.when_durable(lambda error: self._start_effects(core, outside, effects, error))

    def _start_effects(self, core: C, outside: Outside, effects: Sequence[Any], error: ErrorCode) -> None:
        """Start the effects. After a failed flush the records still count, so wait for the next flush.

        A core that was loaded in the meantime requests the remaining effects again.
        """
        if self._error is not None or core is not self._core:
            return
        if error is not ErrorCode.NONE:
            self._loop.call_later(_EFFECT_RETRY_S, self._start_when_durable, core, outside, effects)
            return
        for effect in effects:
            self._background.start("effect", self._carry_out_effect(outside, effect))

    async def _carry_out_effect(self, outside: Outside, effect: Any) -> None:
        """Perform one effect, and report it to the core; repeat until the report is in the log."""
        request = await outside.perform(effect, self._log.partition.leader_epoch)
        while request is not None and self._error is None and not self._report(request):
            await asyncio.sleep(_EFFECT_RETRY_S)

    def _report(self, request: Request[Any]) -> bool:
        """Carry out a request without a client; False if its records were not appended.

        Once they are, it must not be repeated: the core could mistake it for the report of a later effect.
        """
        result = self._attempt(request, self._spec.commands[type(request)], self._core, request, _now())
        if isinstance(result, RaykaError):
            return False
        response: Any = self._carry_out(result, None).response
        return not isinstance(response, RaykaError) and response.error is ErrorCode.NONE

    def _answer_when_durable(self, respond: Respond | None, response: Any, completions: Sequence[Completion]) -> None:
        if self._log.is_durable:
            self._answer(respond, response, completions)
            return
        delayed = DelayedResponse(respond, response, completions)
        self._delayed[delayed] = None
        self._log.when_durable(lambda error: self._durable(delayed, error))

    def _durable(self, delayed: DelayedResponse, error: ErrorCode) -> None:
        """The log is durable, or will not be because of the error. `resign` may already have answered."""
        if delayed not in self._delayed:
            return
        del self._delayed[delayed]
        if error is not ErrorCode.NONE:
            delayed = delayed.failed(error)
        self._answer(delayed.respond, delayed.response, delayed.completions)

    def _answer(self, respond: Respond | None, response: Any, completions: Sequence[Completion]) -> None:
        self._deliver(completions)
        if respond is not None:
            respond(response)

    def _deliver(self, completions: Sequence[Completion]) -> None:
        for request_id, response in completions:
            respond = self._waiting.pop(request_id, None)
            if respond is None:
                continue
            if isinstance(response, Retry):
                self._execute(response.request, respond)
            else:
                respond(response)

    def _next_deadline(self) -> int | None:
        return self._core.next_deadline() if self._error is None else None

    def _handle_deadlines(self) -> None:
        self._expire()
        self._delete_old_records()

    def _expire(self) -> None:
        """Handle deadlines that have passed. If handling fails, the core sets the deadline again.

        When many have passed, requests are served in between. A record that can't be replayed ends this: the
        coordinator then loads again, with its deadlines.
        """
        end_s = self._loop.time() + _TURN_S
        while self._error is None and (result := self._attempt(self, self._core.expire, _now())) is not None:
            self._carry_out_unasked(result)
            if self._loop.time() >= end_s:
                return

    def _delete_old_records(self) -> None:
        """Delete old records of a log that is not compacted. If that fails, the coordinator keeps the longer log."""
        if self._error is not None or self._spec.is_compacted:
            return
        try:
            self._log.delete_before(self._core.first_needed_offset())
        except RaykaError as error:
            logger.error("%s: old records cannot be deleted: %s", self._name, error)
        except Exception:
            logger.exception("%s: old records cannot be deleted", self._name)

    @property
    def _name(self) -> str:
        return str(self._log.partition.topic_partition)


def _now() -> Now:
    return Now(monotonic_ms(), time.time_ns() // 1_000_000)
