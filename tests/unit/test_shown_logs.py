"""What a test that fails shows of its brokers."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from rayka.actors.node.node import ray_dir
from tests.support.shown_logs import HOMES, LINES, shown_logs


def test_the_logs_of_a_broker_in_the_background_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    data_dir = tmp_path / "home" / "share" / "rayka"
    workers = Path(ray_dir(str(data_dir))) / "session_1" / "logs"
    for directory in (data_dir, workers):
        directory.mkdir(parents=True)
    (data_dir / "up.log").write_text("\n".join(map(str, range(1000))))
    (workers / "worker-1.err").write_text("an actor's complaint")
    HOMES.add(tmp_path / "home")
    shown = dict(shown_logs())
    HOMES.discard(tmp_path / "home")
    assert shown[f"log {data_dir / 'up.log'}"].splitlines() == [*map(str, range(1000 - LINES, 1000))]
    assert shown["log worker-1.err"] == "an actor's complaint"
