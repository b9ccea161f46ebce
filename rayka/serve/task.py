"""A task, its statuses, and what a worker does with it.

    delivered -> SUCCESS      the handler returned
    delivered -> RETRY        it raised, and may be tried again; the task is delivered again after a while
    delivered -> FAILURE      it raised for the last time, or as many workers died with the task as may
    anything  -> REVOKED      the task was cancelled before a worker began

The statuses have Celery's names. A task without a record of its status is PENDING.
"""

from __future__ import annotations

import enum
from typing import Any, Final, NamedTuple

DELIVERY_LIMIT: Final = 10
"""The most deliveries that a share group allows."""
MAX_RETRIES: Final = DELIVERY_LIMIT - 2
_FIRST_DELAY_S: Final = 1
_LONGEST_DELAY_S: Final = 60


class Status(enum.StrEnum):
    """The status of a task."""

    PENDING = "PENDING"
    RETRY = "RETRY"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    REVOKED = "REVOKED"

    @property
    def is_final(self) -> bool:
        """Whether the task is never run again."""
        return self in (Status.SUCCESS, Status.FAILURE, Status.REVOKED)


class Task(NamedTuple):
    """A task in its queue. `arguments` are pickled positional and keyword arguments; `created_s` is a Unix time.

    `has_own_id`: the id was made for this task, while one that a program gives may be that of an earlier task.
    """

    task_id: str
    name: str
    arguments: bytes
    created_s: float
    has_own_id: bool = False


class FailedTask(NamedTuple):
    """A task in the queue of those that failed, or could not be processed."""

    task_id: str
    name: str
    error: str
    traceback: str
    args: Any
    kwargs: Any


class Verdict(enum.Enum):
    """What a worker does with a task: `DROP` one that has ended, `REFUSE` one that it can't process, or `GIVE_UP` one
    whose workers died.
    """

    RUN = enum.auto()
    DROP = enum.auto()
    REFUSE = enum.auto()
    GIVE_UP = enum.auto()


def retries_of(max_retries: int | None) -> int:
    """How often a task is tried again: `MAX_RETRIES` times if the configuration does not say. Raises ValueError."""
    if max_retries is None:
        return MAX_RETRIES
    if not 0 <= max_retries <= MAX_RETRIES:
        raise ValueError(f"max_retries must be from 0 to {MAX_RETRIES}, not {max_retries}")
    return max_retries


def delivery_limit(max_retries: int) -> int:
    """How often a task's record may be delivered: more often than the task may be run.

    In a delivery after the last run a worker stores that the task failed because its workers died. One such delivery is
    enough, unless that worker dies too.
    """
    return min(max_retries + 4, DELIVERY_LIMIT)


def verdict(status: Status, delivery_count: int, max_retries: int, *, has_handler: bool) -> Verdict:
    """What to do with a task of this status that is delivered for the `delivery_count`th time."""
    if status.is_final:
        return Verdict.DROP
    if not has_handler:
        return Verdict.REFUSE
    return Verdict.RUN if delivery_count <= max_retries + 1 else Verdict.GIVE_UP


def retry_delay_s(delivery_count: int) -> int:
    """How long a task waits after a delivery that failed: a second, doubled each time, a minute at most."""
    return min(_FIRST_DELAY_S << min(delivery_count - 1, 6), _LONGEST_DELAY_S)


def desired_replicas(workload: int, running: int, target_per_replica: float) -> float:
    """How many replicas the tasks and requests need, if each replica takes `target_per_replica` of them.

    The last replica stops only when there is no work, and the first one starts with the first task.
    """
    if running == 0:
        return 1 if workload > 0 else 0
    return workload / target_per_replica
