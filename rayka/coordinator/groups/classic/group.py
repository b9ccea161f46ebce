"""A classic group: its members, their votes, and the state of its rebalance.

Theory of operation. The coordinator gathers the members (PreparingRebalance: every member has to join again), gives
the list to one of them, the leader, and waits for the leader's assignment (CompletingRebalance: every member asks for
its part with a sync). The new generation begins when the assignment is in the log (Stable). A rebalance under way is
soft state. Durable is the last generation that was completed, `persisted`; a coordinator that restarts continues from
there. A generation that never completed assigned no partition, so its number can be used again.

A command works on a draft (`changes.py`), whose changes the group adopts when the records of the command are in the
log. The draft keeps them beside the group (`Overlay`), so that a join or a sync costs the same in a group of any size.
Members are immutable. The transitions are the table below; `rebalance.py` moves a group along them.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, MutableMapping, Sequence
from typing import NamedTuple

from rayka.coordinator.groups.classic.requests import JoinGroupMember, Protocol
from rayka.coordinator.groups.consumer import protocol as consumer_protocol
from rayka.coordinator.groups.records import CoordinatorRecord, GroupMetadataKey, GroupMetadataValue, MemberMetadata
from rayka.coordinator.overlay import Overlay
from rayka.errors import ErrorCode


class ClassicGroupState(enum.Enum):
    """The state of a classic group, as DescribeGroups spells it. A group that does not exist is Dead."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY = ClassicGroupState.EMPTY
PREPARING_REBALANCE = ClassicGroupState.PREPARING_REBALANCE
COMPLETING_REBALANCE = ClassicGroupState.COMPLETING_REBALANCE
STABLE = ClassicGroupState.STABLE
DEAD = ClassicGroupState.DEAD

TRANSITIONS: dict[ClassicGroupState, frozenset[ClassicGroupState]] = {
    EMPTY: frozenset({PREPARING_REBALANCE, DEAD}),
    PREPARING_REBALANCE: frozenset({COMPLETING_REBALANCE, EMPTY, DEAD}),
    COMPLETING_REBALANCE: frozenset({STABLE, PREPARING_REBALANCE, DEAD}),
    STABLE: frozenset({PREPARING_REBALANCE, DEAD}),
    DEAD: frozenset({DEAD}),
}

_MAPPINGS = ("members", "static_members", "pending_join_members", "pending_sync_members", "_supported")
_COPIED = 8
"""A mapping of at most this many entries is copied for a draft, which is cheaper than an overlay."""
"""The fields of a group of which a draft keeps only its changes."""


class ClassicMember(NamedTuple):
    """One member. `awaiting_join` and `awaiting_sync` are the ids of its requests that wait.

    `is_new`: it joined since the last rebalance completed, so waiting does not keep it alive.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    supported_protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    awaiting_join: int | None = None
    awaiting_sync: int | None = None
    is_new: bool = False

    @property
    def is_awaiting_join(self) -> bool:
        """Whether the member waits for the join phase to end."""
        return self.awaiting_join is not None

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """Whether the session may expire without effect, because a request of the member is waiting."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's metadata for a protocol; empty if it does not support it."""
        for name, metadata in self.supported_protocols:
            if name == protocol_name:
                return metadata
        return b""


class ClassicGroup:
    """The state of one group, or a draft of it. Methods change soft state only; `persisted` follows the log."""

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = EMPTY
        self.previous_state = EMPTY
        self.state_timestamp_ms = now_ms
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: MutableMapping[str, ClassicMember] = {}
        self.static_members: MutableMapping[str, str] = {}
        self.pending_join_members: MutableMapping[str, None] = {}
        self.pending_sync_members: MutableMapping[str, None] = {}
        self.new_member_added = False
        self.subscribed_topics: frozenset[str] | None = None
        self.persisted: GroupMetadataValue | None = None
        self._supported: MutableMapping[str, int] = {}
        self._awaiting_join = 0

    @classmethod
    def load(cls, group_id: str, value: GroupMetadataValue) -> ClassicGroup:
        """The group as it was when `value` was written."""
        group = cls(group_id, value.current_state_timestamp)
        group.protocol_type = value.protocol_type or None
        for member in value.members:
            group.add(_loaded(member, value.protocol))
        group.state = STABLE if value.members else EMPTY
        group.generation_id = value.generation
        group.protocol_name = value.protocol
        group.leader_id = value.leader or group.leader_id
        group.subscribed_topics = group.compute_subscribed_topics()
        group.persisted = value
        return group

    def draft(self) -> ClassicGroup:
        """The group with changes of its own."""
        draft = ClassicGroup.__new__(ClassicGroup)
        fields = vars(draft)
        fields.update(vars(self))
        for name in _MAPPINGS:
            mapping = fields[name]
            fields[name] = dict(mapping) if len(mapping) <= _COPIED else Overlay(mapping)
        return draft

    def adopt(self, draft: ClassicGroup) -> None:
        """Take over the changes of a draft of this group. `persisted` stays: it follows the log."""
        fields = vars(self)
        fields.update(vars(draft), persisted=self.persisted)
        for name in _MAPPINGS:
            changed = fields[name]
            if type(changed) is Overlay:
                fields[name] = changed.merge()

    @property
    def is_empty(self) -> bool:
        """Whether nobody is in the group."""
        return self.state is EMPTY

    @property
    def is_unused(self) -> bool:
        """Whether nobody is in the group or about to join."""
        return self.is_empty and not self.pending_join_members

    @property
    def is_unled(self) -> bool:
        """Whether the generation comes from a conversion and has no leader yet, so that it has to rebalance."""
        return self.persisted is not None and self.persisted.leader is None and bool(self.members)

    @property
    def awaiting_join_count(self) -> int:
        """How many members wait for the join phase to end."""
        return self._awaiting_join

    @property
    def has_all_members_joined(self) -> bool:
        """Whether all members have joined in the join phase."""
        return len(self.members) == self._awaiting_join and not self.pending_join_members

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long the slowest member may take to join."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def uses_consumer_protocol(self) -> bool:
        """Whether the members are consumers (not Connect workers, for example)."""
        return self.protocol_type == consumer_protocol.PROTOCOL_TYPE

    def can_move_to(self, state: ClassicGroupState) -> bool:
        """Whether the table has this transition."""
        return state in TRANSITIONS[self.state]

    def move_to(self, state: ClassicGroupState, now_ms: int) -> None:
        """Make a transition of the table."""
        assert self.can_move_to(state), f"group {self.group_id} cannot go from {self.state.value} to {state.value}"
        self.previous_state, self.state = self.state, state
        self.state_timestamp_ms = now_ms

    def put(self, member: ClassicMember) -> None:
        """Replace the member of this id, or add it."""
        before = self.members.get(member.member_id)
        self.members[member.member_id] = member
        if before is not None and before.supported_protocols == member.supported_protocols:
            self._awaiting_join += member.is_awaiting_join - before.is_awaiting_join
            return
        if before is not None:
            self._count(before, -1)
        self._count(member, 1)

    def add(self, member: ClassicMember) -> None:
        """Take in a new member. The first becomes the leader."""
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.put(member)
        self.pending_join_members.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending one. If it was the leader another member becomes the leader."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member, -1)
            if member.group_instance_id is not None:
                self.static_members.pop(member.group_instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_join_members.pop(member_id, None)
        self.pending_sync_members.pop(member_id, None)

    def replace_static_member(self, instance_id: str, new: ClassicMember) -> ClassicMember:
        """Give an instance a new member in place of its old one, which is returned."""
        old = self.members.pop(self.static_members[instance_id])
        self._count(old, -1)
        self.put(new)
        self.static_members[instance_id] = new.member_id
        if self.leader_id == old.member_id:
            self.leader_id = new.member_id
        if old.member_id in self.pending_sync_members:
            del self.pending_sync_members[old.member_id]
            self.pending_sync_members[new.member_id] = None
        return old

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if the instance has another member id by now."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is not None and current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def supports(self, protocol_type: str, protocols: Iterable[Protocol]) -> bool:
        """Whether one of these protocols is supported by all members."""
        names = [protocol.name for protocol in protocols]
        if self.is_empty:
            return bool(protocol_type and names)
        return self.protocol_type == protocol_type and any(
            self._supported.get(n, 0) == len(self.members) for n in names
        )

    def select_protocol(self) -> str:
        """The protocol of the next generation."""
        return voted_protocol([member.supported_protocols for member in self.members.values()])

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is a member that joined; False if nobody joined."""
        leader = self.members.get(self.leader_id or "")
        if leader is None:
            return False
        if leader.awaiting_join is None:
            joined = next((m for m in self.members.values() if m.awaiting_join is not None), None)
            if joined is None:
                return False
            self.leader_id = joined.member_id
        return True

    def begin_generation(self, now_ms: int) -> None:
        """End the join phase: start the next generation, which waits for its assignment or is empty."""
        self.generation_id += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self.compute_subscribed_topics()
        self.move_to(COMPLETING_REBALANCE if self.members else EMPTY, now_ms)
        self.pending_sync_members = {}

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """The topics of all members; None if they are not consumers or their subscriptions are malformed."""
        if not self.uses_consumer_protocol:
            return None
        try:
            subscriptions = {member.metadata(self.protocol_name) for member in self.members.values()}
            return frozenset(topic for data in subscriptions for topic in consumer_protocol.read_topics(data))
        except ValueError:
            return None

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member may be reading the topic; if subscriptions are malformed it may be any."""
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics

    def join_members(self) -> tuple[JoinGroupMember, ...]:
        """The members as the leader sees them."""
        return tuple(
            JoinGroupMember(m.member_id, m.group_instance_id, m.metadata(self.protocol_name))
            for m in self.members.values()
        )

    def metadata_record(self, assignments: dict[str, bytes] | None = None) -> CoordinatorRecord:
        """The record of this generation with the members' assignments (as they are, unless given)."""
        value = GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp=self.state_timestamp_ms,
            members=tuple(_persisted(member, self.protocol_name, assignments) for member in self.members.values()),
        )
        return CoordinatorRecord(GroupMetadataKey(self.group_id), value)

    def _count(self, member: ClassicMember, change: int) -> None:
        for name in {protocol.name for protocol in member.supported_protocols}:
            count = self._supported.get(name, 0) + change
            if count:
                self._supported[name] = count
            else:
                del self._supported[name]
        self._awaiting_join += change * member.is_awaiting_join

    def validate_state(self) -> None:
        """Check what must always hold. Raises AssertionError."""
        members = self.members
        assert all(member.member_id == member_id for member_id, member in members.items())
        instances = {m.group_instance_id: m.member_id for m in members.values() if m.group_instance_id is not None}
        assert instances == self.static_members
        assert not members or self.leader_id in members
        assert self.pending_sync_members.keys() <= members.keys()
        assert self.pending_join_members.keys().isdisjoint(members)
        assert self._awaiting_join == sum(member.awaiting_join is not None for member in members.values())
        supported = Counter(n for m in members.values() for n in {p.name for p in m.supported_protocols})
        assert self._supported == supported
        assert not (self.is_empty and members), "an empty group has no members"
        assert self.state not in (STABLE, COMPLETING_REBALANCE) or members
        awaits_sync = any(member.awaiting_sync is not None for member in members.values())
        assert self.state is COMPLETING_REBALANCE or not awaits_sync
        assert self.state is PREPARING_REBALANCE or not self._awaiting_join


def voted_protocol(supported: Sequence[Iterable[Protocol]]) -> str:
    """The protocol that all members support and most prefer; each lists its protocols in order of preference."""
    wishes = [[protocol.name for protocol in protocols] for protocols in supported]
    candidates = set(wishes[0]).intersection(*wishes[1:])
    votes = Counter(next(name for name in names if name in candidates) for names in wishes)
    return votes.most_common(1)[0][0]


def _loaded(member: MemberMetadata, protocol: str | None) -> ClassicMember:
    timeout_ms = member.session_timeout if member.rebalance_timeout == -1 else member.rebalance_timeout
    return ClassicMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        timeout_ms,
        member.session_timeout,
        (Protocol(protocol or "", member.subscription),),
        member.assignment,
    )


def _persisted(member: ClassicMember, protocol: str | None, assignments: dict[str, bytes] | None) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata(protocol),
        assignment=member.assignment if assignments is None else assignments.get(member.member_id, b""),
    )
