"""Members and their coordinator, both as they are, over a network that loses requests and answers."""

from __future__ import annotations

import uuid

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rayka.client.group.membership import Action, Membership, MembershipState
from rayka.client.group.subscription import Identity, Subscription
from rayka.coordinator.groups.consumer.requests import ConsumerGroupHeartbeatRequest
from rayka.coordinator.groups.settings import GroupSettings, ModernGroupSettings
from rayka.coordinator.topics import TopicMetadata, Topics
from rayka.errors import ErrorCode, RaykaError
from rayka.types import TopicIdPartition
from tests.support.scale import examples
from tests.unit.coordinator.shell import Shell

TOPICS = {uuid.UUID(int=1): "a", uuid.UUID(int=2): "b"}
COUNTS = {"a": 4, "b": 3}
SUBSCRIPTIONS = (Subscription(("a",)), Subscription(("a", "b")), Subscription(pattern="b|c"))
MEMBERS = st.integers(0, 2)
LOST = RaykaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
GROUP = GroupSettings(consumer=ModernGroupSettings(10**9, 5000, 0))


class Network(RuleBasedStateMachine):
    """Time stands still, so that no session ends: then a partition never has two owners, whatever is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.shell = Shell(GROUP)
        self.shell.set_topics(
            Topics((TopicMetadata(topic_id, name, COUNTS[name]) for topic_id, name in TOPICS.items()), 1)
        )
        self.members = [Membership(Identity("g", f"m{number}"), None, 0) for number in range(3)]
        self.requests: dict[int, ConsumerGroupHeartbeatRequest] = {}
        self.actions: dict[int, Action] = {}

    @initialize(assignor=st.sampled_from(["uniform", "range"]))
    def choose(self, assignor: str) -> None:
        for member in self.members:
            member.identity = member.identity._replace(server_assignor=assignor)

    @rule(number=MEMBERS, subscription=st.sampled_from(SUBSCRIPTIONS))
    def subscribe(self, number: int, subscription: Subscription) -> None:
        self.members[number].subscribe(subscription)

    @rule(number=MEMBERS)
    def leave(self, number: int) -> None:
        self.members[number].leave()

    @rule(number=MEMBERS)
    def send(self, number: int) -> None:
        member = self.members[number]
        request = member.heartbeat(10**9)
        if request is not None:
            self.requests[number] = request

    @rule(number=MEMBERS, arrives=st.booleans())
    def lose(self, number: int, arrives: bool) -> None:
        """The request or its answer."""
        request = self.requests.pop(number, None)
        if request is not None:
            if arrives:
                self.deliver(request)
            self.members[number].failed(LOST, 0)

    @rule(number=MEMBERS)
    def answer(self, number: int) -> None:
        request = self.requests.pop(number, None)
        if request is not None:
            self.members[number].answered(self.deliver(request), 0)

    @rule(number=MEMBERS)
    def begin(self, number: int) -> None:
        action = self.members[number].next_action(TOPICS.get)
        if action is not None:
            assert number not in self.actions
            self.actions[number] = action

    @rule(number=MEMBERS)
    def finish(self, number: int) -> None:
        if number in self.actions:
            self.members[number].done(self.actions.pop(number))

    @rule()
    @precondition(lambda self: self.shell.log)
    def kill_the_coordinator(self) -> None:
        self.shell.restart()

    @rule()
    def grow(self) -> None:
        topics = self.shell.topics
        grown = [topic._replace(num_partitions=min(topic.num_partitions + 1, 8)) for topic in topics.by_name.values()]
        self.shell.set_topics(Topics(grown, topics.version + 1))

    def deliver(self, request: ConsumerGroupHeartbeatRequest):  # type: ignore[no-untyped-def]
        return self.shell.run(self.shell.core.consumer_group_heartbeat(request, self.shell.now))

    @invariant()
    def each_member_is_consistent(self) -> None:
        for member in self.members:
            member.validate_state()

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        held: list[TopicIdPartition] = [one for member in self.members for one in member.assigned]
        coming = [one for number, action in self.actions.items() for one in action.partitions]
        assert len(held) == len(set(held))
        assert len(set(held) | set(coming)) <= 16
        assert all(member.state is not MembershipState.FATAL for member in self.members)

    def teardown(self) -> None:
        """The network heals: everybody reaches the target, and all that is subscribed to is read."""
        for _ in range(60):
            for number in range(3):
                self.finish(number)
                self.begin(number)
                self.finish(number)
                self.answer(number)
                self.send(number)
                self.answer(number)
        joined = [member for member in self.members if member.subscription]
        for member in self.members:
            expected = MembershipState.STABLE if member in joined else MembershipState.UNSUBSCRIBED
            assert member.state is expected, member.state
        wanted = set()
        for member in joined:
            wanted |= set(member.subscription.topics) or {"b"}
        held = {one.topic_partition for member in joined for one in member.assigned}
        counts = {topic.name: topic.num_partitions for topic in self.shell.topics.by_name.values()}
        assert held == {(name, number) for name in wanted for number in range(counts[name])}


TestNetwork = Network.TestCase
TestNetwork.settings = settings(max_examples=examples(150), stateful_step_count=60)
