"""Clients of the core as the real ones behave: they keep what they own, and give it up when they are told to."""

from __future__ import annotations

import uuid
from typing import Any

from rayka.coordinator.groups.classic.requests import Protocol
from rayka.coordinator.groups.consumer.member import assignment_of, topic_partitions
from rayka.coordinator.groups.consumer.protocol import (
    ConsumerProtocolAssignment,
    TopicPartitions,
    read_assignment,
    read_subscription,
    write_assignment,
)
from rayka.coordinator.groups.consumer.requests import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from rayka.coordinator.groups.records import TargetPartitions
from rayka.coordinator.topics import TopicMetadata, Topics
from rayka.errors import ErrorCode
from tests.support.consumer_protocol import subscription_bytes
from tests.unit.coordinator.shell import Shell

E = ErrorCode


def topic_id(name: str) -> uuid.UUID:
    """Every name has its id."""
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


def topics(*names: str, partitions: int = 4, version: int = 1) -> Topics:
    """Topics with as many partitions each."""
    return Topics([TopicMetadata(topic_id(name), name, partitions) for name in names], version)


class ConsumerClient:
    """A member that speaks the consumer protocol. `owned` is what it reads from.

    With `loses_answers` requests arrive and answers do not. After an error or a lost answer it says everything again.
    """

    def __init__(self, shell: Shell, member_id: str, *names: str, group_id: str = "g", **fields: Any) -> None:
        self.shell = shell
        self.member_id = member_id
        self.group_id = group_id
        self.epoch = 0
        self.names = names or ("t",)
        self.fields = fields
        self.owned: dict[uuid.UUID, frozenset[int]] = {}
        self.interval_ms = 0
        self.loses_answers = False
        self.is_dead = False
        self._told: tuple[TargetPartitions, ...] | None = None
        self._says_all = False

    @property
    def partitions(self) -> set[tuple[uuid.UUID, int]]:
        """What it reads from."""
        return {(topic, partition) for topic, partitions in self.owned.items() for partition in partitions}

    @property
    def generation(self) -> int:
        """What it commits with."""
        return self.epoch

    def step(self) -> None:
        """Does what a client does next: join or heartbeat."""
        self.heartbeat() if self.epoch > 0 else self.join()

    def join(self, **changes: Any) -> ConsumerGroupHeartbeatResponse:
        """Joins, or joins again after it was fenced."""
        self.epoch, self.owned, self._told = 0, {}, ()
        return self._send(**self._all() | {"topic_partitions": ()} | changes)

    def heartbeat(self, **changes: Any) -> ConsumerGroupHeartbeatResponse:
        """Says what it owns if that has changed, and follows the answer."""
        owned = topic_partitions(self.owned)
        if self._says_all:
            changes = self._all() | {"topic_partitions": owned} | changes
        elif owned != self._told:
            changes = {"topic_partitions": owned} | changes
        self._told = owned
        return self._send(**changes)

    def _all(self) -> dict[str, Any]:
        names = None if "subscribed_topic_regex" in self.fields else self.names
        return self.fields | {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": names}

    def subscribe(self, *names: str) -> None:
        """Subscribes to other topics, at once if it is a member."""
        self.names = names
        if self.epoch > 0:
            self.heartbeat(subscribed_topic_names=names)

    def leave(self, epoch: int = -1) -> ConsumerGroupHeartbeatResponse:
        """Leaves; with -2 for a while."""
        self.owned = {}
        return self._send(member_epoch=epoch)

    def _send(self, **changes: Any) -> ConsumerGroupHeartbeatResponse:
        fields = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "client_id": "client",
            "client_host": "/127.0.0.1",
            "instance_id": self.fields.get("instance_id"),
        }
        request = ConsumerGroupHeartbeatRequest(**fields | changes)
        response: ConsumerGroupHeartbeatResponse = self.shell.execute(request)
        self._says_all = self.loses_answers or response.error is not E.NONE
        if not self.loses_answers and request.member_epoch >= 0:
            self._follow(response)
        return response

    def _follow(self, response: ConsumerGroupHeartbeatResponse) -> None:
        if response.error in (E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID):
            self.epoch, self.owned = 0, {}
        elif response.error in (E.UNRELEASED_INSTANCE_ID, E.FENCED_INSTANCE_ID, E.GROUP_ID_NOT_FOUND):
            self.is_dead, self.owned = True, {}
        elif response.error is E.NONE:
            self.epoch, self.interval_ms = response.member_epoch, response.heartbeat_interval_ms
            if response.assignment is not None:
                self.owned = dict(assignment_of(response.assignment))

    def commit(self, offset: int = 1, topic: str = "t", partition: int = 0, **changes: Any) -> ErrorCode:
        """Commits as this member."""
        who = {"generation_id_or_member_epoch": self.epoch, "member_id": self.member_id, "group_id": self.group_id}
        return self.shell.commit(offset, topic=topic, partition=partition, **who | changes)


class ClassicClient:
    """A member that speaks the classic protocol, eagerly: it gives up everything before it joins again.

    As a leader it joins again when topics have changed.
    """

    def __init__(
        self,
        shell: Shell,
        *names: str,
        group_id: str = "g",
        assignor: str = "range",
        **fields: Any,
    ) -> None:
        self.shell = shell
        self.group_id = group_id
        self.names = names or ("t",)
        self.fields = fields
        self.assignor = assignor
        self.member_id = ""
        self.generation_id = -1
        self.owned: set[tuple[str, int]] = set()
        self.loses_answers = False
        self.is_dead = False
        self._waiting: tuple[str, int] | None = None
        self._next = "join"
        self._seen_version = -1
        self.joined: Any = None

    @property
    def partitions(self) -> set[tuple[uuid.UUID, int]]:
        """What it reads from."""
        return {(topic_id(topic), partition) for topic, partition in self.owned}

    @property
    def generation(self) -> int:
        """What it commits with."""
        return self.generation_id

    def disconnected(self) -> None:
        """What it waits for will not come any more; it will ask again."""
        if self._waiting is not None:
            self._next, self._waiting = self._waiting[0], None

    def step(self) -> None:
        """Does what a client does next: join, sync or heartbeat."""
        if self._waiting is not None:
            kind, handle = self._waiting
            if handle not in self.shell.answers:
                return
            self._waiting = None
            self._took(kind, self.shell.answer(handle))
            return
        {"join": self._join, "sync": self._sync, "heartbeat": self._heartbeat}[self._next]()

    def _join(self) -> None:
        self.owned, self._seen_version = set(), self.shell.topics.version
        subscription = subscription_bytes(tuple(self.names), version=1)
        fields = {"member_id": self.member_id, "protocols": (Protocol(self.assignor, subscription),)}
        self._handle("join", self.shell.join(self.group_id, **fields | self.fields))

    def _sync(self) -> None:
        instance = {"group_instance_id": self.fields.get("group_instance_id")}
        parts = self._assign() if self.joined.members and not self.joined.skip_assignment else {}
        self._handle("sync", self.shell.sync(self.joined, parts, group_id=self.group_id, **instance))

    def _heartbeat(self) -> None:
        if self.joined.leader == self.member_id and self._seen_version != self.shell.topics.version:
            self._join()
            return
        instance = self.fields.get("group_instance_id")
        error = self.shell.heartbeat(self.member_id, self.generation_id, self.group_id, group_instance_id=instance)
        if not self.loses_answers:
            self._react(error)

    def _handle(self, kind: str, response: Any) -> None:
        if isinstance(response, int):
            self._waiting = (kind, response)
        elif not self.loses_answers:
            self._took(kind, response)

    def _took(self, kind: str, response: Any) -> None:
        if kind == "join":
            if response.error in (E.MEMBER_ID_REQUIRED, E.NONE):
                self.member_id = response.member_id
            if response.error is E.NONE:
                self.joined, self.generation_id, self._next = response, response.generation_id, "sync"
                return
        elif response.error is E.NONE:
            assigned = read_assignment(response.assignment).assigned_partitions
            self.owned = {(topic, partition) for topic, partitions in assigned for partition in partitions}
            self._next = "heartbeat"
            return
        self._react(response.error)

    def _react(self, error: ErrorCode) -> None:
        if error is E.NONE:
            return
        self._next = "join"
        if error in (E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION):
            self.owned = set()
        if error is E.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        if error is E.FENCED_INSTANCE_ID:
            self.is_dead, self.owned = True, set()

    def _assign(self) -> dict[str, bytes]:
        """The leader's work: partitions dealt out in turn."""
        members = sorted(self.joined.members, key=lambda member: member.member_id)
        wants = {m.member_id: set(read_subscription(m.metadata).topics) for m in members}
        dealt: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in wants}
        for topic in sorted(self.shell.core.state.topics.by_name.values(), key=lambda t: t.name):
            subscribers = [member_id for member_id in wants if topic.name in wants[member_id]]
            for partition in range(topic.num_partitions) if subscribers else ():
                owner = subscribers[partition % len(subscribers)]
                dealt[owner].setdefault(topic.name, []).append(partition)
        return {
            member_id: write_assignment(
                ConsumerProtocolAssignment(tuple(TopicPartitions(topic, tuple(ps)) for topic, ps in parts.items())),
                version=1,
            )
            for member_id, parts in dealt.items()
        }

    def subscribe(self, *names: str) -> None:
        """Subscribes to other topics, and joins again for them next."""
        self.names = names
        self.owned, self._next, self._waiting = set(), "join", None

    def leave(self) -> ErrorCode:
        """Leaves."""
        self.owned, self._next, self._waiting = set(), "join", None
        member_id, self.member_id = self.member_id, ""
        return self.shell.leave(member_id, group_id=self.group_id)[0]

    def commit(self, offset: int = 1, topic: str = "t", partition: int = 0) -> ErrorCode:
        """Commits as this member."""
        who = {"generation_id_or_member_epoch": self.generation_id, "member_id": self.member_id}
        return self.shell.commit(offset, self.group_id, topic, partition=partition, **who)
