"""Transactions of the producer on actor handles, with Ray: copied once, whatever dies meanwhile."""

from __future__ import annotations

import itertools
from typing import Any

import ray

from rayka.client.cluster import Cluster
from rayka.testing import wait_until
from rayka.types import TopicPartition
from tests.support.transactions import COMMITTED, undecided

PARTITION = TopicPartition("input", 0)
GROUP = "copiers"
TIMEOUT_S = 120.0


def committed_values(cluster: Cluster, topic: str) -> list[bytes]:
    with cluster.consumer(auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        consumer.assign([(topic, 0)])
        end = consumer.end_offsets([(topic, 0)])[topic, 0]
        values: list[bytes] = []
        while consumer.position((topic, 0)) < end:
            for records in consumer.poll(timeout_ms=1000).values():
                values += [record.value for record in records]
    return values


def test_records_and_offsets_are_committed_together(cluster: Cluster) -> None:
    """Every third transaction fails half-way, and the actor dies once: every record is copied once."""
    admin = cluster.admin()
    admin.create_topic("input")
    admin.create_topic("output")
    values = [b"%d" % number for number in range(60)]
    with cluster.producer() as plain:
        plain.send_many("input", values)
    offset = 0
    with cluster.producer(transactional_id="copier") as producer:
        for attempt in range(100):
            if offset == len(values):
                break
            part = values[offset : offset + 5]
            if attempt == 7:
                kill_leader(cluster, "output")
            try:
                with producer.transaction() as txn:
                    for value in part:
                        txn.send("output", value)
                    txn.send_offsets({PARTITION: offset + len(part)}, GROUP)
                    assert attempt % 3 != 2
            except AssertionError:
                continue
            offset += len(part)
    wait_until(lambda: committed_values(cluster, "output") == values, TIMEOUT_S, "every record once")


def test_streams_give_out_committed_records_where_they_are_asked_to(cluster: Cluster) -> None:
    cluster.admin().create_topic("events")
    settings: Any = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 1000 * TIMEOUT_S}
    with undecided(cluster, "events"):
        for group, isolation, expected in (
            ("careful", "read_committed", COMMITTED),
            ("hasty", "read_uncommitted", [b"first", b"aborted", b"second", b"open"]),
        ):
            with cluster.consumer_connector(group, isolation_level=isolation, **settings) as connector:
                (stream,) = connector.create_message_streams({"events": 1})["events"]
                assert [record.value for record in itertools.islice(stream, len(expected))] == expected


def kill_leader(cluster: Cluster, topic: str) -> None:
    (actor, *_) = cluster.admin().describe_topics([topic])[0].partitions[0].actors
    ray.kill(ray.get_actor(actor, namespace="rayka"), no_restart=False)
