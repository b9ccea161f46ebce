"""What a benchmark counts as the processor time of a broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from benchmarks import brokers
from benchmarks.brokers import CpuClock, is_rays_own
from rayka.testing import await_ended, cpu_s, paused, wait_until

BUSY = "while True: pass"


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", BUSY]) as process:
        yield process
        process.kill()


def test_what_a_process_used_before_does_not_count(busy: subprocess.Popen[bytes]) -> None:
    process = psutil.Process(busy.pid)
    wait_until(lambda: cpu_s([process]) > 0.1, 60, "some processor time")
    with paused([process]):
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, 60, "a process that stands still")
        clock = CpuClock([process])
        assert clock.used_s() == 0
    wait_until(lambda: clock.used_s() > 0.1, 60, "processor time that is counted")


@pytest.mark.parametrize("is_reaped", [True, False])
def test_a_process_that_ends_meanwhile_takes_nothing_from_the_sum(
    busy: subprocess.Popen[bytes], is_reaped: bool
) -> None:
    """As Ray's workers do some time after their task."""
    process = psutil.Process(busy.pid)
    wait_until(lambda: cpu_s([process]) > 0.1, 60, "some processor time")
    clock = CpuClock([process])
    busy.kill()
    if is_reaped:
        busy.wait(60)
    assert await_ended([process], 60) == []
    assert clock.used_s() == 0


@pytest.mark.parametrize(
    ("title", "is_rays"),
    [
        ("ray::IDLE", True),
        ("/usr/lib/ray/core/src/ray/raylet/raylet", True),
        ("ray::PartitionActor", False),
        ("ray::ControllerActor.watch", False),
        ("python -u -m rayka.cli.main up", False),
    ],
)
def test_workers_without_an_actor_are_rays(monkeypatch: pytest.MonkeyPatch, title: str, is_rays: bool) -> None:
    monkeypatch.setattr(brokers, "title", lambda _: title)
    assert is_rays_own(psutil.Process()) is is_rays
