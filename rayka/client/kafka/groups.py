"""Consumer groups of any broker: describes and deletes them, and changes their committed offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rayka.client.admin.group_offsets import (
    INACTIVE,
    Bounds,
    GroupDescription,
    MemberDescription,
    OffsetReset,
    offsets_of,
)
from rayka.client.kafka.admin import KafkaAdmin, by_topic, nested
from rayka.client.kafka.cluster import KafkaCluster, raise_for
from rayka.client.kafka.connection import entity
from rayka.client.kafka.values import GroupListing
from rayka.errors import ErrorCode, RaykaError
from rayka.types import OffsetSpec, TopicPartition

_IN_USE = "the group has members; stop them first"
_OWNED_BY_MEMBERS = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH)

Committed = dict[TopicPartition, tuple[int, int]]
"""The offset and the leader epoch (-1: none) that are committed for each partition."""


class KafkaGroupAdmin:
    """The requests about groups. Every method raises RaykaError with Kafka's code."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._admin = KafkaAdmin(cluster)

    def list_groups(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
        """The groups of all brokers, of these states and types if any are given, in order of their names.

        Share groups are listed only if that type is given: they have no committed offsets.
        """
        from kio.schema.list_groups.v5.request import ListGroupsRequest

        wanted = tuple(types)
        request = entity(ListGroupsRequest, tuple(states), wanted)
        found = (
            GroupListing(one.group_id, one.protocol_type, one.group_state, one.group_type.capitalize())
            for broker in self._cluster.metadata().brokers.values()
            for one in self._cluster.patiently(lambda broker=broker: self._listed(broker, request))  # type: ignore[misc]
        )
        return sorted(group for group in found if wanted or group.group_type != "Share")

    def _listed(self, broker: Any, request: Any) -> Any:
        response = self._cluster.broker(broker).request(request)
        raise_for(response.error_code, "groups cannot be listed")
        return response.groups

    def describe_group(self, group_id: str) -> GroupDescription:
        """A group with its members, offsets and lag. Raises GROUP_ID_NOT_FOUND."""
        group = self._group(group_id)
        committed = self._committed(group_id)
        known = {*committed, *(topic_partition for member in group.members for topic_partition in member.assignment)}
        ends = self._admin.list_offsets(self._existing(known), OffsetSpec.LATEST)
        epochs = {topic_partition: epoch for topic_partition, (_, epoch) in committed.items() if epoch >= 0}
        offsets = {topic_partition: offset for topic_partition, (offset, _) in committed.items()}
        return replace(group, offsets=offsets_of(group.members, offsets, ends, epochs))

    def reset_offsets(
        self, group_id: str, reset: OffsetReset, topics: Mapping[str, Iterable[int] | None] | None, *, dry_run: bool
    ) -> dict[TopicPartition, int]:
        """Move the group's offsets and return the new ones. A group that does not exist is created.

        `topics`: topic -> partitions (None: all); without `topics` everything that the group has committed. Raises
        NON_EMPTY_GROUP while the group has members, and GROUP_ID_NOT_FOUND if there is nothing to reset.
        """
        self._require_inactive(group_id)
        committed = {topic_partition: offset for topic_partition, (offset, _) in self._committed(group_id).items()}
        wanted = self._existing(committed) if topics is None else self._cluster.named_partitions(topics)
        if not wanted:
            raise RaykaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id} has no offsets to reset")
        targets = self._targets(reset, wanted, committed)
        if not dry_run:
            self._commit(group_id, targets)
        return targets

    def set_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int], *, dry_run: bool
    ) -> dict[TopicPartition, int]:
        """Move each partition to its own offset, or the nearest one in the log, and return the new ones."""
        self._require_inactive(group_id)
        bounds = self._bounds(self._cluster.named_partitions(by_topic(offsets)))
        targets = {
            topic_partition: limits.clamp(offsets[topic_partition]) for topic_partition, limits in bounds.items()
        }
        if not dry_run:
            self._commit(group_id, targets)
        return targets

    def delete_offsets(
        self, group_id: str, topics: Mapping[str, Iterable[int] | None]
    ) -> dict[TopicPartition, ErrorCode]:
        """Delete committed offsets; returns the outcome of each partition."""
        from kio.schema.offset_delete.v0.request import (
            OffsetDeleteRequest,
            OffsetDeleteRequestPartition,
            OffsetDeleteRequestTopic,
        )

        fields: dict[TopicPartition, tuple[()]] = dict.fromkeys(self._cluster.named_partitions(topics), ())
        parts = nested(OffsetDeleteRequestTopic, OffsetDeleteRequestPartition, fields)
        request = entity(OffsetDeleteRequest, group_id, parts)

        def delete() -> dict[TopicPartition, ErrorCode]:
            response = self._cluster.ask_coordinator(group_id, request)
            raise_for(response.error_code, f"offsets of group {group_id} can't be deleted")
            return {
                TopicPartition(topic.name, one.partition_index): ErrorCode(one.error_code)
                for topic in response.topics
                for one in topic.partitions
            }

        return self._cluster.patiently(delete)

    def delete_groups(self, group_ids: Sequence[str], in_use: str = _IN_USE) -> None:
        """Delete groups with their offsets. Raises the first error after all have been tried.

        `in_use` says why a group is refused with NON_EMPTY_GROUP.
        """
        from kio.schema.delete_groups.v2.request import DeleteGroupsRequest

        failed: dict[str, ErrorCode] = {}
        for group_id in dict.fromkeys(group_ids):
            request = entity(DeleteGroupsRequest, (group_id,))

            def delete(group_id: str = group_id, request: Any = request) -> None:
                raise_for(self._cluster.ask_coordinator(group_id, request).results[0].error_code, "")

            try:
                self._cluster.patiently(delete)
            except RaykaError as error:
                failed[group_id] = error.code
        if failed:
            reason = {ErrorCode.GROUP_ID_NOT_FOUND: "the group does not exist", ErrorCode.NON_EMPTY_GROUP: in_use}
            reasons = "; ".join(f"{group_id}: {reason.get(code, code.name)}" for group_id, code in failed.items())
            raise RaykaError(next(iter(failed.values())), f"can't delete {reasons}")

    def _group(self, group_id: str) -> GroupDescription:
        """The group without its offsets."""
        return self._cluster.patiently(lambda: self._consumer_group(group_id) or self._classic_group(group_id))

    def _consumer_group(self, group_id: str) -> GroupDescription | None:
        from kio.schema.consumer_group_describe.v0 import request as v0
        from kio.schema.consumer_group_describe.v1 import request as v1

        coordinator = self._cluster.coordinator(group_id)
        connection = self._cluster.broker(coordinator)
        newest: Any = v1.ConsumerGroupDescribeRequest
        request: Any = newest if connection.serves(newest) else v0.ConsumerGroupDescribeRequest
        if not connection.serves(request):
            return None
        (found,) = connection.request(entity(request, (group_id,), False)).groups
        if found.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            return None
        raise_for(found.error_code, found.error_message or f"group {group_id} can't be described")
        members = tuple(map(_consumer, found.members))
        return GroupDescription(
            group_id, "Consumer", found.group_state, found.assignor_name, coordinator, members,
            group_epoch=found.group_epoch, assignment_epoch=found.assignment_epoch,
        )  # fmt: skip

    def _classic_group(self, group_id: str) -> GroupDescription:
        from kio.schema.describe_groups.v5.request import DescribeGroupsRequest

        coordinator = self._cluster.coordinator(group_id)
        request = entity(DescribeGroupsRequest, (group_id,), False)
        (found,) = self._cluster.broker(coordinator).request(request).groups
        raise_for(found.error_code, f"group {group_id} can't be described")
        if found.group_state == "Dead":
            self.require_not_shared(group_id)
            raise RaykaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id} does not exist")
        members = tuple(_classic_member(member, found.protocol_type) for member in found.members)
        return GroupDescription(group_id, "Classic", found.group_state, found.protocol_data, coordinator, members)

    def require_not_shared(self, group_id: str) -> None:
        """Raises GROUP_ID_NOT_FOUND for a share group, which other commands show and change."""
        if any(group.group_id == group_id for group in self.list_groups(types=("share",))):
            message = f"{group_id} is a share group: use `rayka share-groups`"
            raise RaykaError(ErrorCode.GROUP_ID_NOT_FOUND, message)

    def _require_inactive(self, group_id: str) -> None:
        """A group that does not exist has no members either."""
        try:
            state = self._group(group_id).state
        except RaykaError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            self.require_not_shared(group_id)
            return
        if state not in INACTIVE:
            message = f"offsets of group {group_id} can be reset only while it has no members; it is {state}"
            raise RaykaError(ErrorCode.NON_EMPTY_GROUP, message)

    def _committed(self, group_id: str) -> Committed:
        from kio.schema.offset_fetch.v8.request import OffsetFetchRequest, OffsetFetchRequestGroup

        request = entity(OffsetFetchRequest, (entity(OffsetFetchRequestGroup, group_id, None),), False)

        def fetch() -> Committed:
            (group,) = self._cluster.ask_coordinator(group_id, request).groups
            raise_for(group.error_code, f"offsets of group {group_id} can't be read")
            return {
                TopicPartition(topic.name, one.partition_index): (one.committed_offset, one.committed_leader_epoch)
                for topic in group.topics
                for one in topic.partitions
                if one.committed_offset >= 0
            }

        return self._cluster.patiently(fetch)

    def _targets(
        self, reset: OffsetReset, wanted: Sequence[TopicPartition], committed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        found = {} if reset.timestamp is None else self._admin.list_offsets(wanted, reset.timestamp)
        targets = {}
        for topic_partition, limits in self._bounds(wanted).items():
            target = reset.target(limits, committed.get(topic_partition), found.get(topic_partition))
            if target is None:
                message = f"{topic_partition} can't be shifted: nothing is committed for it in the group"
                raise RaykaError(ErrorCode.INVALID_REQUEST, message)
            targets[topic_partition] = target
        return targets

    def _bounds(self, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        first = self._admin.list_offsets(wanted, OffsetSpec.EARLIEST)
        last = self._admin.list_offsets(wanted, OffsetSpec.LATEST)
        return {topic_partition: Bounds(first[topic_partition], last[topic_partition]) for topic_partition in wanted}

    def _commit(self, group_id: str, targets: Mapping[TopicPartition, int]) -> None:
        from kio.schema.offset_commit.v8.request import (
            OffsetCommitRequest,
            OffsetCommitRequestPartition,
            OffsetCommitRequestTopic,
        )

        fields = {topic_partition: (offset, -1, "") for topic_partition, offset in targets.items()}
        topics = nested(OffsetCommitRequestTopic, OffsetCommitRequestPartition, fields)
        request = entity(OffsetCommitRequest, group_id, -1, "", None, topics)

        def commit() -> None:
            for topic in self._cluster.ask_coordinator(group_id, request).topics:
                for one in topic.partitions:
                    if one.error_code in _OWNED_BY_MEMBERS:
                        raise RaykaError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members now")
                    topic_partition = TopicPartition(topic.name, one.partition_index)
                    raise_for(one.error_code, f"the offset of {topic_partition} in group {group_id} can't be reset")

        self._cluster.patiently(commit)

    def _existing(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        topics = {topic.name: len(topic.partitions) for topic in self._admin.topics()}
        return sorted(
            topic_partition
            for topic_partition in partitions
            if topic_partition.partition < topics.get(topic_partition.topic, 0)
        )


def _consumer(member: Any) -> MemberDescription:
    return MemberDescription(
        member.member_id, member.instance_id, member.client_id, member.client_host, _flat(member.assignment),
        epoch=member.member_epoch, target=_flat(member.target_assignment),
        is_upgraded=bool(getattr(member, "member_type", True)),
    )  # fmt: skip


def _flat(assignment: Any) -> tuple[TopicPartition, ...]:
    parts = assignment.topic_partitions
    return tuple(sorted(TopicPartition(part.topic_name, number) for part in parts for number in part.partitions))


def _classic_member(member: Any, protocol_type: str) -> MemberDescription:
    """Assignments of other protocol types, and ones that cannot be read, are not known."""
    from rayka.coordinator.groups.consumer.protocol import PROTOCOL_TYPE, read_assignment

    try:
        readable = protocol_type == PROTOCOL_TYPE and bool(member.member_assignment)
        parts = read_assignment(member.member_assignment).assigned_partitions if readable else ()
    except ValueError:
        parts = ()
    assigned = (TopicPartition(part.topic, number) for part in parts for number in part.partitions)
    return MemberDescription(
        member.member_id, member.group_instance_id, member.client_id, member.client_host, tuple(sorted(assigned))
    )
