"""The committed offsets and the lag of a group, and the offsets after a reset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rayka.types import OffsetSpec, TopicPartition

INACTIVE = ("Empty", "Dead")
"""The states of a group without members."""


class BrokerAddress(Protocol):
    """A broker with its advertised address."""

    @property
    def broker_id(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group. What it is assigned is known while the group is settled.

    In consumer groups (KIP-848) `epoch` is the member's, `target` what it is to have, and `is_upgraded` tells
    whether it speaks the new protocol; None, empty and None in classic groups.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...] = ()
    epoch: int | None = None
    target: tuple[TopicPartition, ...] = ()
    is_upgraded: bool | None = None


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """One partition of a group: None for what is not committed, not there any more, or read by nobody.

    `leader_epoch` is the one that was committed with the offset.
    """

    topic_partition: TopicPartition
    current_offset: int | None = None
    log_end_offset: int | None = None
    member: MemberDescription | None = None
    leader_epoch: int | None = None

    @property
    def lag(self) -> int | None:
        """How many offsets the group is behind the end of the log; None if either is not known."""
        if self.current_offset is None or self.log_end_offset is None:
            return None
        return self.log_end_offset - self.current_offset


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, settled or not. `group_type` is Classic or Consumer, `state` is as Kafka names it.

    Only consumer groups have a group epoch, and an assignment epoch, for which the members' targets were made.
    """

    group_id: str
    group_type: str
    state: str
    assignor: str
    coordinator: BrokerAddress
    members: tuple[MemberDescription, ...]
    offsets: tuple[GroupOffset, ...] = ()
    group_epoch: int | None = None
    assignment_epoch: int | None = None


def offsets_of(
    members: Iterable[MemberDescription],
    committed: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    leader_epochs: Mapping[TopicPartition, int] | None = None,
) -> tuple[GroupOffset, ...]:
    """What is committed or assigned, in order of topic and partition. A partition that two members hold, while
    one is giving it up, is there for each."""
    epochs = leader_epochs or {}
    owners: dict[TopicPartition, list[MemberDescription]] = {}
    for member in members:
        for topic_partition in member.assignment:
            owners.setdefault(topic_partition, []).append(member)
    return tuple(
        GroupOffset(partition, committed.get(partition), ends.get(partition), owner, epochs.get(partition))
        for partition in sorted({*committed, *owners})
        for owner in owners.get(partition) or (None,)
    )


class Bounds(NamedTuple):
    """What a partition's log holds: offsets from `earliest` to before `latest`."""

    earliest: int
    latest: int

    def clamp(self, offset: int) -> int:
        """The nearest offset where reading can continue."""
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
    is_current: bool = False

    @classmethod
    def to_earliest(cls) -> OffsetReset:
        """To the log start offset."""
        return cls(timestamp=OffsetSpec.EARLIEST)

    @classmethod
    def to_latest(cls) -> OffsetReset:
        """To the end of the log."""
        return cls(timestamp=OffsetSpec.LATEST)

    @classmethod
    def to_current(cls) -> OffsetReset:
        """To the committed offset, or to the end of the log where there is none."""
        return cls(is_current=True)

    @classmethod
    def to_offset(cls, offset: int) -> OffsetReset:
        """To this offset, or the nearest one in the log."""
        return cls(offset=offset)

    @classmethod
    def shift_by(cls, shift: int) -> OffsetReset:
        """By this many offsets from the committed one, within the log."""
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
        if self.is_current:
            return bounds.latest if committed is None else committed
        if self.shift is not None:
            return None if committed is None else bounds.clamp(committed + self.shift)
        return bounds.latest if found is None or found < 0 else found
