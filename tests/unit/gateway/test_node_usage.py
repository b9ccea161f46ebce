"""The gateways of a node count together: in other processes too, and after one of them died."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rayka.config import BrokerConfig
from rayka.gateway.server.limits import ConnectionCounts, CountedBytes, Limits, RequestBytes
from rayka.gateway.server.node_usage import NodeUsage

PEER = """
import sys
from rayka.gateway.server.node_usage import NodeUsage
usage = NodeUsage(sys.argv[1])
for _ in range(3):
    usage.connected("10.0.0.1", 1)
usage.connected("10.0.0.2", 1)
usage.bytes.own = 600
print("ready", flush=True)
sys.stdin.read()
"""


def start_peer(directory: str) -> subprocess.Popen[str]:
    peer = subprocess.Popen(
        [sys.executable, "-c", PEER, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert peer.stdout is not None
    assert peer.stdout.readline() == "ready\n"
    return peer


def limits(**configs: str) -> Limits:
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    return Limits.of(BrokerConfig.parse({"log.dirs": "/nowhere", **settings}))


def test_connections_are_limited_over_processes_and_those_of_a_killed_one_are_forgotten(tmp_path: Path) -> None:
    directory = str(tmp_path / "node" / "usage")
    usage = NodeUsage(directory)
    counts = ConnectionCounts(usage)
    peer = start_peer(directory)
    try:
        assert counts.add("10.0.0.9", limits(max_connections="5")) is None
        assert counts.total == 5
        assert "max.connections=5" in (counts.add("10.0.0.9", limits(max_connections="5")) or "")
        assert counts.total == 5
        assert counts.add("10.0.0.1", limits(max_connections_per_ip="4")) is None
        assert "max.connections.per.ip=4" in (counts.add("10.0.0.1", limits(max_connections_per_ip="4")) or "")
        assert counts.add("10.0.0.2", limits(max_connections_per_ip="4")) is None
    finally:
        peer.kill()
        peer.communicate()
    usage.refresh()
    assert counts.total == 3
    assert usage.connections_from("10.0.0.1") == 1
    assert len(os.listdir(directory)) == 1
    usage.close()
    assert not os.listdir(directory)


def test_bytes_are_limited_over_processes_but_each_has_a_share_of_its_own(tmp_path: Path) -> None:
    directory = str(tmp_path / "node" / "usage")
    later = []
    usage = NodeUsage(directory)
    held = RequestBytes(800, usage, lambda delay_s, call: later.append(call))
    peer = start_peer(directory)
    try:
        usage.refresh()
        held.acquire(99)
        assert not held.is_full, "a quarter of an even share is reserved"
        held.acquire(101)
        assert held.is_full
        resumed = []
        held.wait(lambda: resumed.append(1))
        later.pop()()
        assert not resumed
    finally:
        peer.kill()
        peer.communicate()
    usage.refresh()
    later.pop()()
    assert resumed == [1]
    assert not later
    usage.close()


def test_bytes_of_a_connection_are_counted_once_and_given_back() -> None:
    later: list[Callable[[], None]] = []
    usage = NodeUsage()
    request_bytes = RequestBytes(100, usage, lambda delay_s, call: later.append(call))
    receiving, kept = CountedBytes(request_bytes), CountedBytes(request_bytes)
    for size in (60, 60, 80):
        receiving.set(size)
    kept.set(20)
    assert request_bytes.used == 100
    resumed = []
    request_bytes.wait(lambda: resumed.append(request_bytes.used))
    receiving.set(30)
    later.pop()()
    assert resumed == [50]
    for counted in (receiving, kept):
        counted.set(0)
    assert request_bytes.used == 0
    usage.close()


def test_fetch_sessions_are_limited_over_processes(tmp_path: Path) -> None:
    directory = str(tmp_path / "node" / "usage")
    first, second = NodeUsage(directory), NodeUsage(directory)
    first.fetch_sessions.own = 3
    second.refresh()
    assert second.fetch_sessions.others == 3
    first.close()
    second.refresh()
    assert second.fetch_sessions.others == 0
    second.close()


def test_addresses_do_not_disturb_each_other() -> None:
    usage = NodeUsage()
    for number in range(1000):
        usage.connected(f"10.1.{number // 250}.{number % 250}", 1)
    assert [usage.connections_from(f"10.1.{number // 250}.{number % 250}") for number in range(1000)] == [1] * 1000
    for number in range(1000):
        usage.connected(f"10.1.{number // 250}.{number % 250}", -1)
    assert usage.connections.own == 0
    assert usage.connections_from("10.1.0.7") == 0


def test_the_file_of_counts_is_fully_allocated(
    tmp_path: Path,
) -> None:
    usage = NodeUsage(str(tmp_path / "node" / "usage"))
    (name,) = os.listdir(tmp_path / "node" / "usage")
    status = os.stat(tmp_path / "node" / "usage" / name)
    assert status.st_blocks * 512 >= status.st_size
    usage.close()


def test_a_full_disk_leaves_a_process_with_counts_of_its_own_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    directory = tmp_path / "node" / "usage"
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", fail)
        usage = NodeUsage(str(directory))
        for _ in range(3):
            usage.connected("10.0.0.1", 1)
            usage.refresh()
    assert usage.connections_from("10.0.0.1") == 3
    assert not os.listdir(directory)
    assert caplog.text.count("No space left on device") == 1
    usage.refresh()
    other = NodeUsage(str(directory))
    other.refresh()
    assert other.connections_from("10.0.0.1") == 3
    other.close()
    usage.close()


def test_counts_are_published_again_when_the_directory_was_removed(tmp_path: Path) -> None:
    directory = tmp_path / "node" / "usage"
    first, second = NodeUsage(str(directory)), NodeUsage(str(directory))
    first.connected("10.0.0.1", 1)
    shutil.rmtree(tmp_path / "node")
    first.connected("10.0.0.1", 1)
    second.connected("10.0.0.1", 1)
    first.refresh()
    assert first.connections_from("10.0.0.1") == second.connections_from("10.0.0.1") == 3
    first.close()
    second.close()


def test_peers_stay_known_when_their_directory_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> list[str]:
        raise OSError(errno.EMFILE, "Too many open files")

    directory = str(tmp_path / "node" / "usage")
    first, second = NodeUsage(directory), NodeUsage(directory)
    second.connected("10.0.0.1", 1)
    first.refresh()
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", fail)
        first.refresh()
        first.connected("10.0.0.1", 1)
    assert first.connections_from("10.0.0.1") == 2
    first.close()
    second.close()


def test_limits_of_the_node_do_not_refuse_a_connection_that_moved_from_another_process() -> None:
    counts = ConnectionCounts(NodeUsage())
    full = limits(max_connections="1", max_connections_per_ip="1")
    assert counts.add("10.0.0.1", full) is None
    assert counts.add("10.0.0.1", full) is not None
    assert counts.add("10.0.0.1", full, has_moved=True) is None
    assert counts.add("10.0.0.1", full._replace(process_connections=2), has_moved=True) is not None
    assert counts.total == 2
