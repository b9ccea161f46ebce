"""One step of a member towards its target assignment.

The rules give a partition one owner at a time. A member first revokes partitions that are not in its target, and stays
in its epoch until its heartbeat shows that it no longer owns them. Then it moves to the target's epoch and gets the new
partitions that nobody else owns. It gets the others when their owners have revoked them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace

from rayka.coordinator.groups.consumer.group import ConsumerGroup
from rayka.coordinator.groups.consumer.member import Assignment, ConsumerMember, MemberState, Partitions
from rayka.coordinator.topics import Topics
from rayka.errors import ErrorCode, RaykaError


class Reconciliation:
    """The next step for one member of a group.

    `target` is the member's target of `group.assignment_epoch`. `owned` is what the member said in its heartbeat that
    it owns; None if it said nothing.
    """

    def __init__(self, group: ConsumerGroup, target: Assignment, owned: Assignment | None, topics: Topics) -> None:
        self._group = group
        self._target = target
        self._owned = owned
        self._topics = topics

    def step(self, member: ConsumerMember) -> ConsumerMember:
        """The member after the step, or unchanged. Raises FENCED_MEMBER_EPOCH for an unknown state."""
        match member.state:
            case MemberState.STABLE:
                if member.member_epoch != self._group.assignment_epoch:
                    return self._next(member, member.member_epoch)
                return self._strip(member)
            case MemberState.UNREVOKED_PARTITIONS:
                if self._still_owns(member.pending_revocation):
                    return self._strip(member)
                return self._next(member, member.member_epoch)
            case MemberState.UNRELEASED_PARTITIONS:
                return self._next(member, member.member_epoch)
        if self._owned is None or self._owned:
            reason = "The consumer group member is in an unknown state. It must abandon its partitions and rejoin."
            raise RaykaError(ErrorCode.FENCED_MEMBER_EPOCH, reason)
        return self._next(member, self._group.assignment_epoch)

    def _still_owns(self, partitions: Partitions) -> bool:
        """Whether the member may still be reading any of these."""
        if self._owned is None:
            return True
        return any(not self._owned.get(topic_id, frozenset()).isdisjoint(ps) for topic_id, ps in partitions.items())

    def _subscribed(self, member: ConsumerMember) -> frozenset[uuid.UUID]:
        return self._topics.ids_of(self._group.topics_of(member))

    def _strip(self, member: ConsumerMember) -> ConsumerMember:
        """Remove topics that the member has unsubscribed from, without waiting for the next target."""
        subscribed = self._subscribed(member)
        dropped = {topic_id: ps for topic_id, ps in member.assigned.items() if topic_id not in subscribed}
        if not dropped:
            return member
        assigned = {topic_id: ps for topic_id, ps in member.assigned.items() if topic_id in subscribed}
        pending = _merged(member.pending_revocation, dropped)
        if self._still_owns(pending):
            return _moved(member, MemberState.UNREVOKED_PARTITIONS, member.member_epoch, assigned, pending)
        return _moved(member, member.state, member.member_epoch, assigned, member.pending_revocation)

    def _next(self, member: ConsumerMember, member_epoch: int) -> ConsumerMember:
        subscribed = self._subscribed(member)
        target = {topic_id: ps for topic_id, ps in self._target.items() if topic_id in subscribed}
        kept = _restricted(member.assigned, target)
        revoked = _without(member.assigned, target)
        if revoked and self._still_owns(revoked):
            return _moved(member, MemberState.UNREVOKED_PARTITIONS, member_epoch, kept, revoked)
        missing = [(t, p) for t, ps in target.items() for p in ps if p not in kept.get(t, ())]
        free = [partition for partition in missing if self._is_free(partition, member.member_id)]
        state = MemberState.STABLE if len(free) == len(missing) else MemberState.UNRELEASED_PARTITIONS
        epoch = self._group.assignment_epoch
        return _moved(member, state, epoch, _merged(kept, _at_epoch(free, epoch)), {})

    def _is_free(self, partition: tuple[uuid.UUID, int], member_id: str) -> bool:
        """Whether nobody owns the partition, except this member, which has just revoked it."""
        return self._group.owners.get(partition, member_id) == member_id


def _moved(
    member: ConsumerMember, state: MemberState, member_epoch: int, assigned: Partitions, pending: Partitions
) -> ConsumerMember:
    moved = replace(member, state=state, assigned=assigned, pending_revocation=pending)
    return moved if member_epoch == member.member_epoch else moved.at_epoch(member_epoch)


def _restricted(partitions: Partitions, target: Assignment) -> Partitions:
    kept = {t: {p: e for p, e in ps.items() if p in target.get(t, ())} for t, ps in partitions.items()}
    return {topic_id: ps for topic_id, ps in kept.items() if ps}


def _without(partitions: Partitions, target: Assignment) -> Partitions:
    rest = {t: {p: e for p, e in ps.items() if p not in target.get(t, ())} for t, ps in partitions.items()}
    return {topic_id: ps for topic_id, ps in rest.items() if ps}


def _merged(partitions: Partitions, more: Partitions) -> Partitions:
    merged: dict[uuid.UUID, Mapping[int, int]] = dict(partitions)
    for topic_id, ps in more.items():
        merged[topic_id] = {**merged.get(topic_id, {}), **ps}
    return merged


def _at_epoch(partitions: Iterable[tuple[uuid.UUID, int]], epoch: int) -> Partitions:
    result: dict[uuid.UUID, dict[int, int]] = {}
    for topic_id, partition in partitions:
        result.setdefault(topic_id, {})[partition] = epoch
    return result
