"""The changes that one command makes to a classic group: on a draft, with records, responses and deadlines beside it.

They take effect when the coordinator commits the step, so a command that fails leaves the group as it was.
"""

from __future__ import annotations

from typing import Any

from rayka.coordinator.clock import Now
from rayka.coordinator.groups.classic.group import ClassicGroup, ClassicMember
from rayka.coordinator.groups.deadlines import GroupTimer, GroupTimerKey
from rayka.coordinator.groups.records import CoordinatorRecord
from rayka.coordinator.groups.steps import UpdateClassicGroup
from rayka.coordinator.result import Completion, Pending, Result
from rayka.coordinator.timers import TimerChange

NO_REQUEST = 0
"""An id that no request has."""


class ClassicChanges:
    """Changes to `group`, a draft."""

    def __init__(self, group: ClassicGroup, now: Now) -> None:
        self.group = group.draft()
        self.now = now
        self.records: list[CoordinatorRecord] = []
        self.completions: list[Completion] = []
        self._timers: list[TimerChange] = []

    def update(self, member: ClassicMember, **changes: Any) -> ClassicMember:
        """Change fields of a member."""
        member = member._replace(**changes)
        self.group.put(member)
        return member

    def complete(self, request_id: int | None, response: Any) -> None:
        """Answer a request; there may be none."""
        if request_id is not None:
            self.completions.append(Completion(request_id, response))

    def schedule(self, timer: GroupTimer, delay_ms: int, argument: Any = None, member_id: str = "") -> None:
        """Set a deadline, `delay_ms` from now."""
        key = GroupTimerKey(timer, self.group.group_id, member_id)
        self._timers.append(TimerChange(key, self.now.ms + delay_ms, argument))

    def cancel(self, timer: GroupTimer, member_id: str = "") -> None:
        """Cancel a deadline."""
        self._timers.append(TimerChange(GroupTimerKey(timer, self.group.group_id, member_id)))

    def renew_session(self, member: ClassicMember) -> None:
        """Restart the session timer of a member."""
        self.schedule(GroupTimer.SESSION, member.session_timeout_ms, member_id=member.member_id)

    def cancel_session(self, member_id: str) -> None:
        """The session of a member does not expire."""
        self.cancel(GroupTimer.SESSION, member_id)

    def update_step(self) -> UpdateClassicGroup:
        """The step that makes the draft the group."""
        return UpdateClassicGroup(self.group, tuple(self._timers))

    def result(self, request_id: int = NO_REQUEST, step: object | None = None) -> Result[Any]:
        """The result for a request: its own response if there is one by now, else it waits."""
        answered = next((completion for completion in self.completions if completion.request_id == request_id), None)
        response = Pending(request_id) if answered is None else answered.response
        return self.respond(response if request_id != NO_REQUEST else None, step, answered)

    def respond(self, response: Any, step: object | None = None, answered: Completion | None = None) -> Result[Any]:
        """The result with a response of its own; `answered` is that response among the completions."""
        others = [completion for completion in self.completions if completion is not answered]
        return Result(response, tuple(self.records), tuple(others), step or self.update_step())
