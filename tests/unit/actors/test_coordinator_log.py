"""A coordinator's log keeps the newest record of each key, and is compacted only when most of it is outdated."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from rayka.actors.coordinator.log import CoordinatorLog, Entry, Marker
from rayka.actors.replica.disk import DiskThread
from rayka.actors.replica.server import ReplicaServer
from rayka.config import LogConfig
from rayka.replica.partition import Partition, Replicas
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.storage.format.records import Record, build_batch
from rayka.types import TopicPartition

NAME = TopicPartition("__consumer_offsets", 0)


def open_partition(path: Path) -> tuple[Partition, ReplicaServer]:
    """A partition of the offsets topic, led here."""
    directory = LogDirectory.open(str(path), RealFiles(), now_ms=0)
    partition = Partition(directory.open_log(NAME, uuid.uuid4(), LogConfig(), now_ms=0), uuid.uuid4())
    partition.become_leader(0)
    replicas = Replicas()
    replicas.add(partition)
    return partition, ReplicaServer(replicas, directory, DiskThread())


def entries(log: CoordinatorLog) -> list[Entry]:
    return [entry for read in log.read() for entry in read if isinstance(entry, Entry)]


def test_the_log_is_compacted_once_and_keeps_the_last_value_of_each_key(tmp_path: Path) -> None:
    async def check() -> None:
        partition, server = open_partition(tmp_path)
        log = CoordinatorLog(partition, server)
        value = bytes(100_000)
        for number in range(300):
            log.append([(b"k%d" % (number % 3), b"%d:" % number + value)])
        log.append([(b"k0", None)])
        assert log.compact()
        assert not log.compact(), "nothing was written since"
        again = CoordinatorLog(partition, server)
        read = [(key, value[:4]) for _, key, value, _ in entries(again) if value is not None]
        assert read == [(b"k1", b"298:"), (b"k2", b"299:")]
        assert not again.compact(), "a restart does not compact it once more"

    asyncio.run(check())


def test_offsets_of_a_transaction_count_after_its_commit(tmp_path: Path) -> None:
    async def check() -> None:
        partition, server = open_partition(tmp_path)

        def write(producer_id: int, key: bytes, value: bytes) -> None:
            record = Record(0, 0, key, value)
            transaction = {"producer_id": producer_id, "producer_epoch": 0, "is_transactional": True}
            batch = build_batch([record], base_sequence=0, **(transaction if producer_id >= 0 else {}))
            partition.append_as_coordinator(memoryview(batch), 0)

        def end(producer_id: int, control_type: ControlType) -> None:
            batch = build_end_transaction_marker(
                control_type, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, now_ms=0
            )
            partition.append_as_coordinator(memoryview(batch), 0)

        filler = bytes(600_000)
        for number in range(30):
            write(-1, b"filler", b"%d" % number + filler)
        write(1, b"committed", b"1")
        write(1, b"written over", b"1")
        write(2, b"aborted", b"2")
        write(-1, b"written over", b"3")
        end(1, ControlType.COMMIT)
        log = CoordinatorLog(partition, server)
        read = [entry for entries in log.read() for entry in entries]
        assert read[-1] == Marker(1, True)
        assert read[-4] == Entry(31, b"written over", b"1", 1)
        assert not log.compact(), "a transaction is open"

        end(2, ControlType.ABORT)
        log = CoordinatorLog(partition, server)
        assert len(entries(log)) == 34
        assert log.compact()
        kept = [(entry.key, entry.value) for entry in entries(CoordinatorLog(partition, server))]
        assert kept[1:] == [(b"written over", b"3"), (b"committed", b"1")]
        assert kept[0] == (b"filler", b"29" + filler)

    asyncio.run(check())
