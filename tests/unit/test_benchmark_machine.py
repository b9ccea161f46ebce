"""What `benchmarks.machine` measures of the machine."""

from __future__ import annotations

from pathlib import Path
from threading import BrokenBarrierError

import pytest

from benchmarks import machine


def test_a_process_that_fails_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_MOST_S", 1, raising=False)
    with pytest.raises(BrokenBarrierError):
        machine._poll_on_two_cores(tmp_path / "missing", memoryview(bytearray(machine.MB)), has_crc=False)
