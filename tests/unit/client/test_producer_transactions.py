"""Transactions of the producer on actor handles, against the cores of storage and of the coordinators."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.client.group.blocking import GroupConsumer
from rayka.client.group.coordinator import GroupMetadata
from rayka.client.producer.blocking import Producer
from rayka.client.producer.producer import AsyncProducer
from rayka.coordinator.request import Request
from rayka.coordinator.transactions.requests import EndTxnRequest
from rayka.errors import ErrorCode, RaykaError
from rayka.testing import wait_until
from rayka.types import TopicPartition
from tests.support.client_connection import LocalConnection
from tests.support.faulty_partitions import Fault, FaultyPartitions
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
            producer.flush()
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    assert committed(cluster) == [b"0"] * 3 + [b"2"] * 3 + [b"4"] * 3
    assert len(values(cluster, "events")) == 15


def test_an_abort_drops_what_is_not_sent_yet(cluster: Cluster) -> None:
    with cluster.producer(transactional_id="t", linger_ms=60_000) as producer:
        producer.begin_transaction()
        producer.send("events", b"sent")
        producer.flush()
        dropped = producer.send("events", b"dropped")
        producer.abort_transaction()
        with pytest.raises(RaykaError) as aborted:
            dropped.get(30)
        assert refused(aborted) is ErrorCode.TRANSACTION_ABORTABLE
        with producer.transaction():
            producer.send("events", b"later")
    assert values(cluster, "events") == [b"sent", b"later"]
    assert committed(cluster) == [b"later"]


@contextlib.asynccontextmanager
async def with_a_record_in_flight(cluster: Cluster, faults: FaultyPartitions) -> AsyncIterator[AsyncProducer]:
    """A producer whose transaction has a record that is not acknowledged yet. It lives in the loop of the caller."""
    async with cluster.async_producer(transactional_id="t") as producer:
        await producer.begin_transaction()
        faults.fail_appends(Fault(delay_s=0.2))
        await producer.send("single", b"a")
        yield producer


def test_an_abort_that_was_interrupted_is_not_taken_back(
    cluster: Cluster, connection: LocalConnection, faults: FaultyPartitions
) -> None:
    async def main() -> None:
        async with with_a_record_in_flight(cluster, faults) as producer:
            abort = asyncio.ensure_future(producer.abort_transaction())
            await asyncio.sleep(0)
            abort.cancel()
            with pytest.raises(RaykaError) as abortable:
                await producer.commit_transaction()
            assert refused(abortable) is ErrorCode.TRANSACTION_ABORTABLE
            assert abort.cancelled()

    cluster.admin().create_topic("single")
    connection.loop.run(main())
    assert committed(cluster, "single") == []


def test_an_abort_follows_a_commit_that_has_just_been_interrupted(
    cluster: Cluster, connection: LocalConnection, faults: FaultyPartitions
) -> None:
    async def main() -> None:
        async with with_a_record_in_flight(cluster, faults) as producer:
            commit = asyncio.ensure_future(producer.commit_transaction())
            await asyncio.sleep(0)
            commit.cancel()
            await producer.abort_transaction()
            assert commit.cancelled()

    cluster.admin().create_topic("single")
    connection.loop.run(main())
    assert committed(cluster, "single") == []


def test_a_commit_that_has_begun_ends_before_an_abort_or_a_close(
    cluster: Cluster, connection: LocalConnection, faults: FaultyPartitions
) -> None:
    """Those of another thread must not decide otherwise."""

    async def main() -> None:
        async with with_a_record_in_flight(cluster, faults) as producer:
            ends = producer.commit_transaction(), producer.abort_transaction(), producer.close()
            committing, aborted, closed = await asyncio.gather(*ends, return_exceptions=True)
            assert (committing, closed) == (None, None)
            assert isinstance(aborted, RaykaError)
            assert aborted.code is ErrorCode.INVALID_TXN_STATE

    cluster.admin().create_topic("single")
    connection.loop.run(main())
    assert committed(cluster, "single") == [b"a"]


def test_a_begin_waits_for_a_commit_that_is_on_its_way(
    cluster: Cluster, connection: LocalConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of another thread must not abort what is being committed."""
    is_asked, coordinators = asyncio.Event(), connection.broker.transactions
    execute = coordinators.execute

    async def be_late(request: Request[Any]) -> Any:
        if isinstance(request, EndTxnRequest) and not is_asked.is_set():
            is_asked.set()
            await asyncio.sleep(0.2)
        return await execute(request)

    async def main() -> None:
        async with cluster.async_producer(transactional_id="t") as producer:
            await producer.begin_transaction()
            await producer.send("events", b"a")
            commit = asyncio.ensure_future(producer.commit_transaction())
            await is_asked.wait()
            async with producer.transaction():
                await producer.send("events", b"b")
            await commit

    monkeypatch.setattr(coordinators, "execute", be_late)
    connection.loop.run(main())
    assert committed(cluster) == [b"a", b"b"]


def test_two_threads_that_begin_at_the_same_moment_begin_one_transaction(
    cluster: Cluster, connection: LocalConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would fence the producer of the other, and forget what was sent."""
    coordinators = connection.broker.transactions
    execute, asked = coordinators.execute, itertools.count(1)

    async def answer_the_second_late(request: Request[Any]) -> Any:
        answer = await execute(request)
        if next(asked) == 2:
            await asyncio.sleep(0.2)
        return answer

    async def main() -> None:
        async with cluster.async_producer(transactional_id="t") as producer:
            first, second = (asyncio.ensure_future(producer.begin_transaction()) for _ in range(2))
            await first
            await producer.send("events", b"a")
            with pytest.raises(RaykaError) as twice:
                await second
            assert refused(twice) is ErrorCode.INVALID_TXN_STATE
            await producer.commit_transaction()

    monkeypatch.setattr(coordinators, "execute", answer_the_second_late)
    connection.loop.run(main())
    assert committed(cluster) == [b"a"]


def test_a_commit_waits_for_offsets_that_are_on_their_way(
    cluster: Cluster, connection: LocalConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread sends them: without them, the records would be read and their results written again."""
    is_asked, groups = asyncio.Event(), connection.broker.groups
    execute = groups.execute

    async def be_late(request: Request[Any]) -> Any:
        is_asked.set()
        await asyncio.sleep(0.2)
        return await execute(request)

    async def main() -> None:
        async with cluster.async_producer(transactional_id="t") as producer:
            await producer.begin_transaction()
            await producer.send("events", b"a")
            offsets = {TopicPartition("events", 0): 1}
            sending = asyncio.ensure_future(producer.send_offsets(offsets, GroupMetadata("g")))
            await is_asked.wait()
            await producer.commit_transaction()
            assert sending.done()
            await sending

    with monkeypatch.context() as slow:
        slow.setattr(groups, "execute", be_late)
        connection.loop.run(main())
    with cluster.consumer("g", enable_auto_commit=False) as consumer:
        assert consumer.committed(("events", 0)) is not None


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


@contextlib.contextmanager
def unanswered_ends(connection: LocalConnection, *, are_carried_out: bool = False) -> Iterator[None]:
    """The coordinator answers no EndTxn, like a process that was stopped and keeps its connections."""
    coordinators = connection.broker.transactions
    execute = coordinators.execute

    async def answer_no_end(request: Request[Any]) -> Any:
        is_end = isinstance(request, EndTxnRequest)
        answer = await execute(request) if are_carried_out or not is_end else None
        if is_end:
            await asyncio.Event().wait()
        return answer

    with pytest.MonkeyPatch.context() as stopped:
        stopped.setattr(coordinators, "execute", answer_no_end)
        yield


def commit_in_doubt(producer: Producer) -> None:
    with pytest.raises(RaykaError) as in_doubt:
        producer.commit_transaction()
    assert refused(in_doubt) is ErrorCode.REQUEST_TIMED_OUT


def test_an_interrupt_of_a_commit_leaves_the_producer_usable(
    cluster: Cluster, connection: LocalConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is on its way: the next transaction has another epoch, so that it is not ended by it."""
    coordinators = connection.broker.transactions
    execute, is_decided = coordinators.execute, threading.Event()

    async def answer_late(request: Request[Any]) -> Any:
        answer = await execute(request)
        if isinstance(request, EndTxnRequest) and not is_decided.is_set():
            is_decided.set()
            await asyncio.sleep(60)
        return answer

    monkeypatch.setattr(coordinators, "execute", answer_late)

    async def main() -> None:
        async with cluster.async_producer(transactional_id="t") as producer:
            await producer.begin_transaction()
            await producer.send("events", b"in doubt")
            commit = asyncio.ensure_future(producer.commit_transaction())
            await asyncio.to_thread(is_decided.wait, 20)
            commit.cancel()
            with pytest.raises(asyncio.CancelledError):
                await commit
            async with producer.transaction():
                await producer.send("events", b"later")

    asyncio.run(main())
    assert committed(cluster) == [b"in doubt", b"later"]


def test_a_commit_ends_in_time_if_the_coordinator_does_not_answer(
    cluster: Cluster, connection: LocalConnection
) -> None:
    with cluster.producer(transactional_id="t", max_block_ms=1500) as producer:
        producer.begin_transaction()
        producer.send("events", b"in doubt").get(30)
        with unanswered_ends(connection):
            commit_in_doubt(producer)
        with producer.transaction():
            producer.send("events", b"later")
    assert committed(cluster) == [b"later"]


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


def test_a_producer_that_was_replaced_while_an_end_was_in_doubt_stays_fenced(
    cluster: Cluster, connection: LocalConnection
) -> None:
    """Its next transaction must not fence the successor, which may have read and committed the same input."""
    with (
        cluster.producer(transactional_id="t", max_block_ms=500) as zombie,
        cluster.producer(transactional_id="t") as successor,
    ):
        zombie.begin_transaction()
        zombie.send("events", b"in doubt").get(30)
        with unanswered_ends(connection):
            commit_in_doubt(zombie)
        with successor.transaction():
            successor.send("events", b"successor")
        with pytest.raises(RaykaError) as fenced:
            zombie.begin_transaction()
        assert refused(fenced) is ErrorCode.PRODUCER_FENCED
        with successor.transaction():
            successor.send("events", b"successor again")
    assert committed(cluster) == [b"successor", b"successor again"]


def test_a_commit_that_was_carried_out_while_in_doubt_fences_nobody(
    cluster: Cluster, connection: LocalConnection
) -> None:
    """The coordinator knows only what is in its log, as if it had been loaded since: not the epoch of before."""
    with cluster.producer(transactional_id="t", max_block_ms=500) as producer:
        producer.begin_transaction()
        producer.send("events", b"a").get(30)
        with unanswered_ends(connection, are_carried_out=True):
            commit_in_doubt(producer)
        with producer.transaction():
            producer.send("events", b"b")
    assert committed(cluster) == [b"a", b"b"]


def test_a_consumer_commits_how_far_it_has_read_with_the_transaction(cluster: Cluster) -> None:
    cluster.admin().create_topic("single", partitions=1)
    with cluster.producer() as plain:
        plain.send_many("single", [b"a", b"b"])
    settings = {"enable_auto_commit": False, "auto_offset_reset": "earliest"}
    with (
        cluster.producer(transactional_id="t") as producer,
        cluster.consumer("g", ["single"], **settings) as consumer,
    ):
        wait_until(lambda: consumer.poll(100) != {}, 60, "the records")
        with producer.transaction():
            producer.send("events", b"result")
            producer.send_offsets(consumer)
        found = consumer.committed(("single", 0))
        assert found is not None
        assert found.offset == 2


def test_an_offset_of_a_transaction_belongs_to_its_topic_and_not_to_the_next_one_of_that_name(
    cluster: Cluster, connection: LocalConnection
) -> None:
    """A coordinator that was away when the topic was deleted knows it by the id alone."""
    admin, groups = cluster.admin(), connection.broker.groups
    admin.create_topic("single", partitions=1)
    with (
        cluster.producer(transactional_id="t") as producer,
        cluster.consumer("g", enable_auto_commit=False) as consumer,
    ):
        with producer.transaction():
            producer.send("events", b"result")
            producer.send_offsets({TopicPartition("single", 0): 1}, GroupMetadata("g"))
        assert consumer.committed(("single", 0)) is not None
        follow, groups.follow = groups.follow, lambda image: None
        admin.delete_topic("single")
        admin.create_topic("single", partitions=1)
        groups.follow = follow
        assert consumer.committed(("single", 0)) is None


def test_a_member_that_its_group_went_on_without_commits_nothing(cluster: Cluster) -> None:
    """Another member reads the same records again, so its results must not count (KIP-447)."""
    cluster.admin().create_topic("single", partitions=1)
    offsets = {TopicPartition("single", 0): 1}

    def join(consumer: GroupConsumer) -> GroupMetadata:
        wait_until(lambda: consumer.poll(20) == {} and consumer.assignment() != set(), 60, "the partition")
        return consumer.group_metadata()

    with cluster.producer(transactional_id="t") as producer:
        with cluster.consumer("g", ["single"], enable_auto_commit=False) as consumer:
            left = join(consumer)
        with cluster.consumer("g", ["single"], enable_auto_commit=False) as consumer:
            present = join(consumer)
            stale = present._replace(member_epoch=present.member_epoch - 1)
            for member, error in ((left, ErrorCode.UNKNOWN_MEMBER_ID), (stale, ErrorCode.ILLEGAL_GENERATION)):
                producer.begin_transaction()
                producer.send("events", b"of a member that is gone")
                with pytest.raises(RaykaError) as fenced:
                    producer.send_offsets(offsets, member)
                assert refused(fenced) is error
                with pytest.raises(RaykaError) as abortable:
                    producer.commit_transaction()
                assert refused(abortable) is ErrorCode.TRANSACTION_ABORTABLE
                producer.abort_transaction()
            with producer.transaction():
                producer.send("events", b"of the present member")
                producer.send_offsets(offsets, present)
            found = consumer.committed(("single", 0))
            assert found is not None
            assert found.offset == 1
    assert committed(cluster) == [b"of the present member"]


def test_offsets_need_a_group(cluster: Cluster) -> None:
    with cluster.producer(transactional_id="t") as producer:
        producer.begin_transaction()
        with pytest.raises(RaykaError) as nobody:
            producer.send_offsets({TopicPartition("single", 0): 1})
        assert refused(nobody) is ErrorCode.INVALID_REQUEST


def test_init_transactions_ends_what_an_earlier_producer_left_open(cluster: Cluster) -> None:
    with cluster.producer(transactional_id="t") as zombie, cluster.producer(transactional_id="t") as successor:
        zombie.begin_transaction()
        zombie.send("events", b"zombie").get(5)
        successor.init_transactions()
        with cluster.producer() as plain:
            plain.send("events", b"after")
        assert committed(cluster) == [b"after"]
        with pytest.raises(RaykaError) as fenced:
            zombie.commit_transaction()
        assert refused(fenced) is ErrorCode.PRODUCER_FENCED


def test_producers_write_in_the_transaction_of_another(cluster: Cluster) -> None:
    """Each has a partition of its own, and only the one that began the transaction ends it."""
    cluster.admin().create_topic("shared", partitions=2)
    with cluster.producer(transactional_id="t") as owner:
        for commits in (False, True):
            owner.begin_transaction()
            opened = owner.share_transaction()
            for partition in range(2):
                with cluster.producer(joins=opened) as producer:
                    producer.send("shared", b"%d" % commits, partition=partition).get(5)
                    with pytest.raises(RaykaError) as not_its_own:
                        producer.commit_transaction()
                    assert refused(not_its_own) is ErrorCode.INVALID_TXN_STATE
            if commits:
                owner.commit_transaction()
            else:
                owner.abort_transaction()
        with cluster.producer(joins=opened) as late, pytest.raises(RaykaError) as fenced:
            late.send("shared", b"late", partition=0).get(5)
        assert refused(fenced) is ErrorCode.PRODUCER_FENCED
    assert committed(cluster, "shared") == [b"1", b"1"]


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


def test_a_record_that_was_not_sent_in_time_lets_the_transaction_only_be_aborted(
    cluster: Cluster, faults: FaultyPartitions
) -> None:
    """It waits behind another one, which is appended."""
    cluster.admin().create_topic("events")
    with cluster.producer(transactional_id="t", delivery_timeout_ms=200, max_in_flight=1) as producer:
        faults.fail_appends(Fault(delay_s=0.4))
        producer.begin_transaction()
        sent = producer.send("events", b"sent")
        wait_until(lambda: faults.appends == 1 or sent.is_done, 30, "the first append")
        waits = producer.send("events", b"waits")
        with pytest.raises(RaykaError):
            waits.get(30)
        with pytest.raises(RaykaError) as abortable:
            producer.commit_transaction()
        assert refused(abortable) is ErrorCode.TRANSACTION_ABORTABLE
        producer.abort_transaction()
    with cluster.producer() as plain:
        plain.send("events", b"after")
    assert committed(cluster) == [b"after"]


def partitioner_that_calls(calls: list[Callable[[], None]]) -> Callable[..., int]:
    """One that makes these calls, each once, and chooses partition 0."""

    def choose(*_: object) -> int:
        while calls:
            calls.pop()()
        return 0

    return choose


def test_a_record_whose_transaction_ends_while_it_is_being_sent_is_refused(cluster: Cluster) -> None:
    """Another thread may end it at any moment. The record would be sent in no transaction, or in the next one."""
    cluster.admin().create_topic("events")
    ends: list[Callable[[], None]] = []

    with cluster.producer(transactional_id="t", partitioner=partitioner_that_calls(ends)) as producer:
        producer.begin_transaction()
        producer.send("events", b"a").get(30)
        ends.append(producer.commit_transaction)
        with pytest.raises(RaykaError) as late:
            producer.send("events", b"late")
        assert refused(late) is ErrorCode.INVALID_TXN_STATE
        with producer.transaction():
            producer.send("events", b"b")
    assert values(cluster, "events") == committed(cluster) == [b"a", b"b"]


def test_a_record_is_never_part_of_a_transaction_that_began_after_its_send(cluster: Cluster) -> None:
    """Another thread may end the transaction and begin the next one while the partition is chosen."""
    cluster.admin().create_topic("events")
    ends: list[Callable[[], None]] = []

    def end() -> None:
        producer.commit_transaction()
        producer.begin_transaction()

    with cluster.producer(transactional_id="t", partitioner=partitioner_that_calls(ends)) as producer:
        producer.begin_transaction()
        producer.send("events", b"a").get(30)
        ends.append(end)
        with pytest.raises(RaykaError, match="has ended") as late:
            producer.send("events", b"late")
        assert refused(late) is ErrorCode.INVALID_TXN_STATE
        producer.send("events", b"b")
        producer.commit_transaction()
    assert values(cluster, "events") == committed(cluster) == [b"a", b"b"]


LARGE = b"x" * 600_000
"""A batch has room for one."""
CALLS: dict[str, Callable[[Producer, Callable[[], None]], object]] = {
    "send_batch": lambda producer, end: producer.send_batch("events", 0, then(end, LARGE, LARGE, LARGE)),
    "send_many": lambda producer, _: producer.send_many("events", [LARGE, LARGE], keys=[b"1", b"2"]),
    "send_table": lambda producer, _: producer.send_table("events", {"value": [LARGE, LARGE], "key": [b"1", b"2"]}),
}


def then(end: Callable[[], None], *values: bytes) -> Iterator[bytes]:
    """The values, and the end before the last one."""
    yield from values[:-1]
    end()
    yield values[-1]


@pytest.mark.parametrize("call", CALLS)
def test_the_records_of_one_call_are_never_in_two_transactions(cluster: Cluster, call: str) -> None:
    """Another thread may end the transaction between two batches, and begin the next one."""
    cluster.admin().create_topic("events")
    chosen = itertools.count(1)

    def choose(*_: object) -> int:
        if next(chosen) == 2:
            end()
        return 0

    def end() -> None:
        producer.commit_transaction()
        producer.begin_transaction()

    with cluster.producer(transactional_id="t", partitioner=choose) as producer:
        producer.begin_transaction()
        with pytest.raises(RaykaError, match="has ended") as late:
            CALLS[call](producer, end)
        assert refused(late) is ErrorCode.INVALID_TXN_STATE
        producer.send("events", b"next")
        producer.commit_transaction()
    assert committed(cluster) == [LARGE, b"next"]


def test_a_callback_sends_nothing_in_a_transaction_that_is_being_committed(cluster: Cluster) -> None:
    """It could be appended after the end, and acknowledged, and would be aborted at the transaction's timeout."""
    refusals: list[ErrorCode] = []
    with cluster.producer(transactional_id="t", linger_ms=60_000) as producer:

        def send_more(_: object) -> None:
            with pytest.raises(RaykaError) as ending:
                producer.send("events", b"more")
            refusals.append(refused(ending))

        producer.begin_transaction()
        producer.send("events", b"a").add_callback(send_more)
        producer.commit_transaction()
        with producer.transaction():
            producer.send("events", b"b")
    assert committed(cluster) == [b"a", b"b"]
    assert refusals == [ErrorCode.INVALID_TXN_STATE]


def test_a_producer_that_is_closed_leaves_no_transaction_open(cluster: Cluster) -> None:
    """It would hold up the readers of committed records until the transaction's timeout."""
    with cluster.producer(transactional_id="t") as producer:
        producer.begin_transaction()
        producer.send("events", b"never decided")
    with cluster.producer() as plain:
        plain.send("events", b"after")
    assert committed(cluster) == [b"after"]


def test_a_transactional_id_needs_idempotence(cluster: Cluster) -> None:
    for wrong in ({"acks": 1}, {"transactional_id": ""}):
        with pytest.raises(RaykaError) as invalid:
            cluster.producer(**{"transactional_id": "t", **wrong})
        assert refused(invalid) is ErrorCode.INVALID_CONFIG
