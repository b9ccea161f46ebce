"""However a program mixes the calls of a consumer, each partition's records come in order, once, and none is left out.

The records lie partly in memory and partly in files, and threads read some of them; fetches fail.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.client.cluster import Cluster
from rayka.client.consumer import fetch_collector, ready_partitions, stored, table_maker, tables
from rayka.client.consumer.blocking import Consumer
from rayka.errors import ErrorCode
from rayka.gateway.server.segment_files import SegmentFile
from rayka.types import TopicPartition
from tests.support.client_connection import LocalConnection
from tests.support.scale import examples

PARTITIONS = [TopicPartition("events", number) for number in range(3)]
COUNT = 300
CALLS = ["poll", "table", "table", "table", "view", "batches", "next", "seek", "begin", "pause", "resume", "position"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory() as directory:
        connection = LocalConnection(directory)
        cluster = Cluster(connection)
        cluster.admin().create_topic("events", partitions=3)
        for partition, codec in enumerate(("none", "lz4", "none")):
            with cluster.producer(compression_type=codec) as producer:
                for first, size in zip(range(0, COUNT, 10), cycle((0, 40, 700)), strict=False):
                    values = [b"%d " % number + bytes(size) for number in range(first, first + 10)]
                    producer.send_batch("events", partition, values)
        faults = cycle([None] * 19 + [ErrorCode.NOT_LEADER_OR_FOLLOWER])
        connection.faults.on_fetch = lambda _: next(faults)
        yield cluster
        connection.close()


@pytest.fixture(scope="module", autouse=True)
def small_limits() -> Iterator[None]:
    """So that a few records are as many as thousands are with the usual ones."""
    read_cached, is_cached = SegmentFile.read_cached, cycle((True, True, False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentFile, "read_cached", lambda *how: read_cached(*how) if next(is_cached) else 0)
        patch.setattr(stored, "LEAST_BYTES", 2000)
        patch.setattr(stored, "_LARGE_BATCH", 100)
        patch.setattr(stored, "_PIECE_BYTES", 3000)
        patch.setattr(tables, "_LEAST_STORED_BYTES", 4000)
        patch.setattr(tables, "_MOST_BYTES", 20_000)
        patch.setattr(tables, "_MOST_AHEAD_BYTES", 9000)
        patch.setattr(table_maker, "_REST_S", 0.0)
        patch.setattr(ready_partitions, "_LEAST_PART_BYTES", 2000)
        patch.setattr(fetch_collector, "_TABLE_BYTES", 12_000)
        yield


class Program:
    """Makes calls, and knows which record has to come next."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.next_offsets = dict.fromkeys(PARTITIONS, 0)
        self.paused: set[TopicPartition] = set()

    def call(self, name: str, number: int) -> None:
        partition, consumer = PARTITIONS[number % 3], self.consumer
        match name:
            case "poll":
                for records in consumer.poll(5, 1 + number).values():
                    self.take((record.topic_partition, record.offset, record.value) for record in records)
            case "table" | "view":
                table = consumer.poll_table(5, ["partition", "offset", "value"], copy=name == "table")
                rows = table.to_pydict().values()
                self.take((PARTITIONS[number], offset, value) for number, offset, value in zip(*rows, strict=True))
            case "batches":
                for polled, of_partition in consumer.poll_batches(5).items():
                    for batches in of_partition:
                        self.take((polled, offset, None) for offset in range(batches.position, batches.next_offset))
            case "next":
                for record in islice(consumer, number):
                    self.take([(record.topic_partition, record.offset, record.value)])
            case "seek":
                consumer.seek(partition, number * 7 % COUNT)
                self.next_offsets[partition] = number * 7 % COUNT
            case "begin":
                consumer.seek_to_beginning(partition)
                self.next_offsets[partition] = 0
            case "pause":
                consumer.pause(partition)
                self.paused.add(partition)
            case "resume":
                consumer.resume(*PARTITIONS)
                self.paused.clear()
            case "position":
                assert consumer.position(partition) == self.next_offsets[partition]

    def take(self, records: Any) -> None:
        for partition, offset, value in records:
            assert partition not in self.paused
            assert offset == self.next_offsets[partition]
            assert value is None or int(value.split(b" ")[0]) == offset
            self.next_offsets[partition] = offset + 1

    def read_all(self) -> None:
        self.call("resume", 0)
        for _ in range(10_000):
            self.call("table", 0)
            self.call("poll", 20)
            if {*self.next_offsets.values()} == {COUNT}:
                return
        raise AssertionError(f"the next records are {self.next_offsets}")


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(CALLS), st.integers(0, 60)), max_size=40),
    st.sampled_from((300, 3000, 20_000)),
    st.sampled_from((1, 5000, 1 << 20)),
)
def test_records_come_in_order_however_they_are_asked_for(
    cluster: Cluster, calls: list[tuple[str, int]], partition_bytes: int, all_bytes: int
) -> None:
    config: dict[str, Any] = {"max_partition_fetch_bytes": partition_bytes, "fetch_max_bytes": all_bytes}
    config |= {"retry_backoff_ms": 1, "fetch_max_wait_ms": 5, "consumer_timeout_ms": 5, "max_poll_records": 20}
    with cluster.consumer(auto_offset_reset="earliest", **config) as consumer:
        consumer.assign(PARTITIONS)
        program = Program(consumer)
        for name, number in calls:
            program.call(name, number)
        program.read_all()
