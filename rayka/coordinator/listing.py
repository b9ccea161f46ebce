"""What can be seen of groups from outside: ListGroups and DescribeGroups."""

from __future__ import annotations

from collections.abc import Iterable

from rayka.coordinator.classic_group import STABLE, ClassicGroup, ClassicMember
from rayka.coordinator.requests import DescribedGroup, DescribedMember, ListedGroup
from rayka.errors import ErrorCode


def list_groups(groups: Iterable[ClassicGroup], states: Iterable[str], types: Iterable[str]) -> tuple[ListedGroup, ...]:
    """The groups of these states and types; of any where none is given. Letters of any case match."""
    wanted_states = {state.lower() for state in states}
    wanted_types = {group_type.lower() for group_type in types}
    listed = (_listed(group) for group in groups)
    return tuple(
        group
        for group in listed
        if (not wanted_states or group.group_state.lower() in wanted_states)
        and (not wanted_types or group.group_type.lower() in wanted_types)
    )


def _listed(group: ClassicGroup) -> ListedGroup:
    return ListedGroup(group.group_id, group.protocol_type or "", group.state.value, "Classic")


def describe_classic(group_id: str, group: ClassicGroup | None) -> DescribedGroup:
    """A classic group; metadata and assignments are told only while they are settled."""
    if group is None:
        return DescribedGroup(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
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
