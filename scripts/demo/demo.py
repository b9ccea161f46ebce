"""rayka's main job on real data, as its user sees it; `./demo` sets up what it needs and runs it.

A broker is started as a person would start it. confluent-kafka, which knows nothing of Ray, writes a year of
flights into it; in the middle a partition actor is killed with -9. A consumer group of two members reads everything
back through the wire, and in the middle the actor that coordinates the group is killed. It is read again on actor
handles; each time every byte is compared with what was sent. The broker is stopped and started again on the same
directory.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from flights import Flight, flights
from group_readers import GroupReaders
from report import Report, check

import rayka
from rayka.cli.attached import find
from rayka.cli.progress import ProgressBar
from rayka.coordinator.spec import partition_for
from rayka.spark.java import prepare_java
from rayka.testing import BrokerProcess, await_ended

TOPIC = "flights"
PARTITIONS = 4
CODEC = "lz4"
GROUP = "flight-readers"
OFFSETS_TOPIC, OFFSETS_PARTITIONS = "__consumer_offsets", 50
Place = tuple[int, int]
"""Partition and offset."""


class Broker:
    """`rayka up` in a process of its own, on a free port."""

    def __init__(self, data_dir: Path) -> None:
        self._process = BrokerProcess(data_dir, output=data_dir / "demo.log")
        self._process.start()
        self.bootstrap = self._process.bootstrap

    def kill_leader(self, topic: str, partition: int) -> int:
        """kill -9 of the actor that leads a partition; returns its process id."""
        leader = self._process.leader(topic, partition)
        leader.kill()
        return leader.pid

    def stop(self) -> tuple[float, list[int]]:
        """SIGTERM; the seconds it takes, and what outlives it."""
        family = self._process.processes()
        started = time.monotonic()
        self._process.stop()
        took_s = time.monotonic() - started
        check(self._process.exit_code == 0, "the broker stops in order")
        return took_s, [process.pid for process in await_ended(family, 0)]

    def kill(self) -> None:
        """End everything, whatever state it is in."""
        self._process.kill()


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"retention.ms": "-1", "segment.ms": str(10 * 365 * 86_400_000), "segment.bytes": str(4 << 20)}
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=config)])[TOPIC].result(120)


class Acknowledged:
    """Which flight was acknowledged at which place, and the longest wait for an answer of one partition."""

    def __init__(self, victim: int, progress: ProgressBar) -> None:
        self.places: dict[Place, int] = {}
        self._victim = victim
        self._progress = progress
        self._last = time.monotonic()
        self.longest_wait_s = 0.0

    def note(self, number: int, error: KafkaError | None, message: Message) -> None:
        check(error is None, f"flight {number} is acknowledged: {error}")
        place = (message.partition(), message.offset())
        check(place not in self.places, f"{place} is given once")
        self.places[place] = number
        if place[0] == self._victim:
            now = time.monotonic()
            self.longest_wait_s = max(self.longest_wait_s, now - self._last)
            self._last = now
        self._progress.add()


def write(broker: Broker, sent: list[Flight], report: Report) -> dict[Place, int]:
    """Sends all flights with an idempotent producer; after a third of them a partition actor dies."""
    producer = Producer({
        "bootstrap.servers": broker.bootstrap,
        "enable.idempotence": True,
        "compression.type": CODEC,
        "linger.ms": 5,
        "queue.buffering.max.messages": 50_000,
        "log_level": 0,  # it reports the connections of the actor that is killed
    })  # fmt: skip
    victim, kill_at = 1, len(sent) // 3
    with ProgressBar("    writing", len(sent), after_s=0.5) as progress:
        acknowledged = Acknowledged(victim, progress)
        for number, flight in enumerate(sent):
            if number == kill_at:
                pid = broker.kill_leader(TOPIC, victim)
            send(producer, flight, partial(acknowledged.note, number))
        check(producer.flush(300) == 0, "every flight is acknowledged")
    report.detail(f"kill -9 of process {pid}, the actor of {TOPIC}-{victim}, after {kill_at:,} records;")
    report.detail(f"the longest that partition kept the client waiting: {acknowledged.longest_wait_s:.1f} s")
    return acknowledged.places


def send(producer: Producer, flight: Flight, on_delivery: Callable[[KafkaError | None, Message], None]) -> None:
    """Hands over one record, when there is room for it."""
    while True:
        try:
            producer.produce(
                TOPIC,
                flight.value,
                flight.key,
                timestamp=flight.timestamp,
                headers=flight.headers,
                on_delivery=on_delivery,
            )
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)


def read_wire(bootstrap: str, count: int) -> Iterator[tuple[Place, Flight]]:
    """All records, with a client that knows nothing of Ray, until the end of every partition."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap,
        "group.id": "demo",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    })  # fmt: skip
    consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    at_end: set[int] = set()
    silent = 0
    with ProgressBar("    reading", count, after_s=0.5) as progress:
        while len(at_end) < PARTITIONS:
            messages = consumer.consume(1_000, 0.5)
            silent = 0 if messages else silent + 1
            check(silent < 240, "reading goes on")
            for message in messages:
                if (error := message.error()) is not None:
                    check(error.code() == KafkaError._PARTITION_EOF, f"reading works: {error}")
                    at_end.add(message.partition())
                    continue
                place = (message.partition(), message.offset())
                yield place, Flight(message.key(), message.value(), message.timestamp()[1], message.headers())
            progress.add(len(messages))
    consumer.close()


def read_as_group(broker: Broker, count: int, report: Report) -> Iterator[tuple[Place, Flight]]:
    """All records, some perhaps twice, as a group of two that commits; in the middle its coordinator dies."""
    readers = GroupReaders(broker.bootstrap, GROUP, TOPIC, PARTITIONS)
    kill_at, handed_out = count // 2, 0
    with ProgressBar("    reading", count, after_s=0.5) as progress:
        for handed_out, message in enumerate(readers.read(), 1):
            if handed_out == kill_at:
                pid = broker.kill_leader(OFFSETS_TOPIC, partition_for(GROUP, OFFSETS_PARTITIONS))
            place = (message.partition(), message.offset())
            yield place, Flight(message.key(), message.value(), message.timestamp()[1], message.headers())
            progress.add()
    readers.close()
    report.detail(f"members with {' and '.join(map(str, readers.shares))} of the {PARTITIONS} partitions;")
    report.detail(f"kill -9 of process {pid}, the actor that coordinates the group, after {kill_at:,} records;")
    report.detail(f"commits that found it away: {readers.failed_commits}; records read again: {handed_out - count:,}")


def check_committed(data_dir: Path) -> None:
    """What `rayka groups` says of the group: all is committed."""
    command = [sys.executable, "-m", "rayka", "groups", "describe", GROUP, "--json", "--data-dir", str(data_dir)]
    done = subprocess.run(command, capture_output=True, text=True)
    check(done.returncode == 0, f"rayka groups describe: {done.stderr}")
    lags = [offset["lag"] for offset in json.loads(done.stdout)["offsets"]]
    check(lags == [0] * PARTITIONS, f"the group has committed everything ({lags} to go)")


def read_handles(address: str, count: int) -> Iterator[tuple[Place, Flight]]:
    """All records, from a Python program on the cluster, without the wire."""
    cluster = rayka.connect(address)
    consumer = cluster.consumer()
    partitions = [(TOPIC, partition) for partition in range(PARTITIONS)]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    left = sum(consumer.end_offsets(partitions).values())
    with ProgressBar("    reading", count, after_s=0.5) as progress:
        while left > 0:
            polled = consumer.poll(120_000, 10_000)
            check(bool(polled), "reading goes on")
            for record in chain.from_iterable(polled.values()):
                flight = Flight(record.key, record.value, record.timestamp, list(record.headers))
                yield (record.partition, record.offset), flight
                left -= 1
                progress.add()
    consumer.close()
    cluster.stop()  # leaves the Ray cluster too, which is about to end


def compare(
    sent: list[Flight], acknowledged: dict[Place, int], read: Iterator[tuple[Place, Flight]], *, again: bool = False
) -> int:
    """Holds what was read against what was acknowledged: the same places, and each byte; returns how many.

    `again`: a place may be read more than once.
    """
    missing = set(acknowledged)
    for place, flight in read:
        check(place in missing or (again and place in acknowledged), f"{place} was acknowledged, and is read once")
        missing.discard(place)
        number = acknowledged[place]
        check(flight == sent[number], f"flight {number} at {place} is what was sent")
    check(not missing, f"nothing acknowledged is missing ({len(missing)} are)")
    return len(acknowledged)


def query_with_spark(address: str, sent: list[Flight]) -> dict[str, tuple[int, float]]:
    """What Spark finds in the topic, in a process of its own: each airline's flights and their mean delay."""
    command = [sys.executable, str(Path(__file__).with_name("flights_in_spark.py")), address]
    done = subprocess.run(command, capture_output=True, text=True)
    check(done.returncode == 0, f"Spark runs: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    expected = Counter(flight.value.split(b",")[9].decode() for flight in sent)
    check({name: number for name, (number, _) in found.items()} == expected, "Spark counts every flight once")
    return {name: (number, delay_min or 0.0) for name, (number, delay_min) in found.items()}


def show_disk(data_dir: Path, report: Report) -> None:
    """The segments of the topic, and what `rayka log dump` thinks of them."""
    directories = sorted(data_dir.rglob(f"{TOPIC}-*"), key=lambda path: path.name)
    check(len(directories) == PARTITIONS, "each partition has its directory")
    for directory in directories:
        command = [sys.executable, "-m", "rayka", "log", "dump", str(directory), "--quiet"]
        dump = subprocess.run(command, capture_output=True, text=True)
        check(dump.returncode == 0, f"rayka log dump finds no damage: {dump.stdout}{dump.stderr}")
        report.detail(f"{directory.relative_to(data_dir)}: {dump.stdout.strip()}")


def run(data_dir: Path, count: int | None) -> None:
    report = Report()
    started = time.monotonic()

    def took() -> float:
        nonlocal started
        before, started = started, time.monotonic()
        return started - before

    sent = flights(count)
    report.step("A year of flights from New York", f"{len(sent):,} records", took())
    broker = Broker(data_dir)
    try:
        report.step("rayka up", f"ready on {broker.bootstrap}", took())
        create_topic(broker.bootstrap)
        report.step(f"Topic {TOPIC}", f"{PARTITIONS} partitions", took())
        acknowledged = write(broker, sent, report)
        check(len(acknowledged) == len(sent), "every flight has a place")
        report.step(f"confluent-kafka wrote ({CODEC}, idempotent)", f"{len(acknowledged):,} acknowledged", took())
        compared = compare(sent, acknowledged, read_as_group(broker, len(sent), report), again=True)
        check_committed(data_dir)
        report.step("A confluent-kafka group of two read back", f"{compared:,} equal, none missing, lag 0", took())
        address = find(str(data_dir)).address
        compared = compare(sent, acknowledged, read_handles(address, len(sent)))
        report.step("Python read on actor handles", f"{compared:,} equal, none missing, none twice", took())
        show_disk(data_dir, report)
        report.step("Segments on disk, in Kafka's format", "whole", took())
        stopped_in_s, left = broker.stop()
        check(not left, f"nothing outlives the broker ({left} do)")
        report.step("Stopped (SIGTERM)", "no process left behind", stopped_in_s)
        took()
        broker = Broker(data_dir)
        compared = compare(sent, acknowledged, read_wire(broker.bootstrap, len(sent)))
        check_committed(data_dir)
        report.step("Started again on the same directory", f"{compared:,} equal; the group's lag is 0", took())
        carriers = query_with_spark(find(str(data_dir)).address, sent)
        report.step("Spark on Ray counted flights by airline", f"{len(carriers)} airlines, equal", took())
        name, (number, delay_min) = max(carriers.items(), key=lambda item: item[1])
        report.detail(f"most by {name}: {number:,}, which left {delay_min:.1f} minutes late on average")
        broker.stop()
    finally:
        broker.kill()
    report.done()


def main() -> None:
    parser = argparse.ArgumentParser(description="rayka's main job on real data")
    parser.add_argument("--records", type=int, help="use only so many of the 336,776 flights")
    parser.add_argument("--keep", metavar="DIR", help="keep the data here")
    args = parser.parse_args()
    data_dir = Path(args.keep or tempfile.mkdtemp(prefix="rayka-demo-")).resolve()
    data_dir.mkdir(parents=True, exist_ok=True)
    prepare_java()
    try:
        run(data_dir, args.records)
    finally:
        if not args.keep:
            shutil.rmtree(data_dir, ignore_errors=True)


if __name__ == "__main__":
    main()
