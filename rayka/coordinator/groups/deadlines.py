"""The deadlines that groups and their members have."""

from __future__ import annotations

import enum
from typing import NamedTuple


class GroupTimer(enum.Enum):
    """What becomes due."""

    SESSION = "session"
    JOIN = "join"
    SYNC = "sync"
    REBALANCE = "rebalance"
    MEMBER_JOIN = "member join"
    MEMBER_SYNC = "member sync"
    OFFSETS = "offsets"


class GroupTimerKey(NamedTuple):
    """A deadline of a group, or of a member in it."""

    timer: GroupTimer
    group_id: str = ""
    member_id: str = ""


class InitialDelay(NamedTuple):
    """The wait for more members before a group's first rebalance (KIP-134): this step, and what may still be added."""

    delay_ms: int
    remaining_ms: int


class SessionWarning(NamedTuple):
    """A session is nearly over: after the warning the member has `grace_ms` left."""

    grace_ms: int
