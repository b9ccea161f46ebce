"""The ends of transactions, written by the leaders of their partitions (KIP-98)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from rayka.actors.channel.link import Done
from rayka.errors import ErrorCode, RaykaError
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.types import TopicPartition, TxnMarker

WriteMarker: TypeAlias = Callable[[int, TxnMarker, Callable[[ErrorCode], None]], None]
"""Writes a marker to the partition of this number and answers when it is durable."""


class Server(Protocol):
    """What `MarkerAppends` needs of the replica server."""

    def append_as_coordinator(
        self, partition: Partition, records: memoryview, now_ms: int, *, transaction_version: int
    ) -> int: ...

    def when_visible(self, partition: Partition, offset: int, done: Callable[[ErrorCode], None]) -> None: ...


class MarkerAppends:
    """Writes each marker to its partitions, and answers when all are durable. `coordinators` do so for their topics."""

    def __init__(self, replicas: Replicas, server: Server) -> None:
        self._replicas = replicas
        self._server = server
        self.coordinators: dict[str, WriteMarker] = {}

    def append(self, markers: Sequence[TxnMarker], done: Done) -> None:
        """Answer with an error for each partition of each marker."""
        errors = [[ErrorCode.NONE] * len(marker.partitions) for marker in markers]
        outstanding = sum(len(marker.partitions) for marker in markers)

        def finished(row: int, column: int, error: ErrorCode) -> None:
            nonlocal outstanding
            errors[row][column] = error
            outstanding -= 1
            if not outstanding:
                done(tuple(tuple(int(one) for one in each) for each in errors))

        if not outstanding:
            done(tuple(() for _ in markers))
        for row, marker in enumerate(markers):
            for column, partition in enumerate(marker.partitions):
                self._write(partition, marker, _answer(finished, row, column))

    def _write(self, topic_partition: TopicPartition, marker: TxnMarker, done: Callable[[ErrorCode], None]) -> None:
        write = self.coordinators.get(topic_partition.topic)
        if write is not None:
            write(topic_partition.partition, marker, done)
            return
        try:
            partition = self._replicas.get(topic_partition)
            write_marker(self._server, partition, marker)
        except RaykaError as error:
            done(error.code)
        else:
            self._server.when_visible(partition, partition.log.log_end_offset, done)


def write_marker(server: Server, partition: Partition, marker: TxnMarker) -> int:
    """Append a marker to one partition, and return its offset. Raises RaykaError."""
    now_ms = time.time_ns() // 1_000_000
    batch = build_end_transaction_marker(
        ControlType.COMMIT if marker.is_committed else ControlType.ABORT,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        now_ms=now_ms,
    )
    return server.append_as_coordinator(
        partition, memoryview(batch), now_ms, transaction_version=marker.transaction_version
    )


def _answer(finished: Callable[[int, int, ErrorCode], None], row: int, column: int) -> Callable[[ErrorCode], None]:
    return lambda error: finished(row, column, error)
