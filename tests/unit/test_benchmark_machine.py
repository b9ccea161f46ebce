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
        machine._produce(tmp_path / "missing", memoryview(bytes(machine.MB)), has_crc=False)


def test_a_load_waits_while_others_work_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([10.0, 10.3, 10.3, 10.5, 10.5, 10.501])
    monkeypatch.setattr(machine, "_used_s", lambda: next(seen))
    monkeypatch.setattr(machine, "_LOOK_S", 0.01)
    monkeypatch.setattr(machine, "_QUIET_SHARE", 1.0)
    machine.settle(60)
    assert next(seen, None) is None
    monkeypatch.setattr(machine, "_used_s", iter(range(10**6)).__next__)
    machine.settle(0.05)
