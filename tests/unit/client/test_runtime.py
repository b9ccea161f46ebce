"""Where the commands look for the broker that `rayka up` started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rayka.client import runtime


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))


def publish(data_dir: Path) -> None:
    runtime.publish(runtime.Running(os.getpid(), "127.0.0.1:9092", "127.0.0.1:6379", str(data_dir)))


def test_commands_find_the_broker_that_was_started_last(tmp_path: Path) -> None:
    publish(tmp_path / "first")
    publish(tmp_path / "last")
    assert runtime.latest_data_dir() == tmp_path / "last"


def test_a_data_directory_that_was_removed_is_forgotten(tmp_path: Path) -> None:
    publish(tmp_path / "data")
    runtime.withdraw(tmp_path / "data")
    assert runtime.latest_data_dir() == tmp_path / "data"
    (tmp_path / "data").rmdir()
    assert runtime.latest_data_dir() == runtime.default_data_dir() == tmp_path / "share" / "rayka"
