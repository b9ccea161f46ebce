"""Steps to take when the records of a command are in the log, as values.

`GroupCoordinator.commit` carries a step out and `rollback` answers instead. A step with a `response_type` answers a
failed append with that type and the error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rayka.coordinator.groups.classic.group import ClassicGroup
from rayka.coordinator.groups.classic.requests import JoinGroupRequest
from rayka.coordinator.groups.consumer.member import ConsumerMember
from rayka.coordinator.groups.deadlines import GroupTimerKey
from rayka.coordinator.timers import TimerChange
from rayka.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class UpdateClassicGroup:
    """Let a classic group adopt its draft. If the append fails the draft counts all the same.

    The records only note for later coordinators what has happened here, such as that everybody has left.
    """

    group: ClassicGroup
    timers: tuple[TimerChange, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateClassicGroup:
    """The group exists: let its first member join."""

    request: JoinGroupRequest
    request_id: int


@dataclass(frozen=True, slots=True)
class StoreAssignment:
    """Complete the generation with the leader's assignment, or fail it. `update` is the leader's sync."""

    update: UpdateClassicGroup
    request_id: int
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class ReplaceStaticMember:
    """A static member came back with a new id while the generation continues; if the append fails the old id stays."""

    update: UpdateClassicGroup
    previous_leader: str


@dataclass(frozen=True, slots=True)
class AcceptHeartbeat:
    """A member of a consumer group joined or moved on. `upgraded` is the classic group that it was until now."""

    group_id: str
    member_id: str
    replaced_id: str | None
    upgraded: ClassicGroup | None
    response_type: type[Any]


@dataclass(frozen=True, slots=True)
class AdmitClassicMember:
    """A member that speaks the classic protocol joined a consumer group: wait for its sync."""

    group_id: str
    member: ConsumerMember
    replaced_id: str | None
    response_type: type[Any]


@dataclass(frozen=True, slots=True)
class RemoveMembers:
    """Members left a consumer group. `retry` is the deadline that removed them, which comes again on failure."""

    group_id: str
    member_ids: tuple[str, ...]
    response_type: type[Any] | None = None
    retry: tuple[GroupTimerKey, Any] | None = None


@dataclass(frozen=True, slots=True)
class DowngradeGroup:
    """A consumer group became a classic group with these members, and rebalances."""

    members: tuple[ConsumerMember, ...]
    removed: RemoveMembers


@dataclass(frozen=True, slots=True)
class Respond:
    """Nothing more than the response; `response_type` answers a failed append."""

    response_type: type[Any]


@dataclass(frozen=True, slots=True)
class RespondEach:
    """A response with an error for each entry; a failed append fails those entries that had none."""

    response_type: type[Any]
    errors: tuple[ErrorCode, ...]
