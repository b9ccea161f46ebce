"""Conversion of a group between the classic and the consumer protocol while it has members (KIP-848).

Upgrade: the first member that speaks the consumer protocol turns a classic group into a consumer group, in which the
others are classic members with their assignments. Downgrade: when the last such member leaves, the group is a classic
group again and rebalances at once. A conversion is one batch of records: the old group's tombstones and the new group.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from rayka.coordinator.groups.classic.group import STABLE, ClassicGroup, ClassicMember, voted_protocol
from rayka.coordinator.groups.classic.requests import Protocol
from rayka.coordinator.groups.consumer import protocol as consumer_protocol
from rayka.coordinator.groups.consumer.group import ConsumerGroup
from rayka.coordinator.groups.consumer.member import ConsumerMember, Partitions
from rayka.coordinator.groups.records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    CoordinatorRecord,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from rayka.coordinator.groups.settings import GroupSettings
from rayka.coordinator.topics import Topics
from rayka.errors import ErrorCode, RaykaError


def check_upgrade(group: ClassicGroup, settings: GroupSettings) -> None:
    """Raises GROUP_ID_NOT_FOUND if the group cannot become a consumer group."""
    name = f"Cannot upgrade classic group {group.group_id} to consumer group because"
    if not settings.migration_policy.upgrades:
        raise RaykaError(ErrorCode.GROUP_ID_NOT_FOUND, f"{name} online upgrade is disabled.")
    if not group.uses_consumer_protocol:
        raise RaykaError(ErrorCode.GROUP_ID_NOT_FOUND, f"{name} it does not use the consumer embedded protocol.")
    if len(group.members) > settings.consumer_max_size:
        raise RaykaError(ErrorCode.GROUP_ID_NOT_FOUND, f"{name} it exceeds the consumer group maximum size.")


def upgrade(group: ClassicGroup, topics: Topics) -> tuple[ConsumerGroup, list[CoordinatorRecord]]:
    """The classic group as a consumer group. Raises GROUP_ID_NOT_FOUND if its members' metadata is malformed, or if
    their assignments have user data, which only their own assignor can give them.

    What was assigned is the target of the group epoch, unless a rebalance or new partitions call for another one.
    """
    draft = ConsumerGroup(group.group_id)
    try:
        members = list(_consumer_members(group, topics))
    except ValueError as error:
        reason = f"Cannot upgrade classic group {group.group_id}: the embedded consumer protocol is malformed: {error}."
        raise RaykaError(ErrorCode.GROUP_ID_NOT_FOUND, reason) from None
    records = [CoordinatorRecord(GroupMetadataKey(group.group_id))]
    records += [member.metadata_record(group.group_id) for member in members]
    names = {name for member in members for name in member.subscribed_topic_names}
    is_complete = group.state is STABLE and _covers(members, topics)
    epoch = group.generation_id if is_complete else group.generation_id + 1
    records.append(draft.epoch_record(epoch, topics.group_hash(names)))
    for member in members:
        target = {topic_id: frozenset(partitions) for topic_id, partitions in member.assigned.items()}
        records.append(draft.target_record(member.member_id, target))
    records.append(draft.target_epoch_record(group.generation_id, 0))
    records += [member.current_record(group.group_id) for member in members]
    for record in records:
        draft.apply(record)
    return draft, records


def _consumer_members(group: ClassicGroup, topics: Topics) -> Iterator[ConsumerMember]:
    """A leader may assign a partition to two members; it stays with the first."""
    taken: set[tuple[str, int]] = set()
    for member in group.members.values():
        # Before the first generation no protocol is chosen yet; the subscription is the same in all of them.
        metadata = member.metadata(group.protocol_name) or member.supported_protocols[0].metadata
        subscription = consumer_protocol.read_subscription(metadata)
        yield ConsumerMember(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            rack_id=subscription.rack_id or None,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=frozenset(subscription.topics),
            subscribed_topic_regex="",
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic=classic_metadata(member.session_timeout_ms, member.supported_protocols),
            member_epoch=group.generation_id,
            previous_member_epoch=group.generation_id,
            assigned=_assigned(group, member, topics, taken),
        )


def _covers(members: Iterable[ConsumerMember], topics: Topics) -> bool:
    """Whether all partitions of the subscribed topics are assigned."""
    assigned: Counter[uuid.UUID] = Counter()
    wanted: dict[uuid.UUID, int] = {}
    for member in members:
        assigned.update({topic_id: len(partitions) for topic_id, partitions in member.assigned.items()})
        wanted.update(topics.partition_counts(topics.ids_of(member.subscribed_topic_names)))
    return dict(assigned) == wanted


def _assigned(group: ClassicGroup, member: ClassicMember, topics: Topics, taken: set[tuple[str, int]]) -> Partitions:
    assigned = {}
    assignment = consumer_protocol.read_assignment(member.assignment)
    if assignment.user_data:
        reason = f"Cannot upgrade classic group {group.group_id} to consumer group: its assignor uses user data."
        raise RaykaError(ErrorCode.GROUP_ID_NOT_FOUND, reason)
    for name, partitions in assignment.assigned_partitions:
        topic = topics.by_name.get(name)
        free = [partition for partition in partitions if (name, partition) not in taken]
        if topic is not None and free:
            assigned[topic.topic_id] = dict.fromkeys(free, group.generation_id)
            taken.update((name, partition) for partition in free)
    return assigned


def classic_metadata(session_timeout_ms: int, protocols: Iterable[Protocol]) -> ClassicMemberMetadata:
    """What a consumer group keeps of a classic member."""
    return ClassicMemberMetadata(session_timeout_ms, tuple(ClassicProtocol(*protocol) for protocol in protocols))


def can_downgrade(group: ConsumerGroup, leaving: Collection[str], settings: GroupSettings) -> bool:
    """Whether only classic members are left when these have gone, and the group may go back."""
    staying = len(group.members) - len(leaving)
    classic = group.classic_member_count - sum(group.members[one].classic is not None for one in leaving)
    return settings.migration_policy.downgrades and 0 < staying <= settings.max_size and classic == staying


def downgrade(draft: ConsumerGroup, topics: Topics, now_ms: int) -> list[CoordinatorRecord]:
    """A consumer group of classic members as a classic group; generation is the group epoch.

    It has no leader yet, which tells a coordinator that loads the record that the rebalance is still to come.
    """
    protocol = voted_protocol([protocols_of(member) for member in draft.members.values()])
    value = GroupMetadataValue(
        protocol_type=consumer_protocol.PROTOCOL_TYPE,
        generation=draft.epoch,
        protocol=protocol,
        leader=None,
        current_state_timestamp=now_ms,
        members=tuple(_classic_member(member, protocol, topics) for member in draft.members.values()),
    )
    return [*draft.tombstones(), CoordinatorRecord(GroupMetadataKey(draft.group_id), value)]


def protocols_of(member: ConsumerMember) -> tuple[Protocol, ...]:
    """The protocols of a classic member."""
    assert member.classic is not None
    return tuple(Protocol(*protocol) for protocol in member.classic.supported_protocols)


def _classic_member(member: ConsumerMember, protocol: str, topics: Topics) -> MemberMetadata:
    assert member.classic is not None
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.classic.session_timeout_ms,
        subscription=next(p.metadata for p in protocols_of(member) if p.name == protocol),
        assignment=classic_assignment(member, topics),
    )


def classic_assignment(member: ConsumerMember, topics: Topics) -> bytes:
    """The assignment of a classic member, in the bytes that its client reads."""
    assigned = tuple(
        consumer_protocol.TopicPartitions(topics.by_id[topic_id].name, tuple(sorted(partitions)))
        for topic_id, partitions in member.assigned.items()
        if topic_id in topics.by_id
    )
    version = consumer_protocol.version_of(protocols_of(member)[0].metadata)
    return consumer_protocol.write_assignment(consumer_protocol.ConsumerProtocolAssignment(assigned), min(version, 3))


def restore_protocols(group: ClassicGroup, member: ConsumerMember) -> ClassicMember:
    """The record of a classic group has one protocol of each member; the live group has them all."""
    assert member.classic is not None
    restored = group.members[member.member_id]._replace(
        supported_protocols=protocols_of(member),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
    )
    group.put(restored)
    return restored
