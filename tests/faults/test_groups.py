"""kill -9 and SIGSTOP of the processes that running groups depend on: no committed offset is lost, nobody is stuck."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from benchmarks import many_groups
from rayka.coordinator.groups.record_formats import decode
from rayka.coordinator.groups.records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
)
from rayka.errors import ErrorCode
from rayka.testing import BrokerProcess, paused, wait_until
from tests.clients.conftest import GROUP_SETTINGS
from tests.clients.members.process import Members, members, missing
from tests.faults.load import RECOVERY_S, Writer, create_topic

PARTITIONS = 4
ASK_S = 60.0
STILL_S = 4.5
"""Longer than the sessions, which are 3 s; shorter than the broker takes to give a process up."""
PAUSES = 3
"""A machine with too much to do may end a session of three seconds as well; a coordinator that does not count what came
during the pause ends them all, each time."""
COORDINATORS = "ray::PartitionActor"
OFFSET_COMMIT = 8
SEVERAL = ("partition.actors.per.node=3", "gateways.per.node=1", *GROUP_SETTINGS)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("groups"), SEVERAL) as started:
        yield started


class CommittedOffsets:
    """Looks at a group's committed offsets all the time: they never go back."""

    def __init__(self, bootstrap: str, group_id: str, topic: str) -> None:
        self.seen: dict[int, int] = {}
        self.went_back: list[str] = []
        self.looks = 0
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._wanted = ConsumerGroupTopicPartitions(group_id, [TopicPartition(topic, n) for n in range(PARTITIONS)])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            (future,) = self._admin.list_consumer_group_offsets([self._wanted], request_timeout=5).values()
            if isinstance(future.exception(RECOVERY_S), KafkaException):  # not raised: see `create_topic`
                continue
            self.looks += 1
            for place in future.result().topic_partitions:
                before = self.seen.get(place.partition, OFFSET_INVALID)
                if place.error is None and place.offset < before:
                    self.went_back.append(f"partition {place.partition} from {before} to {place.offset}")
                elif place.error is None:
                    self.seen[place.partition] = place.offset

    def finish(self) -> None:
        """Stop looking once a look has succeeded. Raises AssertionError if an offset went back."""
        wait_until(lambda: self.looks > 0, RECOVERY_S, "a look at the committed offsets")
        self._stop.set()
        self._thread.join(RECOVERY_S)
        assert not self.went_back


def wait_until_read(group: Members, writer: Writer) -> float:
    """Until records of every partition that are written from now on have been read."""
    last = max(int(value.partition(b":")[2]) for value in list(writer.acknowledged.values()))
    wanted = {b"w:%d" % (last + 100 + partition) for partition in range(PARTITIONS)}
    return wait_until(lambda: wanted <= group.values(), RECOVERY_S, lambda: f"{wanted} read\n{group.describe()}")


def wait_until_all_read(group: Members, writer: Writer) -> None:
    """Until nothing that was acknowledged is missing."""
    values = list(writer.acknowledged.values())

    def left() -> str:
        return f"{len(missing(values, group.values()))} records are not read\n{group.describe()}"

    wait_until(lambda: not missing(values, group.values()), RECOVERY_S, left)


@pytest.mark.parametrize("kind", ["confluent-kafka", "confluent-kafka-consumer", "aiokafka"])
@pytest.mark.parametrize("victim", ["ray::PartitionActor", "ray::GatewayActor", "ray::ControllerActor"])
def test_a_group_continues_after_a_process_was_killed(broker: BrokerProcess, victim: str, kind: str) -> None:
    topic = group_id = f"{victim.removeprefix('ray::').lower()}-{kind}"
    create_topic(broker.bootstrap, topic, PARTITIONS)
    writer = Writer(broker.bootstrap, topic, PARTITIONS, 0.002)
    writer.await_more(1)
    with members(broker.bootstrap) as group:
        for _ in range(2):
            group.start(kind, group_id, topic)
        wait_until(lambda: all(member.values for member in group.all), RECOVERY_S, group.describe)
        committed = CommittedOffsets(broker.bootstrap, group_id, topic)
        for which in range(len(broker.await_found(victim))):
            broker.kill_one(victim, which)
            wait_until_read(group, writer)
        writer.finish()
        wait_until_all_read(group, writer)
        committed.finish()
        for member in group.all:
            assert member.process.poll() is None, member.errors()
            member.leave()
    assert not writer.failed


def test_committed_offsets_survive_the_kill_of_everything(broker: BrokerProcess) -> None:
    create_topic(broker.bootstrap, "events", PARTITIONS)
    settings = {"bootstrap.servers": broker.bootstrap, "enable.auto.commit": False, "log_level": 0}
    groups = [f"group-{number}" for number in range(8)]
    wanted = {}
    for index, group_id in enumerate(groups):
        consumer = Consumer({**settings, "group.id": group_id})
        wanted[group_id] = [100 * index + partition for partition in range(PARTITIONS)]
        places = [TopicPartition("events", partition, offset) for partition, offset in enumerate(wanted[group_id])]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()
    broker.kill()
    broker.start()
    for group_id in groups:
        consumer = Consumer({**settings, "group.id": group_id})
        found = consumer.committed([TopicPartition("events", partition) for partition in range(PARTITIONS)], ASK_S)
        consumer.close()
        assert [place.offset for place in found] == wanted[group_id]


def generations(bootstrap: str, group_id: str) -> list[int]:
    """The generations (or epochs) of a group so far that had members, as the offsets topic has them."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer(settings)
    partitions = consumer.list_topics("__consumer_offsets", ASK_S).topics["__consumer_offsets"].partitions
    consumer.assign([TopicPartition("__consumer_offsets", number, OFFSET_BEGINNING) for number in partitions])
    found, ended = set(), 0
    while ended < len(partitions):
        (message,) = consumer.consume(1, ASK_S)
        if message.error() is not None:
            ended += message.error().code() == KafkaError._PARTITION_EOF
        elif (record := decode(message.key() or b"", message.value())) is not None:
            match record.key, record.value:
                case GroupMetadataKey(group), GroupMetadataValue() as value if group == group_id and value.members:
                    found.add(value.generation)
                case ConsumerGroupMetadataKey(group), ConsumerGroupMetadataValue() as value if group == group_id:
                    found.add(value.epoch)
    consumer.close()
    return sorted(found)


@pytest.mark.parametrize("kind", ["confluent-kafka", "confluent-kafka-consumer"])
def test_a_group_continues_after_its_coordinator_was_paused(broker: BrokerProcess, kind: str) -> None:
    topic = group_id = f"still-{kind}"
    create_topic(broker.bootstrap, topic, PARTITIONS)
    writer = Writer(broker.bootstrap, topic, PARTITIONS, 0.002)
    with members(broker.bootstrap) as group:
        for _ in range(2):
            group.start(kind, group_id, topic)
        wait_until(lambda: all(member.values for member in group.all), RECOVERY_S, group.describe)
        committed = CommittedOffsets(broker.bootstrap, group_id, topic)
        new_generations = [generations_of_a_pause(broker, group, writer, group_id)]
        while new_generations[-1] > 1 and len(new_generations) < PAUSES:
            new_generations.append(generations_of_a_pause(broker, group, writer, group_id))
        writer.finish()
        wait_until_all_read(group, writer)
        committed.finish()
        for member in group.all:
            member.leave()
    assert not writer.failed
    assert min(new_generations) <= 1, f"each pause has ended sessions: {new_generations}"


def generations_of_a_pause(broker: BrokerProcess, group: Members, writer: Writer, group_id: str) -> int:
    """Pause the coordinator for longer than a session; how many generations the group has had when it reads again."""
    before = generations(broker.bootstrap, group_id)
    with paused(broker.await_found(COORDINATORS)):
        threading.Event().wait(STILL_S)
    wait_until_read(group, writer)
    return len(generations(broker.bootstrap, group_id)) - len(before)


async def commit(member: many_groups.Classic, topic: str, offset: int, generation_id: int) -> ErrorCode:
    """An offset of partition 0, with OffsetCommit 2."""
    body = many_groups.short(member.group_id) + struct.pack(">i", generation_id) + many_groups.short(member.member_id)
    body += struct.pack(">qi", -1, 1) + many_groups.short(topic) + struct.pack(">iiq", 1, 0, offset)
    answer = await member.connection.send(OFFSET_COMMIT, 2, body + many_groups.short(""))
    return ErrorCode(struct.unpack_from(">h", answer, len(answer) - 2)[0])


def test_pending_heartbeats_count_after_a_pause_and_old_generations_are_rejected(
    broker: BrokerProcess,
) -> None:
    topic = "waited"
    create_topic(broker.bootstrap, topic, PARTITIONS)

    async def check() -> None:
        connections = [await many_groups.Connection.open(broker.bootstrap) for _ in range(2)]
        await connections[0].send(many_groups.FIND_COORDINATOR, 0, many_groups.short(topic))
        coordinators = broker.await_found(COORDINATORS)
        first, second = group = [
            many_groups.Classic(each, topic, session_ms=session_ms)
            for each, session_ms in zip(connections, (60_000, 4_000), strict=True)
        ]
        await many_groups.settle(group)
        old = first.epoch
        with paused(coordinators):
            waiting = asyncio.gather(first.beat(), second.beat(), commit(first, topic, 11, old))
            await asyncio.sleep(STILL_S)
        assert await waiting == [0, 0, ErrorCode.NONE]
        while await first.beat() == 0:  # until the session of the second one, which is silent from here on, is over
            await asyncio.sleep(0.1)
        await first.join()
        assert first.epoch == old + 1
        assert await commit(first, topic, 5, old) is ErrorCode.ILLEGAL_GENERATION
        assert await commit(second, topic, 6, old) is ErrorCode.UNKNOWN_MEMBER_ID
        for each in connections:
            each.close()

    asyncio.run(asyncio.wait_for(check(), RECOVERY_S))
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic, "log_level": 0})
    (kept,) = consumer.committed([TopicPartition(topic, 0)], ASK_S)
    consumer.close()
    assert kept.offset == 11
