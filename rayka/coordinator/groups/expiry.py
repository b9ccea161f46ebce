"""What happens when the deadline of a group or of a member has come.

In a classic group a deadline moves the rebalance on. In a consumer group it takes out the member that did not do in
time what it had to. A deadline may be out of date when it comes; then nothing happens.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rayka.coordinator.clock import Now
from rayka.coordinator.groups.classic.group import ClassicGroup
from rayka.coordinator.groups.classic.rebalance import Rebalance, Timer, TimerKey
from rayka.coordinator.groups.consumer.group import ConsumerGroup
from rayka.coordinator.groups.consumer.heartbeat import ConsumerHeartbeat
from rayka.coordinator.groups.consumer.member import MemberState
from rayka.coordinator.groups.conversion import Conversion
from rayka.coordinator.groups.state import Registry
from rayka.coordinator.result import Outcome, Result
from rayka.coordinator.timers import TimerQueue

_RETRY_BACKOFF_MS = 500


class Deadlines:
    """Carries out deadlines. `argument` is what was scheduled with each."""

    def __init__(
        self,
        registry: Registry,
        timers: TimerQueue[TimerKey],
        rebalance: Rebalance,
        consumer: ConsumerHeartbeat,
        conversion: Conversion,
    ) -> None:
        self._registry = registry
        self._timers = timers
        self._rebalance = rebalance
        self._consumer = consumer
        self._conversion = conversion

    def expire(self, key: TimerKey, argument: Any, now: Now) -> Result[None] | None:
        """A deadline of a group or of a member has come; None if that brings nothing about."""
        group = self._registry.groups.get(key.group_id)
        if isinstance(group, ClassicGroup):
            return self._expire_classic(group, key, argument, now)
        if not isinstance(group, ConsumerGroup) or not self._is_overdue(group, key, argument):
            return None
        if key.timer is Timer.SESSION and argument is not None:
            self._consumer.missed(key, argument, now)
            return None
        result = self._conversion.fence(group, {key.member_id}, None, lambda _: None, now)
        return dataclasses.replace(result, on_rollback=lambda _: self._retry(key, argument, now))

    def _retry(self, key: TimerKey, argument: Any, now: Now) -> Result[None]:
        """What a deadline brought about could not be appended: it comes again."""
        self._timers.schedule(key, now.ms + _RETRY_BACKOFF_MS, argument)
        return Result(None)

    def _expire_classic(self, group: ClassicGroup, key: TimerKey, argument: Any, now: Now) -> Result[None] | None:
        outcome = Outcome()
        match key.timer:
            case Timer.SESSION:
                self._rebalance.expire_session(group, key.member_id, now, outcome)
            case Timer.JOIN:
                self._rebalance.expire_join(group, argument, now, outcome)
            case Timer.SYNC:
                self._rebalance.expire_sync(group, argument, now, outcome)
        return outcome.notice() if outcome.records or outcome.completions else None

    def _is_overdue(self, group: ConsumerGroup, key: TimerKey, argument: Any) -> bool:
        """Whether the member is still in the state whose deadline has come."""
        member = group.members.get(key.member_id)
        if member is None:
            return False
        match key.timer:
            case Timer.REBALANCE:
                return member.state is MemberState.UNREVOKED_PARTITIONS and member.member_epoch == argument
            case Timer.MEMBER_JOIN | Timer.MEMBER_SYNC:
                return member.classic is not None
            case timer:
                return timer is Timer.SESSION
