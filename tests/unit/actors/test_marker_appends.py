"""What a transaction coordinator relies on when it sends markers to the leaders of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayka.actors.channel.requests import WriteTxnMarkers
from rayka.actors.replica.server import ReplicaServer
from rayka.errors import ErrorCode
from rayka.types import TopicPartition, TxnMarker
from tests.unit.actors.test_coordinator_log import open_partition

MISSING = TopicPartition("missing", 0)
OFFSETS = [TopicPartition("offsets", number) for number in range(3)]


def marker(*partitions: TopicPartition, producer_id: int = 5) -> TxnMarker:
    return TxnMarker(
        producer_id, 1, coordinator_epoch=3, is_committed=True, transaction_version=2, partitions=partitions
    )


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
