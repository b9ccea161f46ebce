"""Groups that move fast, and records for them to share."""

from __future__ import annotations

from rayka.client.cluster import Cluster

FAST_GROUPS = {
    "group.consumer.min.heartbeat.interval.ms": "20",
    "group.consumer.heartbeat.interval.ms": "20",
    "group.consumer.unsettled.heartbeat.interval.ms": "10",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "500",
}


def write(cluster: Cluster, count: int, topic: str = "events", first: int = 0) -> None:
    """Numbered records, over all partitions."""
    partitions = len(cluster.admin().describe_topics([topic])[0].partitions)
    with cluster.producer() as producer:
        for number in range(first, first + count):
            producer.send(topic, b"%d" % number, partition=number % partitions)
