"""Transactions of the producer on actor handles, against the cores of storage and of the coordinators."""

from __future__ import annotations

import asyncio

import pytest

from rayka.client.cluster import Cluster
from rayka.errors import ErrorCode, RaykaError
from tests.unit.client.reading import values


def committed(cluster: Cluster, topic: str = "events") -> list[bytes]:
    return values(cluster, topic, isolation_level="read_committed")


def refused(error: pytest.ExceptionInfo[RaykaError]) -> ErrorCode:
    return error.value.code


def test_what_was_committed_is_read_and_what_was_aborted_is_not(cluster: Cluster) -> None:
    with cluster.producer(transactional_id="t") as producer:
        for number in range(5):
            producer.begin_transaction()
            for _ in range(3):
                producer.send("events", b"%d" % number)
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    assert committed(cluster) == [b"0"] * 3 + [b"2"] * 3 + [b"4"] * 3
    assert len(values(cluster, "events")) == 15


def test_an_exception_aborts_the_transaction_that_it_leaves(cluster: Cluster) -> None:
    with cluster.producer(transactional_id="t") as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send("events", b"%d" % (1 // 0))
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send("events", b"%d" % (producer.send("events", b"aborted").get(5).offset // 0))
        with producer.transaction() as txn:
            txn.send_many("events", [b"a", b"b"])
            txn.send("events", b"c")
    assert committed(cluster) == [b"a", b"b", b"c"]


def test_the_asynchronous_form(cluster: Cluster) -> None:
    async def main() -> None:
        async with cluster.async_producer(transactional_id="t") as producer:
            async with producer.transaction():
                await producer.send("events", b"a")
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send("events", b"%d" % (1 // 0))

    asyncio.run(main())
    assert committed(cluster) == [b"a"]


def test_records_belong_to_a_transaction(cluster: Cluster) -> None:
    cluster.admin().create_topic("events")
    with cluster.producer(transactional_id="t") as producer:
        with pytest.raises(RaykaError) as outside:
            producer.send("events", b"outside")
        assert refused(outside) is ErrorCode.INVALID_TXN_STATE
        with producer.transaction(), pytest.raises(RaykaError) as twice:
            producer.begin_transaction()
        assert refused(twice) is ErrorCode.INVALID_TXN_STATE
    with cluster.producer() as plain, pytest.raises(RaykaError) as without:
        plain.begin_transaction()
    assert refused(without) is ErrorCode.INVALID_TXN_STATE


def test_the_latest_producer_of_an_id_fences_the_others(cluster: Cluster) -> None:
    with cluster.producer(transactional_id="t") as zombie, cluster.producer(transactional_id="t") as successor:
        zombie.begin_transaction()
        zombie.send("events", b"zombie").get(5)
        with successor.transaction():
            successor.send("events", b"successor")
        with pytest.raises(RaykaError) as fenced:
            zombie.commit_transaction()
        assert refused(fenced) is ErrorCode.PRODUCER_FENCED
        with pytest.raises(RaykaError) as again:
            zombie.begin_transaction()
        assert refused(again) is ErrorCode.PRODUCER_FENCED
    assert committed(cluster) == [b"successor"]


def test_a_record_that_is_refused_lets_the_transaction_only_be_aborted(cluster: Cluster) -> None:
    cluster.admin().create_topic("keyed", configs={"cleanup.policy": "compact"})
    with cluster.producer(transactional_id="t") as producer:
        producer.begin_transaction()
        producer.send("events", b"a")
        refused_record = producer.send("keyed", b"without a key")
        with pytest.raises(RaykaError) as abortable:
            producer.commit_transaction()
        assert refused(abortable) is ErrorCode.TRANSACTION_ABORTABLE
        with pytest.raises(RaykaError):
            refused_record.get(5)
        producer.abort_transaction()
        with producer.transaction():
            producer.send("events", b"b")
            producer.send("keyed", b"v", b"k")
    assert committed(cluster) == [b"b"]
    assert committed(cluster, "keyed") == [b"v"]


def test_a_transactional_id_needs_idempotence(cluster: Cluster) -> None:
    for wrong in ({"acks": 1}, {"transactional_id": ""}):
        with pytest.raises(RaykaError) as invalid:
            cluster.producer(**{"transactional_id": "t", **wrong})
        assert refused(invalid) is ErrorCode.INVALID_CONFIG
