"""The gateways of a node count together: in other processes too, and after one of them died."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rayka.config import BrokerConfig
from rayka.gateway.server.limits import ConnectionCounts, Limits, RequestBytes
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
