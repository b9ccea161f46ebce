"""The end of a cluster's clients: after an interrupt (Ctrl-C), and in a fork of the process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from rayka.client.cluster import Cluster
from rayka.errors import ErrorCode, RaykaError
from rayka.testing import wait_until
from rayka.types import TopicPartition
from tests.support.client_connection import LocalConnection
from tests.unit.client.grouped import write
from tests.unit.client.test_direct_sends import in_a_fork
from tests.unit.client.test_group_consumer import SETTINGS, broker_config, cluster, share, until
from tests.unit.client.test_loop import interrupted_when

__all__ = ["broker_config", "cluster"]  # fixtures


@pytest.mark.parametrize("end", [Cluster.close, Cluster.stop, lambda cluster: cluster.__exit__(None, None, None)])
def test_a_cluster_that_ends_in_a_fork_does_nothing_there(
    cluster: Cluster, connection: LocalConnection, end: Callable[[Cluster], None]
) -> None:
    """Such as at the end of a `with` block that a child of `os.fork` leaves: the broker is its parent's."""
    producer = cluster.producer(linger_ms=60_000)
    sent = producer.send("events", b"parent", partition=0)

    def end_here() -> None:
        def fail() -> None:
            raise RaykaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the connection ends in the fork")

        connection.close = connection.stop = fail  # type: ignore[method-assign]
        end(cluster)

    assert in_a_fork(end_here) == ""
    producer.flush()
    assert sent.get(30).offset == 0


def test_a_second_close_waits_for_the_clients_that_an_interrupted_one_had_begun_to_close(
    cluster: Cluster, connection: LocalConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, has_begun, may_end = cluster.async_consumer(), threading.Event(), asyncio.Event()
    close, ended = consumer.close, list[bool]()

    async def close_late() -> None:
        has_begun.set()
        await may_end.wait()
        await close()
        ended.append(consumer._is_closed)

    monkeypatch.setattr(consumer, "close", close_late)
    with interrupted_when(has_begun):
        cluster.close()
    connection.loop.call_soon(connection.loop.loop.call_later, 0.2, may_end.set)
    cluster.close()
    assert ended == [True]


def test_a_second_close_revokes_the_partitions_of_the_consumers_that_an_interrupted_one_had_left_open(
    cluster: Cluster,
) -> None:
    """In the thread that closes the cluster."""
    revoked: list[tuple[str, int]] = []

    def listener(group_id: str) -> Callable[[list[TopicPartition]], None]:
        def on_revoked(_: list[TopicPartition]) -> None:
            revoked.append((group_id, threading.get_ident()))
            if len(revoked) == 1:
                raise KeyboardInterrupt

        return on_revoked

    consumers = {group_id: cluster.consumer(group_id, **SETTINGS) for group_id in ("a", "b")}
    for group_id, consumer in consumers.items():
        consumer.subscribe(["events"], on_revoked=listener(group_id))
        until(share(consumer), consumer)
    with pytest.raises(KeyboardInterrupt):
        cluster.close()
    cluster.close()
    assert sorted(revoked) == [("a", threading.get_ident()), ("b", threading.get_ident())]


def test_a_second_close_waits_for_the_streams_that_an_interrupted_one_had_begun_to_close(
    cluster: Cluster, connection: LocalConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    connector, has_begun, may_end = cluster.consumer_connector("g", **SETTINGS), threading.Event(), asyncio.Event()
    connector.create_message_streams({"events": 1})
    (member,) = connector._core._members
    before_revoke = member.before_revoke

    async def commit_late(partitions: Sequence[TopicPartition]) -> None:
        has_begun.set()
        await may_end.wait()
        await before_revoke(partitions)

    wait_until(lambda: len(member._membership.assigned) == 4, 30, "it has its partitions")
    monkeypatch.setattr(member, "before_revoke", commit_late)
    with interrupted_when(has_begun):
        cluster.close()
    connection.loop.call_soon(connection.loop.loop.call_later, 0.2, may_end.set)
    cluster._close_clients()
    assert cluster.admin().describe_group("g").members == ()


def test_a_record_that_does_not_count_as_read_when_streams_are_left_does_not_when_that_is_interrupted(
    cluster: Cluster, connection: LocalConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program has failed with it, and then closes the cluster."""
    write(cluster, 1)
    connector, has_begun, may_end = cluster.consumer_connector("g", **SETTINGS), threading.Event(), asyncio.Event()
    (stream,) = connector.create_message_streams({"events": 1})["events"]
    (member,) = connector._core._members
    before_revoke = member.before_revoke

    async def commit_late(partitions: Sequence[TopicPartition]) -> None:
        has_begun.set()
        await may_end.wait()
        await before_revoke(partitions)

    assert next(stream).offset == 0
    monkeypatch.setattr(member, "before_revoke", commit_late)
    with interrupted_when(has_begun):
        connector.leave()
    connection.loop.call_soon(connection.loop.loop.call_later, 0.2, may_end.set)
    cluster._close_clients()
    committed = cluster.consumer("g", **SETTINGS).committed(("events", 0))
    assert committed is None or committed.offset == 0


def test_a_close_that_blocks_the_loop_of_a_callback_does_not_wait_for_it(cluster: Cluster) -> None:
    """Such as at the end of a `with` block in a coroutine. Other tasks that read hear of the end."""

    async def main() -> None:
        consumer, has_begun, may_end = cluster.async_consumer("g", **SETTINGS), asyncio.Event(), asyncio.Event()

        async def on_assigned(_: list[TopicPartition]) -> None:
            has_begun.set()
            await may_end.wait()

        async def read() -> None:
            async for _ in consumer:
                pass

        await consumer.subscribe(["events"], on_assigned=on_assigned)
        reading = [asyncio.create_task(read()), asyncio.create_task(read())]
        await has_begun.wait()
        while not consumer._fetcher._polls_waiting:
            await asyncio.sleep(0.001)
        begun_s = time.monotonic()
        cluster.close()
        assert time.monotonic() - begun_s < 10
        may_end.set()
        await asyncio.wait(reading)
        assert {str(task.exception()) for task in reading} == {
            "INVALID_REQUEST: The connection to the cluster is closed",  # where the callback has ended
            "INVALID_REQUEST: The consumer is closed",
        }

    asyncio.run(asyncio.wait_for(main(), 60))
