"""Taking members out of consumer groups, which may make them classic groups (KIP-848), and what commands propose."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rayka.coordinator.clock import Now
from rayka.coordinator.groups import migration
from rayka.coordinator.groups.classic.group import ClassicGroup
from rayka.coordinator.groups.classic.rebalance import Rebalance
from rayka.coordinator.groups.consumer.group import ConsumerGroup
from rayka.coordinator.groups.consumer.heartbeat import ConsumerHeartbeat
from rayka.coordinator.groups.consumer.update import ConsumerChanges
from rayka.coordinator.groups.settings import GroupSettings
from rayka.coordinator.groups.state import Registry
from rayka.coordinator.result import Outcome, Result, append_error
from rayka.errors import ErrorCode

R = TypeVar("R")


class Conversion:
    """Changes that may end with a group of another kind."""

    def __init__(
        self, settings: GroupSettings, registry: Registry, consumer: ConsumerHeartbeat, rebalance: Rebalance
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._consumer = consumer
        self._rebalance = rebalance

    def changes(self, draft: ConsumerGroup, now: Now) -> ConsumerChanges:
        """Changes to a draft of a group."""
        return ConsumerChanges(draft, self._registry.topics, self._settings.consumer_assignors, now.wall_ms)

    def fence(
        self, group: ConsumerGroup, member_ids: set[str], answer: R, failed: Callable[[ErrorCode], R], now: Now
    ) -> Result[R]:
        """Takes members out of a consumer group, which may turn it into a classic group."""
        changes = self.changes(group.draft(), now)
        is_last_consumer = all(group.members[member_id].classic is None for member_id in member_ids)
        if is_last_consumer and migration.can_downgrade(group, member_ids, self._settings):
            for member_id in member_ids:
                changes.extend(changes.group.member_tombstones(member_id))
            downgraded = self.downgrade(changes, now)
        else:
            changes.remove(sorted(member_ids))
            downgraded = None

        def commit() -> None:
            for member_id in member_ids:
                self._consumer.forget(group.group_id, member_id)
            if downgraded is not None:
                downgraded()

        return proposed(changes, answer, commit, failed)

    def downgrade(self, changes: ConsumerChanges, now: Now) -> Callable[[], None]:
        """Makes the draft a classic group; what is returned is to be done when that is in the log."""
        group_id, members = changes.group.group_id, list(changes.group.members.values())
        changes.extend(migration.downgrade(changes.group, self._registry.topics, now.wall_ms))

        def commit() -> None:
            classic = self._registry.groups[group_id]
            assert isinstance(classic, ClassicGroup)
            for member in members:
                self._consumer.forget(group_id, member.member_id)
                migration.restore_protocols(classic, member)
                self._rebalance.keep_alive(classic, classic.members[member.member_id], now)
            self._rebalance.prepare(classic, now, Outcome())

        return commit


def proposed(
    changes: ConsumerChanges, answer: R, commit: Callable[[], None], failed: Callable[[ErrorCode], R]
) -> Result[R]:
    """What changes nothing is done at once."""
    if not changes.records:
        commit()
        return Result(answer)
    return Result(
        answer,
        tuple(changes.records),
        on_commit=commit,
        on_rollback=lambda error: Result(failed(append_error(error))),
    )
