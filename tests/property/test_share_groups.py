"""Random histories of a share group: members that join, change their minds, lose answers, leave and die, topics that
grow, go and come back, appends and initializations that fail, and restarts.

At every step the log gives the same state, and nobody is assigned what has no state. At the end, when everybody is
there and well, every partition is read, and every member has something to read if there is anything.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rayka.coordinator.groups.records import TargetPartitions
from rayka.coordinator.groups.settings import GroupSettings, ModernGroupSettings
from rayka.coordinator.groups.share.group import ShareGroup
from rayka.coordinator.groups.share.requests import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupStateInitializedRequest,
    SharePartitionToInitialize,
)
from rayka.coordinator.topics import TopicMetadata, Topics
from rayka.errors import ErrorCode
from tests.support.scale import examples
from tests.unit.coordinator.shell import Shell

SETTINGS = GroupSettings(share=ModernGroupSettings(assignment_interval_ms=500), share_max_size=4)
SUBSCRIPTIONS = [("t",), ("u",), ("t", "u")]
MEMBERS = ["a", "b", "c", "d", "e"]
STEPS = [
    "join", "join", "beat", "beat", "beat", "lose answer", "leave", "subscribe", "wait", "wait long",
    "grow", "delete topic", "create topic", "fail append", "fail initialization", "lose report", "restart",
]  # fmt: skip
HISTORIES = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 11)), max_size=40)


class World:
    """A group, and what its members know."""

    def __init__(self) -> None:
        self.shell = Shell(SETTINGS)
        self.sizes = {"t": 2, "u": 1}
        self.made = 0
        self.epochs: dict[str, int] = {}
        self.topics: dict[str, tuple[str, ...]] = {}
        self.unsure: set[str] = set()
        """Members whose last heartbeat failed or got no answer: Kafka's clients send all fields again then."""
        self.ids = {name: uuid.UUID(int=number + 1) for number, name in enumerate(self.sizes)}
        self.fails_initialization = self.loses_report = False
        self.set_topics()

    def set_topics(self) -> None:
        """The topics change."""
        self.made += 1
        topics = [TopicMetadata(self.ids[name], name, size) for name, size in self.sizes.items()]
        self.shell.set_topics(Topics(topics, self.made))

    @property
    def group(self) -> ShareGroup | None:
        """The group, if it is there."""
        group = self.shell.core.state.groups.get("g")
        assert group is None or isinstance(group, ShareGroup)
        return group

    def beat(self, member: str, *, full: bool = False, hears: bool = True) -> ShareGroupHeartbeatResponse:
        """One heartbeat; a member that is not known any more joins again with the next one."""
        epoch = self.epochs.get(member, 0)
        names = self.topics[member] if full or epoch == 0 or member in self.unsure else None
        answer: ShareGroupHeartbeatResponse = self.shell.execute(
            ShareGroupHeartbeatRequest("g", member, epoch, subscribed_topic_names=names)
        )
        self.initialize(answer.to_initialize)
        if hears and answer.error is ErrorCode.NONE:
            self.unsure.discard(member)
        else:
            self.unsure.add(member)
        if hears:
            if answer.error is ErrorCode.NONE:
                self.epochs[member] = answer.member_epoch
            elif answer.error is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
                self.epochs[member] = 0
        return answer

    def initialize(self, partitions: Iterable[SharePartitionToInitialize]) -> None:
        """Report that share-partitions have got state, or have not, or nothing."""
        numbers: dict[uuid.UUID, list[int]] = {}
        for one in partitions:
            numbers.setdefault(one.topic_id, []).append(one.partition)
        targets = tuple(TargetPartitions(topic_id, tuple(found)) for topic_id, found in numbers.items())
        if targets and not self.loses_report:
            good, failed = ((), targets) if self.fails_initialization else (targets, ())
            self.shell.execute(ShareGroupStateInitializedRequest("g", good, failed))
        if targets:
            self.fails_initialization = self.loses_report = False

    def step(self, kind: str, number: int) -> None:
        """Carry out one step."""
        member = MEMBERS[number % len(MEMBERS)]
        match kind:
            case "join":
                self.topics.setdefault(member, SUBSCRIPTIONS[number % 3])
                self.beat(member, full=True)
            case "beat" | "lose answer" if member in self.topics:
                self.beat(member, hears=kind == "beat")
            case "leave" if member in self.topics:
                self.shell.execute(ShareGroupHeartbeatRequest("g", member, -1))
                del self.topics[member]
                self.epochs.pop(member, None)
            case "subscribe" if member in self.topics:
                self.topics[member] = SUBSCRIPTIONS[number % 3]
                self.beat(member, full=True)
            case "wait" | "wait long":
                self.shell.advance(1000 if kind == "wait" else 50_000)
            case "fail append":
                self.shell.fail_next = ErrorCode.NOT_ENOUGH_REPLICAS
            case "fail initialization":
                self.fails_initialization = True
            case "lose report":
                self.loses_report = True
            case "restart":
                self.shell.restart()
            case _:
                self.change_topics(kind, "tu"[number % 2])

    def change_topics(self, kind: str, name: str) -> None:
        """A topic grows, goes, or comes back as another one."""
        if kind == "grow" and name in self.sizes:
            self.sizes[name] += 1
        elif kind == "delete topic":
            self.sizes.pop(name, None)
        elif kind == "create topic" and name not in self.sizes:
            self.sizes[name], self.ids[name] = 2, uuid.UUID(int=100 + self.made)
        self.set_topics()

    def check(self) -> None:
        """What must hold at every step."""
        before = self.shell.core.state.durable()
        assert self.shell._load().state.durable() == before
        if self.group is None:
            return
        for target in self.group.targets.values():
            for topic_id, numbers in target.items():
                known = self.group.initialized.get(topic_id)
                assert topic_id not in self.shell.topics.by_id or (known and numbers <= known.partitions)

    def settle(self) -> None:
        """Everybody who is there sends heartbeats for as long as anything may take."""
        self.shell.fail_next = None
        self.fails_initialization = self.loses_report = False
        for _ in range(40):
            self.shell.advance(1000)
            for member in list(self.topics):
                if self.beat(member).error is ErrorCode.GROUP_MAX_SIZE_REACHED:
                    del self.topics[member]

    def check_end(self) -> None:
        """What must hold when nothing more happens."""
        readers: dict[uuid.UUID, set[int]] = {}
        for member in self.topics:
            assert self.group is not None
            own = self.group.members[member]
            wanted = {self.ids[name] for name in self.topics[member] if name in self.sizes}
            assert own.assigned.keys() <= wanted
            assert bool(own.assigned) == bool(wanted), "a member has work if there is any"
            for topic_id, numbers in own.assigned.items():
                readers.setdefault(topic_id, set()).update(numbers)
        subscribed = {name for names in self.topics.values() for name in names if name in self.sizes}
        assert readers == {self.ids[name]: set(range(self.sizes[name])) for name in subscribed}


@given(HISTORIES)
@example([("join", 5), ("fail append", 0), ("subscribe", 0)])
@settings(max_examples=examples(40), deadline=None)
def test_a_share_group_settles_whatever_happened_to_it(history: list[tuple[str, int]]) -> None:
    world = World()
    for kind, number in history:
        world.step(kind, number)
        world.check()
    world.settle()
    world.check()
    world.check_end()
