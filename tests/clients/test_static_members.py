"""Static members (KIP-345): who comes back in time has what it had and disturbs nobody; an instance is there once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from rayka.testing import wait_until
from tests.clients.adapters.confluent import Confluent
from tests.clients.conftest import require, unique
from tests.clients.members.process import JAVA, JAVA_CONSUMER, STATIC_SESSION_MS, Member, Members, command, members
from tests.clients.record import Record

PARTITIONS = 4
TIMEOUT_S = 90.0
PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


class Instance:
    """A consumer with an instance id, of one topic. `changes` counts how often it was told of another assignment."""

    def __init__(self, bootstrap: str, group_id: str, instance_id: str, topic: str, protocol: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": group_id, "group.instance.id": instance_id}
        settings |= {"group.protocol": protocol, "log_level": 0}
        if protocol == "classic":
            settings |= {"session.timeout.ms": str(STATIC_SESSION_MS), "heartbeat.interval.ms": "300"}
        self.changes = 0
        self.error: KafkaError | None = None
        self.consumer = Consumer(settings)
        self.consumer.subscribe([topic], on_assign=self._changed, on_revoke=self._changed)

    def _changed(self, consumer: Consumer, partitions: object) -> None:
        self.changes += 1

    def poll(self) -> None:
        try:
            message = self.consumer.poll(0.05)
        except KafkaException as fatal:
            self.error = fatal.args[0]
        else:
            self.error = self.error if message is None else message.error() or self.error

    @property
    def partitions(self) -> set[int]:
        return {at.partition for at in self.consumer.assignment()}


@pytest.fixture
def start(bootstrap: str, new_topic: Callable[..., str]) -> Iterator[Callable[[str, str], Instance]]:
    """`start(instance_id, protocol)`: consumers of one topic in one group."""
    topic, group_id = new_topic(PARTITIONS), unique("static")
    started: list[Instance] = []

    def one(instance_id: str, protocol: str) -> Instance:
        if protocol == "consumer":
            set_session(bootstrap, group_id, STATIC_SESSION_MS)
        started.append(Instance(bootstrap, group_id, instance_id, topic, protocol))
        return started[-1]

    yield one
    for instance in started:
        instance.consumer.close()


def poll_until(condition: Callable[[], bool], what: str, *instances: Instance) -> None:
    def polled() -> bool:
        for instance in instances:
            instance.poll()
        return condition()

    wait_until(polled, TIMEOUT_S, what)


def settled(*instances: Instance) -> Callable[[], bool]:
    return lambda: all(len(instance.partitions) == PARTITIONS // len(instances) for instance in instances)


@PROTOCOLS
def test_a_static_member_that_returns_in_time_causes_no_rebalance(
    start: Callable[[str, str], Instance], protocol: str
) -> None:
    first, second = start("one", protocol), start("two", protocol)
    poll_until(settled(first, second), "two partitions each", first, second)
    had, changes = first.partitions, second.changes
    first.consumer.close()

    again = start("one", protocol)
    poll_until(lambda: again.partitions == had, "what it had before", again, second)

    for _ in range(20):  # a rebalance would show with the next heartbeat
        second.poll()
    assert second.changes == changes


@PROTOCOLS
def test_an_instance_is_in_the_group_once(start: Callable[[str, str], Instance], protocol: str) -> None:
    """In the classic protocol the newer one takes over, in the consumer protocol the older one stays."""
    first = start("one", protocol)
    poll_until(settled(first), "all partitions", first)

    double = start("one", protocol)

    fenced, stays = (first, double) if protocol == "classic" else (double, first)
    poll_until(lambda: fenced.error is not None, "one of the two is fenced", first, double)
    assert fenced.error is not None
    assert fenced.error.code() == KafkaError._FATAL
    assert "instance" in fenced.error.str()
    poll_until(lambda: len(stays.partitions) == PARTITIONS, "the other one has all partitions", stays)


def read_share(confluent: Confluent, topic: str, name: str, group: Members, *readers: Member) -> list[set[int]]:
    """The partitions that each of these reads new records of."""
    before = [len(reader.values) for reader in readers]
    values = [b"%s-%d" % (name.encode(), partition) for partition in range(PARTITIONS)]
    for partition, value in enumerate(values):
        confluent.produce(topic, [Record(None, value)], partition=partition)
    wait_until(lambda: set(values) <= group.values(), TIMEOUT_S, f"{values} read\n{group.describe()}")
    return [{int(value[-1:]) for value in reader.values[start:]} for reader, start in zip(readers, before, strict=True)]


def set_session(bootstrap: str, group_id: str, session_ms: int) -> None:
    """The session timeout of one group of the consumer protocol."""
    entry = ConfigEntry("consumer.session.timeout.ms", str(session_ms), incremental_operation=AlterConfigOpType.SET)
    group = ConfigResource(ResourceType.GROUP, group_id, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for changed in admin.incremental_alter_configs([group]).values():
        changed.result(TIMEOUT_S)


@pytest.mark.parametrize(
    ("kind", "rebalanced", "refusal"),
    [
        (JAVA, "Successfully joined group", "FencedInstanceIdException"),
        (JAVA_CONSUMER, "Reconciling assignment", "UnreleasedInstanceIdException"),
    ],
)
def test_a_java_static_member_that_returns_in_time_is_in_the_group_once(
    bootstrap: str, confluent: Confluent, new_topic: Callable[..., str], kind: str, rebalanced: str, refusal: str
) -> None:
    """Neither its return nor its double makes the other member rebalance; of two doubles one is refused."""
    require(lambda: command(kind, "b", "g", "t"))
    topic, group_id = new_topic(PARTITIONS), unique("static")
    if kind == JAVA_CONSUMER:
        set_session(bootstrap, group_id, STATIC_SESSION_MS)
    with members(bootstrap) as group:
        first, second = (group.start(kind, group_id, topic, instance_id) for instance_id in ("one", "two"))
        rounds = iter(range(1000))

        def both_read() -> bool:
            shares = read_share(confluent, topic, f"r{next(rounds)}", group, first, second)
            return [len(share) for share in shares] == [2, 2]

        wait_until(both_read, TIMEOUT_S, "two partitions each")
        had = read_share(confluent, topic, "had", group, first, second)
        rebalances = second.errors().count(rebalanced)
        assert rebalances
        first.leave()
        again = group.start(kind, group_id, topic, "one")
        assert read_share(confluent, topic, "again", group, again, second) == had

        double = group.start(kind, group_id, topic, "one")
        fenced, stays = (again, double) if kind == JAVA else (double, again)
        fenced.process.wait(TIMEOUT_S)
        assert refusal in fenced.errors()
        assert read_share(confluent, topic, "double", group, stays, second) == had
        assert second.errors().count(rebalanced) == rebalances
