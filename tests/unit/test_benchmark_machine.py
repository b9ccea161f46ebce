"""What `benchmarks.machine` measures of the machine."""

from __future__ import annotations

from pathlib import Path
from threading import BrokenBarrierError

import pytest

from benchmarks import machine


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_MOST_S", 1, raising=False)
    monkeypatch.setattr(machine, "TOUCHED_BYTES", machine.MB)


def test_a_process_that_polls_and_fails_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with pytest.raises(BrokenBarrierError):
        machine._poll_on_two_cores(tmp_path / "missing", memoryview(bytearray(machine.MB)), has_crc=False)


def test_a_process_that_writes_and_fails_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        machine._produced_s(tmp_path / "missing", memoryview(bytes(machine.MB)), has_crc=False)


def test_processes_that_poll_a_missing_file_are_not_waited_for_for_ever(tmp_path: Path) -> None:
    with machine.Polling([tmp_path / "missing"]) as polling, pytest.raises(BrokenBarrierError):
        polling.run()


@pytest.mark.parametrize("has_crc", [False, True])
def test_the_processes_that_produce_and_poll_end_and_leave_no_file(tmp_path: Path, has_crc: bool) -> None:
    with machine.Producing(tmp_path, memoryview(bytes(3 * machine.MB)), 40, has_crc) as producing:
        producing.run()
    assert not list(tmp_path.iterdir())
    path = tmp_path / "segment"
    path.write_bytes(bytes(2 * machine.MB + 1))
    with machine.Polling([path]) as polling:
        polling.run()


def test_a_load_waits_while_others_work_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([10.0, 10.3, 10.3, 10.5, 10.5, 10.501])
    monkeypatch.setattr(machine, "_used_s", lambda: next(seen))
    monkeypatch.setattr(machine, "_LOOK_S", 0.01)
    monkeypatch.setattr(machine, "_QUIET_SHARE", 1.0)
    machine.settle(60)
    assert next(seen, None) is None
    monkeypatch.setattr(machine, "_used_s", iter(range(10**6)).__next__)
    machine.settle(0.05)
