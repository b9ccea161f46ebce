"""Random histories of many members of both protocols, with lost answers, pauses, crashes, failing appends,
commands that are interrupted by an unexpected error, and restarts.

At every step: a partition has at most one reader among the members of the group, and at most one among all clients
whose commit would be accepted; committed offsets are those that were accepted last. At the end: everybody who is still
there reaches a settled assignment of all partitions, and the log, whole or compacted, gives the same state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rayka.coordinator.groups.classic.group import ClassicGroup
from rayka.coordinator.groups.consumer.group import ConsumerGroup
from rayka.coordinator.groups.offset_rules import NONE
from rayka.coordinator.groups.record_formats import decode
from rayka.coordinator.groups.requests import CommittedOffset, OffsetCommitRequest
from rayka.coordinator.groups.settings import GroupSettings, ModernGroupSettings
from rayka.coordinator.groups.state import GroupState
from rayka.coordinator.topics import TopicMetadata, Topics
from rayka.errors import ErrorCode
from tests.support.scale import examples
from tests.unit.coordinator.clients import ClassicClient, ConsumerClient, topic_id
from tests.unit.coordinator.shell import Shell

Client = ClassicClient | ConsumerClient
SETTINGS = GroupSettings(initial_rebalance_delay_ms=1000, consumer=ModernGroupSettings(assignment_interval_ms=1000))
SUBSCRIPTIONS = [("t",), ("u",), ("t", "u")]
STEPS = [
    "classic", "consumer", "static classic", "static consumer", "pattern",
    "step", "step", "step", "step", "all step", "all step", "wait", "wait", "wait long",
    "lose", "pause", "resume", "leave", "leave for now", "die", "restart", "fail append",
    "grow topic", "commit", "commit", "interrupt", "subscribe",
]  # fmt: skip
HISTORIES = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 11)), max_size=60)


class World:
    """The coordinator, its clients, and what they know to be committed."""

    def __init__(self) -> None:
        self.shell = Shell(SETTINGS)
        self.sizes = {"t": 3, "u": 2}
        self.version = 0
        self.clients: list[Client] = []
        self.paused: set[int] = set()
        self.committed: dict[tuple[str, int], int] = {}
        self.made = 0
        self.set_topics()

    def set_topics(self) -> None:
        self.version += 1
        self.shell.set_topics(
            Topics([TopicMetadata(topic_id(n), n, size) for n, size in self.sizes.items()], self.version)
        )

    def do(self, step: str, number: int) -> None:
        if step in ("classic", "consumer", "static classic", "static consumer", "pattern"):
            self.add(step, number)
        elif step == "all step":
            self.all_step()
        elif step.startswith("wait"):
            self.shell.advance([100, 500, 1_000, 3_000, 5_000, 9_000][number % 6] * (10 if step == "wait long" else 1))
        elif step == "restart":
            self.restart()
        elif step == "fail append":
            self.shell.fail_next = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR][number % 2]
        elif step == "interrupt":
            self.shell.interrupt_after = 1 + number * 7
        elif step == "grow topic":
            self.sizes["tu"[number % 2]] += 1
            self.set_topics()
        elif self.clients:
            self.to_client(step, self.clients[number % len(self.clients)], number)

    def add(self, kind: str, number: int) -> None:
        if len(self.clients) == 6:
            return
        self.made += 1
        names = SUBSCRIPTIONS[number % 3]
        if "classic" in kind:
            fields: dict[str, Any] = {"group_instance_id": "ij"[number % 2]} if "static" in kind else {}
            self.clients.append(ClassicClient(self.shell, *names, **fields))
            return
        fields = {"instance_id": "ij"[number % 2]} if "static" in kind else {}
        if kind == "pattern":
            fields["subscribed_topic_regex"] = ["t", ".", "[tu]"][number % 3]
            names = ("t",) if number % 3 == 0 else ("t", "u")
        self.clients.append(ConsumerClient(self.shell, f"m{self.made}", *names, **fields))

    def to_client(self, step: str, client: Client, number: int) -> None:
        if step == "pause":
            self.paused.add(id(client))
        elif step == "resume":
            self.paused.discard(id(client))
        elif id(client) in self.paused:
            return
        elif step in ("step", "lose"):
            client.loses_answers = step == "lose"
            self.step(client)
            client.loses_answers = False
        elif step == "die":
            self.clients.remove(client)
        elif step.startswith("leave"):
            self.leave(step, client)
        elif step == "commit":
            self.commit(client, number)
        elif step == "subscribe" and "subscribed_topic_regex" not in client.fields:
            client.subscribe(*SUBSCRIPTIONS[number % 3])
            self.shell.settle()

    def leave(self, step: str, client: Client) -> None:
        self.clients.remove(client)
        if isinstance(client, ClassicClient):
            client.leave()
        else:
            client.leave(-2 if step == "leave for now" and "instance_id" in client.fields else -1)
        self.shell.settle()

    def step(self, client: Client) -> None:
        client.step()
        self.shell.settle()
        if client.is_dead:
            self.clients.remove(client)

    def all_step(self) -> None:
        for client in list(self.clients):
            if id(client) not in self.paused:
                self.step(client)

    def restart(self) -> None:
        self.shell.restart()
        for client in self.clients:
            if isinstance(client, ClassicClient):
                client.disconnected()

    def commit(self, client: Client, number: int) -> None:
        topic = "tu"[number % 2]
        partition = number // 2 % self.sizes[topic]
        offset = self.committed.get((topic, partition), 0) + 1
        if client.commit(offset, topic, partition) is NONE:
            self.committed[topic, partition] = offset

    def may_commit(self, client: Client, topic: Any, partition: int) -> bool:
        """Whether the coordinator would take the client's commit for what it reads."""
        registry = self.shell.core.state
        group = registry.groups.get("g")
        name = registry.topics.by_id[topic].name
        offset = CommittedOffset(name, partition, 1)
        request = OffsetCommitRequest("g", (offset,), client.generation, client.member_id)
        if group is None or client.generation <= 0:
            return False
        check = registry.rules(group).commit(request, False)
        return check.error is NONE and (check.partition is None or check.partition(offset) is NONE)

    def is_member(self, client: Client) -> bool:
        """Whether the coordinator believes the client to be in the group, speaking what it speaks."""
        group = self.shell.core.state.groups.get("g")
        member = None if group is None else group.members.get(client.member_id)
        return member is not None and isinstance(client, ClassicClient) is (getattr(member, "classic", 1) is not None)

    def check_readers(self, clients: list[Client]) -> None:
        read = [partition for client in clients for partition in client.partitions]
        assert len(read) == len(set(read)), "a partition has two readers"

    def check(self) -> None:
        self.check_readers([client for client in self.clients if self.is_member(client)])
        readers: dict[Any, Client] = {}
        for client in self.clients:
            for topic, partition in client.partitions:
                if self.may_commit(client, topic, partition):
                    assert (topic, partition) not in readers, f"{topic}-{partition} has two committers"
                    readers[topic, partition] = client
        for (name, partition), offset in self.committed.items():
            assert self.shell.committed(topic=name, partition=partition) == offset
        self.shell.core.validate_state()

    def finish(self) -> None:
        """No more faults: everybody goes on for longer than all time-outs."""
        self.paused.clear()
        self.shell.fail_next = self.shell.interrupt_after = None
        for _ in range(320):
            self.all_step()
            self.shell.advance(500)
            self.check()
        self.check_settled()

    def check_settled(self) -> None:
        wanted = {name for client in self.clients for name in client.names}
        everything = {(topic_id(name), partition) for name in wanted for partition in range(self.sizes[name])}
        held = [partition for client in self.clients for partition in client.partitions]
        assert len(held) == len(set(held))
        assert set(held) == everything
        assert self.shell.state() in ("Stable" if self.clients else "Empty", "" if not self.clients else "Stable")
        for client in self.clients:
            assert all(self.may_commit(client, *partition) for partition in client.partitions)


def replayed(log: Iterable[tuple[int, tuple[bytes, bytes | None]]]) -> dict[str, Any]:
    """The durable state that records at offsets give."""
    state = GroupState(SETTINGS)
    for offset, (key, value) in log:
        record = decode(key, value)
        assert record is not None
        state.replay(record, offset)
    return state.durable()


def compacted(log: list[tuple[bytes, bytes | None]]) -> list[tuple[int, tuple[bytes, bytes | None]]]:
    """The last value of each key, without tombstones."""
    last = {key: (offset, value) for offset, (key, value) in enumerate(log)}
    return [(offset, (key, value)) for key, (offset, value) in sorted(last.items(), key=lambda i: i[1][0]) if value]


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(HISTORIES)
@example([("consumer", 2), ("all step", 0), ("fail append", 0), ("subscribe", 0)])
@example([("classic", 2), ("all step", 0), ("all step", 0), ("fail append", 0), ("subscribe", 0)])
def test_histories(history: list[tuple[str, int]]) -> None:
    world = World()
    for step, number in history:
        world.do(step, number)
        world.check()
    world.finish()
    durable = world.shell.core.state.durable()
    assert replayed(enumerate(world.shell.log)) == durable
    assert replayed(compacted(world.shell.log)) == durable


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(HISTORIES, st.data())
def test_a_restart_anywhere_gives_the_state_of_the_log(history: list[tuple[str, int]], data: st.DataObject) -> None:
    world = World()
    for step, number in history:
        world.do(step, number)
        size = len(world.shell.log)
        cut = data.draw(st.integers(max(0, size - 3), size))
        assert replayed([*compacted(world.shell.log[:cut]), *list(enumerate(world.shell.log))[cut:]]) == (
            world.shell.core.state.durable()
        )


def test_groups_of_one_protocol_are_not_disturbed_by_offsets_of_the_other() -> None:
    """A group that only has offsets becomes whatever its first member speaks."""
    for client in (ClassicClient, ConsumerClient):
        world = World()
        world.shell.commit(5)
        member = client(world.shell) if client is ClassicClient else ConsumerClient(world.shell, "m")
        world.clients.append(member)
        world.committed["t", 0] = 5
        world.finish()
        kind = ClassicGroup if client is ClassicClient else ConsumerGroup
        assert isinstance(world.shell.core.state.groups["g"], kind)


def test_histories_use_default_settings_except_for_speed() -> None:
    assert dataclasses.replace(SETTINGS, initial_rebalance_delay_ms=3000) == GroupSettings()
