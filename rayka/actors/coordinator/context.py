"""A group coordinator: one partition of `__consumer_offsets` that this process leads, with the core on top.

A command gives records and a response. The records are appended, then replayed, and the response leaves
when they are as durable as the topic asks for; a disk error leaves the state as it was.

Deadlines run on the monotonic clock. A deadline that is noticed late means that this process stood still, and
what its members sent meanwhile may still be on its way: they get as long again as the coordinator was late.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rayka.actors.coordinator.log import CoordinatorLog, Marker
from rayka.coordinator.clock import Now
from rayka.coordinator.groups.coordinator import GroupCoordinator
from rayka.coordinator.groups.record_formats import decode, encode
from rayka.coordinator.groups.settings import ConsumerGroupSettings, GroupSettings
from rayka.coordinator.result import Completion, Pending, Result
from rayka.coordinator.topics import Topics
from rayka.errors import ErrorCode, RaykaError

logger = logging.getLogger(__name__)

_COMMANDS = frozenset(
    (
        "join_group",
        "sync_group",
        "heartbeat",
        "leave_group",
        "consumer_group_heartbeat",
        "offset_commit",
    )
)
_COMMANDS_WITHOUT_TIME = frozenset(("offset_delete", "delete_groups"))
_QUERIES = frozenset(("offset_fetch", "list_groups", "describe_groups", "consumer_group_describe"))
_MIN_TIMER_S = 0.001
_STOOD_STILL_MS = 100
_LONGEST_GRACE_MS = 5_000

Done = Callable[[Any], None]
"""Takes the response, or a RaykaError as a value."""


class CoordinatorContext:
    """Shell of `coordinator.groups` for one partition."""

    def __init__(
        self, log: CoordinatorLog, settings: GroupSettings, group_configs: Mapping[str, Mapping[str, int]]
    ) -> None:
        self._log = log
        self._core = GroupCoordinator(settings)
        self._group_configs = group_configs
        self._waiting: dict[int, Done] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._not_before = 0
        self._error: ErrorCode | None = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    async def load(self, topics: Callable[[], Topics]) -> None:
        """Replay the log, a slice at a time so that others are served in between, and begin to coordinate."""
        started = time.monotonic()
        count = 0
        for records in self._log.read():
            for entry in records:
                if isinstance(entry, Marker):
                    self._core.end_transaction(*entry)
                elif (record := decode(entry.key, entry.value)) is not None:
                    self._core.replay(record, entry.offset, entry.producer_id)
            count += len(records)
            await asyncio.sleep(0)
        for group_id, configs in self._group_configs.items():
            self._core.configure(group_id, configs)
        self._error = None
        self.metadata_changed(topics())
        self._core.loaded(_now())
        self._schedule()
        if count:
            logger.info(
                "%s: %d records loaded in %.2f s",
                self._log.partition.topic_partition,
                count,
                time.monotonic() - started,
            )

    def resign(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """The coordinator moves elsewhere: all who wait are told."""
        if self._timer is not None:
            self._timer.cancel()
        self._deliver(self._core.unload(error))
        for done in self._waiting.values():
            done(RaykaError(error))
        self._waiting.clear()
        self._error = error

    def execute(self, command: str, arguments: Sequence[Any], done: Done) -> None:
        """Carry out a command; `done` takes the response when it may leave."""
        if self._error is not None:
            done(RaykaError(self._error))
        elif command in _QUERIES:
            response = getattr(self._core, command)(*arguments)
            self._log.when_durable(lambda: done(response))
        elif command in _COMMANDS:
            self._carry_out(getattr(self._core, command)(*arguments, _now()), done)
        elif command in _COMMANDS_WITHOUT_TIME:
            self._carry_out(getattr(self._core, command)(*arguments), done)
        else:
            done(RaykaError(ErrorCode.INVALID_REQUEST, f"a group coordinator has no command {command!r}"))

    def metadata_changed(self, topics: Topics) -> None:
        """Topics came, went or grew."""
        if self._error is None:
            self._carry_out(self._core.metadata_changed(topics), None)

    def configure(self, group_id: str, configs: Mapping[str, int]) -> None:
        """The dynamic configs of a group changed."""
        self._core.configure(group_id, configs)

    def configure_broker(self, settings: ConsumerGroupSettings) -> None:
        """The broker's own settings changed."""
        self._core.configure_broker(settings)

    def _carry_out(self, result: Result[Any], done: Done | None) -> None:
        result = self._append(result)
        if isinstance(result.response, Pending):
            if done is not None:
                self._waiting[result.response.handle] = done
            done = None
        response, completions = result.response, result.completions
        if done is not None or completions:
            self._log.when_durable(lambda: self._answer(done, response, completions))
        self._schedule()

    def _append(self, result: Result[Any]) -> Result[Any]:
        """Append first, then replay."""
        if not result.records and result.on_commit is None:
            return result
        base_offset = -1
        if result.records:
            try:
                base_offset = self._log.append([encode(record) for record in result.records])
            except RaykaError as error:
                logger.error("%s: %s", self._log.partition.topic_partition, error)
                return self._core.rollback(result, error.code)
        self._core.commit(result, base_offset)
        return result

    def _answer(self, done: Done | None, response: Any, completions: Sequence[Completion]) -> None:
        self._deliver(completions)
        if done is not None:
            done(response)

    def _deliver(self, completions: Sequence[Completion]) -> None:
        for handle, response in completions:
            done = self._waiting.pop(handle, None)
            if done is not None:
                done(response)

    def _schedule(self) -> None:
        """Keep one timer for the earliest deadline; one that comes too early does no harm."""
        deadline = self._core.next_deadline()
        if deadline is None:
            return
        wake_at = max(deadline, self._not_before)
        if self._timer is not None and self._timer_at <= wake_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wake_at
        self._timer = self._loop.call_later(max(_MIN_TIMER_S, (wake_at - _now().ms) / 1000), self._wake)

    def _wake(self) -> None:
        """A deadline has come. If it came late, input goes first; but no deadline is put off twice."""
        self._timer = None
        now_ms = _now().ms
        late_ms = now_ms - self._timer_at
        if late_ms > _STOOD_STILL_MS and self._timer_at != self._not_before:
            self._not_before = now_ms + min(late_ms, _LONGEST_GRACE_MS)
        else:
            self._expire()
        self._schedule()

    def _expire(self) -> None:
        while (result := self._core.expire(_now())) is not None:
            self._carry_out(result, None)
        self._log.shorten()


def _now() -> Now:
    return Now(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)
