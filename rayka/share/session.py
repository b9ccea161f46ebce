"""Share sessions: what one member of a share group fetches from one broker (KIP-932).

A member opens its session with epoch 0. The requests after it carry the epochs 1, 2, ... and name only partitions that
are new, forgotten, or have acknowledgements; each reads from all partitions of the session. Epoch -1 ends it. A session
belongs to the connection on which it was opened, and ends with it. Their limit is that of a broker, whose processes
count them together. Each has a few partitions; further ones find room as long as those of the process together have not
become too many.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from rayka.errors import ErrorCode, RaykaError

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_MAX_EPOCH: Final = 2**31 - 1
_MOST_PARTITIONS: Final = 500_000
_LEAST_PARTITIONS: Final = 1_000


class SessionKey(NamedTuple):
    """A member of a group."""

    group_id: str
    member_id: str


class SharePartitionId(NamedTuple):
    """A partition by the id of its topic."""

    topic_id: uuid.UUID
    partition: int


@dataclass(slots=True)
class ShareSession:
    """The partitions of one member, in the order in which they are read next; `seen` are all that it ever had.

    No other session has its `session_id`, not even in another process.
    """

    key: SessionKey
    connection: Hashable
    session_id: str = ""
    epoch: int = 1
    partitions: dict[SharePartitionId, None] = field(default_factory=dict)
    seen: set[SharePartitionId] = field(default_factory=set)

    def advance(self) -> None:
        """The next request carries the next epoch; after the highest comes 1."""
        self.epoch = 1 if self.epoch == _MAX_EPOCH else self.epoch + 1

    def update(self, added: Iterable[SharePartitionId], forgotten: Iterable[SharePartitionId]) -> None:
        """Read from other partitions from now on."""
        for partition in added:
            self.partitions.setdefault(partition)
            self.seen.add(partition)
        for partition in forgotten:
            self.partitions.pop(partition, None)

    def read_last(self, partition: SharePartitionId) -> None:
        """This partition has had its turn."""
        if partition in self.partitions:
            del self.partitions[partition]
            self.partitions[partition] = None


class SessionCount(Protocol):
    """How many sessions this process has, and how many the broker's other processes have."""

    own: int

    @property
    def others(self) -> int:
        """Those of other processes."""


@dataclass(slots=True)
class OnlyCount:
    """The count of a broker with one process."""

    own: int = 0
    others: int = 0


class ShareSessions:
    """The sessions of one gateway, whose `name` no other has."""

    def __init__(
        self,
        name: str = "",
        count: SessionCount | None = None,
        most_partitions: int = _MOST_PARTITIONS,
        least_partitions: int = _LEAST_PARTITIONS,
    ) -> None:
        self._name = name
        self._most_partitions = most_partitions
        self._least_partitions = least_partitions
        self._count: SessionCount = OnlyCount() if count is None else count
        self._opened = 0
        self._sessions: dict[SessionKey, ShareSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def fetch(self, key: SessionKey, epoch: int, connection: Hashable, limit: int) -> ShareSession:
        """The session of a fetch: a new one, the present one, or the one that it ends.

        Raises SHARE_SESSION_LIMIT_REACHED when a new one would be more than `limit`, SHARE_SESSION_NOT_FOUND and
        INVALID_SHARE_SESSION_EPOCH.
        """
        if epoch != INITIAL_EPOCH:
            return self.acknowledge(key, epoch)
        self._end(key)
        self._count.own += 1
        if self._count.own + self._count.others > limit:
            self._count.own -= 1
            raise RaykaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, f"there are {limit} share sessions already")
        self._opened += 1
        session = self._sessions[key] = ShareSession(key, connection, f"{self._name}-{self._opened}")
        return session

    def acknowledge(self, key: SessionKey, epoch: int) -> ShareSession:
        """The session of a request that can't open one. Raises as `fetch`."""
        if epoch == INITIAL_EPOCH:
            raise RaykaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "a share session is opened by a fetch")
        session = self._sessions.get(key)
        if session is None:
            raise RaykaError(ErrorCode.SHARE_SESSION_NOT_FOUND, f"member {key.member_id} has no share session")
        if epoch == FINAL_EPOCH:
            self._end(key)
        elif epoch != session.epoch:
            reason = f"share session epoch {epoch} is not {session.epoch}"
            raise RaykaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, reason)
        else:
            session.advance()
        return session

    def update(
        self, session: ShareSession, added: Sequence[SharePartitionId], forgotten: Iterable[SharePartitionId]
    ) -> None:
        """Let a session read from other partitions from now on.

        Raises SHARE_SESSION_LIMIT_REACHED, upon which a member opens its session again, with those that it reads now.
        """
        new = len(set(added) - session.seen)
        size = len(session.seen) + new
        if new and size > self._least_partitions:
            others = sum(len(other.seen) for other in self._sessions.values() if other is not session)
            if others + size > self._most_partitions:
                reason = f"the share sessions have {others + len(session.seen)} partitions already"
                raise RaykaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, reason)
        session.update(added, forgotten)

    def disconnected(self, connection: Hashable) -> list[ShareSession]:
        """Remove and return the sessions of a connection that has ended."""
        ended = [session for session in self._sessions.values() if session.connection == connection]
        for session in ended:
            self._end(session.key)
        return ended

    def _end(self, key: SessionKey) -> None:
        if self._sessions.pop(key, None) is not None:
            self._count.own -= 1
