"""Groups as Kafka's own tool shows them: tables for people, fields for JSON. `-` is what is not known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rayka.cli.tables import table

if TYPE_CHECKING:
    from rayka.client.admin.group_offsets import GroupDescription, GroupOffset, MemberDescription
    from rayka.client.kafka.values import GroupListing
    from rayka.types import TopicPartition

Row = list[object]


def list_text(groups: Sequence[GroupListing], *, types: bool, states: bool) -> str:
    """Names alone, or a table with what is asked for; empty without groups."""
    if not groups or not (types or states):
        return "\n".join(group.group_id for group in groups)
    columns = ["GROUP", *["TYPE"] * types, *["STATE"] * states]
    rows = [[one.group_id, *[one.group_type] * types, *[one.group_state] * states] for one in groups]
    return table(columns, rows)


def offsets_text(group: GroupDescription, *, verbose: bool = False) -> str:
    """Offsets and lag; `verbose` adds the leader epoch that was committed with each offset."""
    columns = [
        "GROUP", "TOPIC", "PARTITION", *["LEADER-EPOCH"] * verbose, "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG",
        "CONSUMER-ID", "HOST", "CLIENT-ID",
    ]  # fmt: skip
    rows: list[Row] = []
    for one in group.offsets:
        row: Row = [group.group_id, *one.topic_partition]
        row += [_or_dash(one.leader_epoch)] * verbose
        row += map(_or_dash, (one.current_offset, one.log_end_offset, one.lag))
        member = one.member
        row += (member.member_id, member.host, member.client_id) if member else ("-", "-", "-")
        rows.append(row)
    return table(columns, rows)


def members_text(group: GroupDescription, *, verbose: bool = False) -> str:
    """Members and how many partitions each has; `verbose` says which, and which it is to have (KIP-848)."""
    static = any(member.group_instance_id for member in group.members)
    mixed = len({member.is_upgraded for member in group.members}) > 1
    columns = ["GROUP", "CONSUMER-ID", *["GROUP-INSTANCE-ID"] * static, "HOST", "CLIENT-ID", "#PARTITIONS"]
    if verbose:
        columns += ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT", *["UPGRADED"] * mixed]
    rows: list[Row] = []
    for member in group.members:
        row: Row = [group.group_id, member.member_id, *[member.group_instance_id or "-"] * static]
        row += (member.host, member.client_id, len(member.assignment))
        if verbose:
            row += (_or_dash(member.epoch), assignment_text(member.assignment))
            row += (_or_dash(group.assignment_epoch), assignment_text(member.target))
            row += [str(member.is_upgraded).lower()] * mixed
        rows.append(row)
    return table(columns, rows)


def state_text(group: GroupDescription, *, verbose: bool = False) -> str:
    """State, coordinator and assignor; `verbose` adds the epochs of a consumer group."""
    node = group.coordinator
    columns = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE"]
    row: Row = [group.group_id, f"{node.host}:{node.port} ({node.broker_id})", group.assignor or "-", group.state]
    if verbose:
        columns += ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"]
        row += map(_or_dash, (group.group_epoch, group.assignment_epoch))
    return table([*columns, "#MEMBERS"], [[*row, len(group.members)]])


def assignment_text(assignment: Iterable[TopicPartition]) -> str:
    """`topic:0,1;other:0`, `-` for nothing."""
    topics: dict[str, list[str]] = {}
    for topic, partition in assignment:
        topics.setdefault(topic, []).append(str(partition))
    return ";".join(f"{topic}:{','.join(numbers)}" for topic, numbers in topics.items()) or "-"


def flat_fields(one: Any) -> dict[str, Any]:
    """The fields of a named tuple for JSON, with topic and partition instead of its `topic_partition`."""
    fields = one._asdict()
    return {**fields.pop("topic_partition")._asdict(), **fields}


def _or_dash(value: object) -> object:
    return "-" if value is None else value


def group_fields(group: GroupDescription) -> dict[str, Any]:
    """Everything known of a group, for JSON."""
    return {
        "group": group.group_id,
        "type": group.group_type,
        **_fields(group, "state", "assignor"),
        "coordinator": group.coordinator.broker_id,
        **_fields(group, "group_epoch", "assignment_epoch"),
        "members": [_member_fields(member) for member in group.members],
        "offsets": [_offset_fields(offset) for offset in group.offsets],
    }


def _member_fields(member: MemberDescription) -> dict[str, Any]:
    return {
        "consumer_id": member.member_id,
        **_fields(member, "group_instance_id", "host", "client_id", "epoch", "is_upgraded"),
        "assignment": _pairs(member.assignment),
        "target_assignment": _pairs(member.target),
    }


def _offset_fields(offset: GroupOffset) -> dict[str, Any]:
    return {
        **offset.topic_partition._asdict(),
        **_fields(offset, "leader_epoch", "current_offset", "log_end_offset", "lag"),
        "consumer_id": offset.member.member_id if offset.member else None,
    }


def _fields(source: object, *names: str) -> dict[str, Any]:
    """What goes by the same name in JSON."""
    return {name: getattr(source, name) for name in names}


def _pairs(partitions: Sequence[TopicPartition]) -> list[list[object]]:
    return [list(partition) for partition in partitions]
