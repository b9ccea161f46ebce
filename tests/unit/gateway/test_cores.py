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
    monkeypatch.setattr(cores, "_OWN_GROUPS", tmp_path / "own")
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


@pytest.mark.parametrize(
    ("own", "limited", "expected"),
    [
        ("0::/system.slice/rayka.service", "system.slice/rayka.service", 3),
        ("0::/system.slice/rayka.service", "system.slice", 3),
        ("0::/system.slice/rayka.service", "system.slice/other.service", 64),
        ("0::/a:b", "a:b", 3),
        ("0::/../other", "", 3),
        ("0::/gone", "", 3),
    ],
)
def test_the_limits_of_the_own_group_and_of_those_above_count(
    root: Path, own: str, limited: str, expected: int
) -> None:
    (root / "own").write_text(f"{own}\n")
    (root / limited).mkdir(parents=True, exist_ok=True)
    (root / limited / "cpu.max").write_text("350000 100000\n")
    assert usable_cores() == expected


def test_the_least_limit_counts(root: Path) -> None:
    (root / "own").write_text("0::/slice/service\n")
    (root / "slice" / "service").mkdir(parents=True)
    (root / "slice" / "cpu.max").write_text("200000 100000\n")
    (root / "slice" / "service" / "cpu.max").write_text("800000 100000\n")
    assert usable_cores() == 2


def test_the_own_group_has_a_path_for_each_controller_in_version_1(root: Path) -> None:
    (root / "own").write_text("2:memory:/elsewhere\n5:cpu,cpuacct:/system.slice/rayka.service\n")
    group = root / "cpu" / "system.slice" / "rayka.service"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("300000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores() == 3


def test_no_busy_poll_with_a_cpu_limit_of_one_core(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
