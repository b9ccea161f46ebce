"""Groups on actor handles, with real processes: members and coordinators that join, leave and die."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

import ray
from confluent_kafka import Consumer as WireConsumer

import rayka
from rayka.client.cluster import Cluster
from rayka.client.consumer.reader import FetchRequest
from rayka.client.consumer.records import ConsumerRecord
from rayka.client.group.blocking import GroupConsumer
from rayka.client.streams.streams import AsyncStream
from rayka.client.streams.topic_filter import Blacklist, Whitelist
from rayka.coordinator.spec import partition_for
from rayka.metadata.records import ConfigResource, ResourceType
from rayka.types import TopicPartition

SETTINGS: dict[str, Any] = {"auto_offset_reset": "earliest", "auto_commit_interval_ms": 200}
PATIENCE_S = 120.0
"""Ray starts processes slowly on a busy machine."""


def write(cluster: Cluster, topic: str, numbers: range) -> None:
    """Numbered records, over all partitions."""
    partitions = len(cluster.admin().describe_topics([topic])[0].partitions)
    with cluster.producer() as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, partition=number % partitions)


def until(done: Callable[[], bool], *consumers: GroupConsumer) -> list[ConsumerRecord]:
    """Poll in turn until something is so; gives what came meanwhile."""
    records: list[ConsumerRecord] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline_s, "this took too long"
        for consumer in consumers:
            records += flat(consumer.poll(20))
    return records


def flat(polled: dict[TopicPartition, list[ConsumerRecord]]) -> list[ConsumerRecord]:
    return [record for records in polled.values() for record in records]


def read(records: list[ConsumerRecord], wanted: Iterable[int], *consumers: GroupConsumer) -> list[ConsumerRecord]:
    """Poll until all numbers have been seen."""
    seen = {int(record.value) for record in records}

    def complete() -> bool:
        for consumer in consumers:
            for record in flat(consumer.poll(20)):
                records.append(record)
                seen.add(int(record.value))
        return seen >= set(wanted)

    until(complete)
    return records


def patient(cluster: Cluster, group_id: str) -> None:
    """Let no member be late, however long its coordinator and its process are kept waiting."""
    cluster.admin().alter_configs(ConfigResource(ResourceType.GROUP, group_id), {"consumer.session.timeout.ms": 60_000})


def offsets_actor(cluster: Cluster, group_id: str) -> str:
    """The actor that coordinates the group."""
    topic = cluster.admin().describe_topics(["__consumer_offsets"])[0]
    name = topic.partitions[partition_for(group_id, len(topic.partitions))].leader_actor
    assert name is not None
    return name


@ray.remote(num_cpus=0)
class Member:
    """A member in a process of its own."""

    def __init__(self, group_id: str, topic: str) -> None:
        self._consumer = rayka.connect().consumer(group_id, [topic], **SETTINGS)

    def poll(self, timeout_ms: float) -> tuple[list[int], set[int]]:
        """Numbers that were read, and the partitions that are held."""
        numbers = [int(record.value) for record in flat(self._consumer.poll(timeout_ms))]
        return numbers, {partition.partition for partition in self._consumer.assignment()}

    def close(self) -> None:
        self._consumer.close()


def test_processes_share_and_one_that_is_killed_is_replaced(cluster: Cluster) -> None:
    """At least once: what the dead member had not committed comes again, and nothing is left out."""
    cluster.admin().create_topic("shared", partitions=4)
    members = [Member.remote("shared", "shared") for _ in range(2)]  # type: ignore[attr-defined]
    mine = cluster.consumer("shared", ["shared"], **SETTINGS)
    seen: set[int] = set()

    def turn(alive: list[Any]) -> list[set[int]]:
        polls = [member.poll.remote(20) for member in alive]
        seen.update(int(record.value) for record in flat(mine.poll(20)))
        answers = ray.get(polls, timeout=PATIENCE_S)
        seen.update(number for numbers, _ in answers for number in numbers)
        return [held for _, held in answers] + [{each.partition for each in mine.assignment()}]

    def are_settled(alive: list[Any]) -> bool:
        held = turn(alive)
        return all(held) and sorted(number for one in held for number in one) == [0, 1, 2, 3]

    until(lambda: are_settled(members))
    write(cluster, "shared", range(200))
    until(lambda: bool(turn(members)) and len(seen) >= 100)
    ray.kill(members[0])
    write(cluster, "shared", range(200, 400))
    until(lambda: are_settled(members[1:]) and seen >= set(range(400)))
    ray.get(members[1].close.remote(), timeout=PATIENCE_S)
    until(lambda: are_settled([]))
    mine.close()
    described = cluster.admin().describe_group("shared")
    assert described.members == ()
    assert {offset.lag for offset in described.offsets} == {0}


def test_a_coordinator_that_is_killed_again_and_again_stops_nobody(cluster: Cluster) -> None:
    """No record is left out, none comes twice, and nobody is fenced: the group is in the log."""
    cluster.admin().create_topic("steady", partitions=4)
    patient(cluster, "steady")
    lost: list[TopicPartition] = []
    consumers = [cluster.consumer("steady", **SETTINGS) for _ in range(2)]
    for consumer in consumers:
        consumer.subscribe(["steady"], on_lost=lost.extend)
    until(lambda: all(len(consumer.assignment()) == 2 for consumer in consumers), *consumers)
    records: list[ConsumerRecord] = []
    for turn in range(3):
        ray.kill(ray.get_actor(offsets_actor(cluster, "steady"), namespace="rayka"), no_restart=False)
        numbers = range(turn * 100, turn * 100 + 100)
        write(cluster, "steady", numbers)
        read(records, numbers, *consumers)
        for consumer in consumers:
            consumer.commit()
    assert sorted(int(record.value) for record in records) == [*range(300)]
    assert lost == []
    newcomer = cluster.consumer("steady", ["steady"], **SETTINGS)
    until(lambda: bool(newcomer.assignment()), *consumers, newcomer)
    for consumer in (*consumers, newcomer):
        consumer.close()
    assert {offset.current_offset for offset in cluster.admin().describe_group("steady").offsets} == {75}


def test_the_coordinator_dies_in_the_middle_of_a_rebalance(cluster: Cluster) -> None:
    cluster.admin().create_topic("moving", partitions=4)
    patient(cluster, "moving")
    held: dict[TopicPartition, str] = {}

    def listeners(name: str) -> dict[str, Any]:
        def on_assigned(partitions: list[TopicPartition]) -> None:
            for partition in partitions:
                assert held.setdefault(partition, name) == name, "a partition has one owner"

        def on_revoked(partitions: list[TopicPartition]) -> None:
            for partition in partitions:
                assert held.pop(partition) == name
            ray.kill(ray.get_actor(offsets_actor(cluster, "moving"), namespace="rayka"), no_restart=False)

        return {"on_assigned": on_assigned, "on_revoked": on_revoked}

    consumers = [cluster.consumer("moving", **SETTINGS) for _ in range(2)]
    consumers[0].subscribe(["moving"], **listeners("first"))
    until(lambda: len(held) == 4, consumers[0])
    consumers[1].subscribe(["moving"], **listeners("second"))
    until(lambda: sorted(held.values()) == ["first", "first", "second", "second"], *consumers)
    write(cluster, "moving", range(40))
    assert len(read([], range(40), *consumers)) == 40
    for consumer in consumers:
        consumer.close()
    assert held == {}


def test_a_group_of_handles_and_of_a_kafka_client(cluster: Cluster) -> None:
    cluster.admin().create_topic("mixed", partitions=2)
    wire = WireConsumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "mixed",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    wire.subscribe(["mixed"])
    here = cluster.consumer("mixed", ["mixed"], **SETTINGS)
    from_wire: list[int] = []

    def are_settled() -> bool:
        message = wire.poll(0.05)
        if message is not None and message.error() is None:
            from_wire.append(int(message.value()))
        return len(wire.assignment()) == len(here.assignment()) == 1

    until(are_settled, here)
    write(cluster, "mixed", range(20))
    until(lambda: are_settled() and len(from_wire) == 10)
    theirs = set(from_wire)
    records = read([], set(range(20)) - theirs, here)
    wire.close()
    assert len(records) == 10
    write(cluster, "mixed", range(20, 24))
    read([], range(20, 24), here)
    here.close()


def test_an_asynchronous_member_in_an_actor_goes_on_where_it_stopped(cluster: Cluster) -> None:
    cluster.admin().create_topic("awaited", partitions=2)
    write(cluster, "awaited", range(20))

    @ray.remote(num_cpus=0)
    class Reader:
        async def first(self, count: int) -> list[int]:
            connected = await asyncio.to_thread(rayka.connect)
            async with connected.async_consumer("awaited", ["awaited"], **SETTINGS) as consumer:
                return [int((await anext(consumer)).value) for _ in range(count)]

    first = ray.get(Reader.remote().first.remote(13), timeout=PATIENCE_S)
    second = ray.get(Reader.remote().first.remote(7), timeout=PATIENCE_S)
    assert sorted(first + second) == [*range(20)]


@ray.remote(num_cpus=0)
class Streams:
    """A consumer with two streams in a process of its own; `read` gives what they have."""

    def __init__(self, group_id: str, consumer_id: str) -> None:
        settings = {**SETTINGS, "consumer_timeout_ms": 100}
        self._connector = rayka.connect().consumer_connector(group_id, consumer_id, **settings)
        self._streams: list[Any] = []

    def create(self, topic: str) -> None:
        self._streams = self._connector.create_message_streams({topic: 2})[topic]

    def read(self) -> list[tuple[int, int]]:
        """Partition and number of what the streams give before they time out."""
        return [(record.partition, int(record.value)) for stream in self._streams for record in stream]


def test_streams_of_two_processes_by_the_range_algorithm_and_the_death_of_one(cluster: Cluster) -> None:
    cluster.admin().create_topic("streamed", partitions=6)
    processes = {name: Streams.remote("streamed", name) for name in ("a", "b")}  # type: ignore[attr-defined]
    ray.get([process.create.remote("streamed") for process in processes.values()], timeout=PATIENCE_S)

    def owners() -> dict[str, list[int]]:
        held: dict[str, list[int]] = {}
        for offset in cluster.admin().describe_group("streamed").offsets:
            if offset.member is not None:
                held.setdefault(offset.member.member_id, []).append(offset.topic_partition.partition)
        return held

    until(lambda: owners() == {"a-0": [0, 1], "a-1": [2, 3], "b-0": [4], "b-1": [5]})
    write(cluster, "streamed", range(60))
    read_by: dict[str, list[tuple[int, int]]] = {name: [] for name in processes}

    def have_read(count: int) -> bool:
        for name, process in processes.items():
            read_by[name] += ray.get(process.read.remote(), timeout=PATIENCE_S)
        return sum(map(len, read_by.values())) >= count

    until(lambda: have_read(60))
    assert {partition for partition, _ in read_by["a"]} == {0, 1, 2, 3}
    assert sorted(number for records in read_by.values() for _, number in records) == [*range(60)]
    ray.kill(processes["a"])
    write(cluster, "streamed", range(60, 120))
    seen: set[int] = set()

    def have_all() -> bool:
        seen.update(number for _, number in ray.get(processes["b"].read.remote(), timeout=PATIENCE_S))
        return seen >= set(range(60, 120))

    until(have_all)
    assert owners() == {"b-0": [0, 1, 2], "b-1": [3, 4, 5]}


def test_streams_by_filter_notice_new_topics_and_resume_after_a_restart(cluster: Cluster) -> None:
    settings = {**SETTINGS, "consumer_timeout_ms": 1000 * PATIENCE_S}
    cluster.admin().create_topic("clicks.de")
    cluster.admin().create_topic("views.de")
    with cluster.consumer_connector("filtered", **settings) as connector:
        (stream,) = connector.create_message_streams_by_filter(Whitelist("clicks\\..*"))
        (others,) = connector.create_message_streams_by_filter(Blacklist("(clicks|steady|shared|moving).*"))
        write(cluster, "clicks.de", range(3))
        assert [int(next(stream).value) for _ in range(3)] == [0, 1, 2]
        cluster.admin().create_topic("clicks.fr")
        write(cluster, "clicks.fr", range(3, 6))
        assert [int(next(stream).value) for _ in range(2)] == [3, 4]
        write(cluster, "views.de", range(6, 7))
        until(lambda: next(others).topic == "views.de")
        connector.commit_offsets()
    with cluster.consumer_connector("filtered", **settings) as connector:
        (stream,) = connector.create_message_streams_by_filter(Whitelist("clicks.*"))
        write(cluster, "clicks.de", range(7, 8))
        assert sorted(int(next(stream).value) for _ in range(2)) == [5, 7]


def test_streams_in_the_tasks_of_an_event_loop(cluster: Cluster) -> None:
    cluster.admin().create_topic("by-task", partitions=4)
    write(cluster, "by-task", range(40))

    async def read(stream: AsyncStream) -> list[tuple[int, int]]:
        return [(record.partition, int(record.value)) for record in [await anext(stream) for _ in range(20)]]

    async def program() -> list[list[tuple[int, int]]]:
        settings = {**SETTINGS, "consumer_timeout_ms": 1000 * PATIENCE_S}
        async with cluster.async_consumer_connector("by-task", **settings) as connector:
            streams = await connector.create_message_streams({"by-task": 2})
            return await asyncio.gather(*map(read, streams["by-task"]))

    shares = asyncio.run(program())
    assert [{partition for partition, _ in share} for share in shares] == [{0, 1}, {2, 3}]
    assert sorted(number for share in shares for _, number in share) == [*range(40)]
    committed = {offset.current_offset for offset in cluster.admin().describe_group("by-task").offsets}
    assert committed == {9, 10}, "the last record of each stream counts when the next one is asked for"


def test_the_stateless_reader_outlives_leaders(cluster: Cluster) -> None:
    cluster.admin().create_topic("looked-up", partitions=2)
    write(cluster, "looked-up", range(1000))
    with cluster.reader(value_deserializer=int) as reader:
        assert reader.get_offsets_before("looked-up", 0, -1, 2) == [500, 0]
        sets = reader.multifetch([FetchRequest("looked-up", number, 490) for number in (1, 0)])
        assert [[record.value for record in one.records] for one in sets] == [
            [*range(981, 1000, 2)],
            [*range(980, 1000, 2)],
        ]
        leader = cluster.admin().describe_topics(["looked-up"])[0].partitions[0].leader_actor
        ray.kill(ray.get_actor(str(leader), namespace="rayka"), no_restart=False)
        assert reader.fetch("looked-up", 0, 499).records[0].value == 998
