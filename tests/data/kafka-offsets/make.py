"""Makes this folder anew: `python -m tests.data.kafka-offsets.make`, with Java and Maven (see benchmarks/brokers.py).

Apache Kafka, one node, whose `__consumer_offsets` has one partition, and groups of every kind in it. Two of them have
members when the broker is stopped, and one has an open transaction. What Kafka's own group command says of them
shortly before is kept beside the log.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.brokers import Kafka
from tests.clients import tools

HERE = Path(__file__).parent
GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONFIGS = (
    "offsets.topic.num.partitions=1",
    "transaction.state.log.num.partitions=1",
    "log.index.size.max.bytes=4096",
    "log.cleaner.enable=false",
)
KEPT = ("*.log", "*.index", "*.timeindex", "*.snapshot", "leader-epoch-checkpoint", "partition.metadata")
Offsets = dict[tuple[str, int], tuple[int, str]]


class Groups:
    """Groups of one broker and what is done to them."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def consumer(self, group_id: str, **settings: Any) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group_id,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                **settings,
            }
        )

    def commit(self, group_id: str, offsets: Offsets) -> None:
        """From outside, into an empty group."""
        consumer = self.consumer(group_id)
        places = [TopicPartition(*at, offset, *filter(None, [metadata])) for at, (offset, metadata) in offsets.items()]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()

    def members(self, group_id: str, topics: list[str], partitions: int, *settings: dict[str, Any]) -> list[Consumer]:
        """Members that share so many partitions evenly, and have committed 1 for each."""
        consumers = [self.consumer(group_id, **own) for own in settings]
        for consumer in consumers:
            consumer.subscribe(topics)
        share = partitions // len(consumers)

        def settled() -> bool:
            for consumer in consumers:
                consumer.poll(0.1)
            return all(len(consumer.assignment()) == share for consumer in consumers)

        wait_until(settled)
        for consumer in consumers:
            places = [TopicPartition(at.topic, at.partition, 1, leader_epoch=0) for at in consumer.assignment()]
            consumer.commit(offsets=places, asynchronous=False)
        return consumers

    def transaction(self, group_id: str, offset: int, end: Callable[[Producer], None] | None) -> Producer:
        """Commits an offset in a transaction."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": f"{group_id}-{offset}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        consumer = self.consumer(group_id)
        metadata = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([TopicPartition("events", 0, offset)], metadata, 30)
        consumer.close()
        if end is not None:
            end(producer)
        return producer

    def metadata(self, group_id: str) -> dict[str, str]:
        """What was committed beside the offsets; the group command does not show it."""
        (future,) = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group_id)]).values()
        return {f"{at.topic}-{at.partition}": at.metadata or "" for at in future.result(30).topic_partitions}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


def fill(groups: Groups) -> list[Any]:
    """All groups; what is returned has to stay alive."""
    topics = [NewTopic("events", 4), NewTopic("events-2", 2), NewTopic("gone", 1)]
    for future in groups.admin.create_topics(topics).values():
        future.result(30)
    both: dict[str, Any] = {"group.protocol": "consumer"}

    groups.commit("standalone", {("events", 0): (3, "größe €"), ("events", 3): (9, "")})
    groups.commit("standalone", {("events", 0): (5, "größe €")})
    for member in groups.members("classic-empty", ["events"], 4, {}):
        member.close()
    for member in groups.members("consumer-empty", ["events"], 4, both):
        member.close()
    groups.commit("classic-deleted", {("events", 1): (2, "")})
    for member in groups.members("consumer-deleted", ["events"], 4, both):
        member.close()
    for group_id in ("classic-deleted", "consumer-deleted"):
        groups.admin.delete_consumer_groups([group_id])[group_id].result(30)
    groups.commit("topic-deleted", {("gone", 0): (1, ""), ("events", 0): (1, "")})
    groups.admin.delete_topics(["gone"])["gone"].result(30)
    groups.commit("offset-deleted", {("events", 0): (1, ""), ("events", 1): (1, "")})
    command(groups, "--delete-offsets", "--group", "offset-deleted", "--topic", "events:1")

    groups.transaction("transactional", 4, lambda producer: producer.commit_transaction(30))
    groups.transaction("transactional", 8, lambda producer: producer.abort_transaction(30))
    groups.commit("open-transaction", {("events", 0): (2, "")})
    classic: dict[str, Any] = {"client.id": "first", "partition.assignment.strategy": "range,roundrobin"}
    static = {"group.instance.id": "static-1", "client.id": "second"}
    return [
        groups.transaction("open-transaction", 7, None),
        *groups.members("classic-stable", ["events"], 4, classic, {**classic, **static}),
        *groups.members("consumer-stable", ["^events.*"], 6, both, {**both, **static}),
    ]


def command(groups: Groups, *arguments: str) -> str:
    line = tools.java(GROUP_COMMAND, "--bootstrap-server", groups.bootstrap, *arguments)
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout


def describe(groups: Groups) -> None:
    """What Kafka says, in its own words."""
    for what in ("offsets", "members", "state"):
        said = command(groups, "--describe", "--all-groups", f"--{what}", "--verbose")
        (HERE / f"{what}.txt").write_text("\n".join(line.rstrip() for line in said.splitlines() if line) + "\n")
    found = groups.admin.list_consumer_groups().result(30).valid
    write("metadata", {group.group_id: groups.metadata(group.group_id) for group in found})
    topics = [
        future.result(30) for future in groups.admin.describe_topics(TopicCollection(["events", "events-2"])).values()
    ]
    write("topics", {topic.name: {"id": str(topic.topic_id), "partitions": len(topic.partitions)} for topic in topics})


def write(name: str, value: object) -> None:
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
    (HERE / f"{name}.json").write_text(text + "\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        broker = Kafka(Path(directory), CONFIGS)
        broker.start()
        groups = Groups(broker.bootstrap)
        alive = fill(groups)
        describe(groups)
        broker.stop()
        copy = HERE / "__consumer_offsets-0"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for pattern in KEPT:
            for file in (Path(directory) / "data" / copy.name).glob(pattern):
                shutil.copy(file, copy)
        print(f"{len(alive)} members and producers were cut off")
    os._exit(0)  # they would wait for the broker


if __name__ == "__main__":
    main()
