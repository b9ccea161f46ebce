"""What a transaction coordinator relies on when it sends markers to the leaders of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayka.actors.channel.requests import WriteTxnMarkers
from rayka.actors.coordinator.log import CoordinatorLog, Marker
from rayka.actors.replica.server import ReplicaServer
from rayka.config import LogConfig
from rayka.errors import ErrorCode
from rayka.types import TopicPartition, TxnMarker
from tests.support.logs import NOW_MS, batch
from tests.unit.actors.test_coordinator_log import open_partition

MISSING = TopicPartition("missing", 0)
OFFSETS = [TopicPartition("offsets", number) for number in range(3)]


def marker(
    *partitions: TopicPartition,
    producer_id: int = 5,
    producer_epoch: int = 1,
    coordinator_epoch: int = 3,
    is_committed: bool = True,
) -> TxnMarker:
    return TxnMarker(producer_id, producer_epoch, coordinator_epoch, is_committed, 2, partitions)


def write(server: ReplicaServer, *markers: TxnMarker) -> list[Any]:
    """What is answered, now or later: nothing, or one answer."""
    answers: list[Any] = []
    server.ask(WriteTxnMarkers(markers), answers.append)
    return answers


def with_server(path: Path, test: Callable[[ReplicaServer, TopicPartition], None]) -> None:
    async def run() -> None:
        partition, server = open_partition(path)
        test(server, partition.topic_partition)
        await server.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_each_partition_of_each_marker_has_its_own_answer(tmp_path: Path) -> None:
    def ask(server: ReplicaServer, led: TopicPartition) -> None:
        unknown, none = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE
        assert write(server, marker(led, MISSING), marker(MISSING, led, producer_id=6)) == [
            ((none, unknown), (unknown, none))
        ]
        assert write(server) == [()]
        assert write(server, marker()) == [((),)]

    with_server(tmp_path, ask)


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_coordinators_write_the_markers_of_their_topic_and_the_answer_waits_for_all(
    tmp_path: Path, error: ErrorCode
) -> None:
    written: list[tuple[int, TxnMarker, Callable[[ErrorCode], None]]] = []

    def ask(server: ReplicaServer, led: TopicPartition) -> None:
        server.offer_markers("offsets", lambda *call: written.append(call))
        sent = marker(*OFFSETS, led)
        answers = write(server, sent)
        assert [(number, one) for number, one, _ in written] == [(0, sent), (1, sent), (2, sent)]
        for number, _, done in reversed(written):
            assert answers == []
            done(error if number == 1 else ErrorCode.NONE)
        assert answers == [((0, int(error), 0, 0),)]

    with_server(tmp_path, ask)


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_marker_tells_readers_whose_transaction_ended_and_how(tmp_path: Path, is_committed: bool) -> None:
    async def run() -> None:
        partition, server = open_partition(tmp_path)
        write(server, marker(partition.topic_partition, is_committed=is_committed))
        (read,) = [one async for one in CoordinatorLog(partition, server).read()]
        assert read == [Marker(5, is_committed)]
        await server.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_markers_of_coordinators_and_epochs_that_were_replaced_are_refused(tmp_path: Path) -> None:
    async def run() -> None:
        partition, server = open_partition(tmp_path)
        log, led = partition.log, partition.topic_partition
        verification = log.begin_verification(5, 1, 0, NOW_MS)
        records = batch(b"v", producer_id=5, producer_epoch=1, base_sequence=0, is_transactional=True)
        log.append_as_leader(records, 0, NOW_MS, verification=verification)
        for sent, error in (
            (marker(led, producer_epoch=1), ErrorCode.INVALID_PRODUCER_EPOCH),  # of the transaction before (KIP-1228)
            (marker(led, producer_epoch=2), ErrorCode.NONE),
            (marker(led, producer_epoch=2, coordinator_epoch=2), ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        ):
            assert write(server, sent) == [((int(error),),)]
        await server.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_marker_is_answered_when_it_is_as_durable_as_the_topic_asks_for(tmp_path: Path) -> None:
    async def run() -> None:
        partition, server = open_partition(tmp_path, config=LogConfig(flush_messages=1))
        answers = write(server, marker(partition.topic_partition))
        assert answers == []
        while not answers:
            await asyncio.sleep(0)
        assert answers == [((0,),)]
        assert partition.log.high_watermark == partition.log.log_end_offset == 1
        await server.stop()

    asyncio.run(asyncio.wait_for(run(), 60))
