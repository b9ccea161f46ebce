"""Records of transactions that were committed, aborted, and left open, in one partition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rayka.client.cluster import Cluster

COMMITTED = [b"first", b"second"]


@contextmanager
def undecided(cluster: Cluster, topic: str, partition: int = 0) -> Iterator[None]:
    """Write `COMMITTED`, an aborted record between them, and one after them whose transaction stays open meanwhile."""
    with cluster.producer(transactional_id=f"{topic}-writer") as producer:
        for value, is_committed in ((b"first", True), (b"aborted", False), (b"second", True)):
            producer.begin_transaction()
            producer.send(topic, value, partition=partition).get(30)
            if is_committed:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"open", partition=partition).get(30)
        yield
        producer.abort_transaction()
