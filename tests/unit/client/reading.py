"""Reading back what a test wrote."""

from __future__ import annotations

from typing import Any

from rayka.client.cluster import Cluster
from rayka.client.consumer.records import ConsumerRecord


def read_all(cluster: Cluster, topic: str, **config: Any) -> list[ConsumerRecord]:
    """Every record of a topic, partition by partition."""
    with cluster.consumer(auto_offset_reset="earliest", **config) as consumer:
        partitions = [(topic, partition) for partition in sorted(consumer.partitions_for_topic(topic) or ())]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        records: list[ConsumerRecord] = []
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for polled in consumer.poll(timeout_ms=50).values():  # an aborted end has no records to wait for
                records += polled
    return sorted(records, key=lambda record: (record.partition, record.offset))


def values(cluster: Cluster, topic: str, **config: Any) -> list[Any]:
    """The values of every record of a topic."""
    return [record.value for record in read_all(cluster, topic, **config)]
