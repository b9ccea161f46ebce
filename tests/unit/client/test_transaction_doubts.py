"""What a producer does where its coordinator is not done, decided otherwise, or knows it no more."""

from __future__ import annotations

from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.coordinator.request import Request
from rayka.coordinator.transactions.requests import EndTxnRequest
from rayka.coordinator.transactions.steps import TransactionMarkers
from rayka.errors import RaykaError
from tests.support.client_connection import LocalConnection
from tests.unit.client.reading import values


def committed(cluster: Cluster, topic: str = "events") -> list[bytes]:
    return values(cluster, topic, isolation_level="read_committed")


def test_an_abort_waits_for_the_markers_of_the_transaction_before(
    cluster: Cluster, connection: LocalConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader is away, so that they are written later. The producer was taken for one that is fenced (KAFKA-18464)."""
    coordinators = connection.broker.transactions
    execute, write = coordinators.execute, coordinators._write
    unwritten: list[TransactionMarkers] = []

    async def write_markers_after_a_refusal(request: Request[Any]) -> Any:
        answer = await execute(request)
        if isinstance(request, EndTxnRequest) and not request.is_committed:
            while unwritten:
                write(unwritten.pop())
        return answer

    monkeypatch.setattr(coordinators, "execute", write_markers_after_a_refusal)
    with cluster.producer(transactional_id="t", delivery_timeout_ms=100, request_timeout_ms=100) as producer:
        with monkeypatch.context() as leader_is_away:
            leader_is_away.setattr(coordinators, "_write", unwritten.append)
            with producer.transaction():
                producer.send("events", b"a")
        producer.begin_transaction()
        with pytest.raises(RaykaError, match="CONCURRENT_TRANSACTIONS"):
            producer.send("events", b"b").get(30)
        assert unwritten != []
        producer.abort_transaction()
        with producer.transaction():
            producer.send("events", b"c")
    assert committed(cluster) == [b"a", b"c"]
