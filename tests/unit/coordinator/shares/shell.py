"""A shell around the share coordinator for tests: a log in memory and a clock that is set."""

from __future__ import annotations

import uuid
from typing import Any

from rayka.coordinator.clock import Now
from rayka.coordinator.request import Request
from rayka.coordinator.result import Pending, Result
from rayka.coordinator.shares.coordinator import ShareCoordinator
from rayka.coordinator.shares.records import ShareStateRecord, decode, encode
from rayka.coordinator.shares.requests import (
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    StateBatch,
    WriteShareGroupStateRequest,
)
from rayka.coordinator.shares.settings import ShareCoordinatorSettings
from rayka.coordinator.shares.spec import SHARES
from rayka.coordinator.topics import TopicMetadata, Topics
from rayka.errors import ErrorCode

TOPIC_ID = uuid.UUID(int=7)


class ShareShell:
    """Appends, replays and deletes from the log as the actor does. Share-partitions are those of group g, topic t."""

    def __init__(self, settings: ShareCoordinatorSettings | None = None) -> None:
        self.settings = settings or ShareCoordinatorSettings(updates_per_snapshot=3)
        self.now = Now(1_000_000, 1_700_000_000_000)
        self.log: list[tuple[int, bytes, bytes | None]] = []
        self._next_offset = 0
        self.topics = Topics([TopicMetadata(TOPIC_ID, "t", 4)], 1)
        self.core = self.loaded()

    def loaded(self) -> ShareCoordinator:
        """A coordinator that has loaded the log."""
        core = ShareCoordinator(self.settings)
        for offset, key, value in self.log:
            record = decode(key, value)
            assert record is not None
            core.replay(record, offset)
        core.on_new_metadata_image(self.topics)
        core.on_loaded(self.now)
        return core

    def set_topics(self, *topics: TopicMetadata) -> None:
        """The cluster's topics change."""
        self.topics = Topics(topics, self.topics.version + 1)
        self._append(self.core.on_new_metadata_image(self.topics))

    def ask(self, request: Request[Any], error: ErrorCode | None = None) -> Any:
        """The response to a request; with an error, the append of its records fails so."""
        query = SHARES.queries.get(type(request))
        if query is not None:
            return query(self.core, request)
        result: Result[Any] = SHARES.commands[type(request)](self.core, request, self.now)
        assert not isinstance(result.response, Pending)
        if error is not None and result.records:
            instead = self.core.rollback(result.step, error, self.now)
            assert instead is not None
            return instead.response
        self._append(result)
        return result.response

    def wait(self, wait_ms: int) -> None:
        """Let time pass, in steps as short as the deadlines, and delete from the log what no longer counts."""
        end = self.now.ms + wait_ms
        while (deadline := self.core.next_deadline()) is not None and deadline <= end:
            self._advance(deadline)
            while (result := self.core.expire(self.now)) is not None:
                self._append(result)
            self.prune()
        self._advance(end)

    def _advance(self, to_ms: int) -> None:
        passed = max(0, to_ms - self.now.ms)
        self.now = Now(self.now.ms + passed, self.now.wall_ms + passed)

    def prune(self) -> None:
        """Delete what comes before the first offset that is needed."""
        first = self.core.first_needed_offset()
        self.log = [entry for entry in self.log if first is None or entry[0] >= first]

    def _append(self, result: Result[Any]) -> None:
        for record in result.records:
            key, value = encode(record)
            self.log.append((self._next_offset, key, value))
            self.core.replay(record, self._next_offset)
            self._next_offset += 1
        self.core.validate_state()

    def records(self) -> list[ShareStateRecord]:
        """The log."""
        return [record for _, key, value in self.log if (record := decode(key, value)) is not None]

    def initialize(self, partition: int = 0, state_epoch: int = 1, start_offset: int = 0) -> ErrorCode:
        """Begin a share-partition."""
        request = InitializeShareGroupStateRequest("g", TOPIC_ID, partition, state_epoch, start_offset)
        error: ErrorCode = self.ask(request).error
        return error

    def write(
        self,
        *batches: StateBatch,
        partition: int = 0,
        state_epoch: int = 1,
        leader_epoch: int = 0,
        start_offset: int = -1,
        count: int = -1,
    ) -> ErrorCode:
        """Write batches."""
        request = WriteShareGroupStateRequest(
            "g", TOPIC_ID, partition, state_epoch, leader_epoch, start_offset, count, batches
        )
        error: ErrorCode = self.ask(request).error
        return error

    def read(self, partition: int = 0, leader_epoch: int = 0) -> ReadShareGroupStateResponse:
        """Read a share-partition as its leader."""
        response: ReadShareGroupStateResponse = self.ask(
            ReadShareGroupStateRequest("g", TOPIC_ID, partition, leader_epoch)
        )
        return response

    def summary(self, partition: int = 0) -> ReadShareGroupStateSummaryResponse:
        """Read a share-partition from outside."""
        response: ReadShareGroupStateSummaryResponse = self.ask(
            ReadShareGroupStateSummaryRequest("g", TOPIC_ID, partition)
        )
        return response
