"""What an actor does about its disk, with a real log directory on a disk that is full at times."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from rayka.actors.replica import disk as actor_disk
from rayka.actors.replica.disk import DiskMonitor, DiskThread
from rayka.storage.directory.disk_state import State
from rayka.storage.directory.log_directory import LogDirectory
from tests.support.full_disk import FullDisk


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
