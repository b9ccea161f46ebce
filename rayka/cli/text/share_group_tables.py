"""Share groups as Kafka's own tool shows them: tables for people, fields for JSON. `-` is what is not known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rayka.cli.tables import table
from rayka.cli.text.group_tables import assignment_text, flat_fields

if TYPE_CHECKING:
    from rayka.client.kafka.share_groups import ShareBatch, ShareGroupDescription, ShareOffset

Row = list[object]
_RECORDS = ("GROUP", "TOPIC", "PARTITION", "FIRST-OFFSET", "LAST-OFFSET", "STATE", "DELIVERIES")


def offsets_text(group_id: str, offsets: Iterable[ShareOffset], *, verbose: bool = False) -> str:
    """Start offsets and lag; `verbose` adds the leader epoch."""
    columns = ["GROUP", "TOPIC", "PARTITION", *["LEADER-EPOCH"] * verbose, "START-OFFSET", "LAG"]
    rows: list[Row] = []
    for one in offsets:
        epoch = None if one.start_offset is None else one.leader_epoch
        rows.append([group_id, *one.topic_partition, *[_or_dash(epoch)] * verbose])
        rows[-1] += map(_or_dash, (one.start_offset, one.lag))
    return table(columns, rows)


def members_text(group: ShareGroupDescription, *, verbose: bool = False) -> str:
    """Members and what they are assigned; `verbose` adds their epochs."""
    columns = ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", *["MEMBER-EPOCH"] * verbose, "ASSIGNMENT"]
    rows: list[Row] = [
        [
            group.group_id, member.member_id, member.host, member.client_id, len(member.assignment),
            *[member.epoch] * verbose, assignment_text(member.assignment),
        ]
        for member in group.members
    ]  # fmt: skip
    return table(columns, rows)


def state_text(group: ShareGroupDescription, *, verbose: bool = False) -> str:
    """State and coordinator; `verbose` adds the epochs."""
    node = group.coordinator
    columns = ["GROUP", "COORDINATOR (ID)", "STATE"]
    row: Row = [group.group_id, f"{node.host}:{node.port} ({node.broker_id})", group.state]
    if verbose:
        columns += ["GROUP-EPOCH", "ASSIGNMENT-EPOCH"]
        row += [group.group_epoch, group.assignment_epoch]
    return table([*columns, "#MEMBERS"], [[*row, len(group.members)]])


def batches_text(group_id: str, batches: Iterable[ShareBatch]) -> str:
    """The states of records from the start offset on, with how often they were delivered."""
    return table(_RECORDS, [(group_id, *one.topic_partition, *one[1:]) for one in batches])


def in_flight_text(group_id: str, rows: Iterable[Sequence[Any]]) -> str:
    """The records in flight, with who has them and for how many milliseconds yet."""
    columns = (*_RECORDS, "CONSUMER-ID", "MS-LEFT")
    return table(columns, [(group_id, *row[:4], row[4].capitalize(), *map(_or_dash, row[5:])) for row in rows])


def share_group_fields(
    group: ShareGroupDescription, offsets: Sequence[ShareOffset], batches: Sequence[ShareBatch]
) -> dict[str, Any]:
    """Everything known of a share group, for JSON."""
    return {
        "group": group.group_id,
        "type": "Share",
        "state": group.state,
        "assignor": group.assignor,
        "coordinator": group.coordinator.broker_id,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "members": [
            member._asdict() | {"assignment": [list(partition) for partition in member.assignment]}
            for member in group.members
        ],
        "offsets": [flat_fields(one) for one in offsets],
        "batches": [flat_fields(one) for one in batches],
    }


def _or_dash(value: object) -> object:
    return "-" if value is None else value
