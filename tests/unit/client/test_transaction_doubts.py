"""What a producer does where its coordinator is not done, decided otherwise, or knows it no more."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rayka.client.calls import CoroutineRun
from rayka.client.cluster import Cluster
from rayka.client.producer.blocking import Producer
from rayka.client.producer.producer import AsyncProducer
from rayka.coordinator.clock import Now
from rayka.coordinator.request import Request
from rayka.coordinator.transactions.metadata import MAX_EPOCH, TransactionMetadata
from rayka.coordinator.transactions.records import TransactionRecord
from rayka.coordinator.transactions.requests import EndTxnRequest
from rayka.coordinator.transactions.steps import TransactionMarkers
from rayka.errors import ErrorCode, RaykaError
from rayka.types import TopicPartition
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


def expire_id(connection: LocalConnection) -> None:
    """As after `transactional.id.expiration.ms`, a week, without a transaction."""
    connection.broker.transactions.core.replay(TransactionRecord("t", None))


def assert_is_forgotten(producer: Producer) -> None:
    """The producer does nothing any more, and says what the program can do."""
    for step in (producer.begin_transaction, producer.init_transactions):
        with pytest.raises(RaykaError, match="Create a new producer") as forgotten:
            step()
        assert forgotten.value.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_producer_whose_id_has_expired_writes_nothing_more(cluster: Cluster, connection: LocalConnection) -> None:
    """Another one may have done its work meanwhile, and have been forgotten too (KAFKA-18019)."""
    with cluster.producer(transactional_id="t") as forgotten:
        with forgotten.transaction():
            forgotten.send("events", b"input 0")
        with cluster.producer(transactional_id="t") as successor, successor.transaction():
            successor.send("events", b"input 1")
        expire_id(connection)
        with pytest.raises(RaykaError, match="Create a new producer"), forgotten.transaction():
            forgotten.send("events", b"input 1").get(30)
        assert_is_forgotten(forgotten)
    with cluster.producer(transactional_id="t") as anew, anew.transaction():
        anew.send("events", b"input 2")
    assert committed(cluster) == [b"input 0", b"input 1", b"input 2"]


def test_a_producer_whose_id_another_one_got_after_it_had_expired_writes_nothing_more(
    cluster: Cluster, connection: LocalConnection
) -> None:
    with cluster.producer(transactional_id="t") as forgotten:
        with forgotten.transaction():
            forgotten.send("events", b"a")
        expire_id(connection)
        with cluster.producer(transactional_id="t") as successor:
            with successor.transaction():
                successor.send("events", b"b")
            with pytest.raises(RaykaError, match="Create a new producer"), forgotten.transaction():
                forgotten.send("events", b"of a zombie")
            assert_is_forgotten(forgotten)
            with successor.transaction():
                successor.send("events", b"c")
    assert committed(cluster) == [b"a", b"b", b"c"]


def abort_by_timeout(connection: LocalConnection) -> None:
    """The coordinator finds that the open transaction has taken too long."""
    coordinators = connection.broker.transactions
    later_ms = connection.broker.now_ms() + 1_000_000

    async def expire() -> None:
        while (result := coordinators.core.expire(Now(later_ms, later_ms))) is not None:
            coordinators._carry_out(result)
        for markers in coordinators.core.take_markers():
            coordinators._write(markers)

    connection.loop.run(expire())


@pytest.mark.parametrize("epoch", [0, MAX_EPOCH - 2])
def test_a_producer_goes_on_after_a_commit_that_came_too_late(
    cluster: Cluster, connection: LocalConnection, epoch: int
) -> None:
    """It gets the error of one that was replaced (KAFKA-20785), but nobody has replaced it."""
    before = TransactionMetadata(7, epoch, 60_000, connection.broker.now_ms())
    connection.broker.transactions.core.replay(TransactionRecord("t", before))
    with cluster.producer(transactional_id="t") as producer:
        producer.begin_transaction()
        producer.send("events", b"late").get(30)
        abort_by_timeout(connection)
        with pytest.raises(RaykaError, match="transaction_timeout_ms") as too_late:
            producer.commit_transaction()
        assert too_late.value.code is ErrorCode.PRODUCER_FENCED
        with producer.transaction():
            producer.send("events", b"b")
    assert committed(cluster) == [b"b"]


def test_a_producer_that_was_replaced_after_the_timeout_stays_fenced(
    cluster: Cluster, connection: LocalConnection
) -> None:
    with cluster.producer(transactional_id="t") as zombie, cluster.producer(transactional_id="t") as successor:
        zombie.begin_transaction()
        zombie.send("events", b"late").get(30)
        abort_by_timeout(connection)
        successor.init_transactions()
        for step in (zombie.commit_transaction, zombie.begin_transaction, zombie.begin_transaction):
            with pytest.raises(RaykaError) as fenced:
                step()
            assert fenced.value.code is ErrorCode.PRODUCER_FENCED
        with successor.transaction():
            successor.send("events", b"a")
    assert committed(cluster) == [b"a"]


class SlowGroups:
    """Group coordinators that answer when they may. `is_asked` is set by the first request."""

    def __init__(self, connection: LocalConnection, monkeypatch: pytest.MonkeyPatch) -> None:
        groups = connection.broker.groups
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self._execute = groups.execute
        monkeypatch.setattr(groups, "execute", self._answer_later)

    async def _answer_later(self, request: Request[Any]) -> Any:
        self.is_asked.set()
        await self.may_answer.wait()
        return await self._execute(request)


async def cancel(task: asyncio.Future[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def assert_can_only_be_aborted(producer: AsyncProducer) -> None:
    with pytest.raises(RaykaError, match="send_offsets was interrupted") as abortable:
        await producer.commit_transaction()
    assert abortable.value.code is ErrorCode.TRANSACTION_ABORTABLE
    await producer.abort_transaction()


def test_a_transaction_whose_offsets_were_interrupted_can_only_be_aborted(
    cluster: Cluster, connection: LocalConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that catches its own time-out, and commits, would make the records visible without the offsets."""
    groups, offsets = SlowGroups(connection, monkeypatch), {TopicPartition("events", 0): 1}

    async def main() -> None:
        async with cluster.async_producer(transactional_id="t") as producer:
            await producer.begin_transaction()
            await producer.send("events", b"a")
            sending = asyncio.ensure_future(producer.send_offsets(offsets, "g"))
            await groups.is_asked.wait()
            await cancel(sending)
            await assert_can_only_be_aborted(producer)
            async with producer.transaction():
                await producer.send("events", b"b")

    connection.loop.run(main())
    assert committed(cluster) == [b"b"]


def test_offsets_that_are_interrupted_before_they_are_sent_are_not_left_out_either(
    cluster: Cluster, connection: LocalConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for those that another task sends."""
    groups, offsets = SlowGroups(connection, monkeypatch), {TopicPartition("events", 0): 1}

    async def main() -> None:
        async with cluster.async_producer(transactional_id="t") as producer:
            await producer.begin_transaction()
            await producer.send("events", b"a")
            first = asyncio.ensure_future(producer.send_offsets(offsets, "g"))
            await groups.is_asked.wait()
            second = asyncio.ensure_future(producer.send_offsets(offsets, "h"))
            await asyncio.sleep(0)
            await cancel(second)
            groups.may_answer.set()
            await first
            await assert_can_only_be_aborted(producer)

    connection.loop.run(main())
    assert committed(cluster) == []


def test_offsets_that_are_interrupted_while_the_client_is_busy_are_not_left_out_either(
    cluster: Cluster, connection: LocalConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes before the client's thread has begun with them."""
    SlowGroups(connection, monkeypatch)
    is_free, wait_for = threading.Event(), CoroutineRun.result
    interrupts = iter([KeyboardInterrupt])

    def result(run: CoroutineRun[Any]) -> Any:
        for interrupt in interrupts:
            raise interrupt
        is_free.set()
        return wait_for(run)

    with cluster.producer(transactional_id="t") as producer:
        producer.begin_transaction()
        producer.send("events", b"a").get(30)
        connection.loop.call_soon(is_free.wait)
        monkeypatch.setattr(CoroutineRun, "result", result)
        with pytest.raises(KeyboardInterrupt):
            producer.send_offsets({TopicPartition("events", 0): 1}, "g")
        with pytest.raises(RaykaError, match="send_offsets was interrupted"):
            producer.commit_transaction()
        producer.abort_transaction()
    assert committed(cluster) == []
