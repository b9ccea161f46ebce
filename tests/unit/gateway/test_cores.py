"""How many cores a process may use at once."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from rayka.actors.channel.blocking_channel import BlockingChannel
from rayka.gateway.server import cores
from rayka.gateway.server.busy_poll import BusyPoll
from rayka.gateway.server.cores import usable_cores


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of cgroups on a machine with 64 cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(cores, "_CGROUP", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 64),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "150000 100000\n"}, 1),
        ({"cpu.max": "20000 100000\n"}, 1),
        ({"cpu.max": "400000 100000\n"}, 4),
        ({"cpu.max": "99900000 100000\n"}, 64),
        ({"cpu.max": "what"}, 64),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "200000\n"}, 64),
    ],
)
def test_a_cpu_limit_counts_as_fewer_cores(root: Path, files: dict[str, str], expected: int) -> None:
    (root / "cpu").mkdir()
    for name, text in files.items():
        (root / name).write_text(text)
    assert usable_cores() == expected


def test_nobody_polls_within_a_limit_of_one_core(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "cpu.max").write_text("100000 100000\n")
    turns: list[object] = []
    poll = BusyPoll(turns.append, clock=lambda: 0.0)
    for _ in range(3):
        poll.request_came(100)
        poll.answered()
    monkeypatch.setattr(os, "sched_yield", lambda: turns.append("the client polls"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path := str(root / "leader"))
        listener.listen()
        channel = BlockingChannel(path)
        assert channel.receive(0.01) is None
        channel.close()
    assert turns == []
