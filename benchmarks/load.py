"""The client's side of each measurement, a process of its own: `python -m benchmarks.load NAME JSON` prints JSON.

The client is confluent-kafka (librdkafka). Rates are records and payload bytes, from the first call until the last
acknowledgement or record; times are in ms.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.batches import build_batches
from rayka.storage.format.records import Record

Figures = dict[str, float]
PRODUCE, PRODUCE_VERSION = 0, 7
TIMEOUT_S = 120.0
CALL_RECORDS = 10_000
SEND_TIME = struct.Struct("<q")
PRODUCER = {
    "acks": "all",
    "enable.idempotence": True,
    "log_level": 0,
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 512 * 1024,
}
CONSUMER = {
    "group.id": "benchmark",
    "log_level": 0,
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 1024 * 1024,
    "fetch.queue.backoff.ms": 5,
    "fetch.max.bytes": 100 * 1024 * 1024,
    "max.partition.fetch.bytes": 10 * 1024 * 1024,
}


def start(name: str, module: str = "benchmarks.load", **arguments: Any) -> subprocess.Popen[str]:
    """One load of a module in a new process; it prints its figures when it ends."""
    command = [sys.executable, "-m", module, name, json.dumps(arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])


def run(name: str, module: str = "benchmarks.load", **arguments: Any) -> Figures:
    """Runs one load to its end. Raises RuntimeError when it fails; it has said why."""
    with start(name, module, **arguments) as process:
        output, _ = process.communicate()
    return figures_of(name, process.returncode, output)


def figures_of(name: str, returncode: int, output: str) -> Figures:
    """What a load has printed. Raises RuntimeError if it failed."""
    if returncode:
        raise RuntimeError(f"the load {name} failed")
    figures: Figures = json.loads(output)
    return figures


def payload(size: int) -> bytes:
    """Bytes that compress about two to one, like much that is text."""
    return os.urandom(size // 2 + 1).hex().encode()[:size]


def create_topic(bootstrap: str, topic: str, partitions: int, configs: dict[str, str] | None = None) -> None:
    """Returns when each partition has a leader in the metadata; once deleted, its files are to go at once."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, 1, config={"file.delete.delay.ms": "0", **(configs or {})})])[
        topic
    ].result(TIMEOUT_S)
    await_visible(admin, topic, partitions)


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)


def await_visible(admin: AdminClient, topic: str, partitions: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        seen = admin.list_topics(topic, TIMEOUT_S).topics[topic].partitions
        if len(seen) == partitions and all(partition.leader >= 0 for partition in seen.values()):
            return
    raise TimeoutError(f"{topic} is not visible after {TIMEOUT_S:.0f} s")


def end_offsets(bootstrap: str, topic: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, **CONSUMER})
    partitions = consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions
    offsets = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), TIMEOUT_S)[1] for p in partitions}
    consumer.close()
    return offsets


def produce(
    bootstrap: str,
    topic: str,
    size: int,
    seconds: float,
    codec: str = "none",
    partitions: int = 4,
    max_records: int | None = None,
) -> Figures:
    """As fast as the client can for so many seconds (or records), until every record is acknowledged."""
    create_topic(bootstrap, topic, partitions)
    sent, elapsed = produce_on(bootstrap, topic, size, seconds, codec, max_records)
    written = sum(end_offsets(bootstrap, topic).values())
    if written != sent:
        raise AssertionError(f"{sent} records were acknowledged, {written} are in the log")
    return rates(sent, size, elapsed)


def rates(records: int, size: int, elapsed_s: float) -> Figures:
    """Payload bytes and rates."""
    return {
        "records": records,
        "bytes": records * size,
        "records/s": records / elapsed_s,
        "MB/s": records * size / elapsed_s / 1e6,
    }


def produce_on(
    bootstrap: str, topic: str, size: int, seconds: float, codec: str = "none", max_records: int | None = None
) -> tuple[int, float]:
    """To a topic that is there; the number of records, and the seconds until all are acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, **PRODUCER})
    producer.list_topics(topic, TIMEOUT_S)
    batch = [{"value": payload(size)} for _ in range(CALL_RECORDS)]
    sent, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds and (max_records is None or sent < max_records):
        queued = producer.produce_batch(topic, batch)
        sent += queued
        if queued < len(batch):
            producer.poll(0.005)
            batch = [{"value": record["value"]} for record in batch]
    if producer.flush(TIMEOUT_S):
        raise TimeoutError("records are not acknowledged")
    return sent, time.perf_counter() - began


def consume_on(bootstrap: str, topic: str) -> None:
    """Reads what comes, without an end; what retention has taken away meanwhile is passed over."""
    settings = {**CONSUMER, "queued.min.messages": 100_000, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in end_offsets(bootstrap, topic)])
    while True:
        consumer.consume(CALL_RECORDS, 1.0)


def consume(bootstrap: str, topic: str) -> Figures:
    """Everything in the topic, all partitions at once, from the beginning."""
    ends = end_offsets(bootstrap, topic)
    consumer = Consumer({"bootstrap.servers": bootstrap, **CONSUMER})
    wanted, records, size = sum(ends.values()), 0, 0
    began = time.perf_counter()
    consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
    while records < wanted:
        messages = consumer.consume(min(CALL_RECORDS, wanted - records), 10.0)
        if not messages:
            raise TimeoutError(f"{records} of {wanted} records came")
        if not records:
            size = len(_value(messages[0]))
        records += len(messages)
    elapsed = time.perf_counter() - began
    _value(messages[-1])
    consumer.close()
    return rates(records, size, elapsed)


def _value(message: Message) -> bytes:
    if message.error():
        raise KafkaException(message.error())
    value = message.value()
    assert value is not None
    return value


def one_at_a_time(bootstrap: str, topic: str, seconds: float, size: int = 100) -> Figures:
    """One record, its acknowledgement, the next record."""
    create_topic(bootstrap, topic, 1)
    producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER, "linger.ms": 0})
    value, latencies = payload(size), []
    warm_up, end = time.perf_counter() + 1.0, time.perf_counter() + 1.0 + seconds
    while (began := time.perf_counter()) < end:
        producer.produce(topic, value, partition=0)
        if producer.flush(TIMEOUT_S):
            raise TimeoutError("a record is not acknowledged")
        if began >= warm_up:
            latencies.append((time.perf_counter() - began) * 1000)
    return percentiles(latencies)


def paced(
    bootstrap: str,
    topic: str,
    seconds: float,
    rate: float,
    size: int = 1000,
    partitions: int = 4,
    keys: int = 0,
    configs: dict[str, str] | None = None,
) -> Figures:
    """So many records a second in bursts of a millisecond; from the producer's call to the acknowledgement.

    Each record updates one of `keys`, by chance; 0: no record has a key.
    """
    create_topic(bootstrap, topic, partitions, configs)
    producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER})
    value, latencies = payload(size), []
    producer.produce(topic, value)  # the client takes half a second to get its producer id: that is not the broker's
    producer.flush(TIMEOUT_S)
    began = time.perf_counter()
    sent = 0
    while (now := time.perf_counter()) < began + seconds:
        due = int((now - began) * rate)
        if due > sent:  # one record of each burst tells how long the burst took
            key, *others = (b"%012d" % random.randrange(keys) if keys else None for _ in range(due - sent))
            producer.produce(
                topic, value, key, on_delivery=lambda _, __, at=now: latencies.append(time.perf_counter() - at)
            )
            producer.produce_batch(topic, [{"key": key, "value": value} for key in others])
            sent = due
        producer.poll(0.001)
    if producer.flush(TIMEOUT_S):
        raise TimeoutError("records are not acknowledged")
    return percentiles([each * 1000 for each in latencies])


def connections(bootstrap: str, topic: str, seconds: float, count: int = 100, size: int = 100) -> Figures:
    """So many connections, each of which sends a produce request with one record when it has the answer to the last."""
    create_topic(bootstrap, topic, 4)
    return asyncio.run(_many_connections(bootstrap, topic, seconds, count, size))


async def _many_connections(bootstrap: str, topic: str, seconds: float, count: int, size: int) -> Figures:
    from benchmarks.many_groups import Connection, data, short

    (batch,) = build_batches([Record(0, time.time_ns() // 1_000_000, None, payload(size))], max_batch_size=1_000_000)
    head = struct.pack(">hhii", -1, -1, int(TIMEOUT_S * 1000), 1) + short(topic) + struct.pack(">i", 1)
    latencies: list[float] = []
    ends = time.perf_counter() + seconds

    async def work(number: int) -> None:
        connection = await Connection.open(bootstrap)
        body = head + struct.pack(">i", number % 4) + data(batch)
        while (began := time.perf_counter()) < ends:
            await connection.send(PRODUCE, PRODUCE_VERSION, body)
            latencies.append((time.perf_counter() - began) * 1000)
        connection.close()

    await asyncio.gather(*map(work, range(count)))
    return {**percentiles(latencies), "requests/s": len(latencies) / seconds}


def percentiles(latencies: list[float]) -> Figures:
    ordered = sorted(latencies)

    def at(part: float) -> float:
        return ordered[min(len(ordered) - 1, int(len(ordered) * part))]

    return {"samples": len(ordered), "p50": at(0.5), "p99": at(0.99), "p99.9": at(0.999)}


def end_to_end(bootstrap: str, topic: str, seconds: float, rate: int = 500) -> Figures:
    """From the producer's call to the consumer's hand; the consumer waits in a process of its own."""
    create_topic(bootstrap, topic, 1)
    arguments = {"bootstrap": bootstrap, "topic": topic, "count": int(seconds * rate), "skip": rate}
    command = [sys.executable, "-m", "benchmarks.load", "receive", json.dumps(arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        receiver.stdout.readline()
        _send_at(bootstrap, topic, arguments["count"] + rate, rate)
        figures: Figures = json.loads(receiver.stdout.readline())
    return figures


def _send_at(bootstrap: str, topic: str, count: int, rate: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER, "linger.ms": 0})
    producer.list_topics(topic, TIMEOUT_S)
    filler, due_ns = payload(92), time.monotonic_ns()
    for _ in range(count):
        due_ns += 1_000_000_000 // rate
        time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
        producer.produce(topic, SEND_TIME.pack(time.monotonic_ns()) + filler, partition=0)
        producer.poll(0)
    producer.flush(TIMEOUT_S)


def receive(bootstrap: str, topic: str, count: int, skip: int) -> Figures:
    """The waiting consumer of `end_to_end`; it says `waiting` when it is there, and leaves out the first `skip`."""
    consumer = Consumer({"bootstrap.servers": bootstrap, **CONSUMER})
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.poll(1.0)
    print("waiting", flush=True)
    latencies: list[float] = []
    while len(latencies) < count + skip:
        message = consumer.poll(TIMEOUT_S)
        if message is None:
            raise TimeoutError(f"{len(latencies)} of {count + skip} records came")
        (sent_ns,) = SEND_TIME.unpack_from(_value(message))
        latencies.append((time.monotonic_ns() - sent_ns) / 1e6)
    consumer.close()
    return percentiles(latencies[skip:])


def topic_creation(bootstrap: str, topic: str, partitions: int = 12, times: int = 7) -> Figures:
    """From the request until the metadata has a leader for each partition; the median of several topics."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.list_topics(timeout=TIMEOUT_S)
    taken: list[float] = []
    for number in range(times):
        name = f"{topic}-{number}"
        began = time.perf_counter()
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(TIMEOUT_S)
        await_visible(admin, name, partitions)
        taken.append((time.perf_counter() - began) * 1000)
        admin.delete_topics([name])[name].result(TIMEOUT_S)
    return {"ms": sorted(taken)[times // 2]}


def serving(bootstrap: str, topic: str, began: float) -> Figures:
    """Until a record is acknowledged on each partition and all old ones can be found; `began` is time.monotonic().

    Nothing here waits for the client's own timers: the producer is made when somebody listens, for one that was refused
    tries again only once a second; and it is not idempotent, for its id is asked for in steps of half a second.
    """
    wait_for_listener(bootstrap)
    quick = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 10}
    settings = {**PRODUCER, **quick, "enable.idempotence": False, "linger.ms": 0}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    for partition in range(4):
        producer.produce(topic, b"serving", partition=partition)
    if producer.flush(TIMEOUT_S):
        raise TimeoutError("the broker does not serve")
    elapsed = time.monotonic() - began
    return {"s": elapsed, "records": sum(end_offsets(bootstrap, topic).values()) - 4}


def wait_for_listener(address: str) -> None:
    """Until a connection to HOST:PORT is accepted. Raises TimeoutError."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    raise TimeoutError(f"nobody listens at {address}")


LOADS: dict[str, Callable[..., Any]] = {
    load.__name__: load
    for load in (
        produce,
        produce_on,
        consume,
        consume_on,
        one_at_a_time,
        paced,
        connections,
        end_to_end,
        receive,
        topic_creation,
        serving,
    )
}

if __name__ == "__main__":
    print(json.dumps(LOADS[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
