"""A coordinator's log keeps the newest record of each key, and is compacted only when most of it is outdated."""

from __future__ import annotations

import asyncio
import errno
import os
import uuid
from pathlib import Path

import pytest

from rayka.actors.coordinator.log import CoordinatorLog, Entry, Marker
from rayka.actors.replica.disk import DiskThread
from rayka.actors.replica.server import ReplicaServer
from rayka.config import LogConfig
from rayka.errors import RaykaError
from rayka.replica.partition import Partition, Replicas
from rayka.storage.directory.log_directory import BOOT_ID_FILE, LOG_START_OFFSETS_FILE, LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.format.control import ControlType, build_end_transaction_marker
from rayka.storage.format.records import Record, build_batch
from rayka.types import TopicPartition
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
    """Loses at a power cut what was not synced. While it `lacks` descriptors, no flush can begin."""

    lacks = False

    def duplicate(self, descriptor: int) -> int:
        if self.lacks:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().duplicate(descriptor)


async def compacted(partition: Partition) -> None:
    """Wait until the old records are gone."""
    async with asyncio.timeout(10):
        while partition.log.log_start_offset == 0:
            await asyncio.sleep(0.01)


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
        await compacted(partition)
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
        await compacted(partition)
        kept = [(entry.key, entry.value) for entry in entries(CoordinatorLog(partition, server))]
        assert kept[1:] == [(b"written over", b"3"), (b"committed", b"1")]
        assert kept[0] == (b"filler", b"29" + filler)

    asyncio.run(check())


def outdated(partition: Partition, server: ReplicaServer) -> CoordinatorLog:
    """Four keys that were written again and again, and are on the device."""
    log = CoordinatorLog(partition, server)
    for number in range(200):
        log.append([(b"group %d" % (number % 4), b"%d" % number)])
    partition.log.flush()
    return log


LIVE = [(b"group %d" % (number % 4), b"%d" % number) for number in range(196, 200)]


def test_a_power_cut_after_a_compaction_loses_no_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayka.actors.coordinator.log._SMALLEST_BYTES", 1)

    async def check() -> None:
        files = CrashingFiles()
        directory = LogDirectory.open(str(tmp_path), files, now_ms=0)
        partition, server = lead(directory, LogConfig())
        directory.opened()
        log = outdated(partition, server)
        directory.checkpoint([partition.log])
        assert log.compact()
        async with asyncio.timeout(10):
            while not (tmp_path / LOG_START_OFFSETS_FILE).read_text().endswith(" 0 200\n"):
                await asyncio.sleep(0.01)
        await server.stop()
        directory.release()
        files.lose_all()
        (tmp_path / BOOT_ID_FILE).write_text("that was another kernel\n")
        again = CoordinatorLog(*open_partition(tmp_path))
        assert [(entry.key, entry.value) for entry in entries(again)] == LIVE

    asyncio.run(check())


def test_a_compaction_that_cannot_be_flushed_deletes_nothing_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayka.actors.coordinator.log._SMALLEST_BYTES", 1)

    async def check() -> None:
        files = FewDescriptors()
        directory = LogDirectory.open(str(tmp_path), files, now_ms=0)
        partition, server = lead(directory, LogConfig())
        log = outdated(partition, server)
        files.lacks = True
        assert log.compact()
        await server.stop()
        assert partition.log.log_start_offset == 0
        assert len(entries(CoordinatorLog(partition, server))) == 204
        files.lacks = False
        directory.probe()
        assert not log.compact(), "the records are there already and only have to be flushed"
        await compacted(partition)
        assert partition.log.log_start_offset == 200

    asyncio.run(check())


def test_a_log_of_which_a_batch_is_cut_is_not_taken_for_the_whole_log(tmp_path: Path) -> None:
    async def check() -> None:
        partition, server = open_partition(tmp_path)
        log = CoordinatorLog(partition, server)
        for number in range(3):
            log.append([(b"key %d" % number, b"value")])
        (segment,) = tmp_path.glob("*/*.log")
        with segment.open("r+b") as file:
            file.seek(8)
            file.write((1 << 20).to_bytes(4, "big"))  # the length of the first batch
        with pytest.raises(RaykaError, match="CORRUPT_MESSAGE"):
            entries(CoordinatorLog(partition, server))
        await server.stop()

    asyncio.run(check())
