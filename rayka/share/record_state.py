"""The states of a record for a share group, and what may follow what.

    AVAILABLE -> ACQUIRED      a member gets the record under a lock; its delivery count goes up
    ACQUIRED  -> AVAILABLE     released, or the lock expired, and it may be delivered again
    ACQUIRED  -> ACKNOWLEDGED  accepted
    ACQUIRED  -> ARCHIVED      rejected, a gap, or delivered as often as allowed
    ACQUIRED  -> ARCHIVING     as ARCHIVED, in a group that has a dead-letter queue (KIP-1191)
    ARCHIVING -> ARCHIVED      the record is in the dead-letter queue
    AVAILABLE -> ARCHIVED      the log does not have the record any more

ACKNOWLEDGED and ARCHIVED are final.
"""

from __future__ import annotations

import enum
from typing import Final

from rayka.errors import ErrorCode, RaykaError


class RecordState(enum.IntEnum):
    """A record's state, by the number that is persisted. ACQUIRED is never persisted."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4

    @property
    def is_terminal(self) -> bool:
        """Whether the record is done with."""
        return self in TERMINAL


AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = RecordState
TERMINAL: Final = frozenset({ACKNOWLEDGED, ARCHIVED})

TRANSITIONS: Final = {
    AVAILABLE: frozenset({ACQUIRED, ARCHIVED}),
    ACQUIRED: frozenset({AVAILABLE, ACKNOWLEDGED, ARCHIVING, ARCHIVED}),
    ACKNOWLEDGED: frozenset[RecordState](),
    ARCHIVING: frozenset({ARCHIVED}),
    ARCHIVED: frozenset[RecordState](),
}


class AcknowledgeType(enum.IntEnum):
    """What a member says about a record; GAP: the offset holds no record for consumers."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


AFTER: Final = {
    AcknowledgeType.GAP: ARCHIVED,
    AcknowledgeType.ACCEPT: ACKNOWLEDGED,
    AcknowledgeType.RELEASE: AVAILABLE,
    AcknowledgeType.REJECT: ARCHIVED,
    AcknowledgeType.RENEW: ACQUIRED,
}
"""The state that an acknowledgement asks for. A renewal keeps the record acquired, under a new lock."""


def acknowledge_type(number: int) -> AcknowledgeType:
    """The type with this number. Raises INVALID_REQUEST."""
    try:
        return AcknowledgeType(number)
    except ValueError:
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"Invalid acknowledge type: {number}") from None


def released_state(delivery_count: int, limit: int) -> RecordState:
    """The state of a record that is given back: it is delivered again unless that was its last delivery."""
    return AVAILABLE if delivery_count < limit else ARCHIVED
