"""What an actor does about its disk, with a real log directory on a disk that is full at times."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import sys
import uuid
from pathlib import Path

import pytest

from rayka.actors.replica import disk as actor_disk
from rayka.actors.replica.disk import DiskMonitor, DiskThread
from rayka.actors.replica.maintenance import LogUpkeep
from rayka.actors.replica.server import ReplicaServer
from rayka.config import BrokerConfig, LogConfig
from rayka.errors import RaykaError
from rayka.replica.partition import Partition
from rayka.replica.replicas import Replicas
from rayka.storage.directory.disk_state import State
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.types import TopicPartition
from tests.support.full_disk import FullDisk
from tests.support.logs import append


def test_a_disk_that_fills_up_again_during_the_recovery_is_probed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_disk, "PROBE_INTERVAL_S", 0.001)

    async def test() -> None:
        files, thread = FullDisk(), DiskThread()
        directory = LogDirectory.open(str(tmp_path), files, now_ms=0)
        directory.opened()
        recoveries = 0
        recovered_twice = asyncio.Event()

        async def recovered() -> None:
            nonlocal recoveries
            recoveries += 1
            if recoveries == 1:
                directory.disk.failed(OSError(errno.ENOSPC, "full"))
                await asyncio.sleep(0)  # the monitor hears of it while it waits for the recovery
            else:
                recovered_twice.set()

        monitor = DiskMonitor(directory, thread, recovered, lambda: None)
        directory.disk.failed(OSError(errno.ENOSPC, "full"))
        await asyncio.wait_for(recovered_twice.wait(), 60)
        assert directory.disk.state is State.ONLINE
        await monitor.stop()
        thread.stop()

    asyncio.run(test())


@pytest.mark.parametrize("is_tiered", [False, True])
def test_retention_makes_room_on_a_full_disk(is_tiered: bool, tmp_path: Path) -> None:
    async def test() -> None:
        files, thread = FullDisk(), DiskThread()
        directory = LogDirectory.open(str(tmp_path), files, now_ms=0)
        config = LogConfig(
            cleanup_policy=("delete",), retention_bytes=0, local_retention_bytes=0, remote_storage_enable=is_tiered
        )
        log = directory.open_log(TopicPartition("full", 0), uuid.uuid4(), config, now_ms=0)
        append(log, b"old")
        log.roll(0)
        append(log, b"new")
        log.write_snapshots()
        log.take_up_remote(0, copied_offset=0)
        old = Path(log.segments[0].path)
        files.is_full = True
        with contextlib.suppress(RaykaError):
            await actor_disk.delete_old_segments(directory, thread, log)
        directory.remove_deleted(sys.maxsize)
        assert not list(old.parent.glob(f"{old.stem}.*"))
        thread.stop()

    asyncio.run(test())


class DiskWithoutInodes(FullDisk):
    """While it is full no new file can be made either."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        if create and self.is_full and not self.exists(path):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return super().open(path, create=create, read_only=read_only)


def test_retention_makes_room_on_a_disk_that_takes_no_new_active_segment(tmp_path: Path) -> None:
    async def test() -> None:
        files, thread = DiskWithoutInodes(), DiskThread()
        directory = LogDirectory.open(str(tmp_path), files, now_ms=0)
        log = directory.open_log(TopicPartition("idle", 0), uuid.uuid4(), LogConfig(retention_ms=1), now_ms=0)
        for value in (b"0", b"1", b"2"):
            log.roll(0)
            append(log, value, timestamp=0, now_ms=0)
        log.write_snapshots()
        old = [Path(segment.path) for segment in log.segments[:-1]]
        assert len(old) == 2
        files.is_full = True
        with contextlib.suppress(RaykaError):
            await actor_disk.delete_old_segments(directory, thread, log)
        assert directory.disk.state is State.FAILING
        directory.remove_deleted(sys.maxsize)
        assert not [path for segment in old for path in segment.parent.glob(f"{segment.stem}.*")]
        assert (log.log_start_offset, log.log_end_offset) == (2, 3)
        files.is_full = False
        directory.probe()
        await actor_disk.delete_old_segments(directory, thread, log)
        assert (log.log_start_offset, log.log_end_offset) == (3, 3)
        log.validate_state()
        thread.stop()

    asyncio.run(test())


class TightDisk(FullDisk):
    """A removed file makes room."""

    def remove(self, path: str) -> None:
        super().remove(path)
        self.is_full = False


def test_retention_of_a_tiered_topic_on_a_full_disk_outlasts_a_crash(tmp_path: Path) -> None:
    """Else the log would start again with records that are neither here nor in the remote store."""

    async def test() -> None:
        files, thread, topic_id = TightDisk(), DiskThread(), uuid.uuid4()
        directory = LogDirectory.open(str(tmp_path), files, now_ms=0)
        partition = TopicPartition("full", 0)
        config = LogConfig(retention_bytes=0, remote_storage_enable=True, remote_log_copy_disable=True)
        log = directory.open_log(partition, topic_id, config, now_ms=0)
        directory.opened()
        append(log, b"old")
        log.roll(0)
        append(log, b"new")
        log.update_high_watermark(1)
        log.write_snapshots()
        files.is_full = True
        await actor_disk.delete_old_segments(directory, thread, log)
        thread.stop()
        log.release()
        directory.release()
        directory = LogDirectory.open(str(tmp_path), RealFiles(), now_ms=0)
        assert directory.open_log(partition, topic_id, config, now_ms=0).log_start_offset == 1

    asyncio.run(test())


def test_a_log_is_flushed_in_time_though_a_full_disk_takes_nothing_of_another(tmp_path: Path) -> None:
    async def test() -> None:
        files, thread, replicas, topic_id = FullDisk(), DiskThread(), Replicas(), uuid.uuid4()
        directory = LogDirectory.open(str(tmp_path), files, now_ms=0)
        for number in range(2):
            config = LogConfig(flush_ms=1)
            log = directory.open_log(TopicPartition("full", number), topic_id, config, now_ms=0)
            append(log, b"value")
            replicas.add(Partition(log, topic_id))
        first, second = (partition.log for partition in replicas)
        first.roll(0)
        assert first.has_unwritten_snapshots
        files.is_full = True
        server = ReplicaServer(replicas, directory, thread)
        settings = BrokerConfig.parse({"log.flush.scheduler.interval.ms": "1"})
        upkeep = LogUpkeep(replicas, directory, thread, server, settings)
        upkeep.start()
        async with asyncio.timeout(60):
            while second.recovery_point < second.log_end_offset:
                await asyncio.sleep(0.001)
        assert first.has_unwritten_snapshots
        await upkeep.stop()
        await server.stop()
        thread.stop()

    asyncio.run(test())


def test_requests_are_served_while_the_producers_of_many_logs_expire(tmp_path: Path) -> None:
    """A log may remember a hundred thousand: those of all logs at once would hold up the event loop."""

    async def test() -> None:
        thread, replicas, topic_id, count = DiskThread(), Replicas(), uuid.uuid4(), 20
        directory = LogDirectory.open(str(tmp_path), RealFiles(), now_ms=0)
        for number in range(count):
            log = directory.open_log(TopicPartition("t", number), topic_id, LogConfig(), now_ms=0)
            append(log, b"value", producer_id=number, producer_epoch=0, base_sequence=0)
            replicas.add(Partition(log, topic_id))
        server = ReplicaServer(replicas, directory, thread)
        upkeep = LogUpkeep(replicas, directory, thread, server, BrokerConfig.parse({}))
        expiry = asyncio.ensure_future(upkeep._expire_producers())
        left = set()
        while not expiry.done():
            await asyncio.sleep(0)
            left.add(sum(len(partition.log.producers) for partition in replicas))
        assert left == set(range(count))
        await server.stop()
        thread.stop()

    asyncio.run(test())
