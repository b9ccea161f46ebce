"""Python on actor handles: a broker started inside this program, with Ray, and what happens when its actors die."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading

import psutil
import pytest
import ray
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

import rayka
from rayka.actors.controller.watch import find_controller
from rayka.actors.node.answers import answers
from rayka.actors.node.spec import DEFAULT_NAMESPACE
from rayka.client import connection
from rayka.client.cluster import Cluster
from rayka.client.consumer.records import ConsumerRecord
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.records import ConfigResource, ResourceType
from tests.support.scale import rounds

ENOUGH_S = 150.0
"""Ray starts processes slowly on a busy machine."""


def read(cluster: Cluster, topic: str, count: int) -> list[ConsumerRecord]:
    """The first `count` records of a topic, as they come."""
    with cluster.consumer(auto_offset_reset="earliest", consumer_timeout_ms=1000 * ENOUGH_S) as consumer:
        consumer.assign([(topic, partition) for partition in consumer.partitions_for_topic(topic) or ()])
        return list(itertools.islice(consumer, count))


def test_what_is_written_on_handles_is_read_through_the_wire(cluster: Cluster) -> None:
    sent = {b"key-%d" % number: b"%d" % number for number in range(1000)}
    cluster.admin().create_topic("outward", partitions=3)
    with cluster.producer(compression_type="zstd", linger_ms=5) as producer:
        for key, value in sent.items():
            producer.send("outward", value, key, [("h", b"\x00")])
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none", "enable.auto.commit": False}
    consumer = Consumer(settings)
    topic = cluster.admin().describe_topics(["outward"])[0]
    consumer.assign([TopicPartition("outward", at.partition, OFFSET_BEGINNING) for at in topic.partitions])
    received: dict[bytes, bytes] = {}
    while len(received) < len(sent):
        message = consumer.poll(ENOUGH_S)
        assert message is not None
        assert message.error() is None
        assert message.headers() == [("h", b"\x00")]
        received[message.key()] = message.value()
    consumer.close()
    assert received == sent


def test_what_is_written_through_the_wire_is_read_on_handles(cluster: Cluster) -> None:
    cluster.admin().create_topic("inward", partitions=2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "compression.type": "snappy"})
    for number in range(1000):
        producer.produce("inward", b"%d" % number, key=b"%d" % number, timestamp=1_700_000_000_000 + number)
    producer.flush(90)
    records = read(cluster, "inward", 1000)
    assert sorted(int(record.value) for record in records) == [*range(1000)]
    assert all(record.timestamp == 1_700_000_000_000 + int(record.value) for record in records)


def test_keys_have_the_same_partition_on_handles_and_through_librdkafka(cluster: Cluster) -> None:
    cluster.admin().create_topic("keys", partitions=7)
    outside = Producer({"bootstrap.servers": cluster.bootstrap_servers, "partitioner": "murmur2"})
    with cluster.producer() as inside:
        for number in range(200):
            inside.send("keys", b"", key=b"user-%d" % number)
            outside.produce("keys", b"", key=b"user-%d" % number)
    outside.flush(90)
    places: dict[bytes, set[int]] = {}
    for record in read(cluster, "keys", 400):
        places.setdefault(record.key, set()).add(record.partition)
    assert {len(partitions) for partitions in places.values()} == {1}


def test_a_ray_task_and_an_async_actor_are_programs_on_the_cluster(cluster: Cluster) -> None:
    cluster.admin().create_topic("tasks")

    @ray.remote
    def produce(number: int) -> int:
        with rayka.connect().producer() as producer:
            return producer.send("tasks", b"task-%d" % number).get(90).offset

    @ray.remote
    class Reader:
        async def first(self, count: int) -> list[bytes]:
            connected = await asyncio.to_thread(rayka.connect)
            async with connected.async_consumer(auto_offset_reset="earliest") as consumer:
                await consumer.assign([("tasks", 0)])
                return [(await anext(consumer)).value for _ in range(count)]

    assert sorted(ray.get([produce.remote(number) for number in range(3)], timeout=ENOUGH_S)) == [0, 1, 2]
    values = ray.get(Reader.remote().first.remote(3), timeout=ENOUGH_S)
    assert sorted(values) == [b"task-0", b"task-1", b"task-2"]


def test_a_share_consumer_is_awaited_in_any_event_loop(cluster: Cluster) -> None:
    cluster.admin().create_topic("parcels")
    group = ConfigResource(ResourceType.GROUP, "parcels")
    cluster.admin().alter_configs(group, {"share.auto.offset.reset": "earliest"})
    with cluster.producer() as producer:
        producer.send_many("parcels", [b"%d" % number for number in range(3)])

    async def take(count: int) -> list[tuple[bytes | None, int]]:
        """The next records and how often each was delivered; number 1 is released at its first delivery."""
        taken: list[tuple[bytes | None, int]] = []
        async with cluster.async_share_consumer("parcels", ["parcels"], acknowledgement_mode="explicit") as consumer:
            while len(taken) < count:
                for record in await consumer.poll(timeout_ms=500):
                    taken.append((record.value, record.delivery_count))
                    (consumer.release if taken[-1] == (b"1", 1) else consumer.accept)(record)
                assert not any((await consumer.commit()).values())
        with pytest.raises(RaykaError, match="closed"):
            await consumer.poll()
        return taken

    taken = asyncio.run(asyncio.wait_for(take(4), ENOUGH_S))
    assert taken == [(b"0", 1), (b"1", 1), (b"2", 1), (b"1", 2)]


def test_a_start_that_takes_too_long_says_what_it_waited_for(cluster: Cluster) -> None:
    @ray.remote(num_cpus=0)
    class Gateway:
        async def ready(self, after_s: float) -> float:
            await asyncio.sleep(after_s)
            return after_s

    gateway = Gateway.remote()
    assert answers({"gateway 0": gateway.ready.remote(0.0), "gateway 1": gateway.ready.remote(0.1)}) == [0.0, 0.1]
    started = gateway.ready.remote(0.0)
    ray.get(started)
    with pytest.raises(RaykaError, match=r"no answer within 0\.1 s: gateway 1 \(the load") as failed:
        answers({"gateway 0": started, "gateway 1": gateway.ready.remote(60.0)}, timeout_s=0.1)
    assert failed.value.code is ErrorCode.REQUEST_TIMED_OUT


def test_a_program_that_gets_no_answer_when_it_connects_is_told_from_whom(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_CONNECT_TIMEOUT_S", 0.5)
    pid = find_controller(DEFAULT_NAMESPACE).__ray_call__.remote(lambda controller: os.getpid())
    controller = psutil.Process(ray.get(pid, timeout=ENOUGH_S))
    controller.suspend()
    try:
        with pytest.raises(RaykaError, match=r"no answer within 0\.5 s: the controller \(the load"):
            rayka.connect()
    finally:
        controller.resume()


@pytest.mark.parametrize("place", ["task", "actor"])
def test_each_call_works_in_a_ray_task_and_in_a_ray_actor(cluster: Cluster, place: str) -> None:
    topic = f"calls-{place}"
    cluster.admin().create_topic(topic)

    def send_and_read() -> list[list[bytes]]:
        connected = rayka.connect()
        with connected.producer() as producer:
            for number in range(10):
                assert producer.send(topic, b"%d" % number).get(90).offset == number
            producer.send_many(topic, [b"10", b"11"])
            producer.send_table(topic, {"value": [b"12", b"13"]})
        with connected.consumer(auto_offset_reset="earliest", consumer_timeout_ms=1000 * ENOUGH_S) as consumer:
            consumer.assign([(topic, 0)])
            iterated = [record.value for record in itertools.islice(consumer, 14)]
            consumer.seek((topic, 0), 0)
            polled = [record.value for record in consumer.poll(90_000)[(topic, 0)]]
            consumer.seek((topic, 0), 0)
            return [iterated, polled, consumer.poll_table(90_000)["value"].to_pylist()]

    class Worker:
        def work(self) -> list[list[bytes]]:
            return send_and_read()

    remote = ray.remote(send_and_read) if place == "task" else ray.remote(Worker).remote().work
    expected = [b"%d" % number for number in range(14)]
    assert ray.get(remote.remote(), timeout=ENOUGH_S) == [expected, expected, expected]


def test_memory_stays_flat_at_full_rate(cluster: Cluster) -> None:
    """All calls in turns, as quick as they are; the broker keeps 64 MB of the log."""
    kept = {"retention.bytes": 32 << 20, "segment.bytes": 16 << 20, "file.delete.delay.ms": 0}
    cluster.admin().create_topic("flat", partitions=2, configs=kept)
    values = [b"x" * 100] * 5_000
    with cluster.producer(linger_ms=5) as producer, cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([("flat", 0), ("flat", 1)])

        def memory_after(turns: int) -> int:
            for _ in range(turns):
                producer.send_many("flat", values)
                producer.send_table("flat", {"value": values})
                for value in values:
                    producer.send("flat", value)
                consumer.poll(timeout_ms=10, max_records=20_000)
                consumer.poll_table(timeout_ms=10)
            producer.flush()
            return psutil.Process().memory_info().rss

        warm_bytes = memory_after(turns=10)
        assert memory_after(turns=rounds(20, 20_000)) < warm_bytes + (64 << 20)


def test_killed_leaders_lose_and_double_nothing(cluster: Cluster) -> None:
    admin = cluster.admin()
    admin.create_topic("killed", partitions=2)
    done = threading.Event()
    futures = []
    producer = cluster.producer(linger_ms=1, retry_backoff_ms=20)

    def write() -> None:
        pace = threading.Event()
        while not done.is_set():
            futures.append(producer.send("killed", b"%08d" % len(futures), partition=len(futures) % 2))
            if len(futures) % 20 == 0:
                pace.wait(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(3):
        for actor in {
            actor for partition in admin.describe_topics(["killed"])[0].partitions for actor in partition.actors
        }:
            ray.kill(ray.get_actor(actor, namespace="rayka"), no_restart=False)
        before = len(futures)
        while len(futures) <= before:
            done.wait(0.01)
        futures[before].get(ENOUGH_S)
    done.set()
    writer.join()
    producer.flush(timeout_ms=1000 * ENOUGH_S)
    assert all(future.succeeded() for future in futures)
    records = read(cluster, "killed", len(futures))
    for partition in range(2):
        mine = [record for record in records if record.partition == partition]
        assert [record.value for record in mine] == [b"%08d" % number for number in range(partition, len(futures), 2)]
        assert [record.offset for record in mine] == [future.get().offset for future in futures[partition::2]]
    producer.close()
