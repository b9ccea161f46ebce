"""Consumer groups: every client reads every record at least once, whatever happens to the members."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from rayka.testing import wait_until
from tests.clients.adapters.confluent import Confluent
from tests.clients.conftest import require, unique
from tests.clients.members.process import (
    CLASSIC,
    CONSUMER,
    JAVA_CONSUMER,
    KAFKAJS,
    KCAT,
    Member,
    Members,
    members,
    missing,
)
from tests.clients.members.process import command as member_command
from tests.faults.load import Writer

PARTITIONS = 4
TIMEOUT_S = 90.0
PACE_S = 0.004
ALL = (*CLASSIC, *CONSUMER)


class Stream:
    """Numbered records to all partitions in turn, and who has read how far."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, group: Members, name: str = "w") -> None:
        self._name, self._partitions, self._group = name.encode(), partitions, group
        self.writer = Writer(bootstrap, topic, partitions, PACE_S, name)

    def latest(self, readers: Sequence[Member]) -> list[int]:
        """The latest number that these have read, for each partition; -1 for none."""
        latest = [-1] * self._partitions
        for member in readers:
            for value in list(member.values):
                name, _, number = value.partition(b":")
                if name == self._name:
                    partition = int(number) % self._partitions
                    latest[partition] = max(latest[partition], int(number))
        return latest

    def last(self) -> int:
        """The latest number that was acknowledged."""
        return max((int(value.partition(b":")[2]) for value in list(self.writer.acknowledged.values())), default=-1)

    def wait_for_all_partitions(self, *readers: Member) -> float:
        """Until these members have read new records of every partition."""
        last = self.last()
        return self._wait(lambda: min(self.latest(readers)) > last, "new records of every partition")

    def wait_for_share(self, reader: Member) -> float:
        """Until this member has read a new record of any partition."""
        last = self.last()
        return self._wait(lambda: max(self.latest([reader])) > last, f"a new record read by {reader.kind}")

    def wait_for_return(self, reader: Member, start_again: Callable[[], Member]) -> Member:
        """As `wait_for_share`, after the reader was paused; returns it, or its successor (`Member.lost_its_race`)."""
        last, current = self.last(), reader

        def reads() -> bool:
            nonlocal current
            if current is reader and reader.lost_its_race:
                current = start_again()
            return max(self.latest([current])) > last

        self._wait(reads, f"a new record read by {reader.kind}")
        return current

    def finish(self) -> None:
        """Stop writing; everything must have been read soon after."""
        self.writer.finish()
        assert not self.writer.failed
        values = list(self.writer.acknowledged.values())
        try:
            self._wait(lambda: not missing(values, self._group.values()), "every record")
        except AssertionError as late:
            raise AssertionError(f"nobody read {missing(values, self._group.values())[:20]}") from late

    def _wait(self, condition: Callable[[], bool], what: str) -> float:
        try:
            return wait_until(condition, TIMEOUT_S, what)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self._group.describe()}") from late


@pytest.fixture
def group(bootstrap: str) -> Iterator[Members]:
    with members(bootstrap) as started:
        yield started


@pytest.fixture
def group_id(request: pytest.FixtureRequest) -> str:
    return unique(request.node.name)


def need(*kinds: str) -> None:
    """Skip where a client is not installed, but not in CI."""
    for kind in kinds:
        require(lambda kind=kind: member_command(kind, "b", "g", "t"))


@pytest.mark.parametrize("kind", ALL)
def test_members_join_crash_and_leave(
    kind: str, bootstrap: str, group: Members, group_id: str, new_topic: Callable[..., str]
) -> None:
    need(kind)
    topic = new_topic(PARTITIONS)
    stream = Stream(bootstrap, topic, PARTITIONS, group)
    first = group.start(kind, group_id, topic)
    second = group.start(kind, group_id, topic)
    stream.wait_for_share(first)
    stream.wait_for_share(second)
    stream.wait_for_all_partitions(first, second)

    first.kill()
    stream.wait_for_all_partitions(second)

    third = group.start(kind, group_id, topic)
    stream.wait_for_share(third)
    # kcat forgets the record in its hand when it is asked to end, and commits it all the same
    (second.kill if kind == KCAT else second.leave)()
    stream.wait_for_all_partitions(third)
    stream.finish()


@pytest.mark.parametrize("kind", ["confluent-kafka", "kafka-python", "confluent-kafka-consumer", JAVA_CONSUMER])
def test_a_member_paused_beyond_its_session_rejoins(
    kind: str, bootstrap: str, group: Members, group_id: str, new_topic: Callable[..., str]
) -> None:
    need(kind)
    topic = new_topic(PARTITIONS)
    stream = Stream(bootstrap, topic, PARTITIONS, group)
    first = group.start(kind, group_id, topic)
    second = group.start(kind, group_id, topic)
    stream.wait_for_share(first)
    stream.wait_for_share(second)

    first.pause()
    stream.wait_for_all_partitions(second)
    first.resume()

    first = stream.wait_for_return(first, lambda: group.start(kind, group_id, topic))
    stream.wait_for_all_partitions(first, second)
    stream.finish()


def test_clients_of_both_protocols_share_a_group(
    bootstrap: str, group: Members, group_id: str, new_topic: Callable[..., str]
) -> None:
    """All clients of the classic protocol, then one of the consumer protocol comes and goes."""
    kinds = ("confluent-kafka", "kafka-python", "aiokafka", KAFKAJS, KCAT)
    need(*kinds, JAVA_CONSUMER)
    partitions = 12
    topic = new_topic(partitions)
    stream = Stream(bootstrap, topic, partitions, group)
    classic = [group.start(kind, group_id, topic) for kind in kinds]
    for member in classic:
        stream.wait_for_share(member)

    newcomer = group.start(JAVA_CONSUMER, group_id, topic)
    for member in (newcomer, *classic):
        stream.wait_for_share(member)
    stream.wait_for_all_partitions(newcomer, *classic)

    newcomer.leave()
    stream.wait_for_all_partitions(*classic)
    classic[0].kill()
    stream.wait_for_all_partitions(*classic[1:])
    stream.finish()


@pytest.mark.parametrize("kind", ["confluent-kafka", "kafka-python", "aiokafka", *CONSUMER])
def test_added_partitions_and_new_topics_are_read(
    kind: str, bootstrap: str, group: Members, group_id: str, new_topic: Callable[..., str], confluent: Confluent
) -> None:
    need(kind)
    topic = new_topic(1)
    first = Stream(bootstrap, topic, 1, group, "one")
    reader = group.start(kind, group_id, f"^{topic}.*")
    other = group.start(kind, group_id, f"^{topic}.*")
    first.wait_for_all_partitions(reader, other)

    confluent.create_partitions(topic, 3)
    grown = Stream(bootstrap, topic, 3, group, "grown")
    confluent.create_topic(f"{topic}-new", 2)
    new = Stream(bootstrap, f"{topic}-new", 2, group, "new")

    for stream in (grown, new):
        stream.wait_for_all_partitions(reader, other)
    for stream in (first, grown, new):
        stream.finish()
