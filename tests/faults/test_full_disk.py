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
from tests.faults.load import Writer, check, create_topic, read_all

SIZE = "48m"
FULL_FOR_S = 8.0
BACK_WITHIN_S = 15.0


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


@pytest.mark.parametrize("flush_messages", ["9223372036854775807", "1"])
def test_a_full_disk_serves_reads_and_takes_records_again_without_a_restart(
    tmp_path: Path, small_disk: Path, flush_messages: str
) -> None:
    """The producer retries what was refused, so no acknowledged record is missing and none is there twice."""
    configs = (f"log.dirs={small_disk / 'logs'}",)
    with BrokerProcess(tmp_path / "data", configs) as broker:
        create_topic(broker.bootstrap, "orders", 1, **{"flush.messages": flush_messages})
        writer = Writer(broker.bootstrap, "orders", 1)
        wait_until(lambda: writer.count > 200, 30, "the first records")
        filler = fill(small_disk)
        wait_until(lambda: time.monotonic() - writer.last_ack > 1, 30, "appends are refused")
        refused_at = writer.count
        assert len(read_all(broker.bootstrap, "orders", 1)[0]) >= refused_at
        time.sleep(FULL_FOR_S)
        assert writer.count == refused_at
        filler.unlink()
        took_s = wait_until(lambda: writer.count > refused_at, BACK_WITHIN_S, "records are taken again")
        print(f"a record was acknowledged {took_s:.1f} s after there was room")
        writer.finish()
        check([writer], read_all(broker.bootstrap, "orders", 1))
