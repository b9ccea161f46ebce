"""A file system that is filled to the last byte and freed again, under a running broker."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayka.testing import BrokerProcess, wait_until
from tests.faults.load import RECOVERY_S, Writer, check, create_topic, read_all

SIZE = "48m"
FULL_FOR_S = 5.0
"""Nothing is acknowledged for so long: many attempts of the producers are refused."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a file system is not allowed here")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path: Path) -> Path:
    """Write a file until there is no room for one more byte."""
    filler = path / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass
    assert os.statvfs(path).f_bavail == 0
    return filler


def test_a_full_disk_serves_reads_and_takes_records_again_without_a_restart(tmp_path: Path, small_disk: Path) -> None:
    """The producers retry what was refused, so no acknowledged record is missing and none is there twice."""
    configs = (f"log.dirs={small_disk / 'logs'}",)
    with BrokerProcess(tmp_path / "data", configs) as broker:
        create_topic(broker.bootstrap, "plain", 1)
        create_topic(broker.bootstrap, "flushed", 1, **{"flush.messages": "1"})
        writers = [Writer(broker.bootstrap, topic, 1) for topic in ("plain", "flushed")]
        for writer in writers:
            writer.await_more(200)
        filler = fill(small_disk)

        def are_refused() -> bool:
            return all(time.monotonic() - writer.last_ack > FULL_FOR_S for writer in writers)

        wait_until(are_refused, RECOVERY_S, "appends are refused")
        for writer in writers:
            count = writer.count
            assert len(read_all(broker.bootstrap, writer.topic, 1)[0]) >= count
        filler.unlink()
        for writer in writers:
            writer.await_more(1, "when there is room")
            writer.finish()
            check([writer], read_all(broker.bootstrap, writer.topic, 1))
