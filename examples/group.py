"""Two members of a consumer group share a topic, on actor handles.

The second member takes over half of the first member's partitions, as the callbacks of the first one show. Each member
commits the records that it has read; in the end the group's lag is 0.
"""

from __future__ import annotations

import collections
import tempfile
import threading

import rayka
from rayka.client.group.blocking import GroupConsumer
from rayka.types import TopicPartition

TOPIC, COUNT = "measures", 1000
counts = collections.Counter[str]()
seen: set[bytes | None] = set()


def work(name: str, consumer: GroupConsumer, has_begun: threading.Event) -> None:
    """Read until everything has been read, by this member or the other."""

    def on_assigned(partitions: list[TopicPartition]) -> None:
        print(f"{name} reads {', '.join(map(str, partitions))}")
        has_begun.set()

    def on_revoked(partitions: list[TopicPartition]) -> None:
        print(f"{name} gives up {', '.join(map(str, partitions))}")

    consumer.subscribe([TOPIC], on_assigned=on_assigned, on_revoked=on_revoked)
    while len(seen) < COUNT:
        for record in consumer:  # until nothing has come for `consumer_timeout_ms`
            counts[name] += 1
            seen.add(record.value)
    consumer.close()


with tempfile.TemporaryDirectory() as directory, rayka.start(f"{directory}/data", "127.0.0.1:0") as cluster:
    cluster.admin().create_topic(TOPIC, partitions=4)
    members = []
    for name in ("ada", "bob"):
        consumer = cluster.consumer("billing", auto_offset_reset="earliest", consumer_timeout_ms=500)
        has_begun = threading.Event()
        members.append(threading.Thread(target=work, args=(name, consumer, has_begun)))
        members[-1].start()
        has_begun.wait(120)
    with cluster.producer() as producer:
        for number in range(COUNT):
            producer.send(TOPIC, b"%d" % number, key=b"sensor-%d" % (number % 50))
    for member in members:
        member.join()
    lag = sum(offset.lag or 0 for offset in cluster.admin().describe_group("billing").offsets)
    print(f"read {dict(counts)}; lag {lag}")
    assert lag == 0
