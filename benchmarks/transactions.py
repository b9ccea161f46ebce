"""Transactions, measured: `python -m benchmarks.transactions NAME JSON`, a process of its own, prints JSON.

The client is one transactional producer of confluent-kafka on four partitions.
"""

from __future__ import annotations

import json
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.load import CONSUMER, PRODUCER, TIMEOUT_S, Figures, create_topic, payload, percentiles, rates

PARTITIONS = 4
EARLY_BYTES = 1_500_000_000
EARLY_COMMITS, ENDS = "p99 of commits in the first 1.5 GB", "p99 of the end alone"


def write(bootstrap: str, topic: str, size: int, seconds: float, open_ms: float, least_commits: int = 0) -> Figures:
    """Transactions one after the other, each written to for `open_ms` (0: one record), and how long a commit takes.

    It goes on for `seconds`, and until there are `least_commits`: the p99 of a hundred or fewer is their maximum.

    A commit sends what the client has gathered, and ends the transaction when all of it is acknowledged. From some
    amount of data on the kernel writes to the disk, and commits take longer: the faster broker is there sooner. So
    there is also a p99 of the commits before that, and one of the end alone.
    """
    create_topic(bootstrap, topic, PARTITIONS)
    settings = {**PRODUCER, "linger.ms": 5 if open_ms else 0, "transactional.id": topic}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    producer.init_transactions(TIMEOUT_S)
    value, records, early = payload(size), 0, 0
    commits_ms, ends_ms = [], []
    began = time.perf_counter()
    while time.perf_counter() < began + seconds or len(commits_ms) < least_commits:
        producer.begin_transaction()
        opened = time.perf_counter()
        records += _fill(producer, topic, value, opened + open_ms / 1000)
        asked = time.perf_counter()
        producer.flush(TIMEOUT_S)
        flushed = time.perf_counter()
        producer.commit_transaction(TIMEOUT_S)
        ended = time.perf_counter()
        commits_ms.append((ended - asked) * 1000)
        ends_ms.append((ended - flushed) * 1000)
        if records * size <= EARLY_BYTES:
            early = len(commits_ms)
    elapsed = time.perf_counter() - began
    return {
        **rates(records, size, elapsed),
        **percentiles(commits_ms),
        EARLY_COMMITS: percentiles(commits_ms[: max(1, early)])["p99"],
        ENDS: percentiles(ends_ms)["p99"],
        "transactions/s": len(commits_ms) / elapsed,
    }


def _fill(producer: Producer, topic: str, value: bytes, end: float) -> int:
    """At least one record; the number."""
    records = 0
    while not records or time.perf_counter() < end:
        try:
            producer.produce(topic, value)
            records += 1
        except BufferError:
            producer.poll(0.01)
    return records


def consume(bootstrap: str, topic: str) -> Figures:
    """Everything that was committed, from the beginning; markers take offsets too, so the end is that of the log."""
    settings = {**CONSUMER, "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    began = time.perf_counter()
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    records = size = ended = 0
    while ended < PARTITIONS:
        messages = consumer.consume(10_000, 1.0)
        sizes = [len(message.value() or b"") for message in messages if message.error() is None]
        ended += len(messages) - len(sizes)
        records, size = records + len(sizes), size + sum(sizes)
    elapsed = time.perf_counter() - began
    consumer.close()
    return rates(records, size // max(records, 1), elapsed)


LOADS = {load.__name__: load for load in (write, consume)}

if __name__ == "__main__":
    print(json.dumps(LOADS[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
