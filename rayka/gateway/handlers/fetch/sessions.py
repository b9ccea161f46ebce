"""Incremental fetch sessions (KIP-227): a reader names its partitions once, then only what changes.

A full fetch (epoch 0) opens a session; the fetches after it carry epochs 1, 2, ... and name only changed
and forgotten partitions; their responses leave out partitions with nothing new. Epoch -1 ends a session
and stands alone. A session that was evicted, or whose epoch is not the next one, gets an error, and the
reader opens another.
"""

from __future__ import annotations

import secrets
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rayka.errors import ErrorCode
from rayka.gateway.server.node_usage import SharedCount
from rayka.metadata.topics import MAX_LENGTH
from rayka.types import NO_LEADER_EPOCH, NO_OFFSET, FetchResult

NO_SESSION_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_MAX_EPOCH = 2**31 - 1
_MOST_PARTITIONS = 500_000

TopicKey = str | uuid.UUID | None
PartitionKey = tuple[TopicKey, int]


@dataclass(slots=True)
class SessionPartition:
    """A partition that a reader is interested in. `high_watermark` and `log_start_offset` are those that it
    was told last; `name` is the one that its topic id last stood for."""

    topic: TopicKey
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = NO_LEADER_EPOCH
    last_fetched_epoch: int = NO_LEADER_EPOCH
    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    name: str | None = None

    @property
    def key(self) -> PartitionKey:
        """What identifies it in its session."""
        return self.topic, self.partition

    def has_news(self, result: FetchResult) -> bool:
        """Whether an incremental response must have this result; if so, the reader is taken to know it.

        After an error the next result is always news, so that the reader learns that the error is over.
        """
        news = (
            result.error != ErrorCode.NONE
            or result.records is not None
            or result.high_watermark != self.high_watermark
            or result.log_start_offset != self.log_start_offset
        )
        self.high_watermark = NO_OFFSET if result.error else result.high_watermark
        self.log_start_offset = result.log_start_offset
        return news


@dataclass(slots=True)
class FetchSession:
    """The partitions of one reader, in the order in which they are to be read."""

    session_id: int
    uses_topic_ids: bool
    partitions: dict[PartitionKey, SessionPartition]
    created_ms: int
    last_used_ms: int
    epoch: int = 1

    def update(self, changed: Iterable[SessionPartition], forgotten: Iterable[PartitionKey]) -> None:
        """Add, change and forget partitions. A changed one keeps its place."""
        for partition in changed:
            known = self.partitions.get(partition.key)
            if known is not None:
                partition.high_watermark = known.high_watermark
                partition.log_start_offset = known.log_start_offset
                partition.name = known.name
            self.partitions[partition.key] = partition
        for key in forgotten:
            self.partitions.pop(key, None)

    def move_to_end(self, partition: SessionPartition) -> None:
        """Read this one last from now on: it has just had its turn."""
        if self.partitions.pop(partition.key, None) is not None:
            self.partitions[partition.key] = partition


@dataclass(slots=True)
class FetchContext:
    """What one fetch reads: all that it named, or all of its session. `error` refuses it as a whole."""

    partitions: list[SessionPartition] = field(default_factory=list)
    session: FetchSession | None = None
    incremental: bool = False
    error: ErrorCode = ErrorCode.NONE

    @property
    def session_id(self) -> int:
        """The id that the response carries."""
        return NO_SESSION_ID if self.session is None else self.session.session_id

    def admits(self, partition: SessionPartition, result: FetchResult) -> bool:
        """Whether the response has this result."""
        if self.session is None:
            return True
        news = partition.has_news(result)
        if not self.incremental:
            return True
        if result.records is not None:
            self.session.move_to_end(partition)
        return news


class FetchSessions:
    """The sessions of a gateway; those of a node are at most `max.incremental.fetch.session.cache.slots`.

    Together they have at most `most_partitions`, of a few hundred bytes each, so that no client uses up the memory.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        count: SharedCount,
        eviction_ms: int = 120_000,
        most_partitions: int = _MOST_PARTITIONS,
    ) -> None:
        self._count = count
        self._slots: int = config["max.incremental.fetch.session.cache.slots"]
        self._eviction_ms = eviction_ms
        self._most_partitions = most_partitions
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        session_id: int,
        epoch: int,
        partitions: list[SessionPartition],
        forgotten: list[PartitionKey],
        uses_topic_ids: bool,
        now_ms: int,
    ) -> FetchContext:
        """Begin a fetch: with no session, with a new one, or within one."""
        try:
            return self._begin(session_id, epoch, partitions, forgotten, uses_topic_ids, now_ms)
        finally:
            self._count.own = len(self._sessions)

    def _begin(
        self,
        session_id: int,
        epoch: int,
        partitions: list[SessionPartition],
        forgotten: list[PartitionKey],
        uses_topic_ids: bool,
        now_ms: int,
    ) -> FetchContext:
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(session_id, None)
            if epoch == FINAL_EPOCH:
                return FetchContext(partitions)
            return FetchContext(partitions, self._open(partitions, uses_topic_ids, now_ms))
        session = self._sessions.get(session_id)
        if session is None:
            return FetchContext(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return FetchContext(error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            return FetchContext(error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return self._resume(session, partitions, forgotten, now_ms)

    def _resume(
        self, session: FetchSession, changed: list[SessionPartition], forgotten: list[PartitionKey], now_ms: int
    ) -> FetchContext:
        size = len(session.partitions)
        session.update(changed, forgotten)
        if not session.partitions:
            del self._sessions[session.session_id]
            return FetchContext()
        is_too_large = len(session.partitions) > size and self._partition_count > self._most_partitions
        if is_too_large or _has_long_names(changed, session.uses_topic_ids):
            del self._sessions[session.session_id]
            return FetchContext(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.epoch = 1 if session.epoch == _MAX_EPOCH else session.epoch + 1
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session.session_id)
        return FetchContext(list(session.partitions.values()), session, incremental=True)

    def _open(self, partitions: list[SessionPartition], uses_topic_ids: bool, now_ms: int) -> FetchSession | None:
        """A new session, None if there is no room for it."""
        if _has_long_names(partitions, uses_topic_ids) or not self._make_room(len(partitions), now_ms):
            return None
        session_id = NO_SESSION_ID
        while session_id == NO_SESSION_ID or session_id in self._sessions:
            session_id = secrets.randbelow(2**31)
        by_key = {partition.key: partition for partition in partitions}
        session = FetchSession(session_id, uses_topic_ids, by_key, now_ms, now_ms)
        self._sessions[session_id] = session
        return session

    @property
    def _partition_count(self) -> int:
        return sum(len(session.partitions) for session in self._sessions.values())

    def _make_room(self, size: int, now_ms: int) -> bool:
        """Make room for a session of `size` partitions. No session ends if that is not enough."""
        sessions = len(self._sessions) + self._count.others + 1
        partitions = self._partition_count + size
        evictable = self._evictable(size, now_ms)
        evicted = []
        while sessions > self._slots or partitions > self._most_partitions:
            session = next(evictable, None)
            if session is None:
                return False
            evicted.append(session.session_id)
            sessions -= 1
            partitions -= len(session.partitions)
        for session_id in evicted:
            del self._sessions[session_id]
        return True

    def _evictable(self, size: int, now_ms: int) -> Iterator[FetchSession]:
        """Stale sessions, then the smallest of those that are smaller and have lasted long enough."""
        lasted = []
        for session in self._sessions.values():  # the one that was used last comes last
            if now_ms - session.last_used_ms > self._eviction_ms:
                yield session
            elif now_ms - session.created_ms > self._eviction_ms and len(session.partitions) < size:
                lasted.append(session)
        yield from sorted(lasted, key=lambda session: len(session.partitions))


def _has_long_names(partitions: Iterable[SessionPartition], uses_topic_ids: bool) -> bool:
    """Whether one has a name that is too long for a topic: it may have 32 KB, which no session is to keep."""
    return not uses_topic_ids and any(len(str(partition.topic)) > MAX_LENGTH for partition in partitions)
