"""What a group has read and has still to read, and where a reset of its offsets leads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rayka.metadata.image import BrokerImage
from rayka.types import OffsetSpec, TopicPartition


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group. What it is assigned is known while the group is settled."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """One partition of a group: None for what is not committed, not there any more, or read by nobody."""

    topic_partition: TopicPartition
    current_offset: int | None = None
    log_end_offset: int | None = None
    member: GroupMember | None = None

    @property
    def lag(self) -> int | None:
        """How many offsets the group is behind the end of the log; None if either is not known."""
        if self.current_offset is None or self.log_end_offset is None:
            return None
        return self.log_end_offset - self.current_offset


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, settled or not. `group_type` is Classic or Consumer, `state` is as Kafka names it."""

    group_id: str
    group_type: str
    state: str
    assignor: str
    coordinator: BrokerImage
    members: tuple[GroupMember, ...]
    offsets: tuple[GroupOffset, ...] = ()


def offsets_of(
    members: Iterable[GroupMember],
    committed: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> tuple[GroupOffset, ...]:
    """What is committed or assigned, in order of topic and partition. A partition that two members hold, while
    one is giving it up, is there for each."""
    owners: dict[TopicPartition, list[GroupMember]] = {}
    for member in members:
        for topic_partition in member.assignment:
            owners.setdefault(topic_partition, []).append(member)
    return tuple(
        GroupOffset(topic_partition, committed.get(topic_partition), ends.get(topic_partition), owner)
        for topic_partition in sorted({*committed, *owners})
        for owner in owners.get(topic_partition) or (None,)
    )


class Bounds(NamedTuple):
    """What a partition's log holds: offsets from `earliest` to before `latest`."""

    earliest: int
    latest: int

    def clamp(self, offset: int) -> int:
        """The nearest offset where reading can go on."""
        return max(self.earliest, min(offset, self.latest))


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Where to put a group's offsets: one of the fields is set, which the class methods see to.

    `timestamp`: ms since the epoch or an `OffsetSpec`; `offset`: the same for each partition; `shift`: from what is
    committed, forward or back.
    """

    timestamp: int | None = None
    offset: int | None = None
    shift: int | None = None

    @classmethod
    def to_earliest(cls) -> OffsetReset:
        """To the first record that there is."""
        return cls(timestamp=OffsetSpec.EARLIEST)

    @classmethod
    def to_latest(cls) -> OffsetReset:
        """To the end of the log."""
        return cls(timestamp=OffsetSpec.LATEST)

    @classmethod
    def to_offset(cls, offset: int) -> OffsetReset:
        """To this offset, or the nearest that there is."""
        return cls(offset=offset)

    @classmethod
    def shift_by(cls, shift: int) -> OffsetReset:
        """So far from what is committed, at most to the ends of the log."""
        return cls(shift=shift)

    @classmethod
    def to_time(cls, timestamp_ms: int) -> OffsetReset:
        """To the first record of that time or later; to the end of the log if there is none."""
        return cls(timestamp=timestamp_ms)

    def target(self, bounds: Bounds, committed: int | None, found: int | None) -> int | None:
        """The new offset; None if it would be shifted from one that is not there.

        `found` is the offset that the timestamp was looked up to, negative for none.
        """
        if self.offset is not None:
            return bounds.clamp(self.offset)
        if self.shift is not None:
            return None if committed is None else bounds.clamp(committed + self.shift)
        return bounds.latest if found is None or found < 0 else found
