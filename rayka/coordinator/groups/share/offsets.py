"""The commands that change, from outside, which share-partitions of a share group have state and where they start."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rayka.coordinator.clock import Now
from rayka.coordinator.codec import ZERO_UUID
from rayka.coordinator.groups.consumer.member import topic_partitions
from rayka.coordinator.groups.records import CoordinatorRecord
from rayka.coordinator.groups.requests import NamedPartitions
from rayka.coordinator.groups.share.group import ShareGroup, TopicState, merged, partitions_of, without
from rayka.coordinator.groups.share.requests import (
    AlteredTopic,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeletedTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    ShareGroupPartitionsRequest,
    ShareGroupPartitionsResponse,
    ShareGroupStateDeletedRequest,
    ShareGroupStateDeletedResponse,
    SharePartitionToInitialize,
    TopicStartOffsets,
)
from rayka.coordinator.groups.share.update import ShareGroupUpdate
from rayka.coordinator.groups.state import GroupState
from rayka.coordinator.groups.steps import Respond
from rayka.coordinator.result import Result
from rayka.errors import ErrorCode, RaykaError

NONE = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_LEAST_OFFSET = -1


@dataclass(frozen=True, slots=True)
class AcceptStateChange:
    """Share-partitions are about to get a new state, or to lose theirs."""

    group_id: str
    response_type: type[Any]
    begins_initialization: bool


class ShareOffsets:
    """Serves those who look at share groups from outside. A refused request raises its error."""

    def __init__(self, state: GroupState) -> None:
        self._state = state

    def partitions(self, request: ShareGroupPartitionsRequest) -> ShareGroupPartitionsResponse:
        """The share-partitions that have state."""
        group = self._group(request.group_id)
        return ShareGroupPartitionsResponse(
            topics=tuple(
                NamedPartitions(topic_id, state.topic_name, tuple(sorted(state.partitions)))
                for topic_id, state in group.initialized.items()
                if topic_id in self._state.topics.by_id
            )
        )

    def alter(self, request: AlterShareGroupOffsetsRequest, now: Now) -> Result[AlterShareGroupOffsetsResponse]:
        """New start offsets. The group epoch, as the state epoch, fences partition leaders that know the old ones."""
        group = self._empty_group(request.group_id)
        changes = ShareGroupUpdate(group.draft(), self._state.topics, now.wall_ms)
        altered = tuple(self._altered(topic) for topic in request.topics)
        to_initialize = tuple(
            SharePartitionToInitialize(answer.topic_id, number, offset)
            for topic, answer in zip(request.topics, altered, strict=True)
            for (number, offset), error in zip(topic.partitions, answer.errors, strict=True)
            if error is NONE
        )
        if to_initialize:
            changes.bump()
            changes.states(initializing=merged(group.initializing, self._without_state(group, to_initialize)))
        answer = AlterShareGroupOffsetsResponse(
            topics=altered, state_epoch=changes.group.epoch, to_initialize=to_initialize
        )
        step = AcceptStateChange(request.group_id, AlterShareGroupOffsetsResponse, begins_initialization=True)
        return Result(answer, tuple(changes.records), step=step)

    def accept(self, step: AcceptStateChange, now: Now) -> None:
        """The records of a change are in the log."""
        group = self._group(step.group_id)
        if step.begins_initialization:
            group.initializing_since_ms = now.ms
        else:
            group.deleting_since_ms = now.ms

    def _altered(self, topic: TopicStartOffsets) -> AlteredTopic:
        metadata = self._state.topics.by_name.get(topic.topic_name)
        if metadata is None:
            return AlteredTopic(ZERO_UUID, topic.topic_name, (UNKNOWN,) * len(topic.partitions))
        errors = (_alter_error(metadata.num_partitions, number, offset) for number, offset in topic.partitions)
        return AlteredTopic(metadata.topic_id, topic.topic_name, tuple(errors))

    def _without_state(
        self, group: ShareGroup, partitions: Iterable[SharePartitionToInitialize]
    ) -> dict[uuid.UUID, TopicState]:
        """Those that get state for the first time. The others keep what they have if this is never carried out."""
        return without(self._topic_states(partitions), partitions_of(group.initialized))

    def _topic_states(self, partitions: Iterable[SharePartitionToInitialize]) -> dict[uuid.UUID, TopicState]:
        states: dict[uuid.UUID, TopicState] = {}
        for topic_id, number, _ in partitions:
            name = self._state.topics.by_id[topic_id].name
            states = merged(states, {topic_id: TopicState(name, frozenset((number,)))})
        return states

    def delete(self, request: DeleteShareGroupOffsetsRequest, now: Now) -> Result[DeleteShareGroupOffsetsResponse]:
        """Share-partitions lose their state. Until that is reported the topics are on their way out."""
        group = self._empty_group(request.group_id)
        known = merged(group.initialized, group.initializing)
        # Several topics have had one name if one was deleted and made again while no coordinator was there to see it.
        names = {topic_id: state.topic_name for topic_id, state in known.items()} | dict(group.deleting)
        asked = tuple(dict.fromkeys(names.values())) if request.topics is None else request.topics
        asked_names = frozenset(asked)
        wanted = {topic_id for topic_id, name in names.items() if name in asked_names}
        changes = ShareGroupUpdate(group.draft(), self._state.topics, now.wall_ms)
        gone = {topic_id: names[topic_id] for topic_id in wanted}
        changes.states(
            initializing={t: state for t, state in group.initializing.items() if t not in wanted},
            initialized={t: state for t, state in group.initialized.items() if t not in wanted},
            deleting={**group.deleting, **gone},
        )
        again = {
            topic_id: TopicState(name, frozenset(range(self._state.topics.by_id[topic_id].num_partitions)))
            for topic_id, name in group.deleting.items()
            if topic_id in wanted and topic_id in self._state.topics.by_id
        }
        states = merged({t: state for t, state in known.items() if t in wanted}, again)
        answer = DeleteShareGroupOffsetsResponse(
            topics=tuple(self._deleted(name) for name in asked), to_delete=topic_partitions(partitions_of(states))
        )
        step = AcceptStateChange(request.group_id, DeleteShareGroupOffsetsResponse, begins_initialization=False)
        return Result(answer, tuple(changes.records), step=step)

    def _deleted(self, name: str) -> DeletedTopic:
        """A topic without state has nothing to delete, which is not an error."""
        topic = self._state.topics.by_name.get(name)
        if topic is None:
            return DeletedTopic(ZERO_UUID, name, UNKNOWN, f"There is no topic {name}.")
        return DeletedTopic(topic.topic_id, name)

    def state_deleted(self, request: ShareGroupStateDeletedRequest, now: Now) -> Result[ShareGroupStateDeletedResponse]:
        """The state of topics that are on their way out is gone."""
        group = self._group(request.group_id)
        changes = ShareGroupUpdate(group.draft(), self._state.topics, now.wall_ms)
        changes.states(deleting={t: name for t, name in group.deleting.items() if t not in request.topic_ids})
        step = Respond(ShareGroupStateDeletedResponse)
        return Result(ShareGroupStateDeletedResponse(), tuple(changes.records), step=step)

    def topics_gone(self, topic_ids: Collection[uuid.UUID]) -> Iterator[CoordinatorRecord]:
        """The records by which share groups forget topics that were deleted; their state goes by itself."""
        for group in self._state.groups.values():
            if isinstance(group, ShareGroup):
                changes = ShareGroupUpdate(group.draft(), self._state.topics, 0)
                changes.forget_topics(topic_ids)
                yield from changes.records

    def _group(self, group_id: str) -> ShareGroup:
        """The group. Raises GROUP_ID_NOT_FOUND."""
        group = self._state.groups.get(group_id)
        if not isinstance(group, ShareGroup):
            reason = "Share group {} not found." if group is None else "Group {} is not a share group."
            raise RaykaError(ErrorCode.GROUP_ID_NOT_FOUND, reason.format(group_id))
        return group

    def _empty_group(self, group_id: str) -> ShareGroup:
        """The group, if nobody is in it. Raises NON_EMPTY_GROUP, or GROUP_ID_NOT_FOUND."""
        group = self._group(group_id)
        if not group.is_empty:
            raise RaykaError(ErrorCode.NON_EMPTY_GROUP, f"The share group {group_id} is not empty.")
        return group


def _alter_error(num_partitions: int, number: int, offset: int) -> ErrorCode:
    if not 0 <= number < num_partitions:
        return UNKNOWN
    return NONE if offset >= _LEAST_OFFSET else ErrorCode.INVALID_REQUEST
