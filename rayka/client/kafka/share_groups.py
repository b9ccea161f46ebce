"""Share groups of any broker: describes and deletes them, and changes their start offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rayka.client.admin.group_offsets import INACTIVE, Bounds, OffsetReset
from rayka.client.kafka.admin import KafkaAdmin, nested
from rayka.client.kafka.cluster import KafkaCluster, raise_for
from rayka.client.kafka.connection import entity
from rayka.client.kafka.groups import KafkaGroupAdmin
from rayka.client.kafka.values import BrokerNode, GroupListing
from rayka.errors import ErrorCode, RaykaError
from rayka.types import OffsetSpec, TopicPartition

SHARE = "Share"
_IN_USE = (
    "the group has members, or a rayka.Queue reads it; stop them first "
    "(`rayka share-groups describe` shows them with --members, and who has records with --in-flight)"
)


class ShareMemberDescription(NamedTuple):
    """A member of a share group."""

    member_id: str
    client_id: str
    host: str
    epoch: int
    assignment: tuple[TopicPartition, ...]


class ShareOffset(NamedTuple):
    """Where a share-partition is; None is what is not known."""

    topic_partition: TopicPartition
    start_offset: int | None
    leader_epoch: int | None
    lag: int | None


class ShareBatch(NamedTuple):
    """Records of a share-partition that are in one state, up to `last_offset` inclusive."""

    topic_partition: TopicPartition
    first_offset: int
    last_offset: int
    delivery_state: str
    delivery_count: int


@dataclass(frozen=True, slots=True)
class ShareGroupDescription:
    """A share group."""

    group_id: str
    state: str
    coordinator: BrokerNode
    assignor: str
    group_epoch: int
    assignment_epoch: int
    members: tuple[ShareMemberDescription, ...] = ()


class KafkaShareGroupAdmin:
    """The requests about share groups. Every method raises RaykaError with Kafka's code."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._admin = KafkaAdmin(cluster)
        self._groups = KafkaGroupAdmin(cluster)

    def list_groups(self, states: Iterable[str] = ()) -> list[GroupListing]:
        """The share groups of all brokers, of these states if any are given, in order of their names."""
        return self._groups.list_groups(states, (SHARE,))

    def describe_group(self, group_id: str) -> ShareGroupDescription:
        """A share group with its members. Raises GROUP_ID_NOT_FOUND."""
        from kio.schema.share_group_describe.v1.request import ShareGroupDescribeRequest

        request = entity(ShareGroupDescribeRequest, (group_id,), False)

        def describe() -> ShareGroupDescription:
            coordinator = self._cluster.coordinator(group_id)
            (found,) = self._cluster.broker(coordinator).request(request).groups
            raise_for(found.error_code, found.error_message or f"share group {group_id} can't be described")
            return ShareGroupDescription(
                group_id,
                found.group_state,
                coordinator,
                found.assignor_name,
                found.group_epoch,
                found.assignment_epoch,
                tuple(map(_member, found.members)),
            )

        return self._cluster.patiently(describe)

    def offsets(self, group_id: str) -> list[ShareOffset]:
        """Where all share-partitions of a group are, in order."""
        from kio.schema.describe_share_group_offsets.v1.request import (
            DescribeShareGroupOffsetsRequest,
            DescribeShareGroupOffsetsRequestGroup,
        )

        group = entity(DescribeShareGroupOffsetsRequestGroup, group_id, None)
        request = entity(DescribeShareGroupOffsetsRequest, (group,))

        def describe() -> list[ShareOffset]:
            (found,) = self._cluster.ask_coordinator(group_id, request).groups
            raise_for(found.error_code, found.error_message or f"offsets of share group {group_id} can't be read")
            return sorted(_offset(topic.topic_name, one) for topic in found.topics for one in topic.partitions)

        return self._cluster.patiently(describe)

    def batches(self, group_id: str, offset: ShareOffset) -> list[ShareBatch]:
        """The state of one share-partition's records, as its share coordinator has it."""
        from kio.schema.read_share_group_state.v0.request import (
            PartitionData,
            ReadShareGroupStateRequest,
            ReadStateData,
        )

        from rayka.coordinator.shares.keys import coordinator_key

        topic_partition = offset.topic_partition
        topic_id = self._cluster.metadata([topic_partition.topic]).topics[topic_partition.topic].topic_id
        assert topic_id is not None
        data = entity(
            ReadStateData, topic_id, (entity(PartitionData, topic_partition.partition, offset.leader_epoch or 0),)
        )
        request = entity(ReadShareGroupStateRequest, group_id, (data,))
        key = coordinator_key(group_id, topic_id, topic_partition.partition)

        def read() -> list[ShareBatch]:
            coordinator = self._cluster.share_coordinator(key)
            (topic,) = self._cluster.broker(coordinator).request(request).results
            (state,) = topic.partitions
            raise_for(state.error_code, state.error_message or f"the state of {topic_partition} can't be read")
            return [
                ShareBatch(
                    topic_partition,
                    one.first_offset,
                    one.last_offset,
                    _state_name(one.delivery_state),
                    one.delivery_count,
                )
                for one in state.state_batches
            ]

        return self._cluster.patiently(read)

    def reset_offsets(
        self, group_id: str, reset: OffsetReset, topics: Mapping[str, Iterable[int] | None] | None, *, dry_run: bool
    ) -> dict[TopicPartition, int]:
        """Move the start offsets of a group without members, and return the new ones.

        `topics`: topic -> partitions (None: all); without `topics` everything that the group has read. Raises
        NON_EMPTY_GROUP while the group has members, and GROUP_ID_NOT_FOUND if there is nothing to reset.
        """
        if self.describe_group(group_id).state not in INACTIVE:
            message = f"offsets of share group {group_id} can be reset only while it has no members"
            raise RaykaError(ErrorCode.NON_EMPTY_GROUP, message)
        current = {one.topic_partition: one.start_offset for one in self.offsets(group_id)}
        wanted = sorted(current) if topics is None else self._cluster.named_partitions(topics)
        if not wanted:
            raise RaykaError(ErrorCode.GROUP_ID_NOT_FOUND, f"share group {group_id} has no offsets to reset")
        targets = self._targets(reset, wanted, current)
        if not dry_run:
            self._alter(group_id, targets)
        return targets

    def delete_groups(self, group_ids: Sequence[str]) -> None:
        """Delete share groups with their state. Raises the first error after all have been tried."""
        for group_id in dict.fromkeys(group_ids):
            self.describe_group(group_id)
        self._groups.delete_groups(group_ids, _IN_USE)

    def _targets(
        self, reset: OffsetReset, wanted: Sequence[TopicPartition], current: Mapping[TopicPartition, int | None]
    ) -> dict[TopicPartition, int]:
        first = self._admin.list_offsets(wanted, OffsetSpec.EARLIEST)
        last = self._admin.list_offsets(wanted, OffsetSpec.LATEST)
        found = {} if reset.timestamp is None else self._admin.list_offsets(wanted, reset.timestamp)
        targets = {}
        for topic_partition in wanted:
            target = reset.target(
                Bounds(first[topic_partition], last[topic_partition]),
                current.get(topic_partition),
                found.get(topic_partition),
            )
            if target is None:
                message = f"{topic_partition} can't be shifted: the share group has no start offset for it"
                raise RaykaError(ErrorCode.INVALID_REQUEST, message)
            targets[topic_partition] = target
        return targets

    def _alter(self, group_id: str, targets: Mapping[TopicPartition, int]) -> None:
        from kio.schema.alter_share_group_offsets.v0.request import (
            AlterShareGroupOffsetsRequest,
            AlterShareGroupOffsetsRequestPartition,
            AlterShareGroupOffsetsRequestTopic,
        )

        fields = {topic_partition: (offset,) for topic_partition, offset in targets.items()}
        topics = nested(AlterShareGroupOffsetsRequestTopic, AlterShareGroupOffsetsRequestPartition, fields)
        request = entity(AlterShareGroupOffsetsRequest, group_id, topics)

        def alter() -> None:
            response = self._cluster.ask_coordinator(group_id, request)
            raise_for(response.error_code, response.error_message or f"offsets of {group_id} can't be altered")
            for topic in response.responses:
                for one in topic.partitions:
                    topic_partition = TopicPartition(topic.topic_name, one.partition_index)
                    raise_for(
                        one.error_code, one.error_message or f"the start offset of {topic_partition} can't be altered"
                    )

        self._cluster.patiently(alter)


def _member(member: Any) -> ShareMemberDescription:
    assigned = (
        TopicPartition(topic.topic_name, number)
        for topic in member.assignment.topic_partitions
        for number in topic.partitions
    )
    return ShareMemberDescription(
        member.member_id, member.client_id, member.client_host, member.member_epoch, tuple(sorted(assigned))
    )


def _offset(topic: str, one: Any) -> ShareOffset:
    topic_partition = TopicPartition(topic, one.partition_index)
    raise_for(one.error_code, one.error_message or f"the start offset of {topic_partition} can't be read")
    is_known = one.start_offset >= 0
    return ShareOffset(
        topic_partition,
        one.start_offset if is_known else None,
        one.leader_epoch,
        one.lag if is_known and one.lag >= 0 else None,
    )


_STATES = {0: "Available", 1: "Acquired", 2: "Acknowledged", 3: "Archiving", 4: "Archived"}


def _state_name(number: int) -> str:
    return _STATES.get(number, str(number))
