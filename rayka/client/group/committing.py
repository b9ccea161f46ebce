"""A consumer whose group stores offsets: commits them, and reads committed ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, overload

from rayka.client.consumer.consumer import AsyncConsumer
from rayka.client.forms import at_home
from rayka.client.group.commits import Commits, PreparedCommit
from rayka.client.group.coordinator import GroupCalls, GroupMetadata, OffsetAndMetadata, ReadOffsets
from rayka.client.group.member import GroupMember
from rayka.errors import ErrorCode, RaykaError
from rayka.types import TopicPartition


class CommittingConsumer(AsyncConsumer):
    """The part of `AsyncGroupConsumer` that commits."""

    _calls: GroupCalls
    _commits: Commits
    _member: GroupMember

    @at_home
    async def commit(
        self,
        offsets: Mapping[tuple[str, int], int | OffsetAndMetadata] | None = None,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit offsets, by default the positions after all returned records, and return what was committed.

        Raises UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH or FENCED_INSTANCE_ID if the group has removed this member: then
        others have continued from the offsets committed before. Raises OFFSET_METADATA_TOO_LARGE.
        """
        if offsets is not None:
            return await self.commit_prepared(self.prepare_commit(offsets), timeout_ms)
        self._require_open()
        with self._hurrying():
            return dict(await self._commits.commit_positions(timeout_ms))

    def prepare_commit(self, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata] | None) -> PreparedCommit:
        """What `commit` of this would commit now. From the thread that polls."""
        self._require_open()
        return self._commits.prepare(None if offsets is None else self._checked(offsets))

    def read_offsets(self) -> ReadOffsets:
        """The positions after all returned records, as `producer.send_offsets` takes them."""
        self._require_open()
        prepared = self._commits.prepare()
        return ReadOffsets(prepared.offsets, GroupMetadata(self._calls.group_id, *prepared.member))

    @at_home
    async def commit_prepared(
        self, prepared: PreparedCommit, timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit what was prepared, under the epoch that it was prepared in; errors as `commit`."""
        with self._hurrying():
            await self._commits.commit(prepared, timeout_ms)
        return dict(prepared.offsets)

    @at_home
    async def commits_ended(self, timeout_ms: float) -> None:
        """Wait for the commits that are under way: a member that has left may not commit.

        `close` gives them half of its time, so that the member leaves also if its commits come to nothing.
        """
        if not self._is_closed:
            await self._calls.commits_ended(timeout_ms)

    @overload
    async def committed(self, partitions: tuple[str, int]) -> OffsetAndMetadata | None: ...

    @overload
    async def committed(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    async def committed(self, partitions: Any) -> Any:
        """The committed offset of a partition, or of each of several; None where there is none."""
        if isinstance(partitions, tuple) and len(partitions) == 2 and isinstance(partitions[0], str):
            return (await self._committed([partitions])).popitem()[1]
        return await self._committed(partitions)

    @at_home
    async def _committed(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return await self._commits.committed([self._require_existing(partition) for partition in partitions])

    @contextlib.contextmanager
    def _hurrying(self) -> Iterator[None]:
        """If a commit is refused, the group may have gone on: ask the coordinator soon."""
        try:
            yield
        except RaykaError:
            self._member.hurry()
            raise

    def _positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Behind what the program has received; not those in a topic that was deleted, and maybe replaced by another of
        its name.

        Without the topic's id such an offset would count for the next topic of that name.
        """
        topics = self._broker.image.topics
        positions = {
            state.topic_partition: self.collector.received(state)
            for state in list(self._fetcher.partitions.values())
            if (topic := topics.get(state.topic_partition.topic)) is not None and topic.topic_id == state.topic_id
        }
        return {partition: OffsetAndMetadata(offset) for partition, offset in positions.items() if offset is not None}

    def _checked(
        self, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        checked: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition, given in offsets.items():
            one = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
            if not isinstance(one.offset, int) or one.offset < 0 or not isinstance(one.metadata, str):
                raise RaykaError(
                    ErrorCode.INVALID_REQUEST, f"{given!r} is not a valid offset to commit for {partition}"
                )
            checked[self._require_existing(partition)] = one
        return checked

    def _require_existing(self, partition: tuple[str, int]) -> TopicPartition:
        found = self._require_valid(partition)
        if found.topic not in self._broker.image.topics:
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {found.topic} does not exist")
        return found
