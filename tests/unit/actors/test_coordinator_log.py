"""A coordinator's log keeps the newest record of each key when the cleaner has compacted it."""

from __future__ import annotations

import asyncio
import errno
import os
import uuid
from pathlib import Path

from rayka.actors.coordinator.log import CoordinatorLog, Entry, Marker
from rayka.actors.replica.disk import DiskThread
from rayka.actors.replica.server import ReplicaServer
from rayka.config import LogConfig
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.directory.boot_record import BOOT_ID_FILE
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.storage.format.records import Record, build_batch
from rayka.types import TopicPartition
from tests.support.compaction import compact
from tests.support.faulty_files import CrashingFiles

NAME = TopicPartition("__consumer_offsets", 0)
TOPIC_ID = uuid.uuid4()


def open_partition(
    path: Path, files: RealFiles | None = None, config: LogConfig | None = None
) -> tuple[Partition, ReplicaServer]:
    """A partition of the offsets topic, led here."""
    return lead(LogDirectory.open(str(path), files or RealFiles(), now_ms=0), config or LogConfig())


def lead(directory: LogDirectory, config: LogConfig) -> tuple[Partition, ReplicaServer]:
    partition = Partition(directory.open_log(NAME, TOPIC_ID, config, now_ms=0), TOPIC_ID)
    partition.become_leader(0)
    replicas = Replicas()
    replicas.add(partition)
    return partition, ReplicaServer(replicas, directory, DiskThread())


class FewDescriptors(CrashingFiles):
    """Loses at a power cut what was not synced. While it `lacks` descriptors, no flush can begin, and is `refused`."""

    lacks = False
    refused = 0

    def duplicate(self, descriptor: int) -> int:
        if self.lacks:
            self.refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().duplicate(descriptor)


def compacted(partition: Partition, files: RealFiles | None = None) -> int:
    """Let the cleaner take up everything that was written so far; returns how many records it has kept."""
    partition.log.roll(0)
    partition.log.flush()
    end = compact(partition.log, 0, files or RealFiles())
    assert end is not None
    return end.records_kept


async def all_of(log: CoordinatorLog) -> list[Entry | Marker]:
    return [entry async for read in log.read() for entry in read]


async def entries(log: CoordinatorLog) -> list[Entry]:
    return [entry for entry in await all_of(log) if isinstance(entry, Entry)]


def test_a_compacted_log_keeps_the_last_value_of_each_key(tmp_path: Path) -> None:
    async def check() -> None:
        partition, server = open_partition(tmp_path)
        log = CoordinatorLog(partition, server)
        value = bytes(100_000)
        for number in range(300):
            log.append([(b"k%d" % (number % 3), b"%d:" % number + value)])
        log.append([(b"k0", None)])
        assert compacted(partition) == 3
        found = await entries(CoordinatorLog(partition, server))
        read = [(key, value[:4]) for _, key, value, _ in found if value is not None]
        assert read == [(b"k1", b"298:"), (b"k2", b"299:")]
        log.append([(b"k1", b"new")])
        assert (await entries(CoordinatorLog(partition, server)))[-1] == Entry(301, b"k1", b"new")

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

        write(1, b"committed", b"1")
        write(1, b"written over", b"1")
        write(2, b"aborted", b"2")
        write(-1, b"written over", b"3")
        end(1, ControlType.COMMIT)
        log = CoordinatorLog(partition, server)
        read = await all_of(log)
        assert read[-1] == Marker(1, True)
        assert read[-4] == Entry(1, b"written over", b"1", 1)
        partition.log.roll(0)
        partition.log.flush()
        assert compact(partition.log, 0, RealFiles()) is None, "a transaction is open"

        end(2, ControlType.ABORT)
        assert len(await entries(CoordinatorLog(partition, server))) == 4
        compacted(partition)
        kept = [(entry.key, entry.value) for entry in await entries(CoordinatorLog(partition, server))]
        assert kept == [(b"committed", b"1"), (b"written over", b"3")]

    asyncio.run(check())


def outdated(partition: Partition, server: ReplicaServer) -> CoordinatorLog:
    """Four keys that were written again and again, and are on the device."""
    log = CoordinatorLog(partition, server)
    for number in range(200):
        log.append([(b"group %d" % (number % 4), b"%d" % number)])
    partition.log.flush()
    return log


LIVE = [(b"group %d" % (number % 4), b"%d" % number) for number in range(196, 200)]


def test_a_power_cut_after_a_compaction_loses_no_group(tmp_path: Path) -> None:
    async def check() -> None:
        files = CrashingFiles()
        directory = LogDirectory.open(str(tmp_path), files, now_ms=0)
        partition, server = lead(directory, LogConfig(cleanup_policy=("compact",)))
        directory.opened()
        outdated(partition, server)
        directory.checkpoint([partition.log])
        assert compacted(partition, files) == 4
        await server.stop()
        directory.release()
        files.lose_all()
        (tmp_path / BOOT_ID_FILE).write_text("that was another kernel\n")
        again = CoordinatorLog(*open_partition(tmp_path, config=LogConfig(cleanup_policy=("compact",))))
        assert [(entry.key, entry.value) for entry in await entries(again)] == LIVE

    asyncio.run(check())


def test_records_that_are_not_flushed_are_not_compacted(tmp_path: Path) -> None:
    async def check() -> None:
        partition, server = open_partition(tmp_path)
        outdated(partition, server)
        log = CoordinatorLog(partition, server)
        log.append([(b"group 0", b"new")])
        partition.log.roll(0)
        assert compact(partition.log, 0, RealFiles()) is None
        assert len(await entries(log)) == 201
        partition.log.flush()
        assert compact(partition.log, 0, RealFiles()) is not None
        assert len(await entries(log)) == 4

    asyncio.run(check())
