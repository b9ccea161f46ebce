"""The responses of ListGroups, DescribeGroups, ConsumerGroupDescribe and ShareGroupDescribe."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from rayka.coordinator.groups.classic.group import DEAD, STABLE, ClassicGroup, ClassicMember
from rayka.coordinator.groups.classic.requests import DescribedGroup, DescribedMember
from rayka.coordinator.groups.consumer.group import ConsumerGroup
from rayka.coordinator.groups.consumer.member import ConsumerMember
from rayka.coordinator.groups.requests import DescribedModernGroup, DescribedModernMember, ListedGroup, NamedPartitions
from rayka.coordinator.groups.share.assignor import SIMPLE
from rayka.coordinator.groups.share.group import ShareGroup
from rayka.coordinator.groups.share.member import ShareMember
from rayka.coordinator.groups.state import Group
from rayka.coordinator.topics import Topics
from rayka.errors import ErrorCode

CLASSIC_MEMBER = 0
CONSUMER_MEMBER = 1


def list_groups(groups: Iterable[Group], states: Iterable[str], types: Iterable[str]) -> tuple[ListedGroup, ...]:
    """The groups of these states and types; of any where none is given. Letters of any case match."""
    wanted_states = {state.lower() for state in states}
    wanted_types = {group_type.lower() for group_type in types}
    return tuple(
        group
        for group in map(_listed, groups)
        if (not wanted_states or group.group_state.lower() in wanted_states)
        and (not wanted_types or group.group_type.lower() in wanted_types)
    )


def _listed(group: Group) -> ListedGroup:
    return ListedGroup(group.group_id, group.protocol_type or "", group.state.value, _type_of(group))


def _type_of(group: Group) -> str:
    if isinstance(group, ShareGroup):
        return "share"
    return "classic" if isinstance(group, ClassicGroup) else "consumer"


def describe_classic(group_id: str, group: Group | None) -> DescribedGroup:
    """A classic group; metadata and assignments are included only while it is Stable."""
    if not isinstance(group, ClassicGroup):
        reason = _missing(group_id, group, "classic")
        return DescribedGroup(group_id, ErrorCode.GROUP_ID_NOT_FOUND, reason, DEAD.value)
    is_stable = group.state is STABLE
    return DescribedGroup(
        group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=tuple(_described(member, group.protocol_name, is_stable) for member in group.members.values()),
    )


def _described(member: ClassicMember, protocol: str | None, is_stable: bool) -> DescribedMember:
    return DescribedMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        member.metadata(protocol) if is_stable else b"",
        member.assignment if is_stable else b"",
    )


def describe_consumer(
    group_id: str, group: Group | None, default_assignor: str, topics: Topics
) -> DescribedModernGroup:
    """A consumer group."""
    if not isinstance(group, ConsumerGroup):
        return DescribedModernGroup(group_id, ErrorCode.GROUP_ID_NOT_FOUND, _missing(group_id, group, "consumer"))
    members = tuple(_described_consumer(group, member, topics) for member in group.members.values())
    return _described_modern(group, group.preferred_assignor(default_assignor), members)


def _described_consumer(group: ConsumerGroup, member: ConsumerMember, topics: Topics) -> DescribedModernMember:
    return _described_member(member, topics)._replace(
        instance_id=member.instance_id,
        subscribed_topic_regex=member.subscribed_topic_regex or "",
        target_assignment=_named(group.targets.get(member.member_id, {}), topics),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def describe_share(group_id: str, group: Group | None, topics: Topics) -> DescribedModernGroup:
    """A share group."""
    if not isinstance(group, ShareGroup):
        reason = _missing(group_id, group, "share")
        return DescribedModernGroup(group_id, ErrorCode.GROUP_ID_NOT_FOUND, reason, DEAD.value)
    members = tuple(_described_member(member, topics) for member in group.members.values())
    return _described_modern(group, SIMPLE, members)


def _missing(group_id: str, group: Group | None, kind: str) -> str:
    return f"Group {group_id} not found." if group is None else f"Group {group_id} is not a {kind} group."


def _described_modern(
    group: ConsumerGroup | ShareGroup, assignor_name: str, members: tuple[DescribedModernMember, ...]
) -> DescribedModernGroup:
    return DescribedModernGroup(
        group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=assignor_name,
        members=members,
    )


def _described_member(member: ConsumerMember | ShareMember, topics: Topics) -> DescribedModernMember:
    return DescribedModernMember(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(member.subscribed_topic_names)),
        assignment=_named(member.assigned, topics),
    )


def _named(partitions: Mapping[uuid.UUID, Iterable[int]], topics: Topics) -> tuple[NamedPartitions, ...]:
    """Topics that no longer exist are left out."""
    return tuple(
        NamedPartitions(topic_id, topics.by_id[topic_id].name, tuple(sorted(numbers)))
        for topic_id, numbers in partitions.items()
        if topic_id in topics.by_id
    )
