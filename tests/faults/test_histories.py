"""Real clients through kills, a bad network and the pause of a leader; their recorded history decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rayka.testing import BrokerProcess, free_port, paused, wait_until
from tests.clients.conftest import GROUP_SETTINGS
from tests.faults.history import History, Recovery
from tests.faults.load import RECOVERY_S, create_topic
from tests.faults.proxy import Proxy
from tests.faults.recorded import (
    OffsetWatcher,
    RecordedBatches,
    RecordedMember,
    RecordedProducer,
    RecordedReader,
    assert_kept,
    finishing,
)
from tests.support.scale import rounds

PARTITIONS = 3
SEVERAL = ("partition.actors.per.node=3", "gateways.per.node=1", *GROUP_SETTINGS)
PAUSE_S = 35.0
"""Longer than any time-out of the broker, of which calls between its processes have the longest, 30 s."""


class Run:
    """The clients of one run on one topic, and the history that they record."""

    def __init__(self, bootstrap: str, topic: str, members: int = 2) -> None:
        self.history = History()
        create_topic(bootstrap, topic, PARTITIONS)
        where = (self.history, bootstrap, topic)
        self.producers = [RecordedProducer(*where, PARTITIONS, name) for name in ("a", "b")]
        self.batches = RecordedBatches(*where, PARTITIONS)
        self.reader = RecordedReader(*where, PARTITIONS)
        self.members = [RecordedMember(*where, topic, f"m{number}") for number in range(members)]
        self.watcher = OffsetWatcher(*where, PARTITIONS, topic)
        self.all = (*self.producers, self.batches, self.watcher, self.reader, *self.members)

    def progress(self) -> tuple[int, ...]:
        """What each kind of client has done so far."""
        members = sum(member.count for member in self.members)
        return (*(producer.acknowledged for producer in self.producers), self.reader.count, members, self.watcher.looks)

    def await_progress(self, what: str) -> None:
        """Wait until every kind of client has got on by 50 operations or 3 looks, and note how long that took."""
        wanted = [count + (3 if index == 4 else 50) for index, count in enumerate(self.progress())]

        def got_on() -> bool:
            return all(now >= then for now, then in zip(self.progress(), wanted, strict=True))

        took_s = wait_until(
            got_on, 2 * RECOVERY_S, lambda: f"clients get on after {what}: {self.progress()} of {wanted}"
        )
        self.history.recoveries.append(Recovery(what, took_s, RECOVERY_S))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", SEVERAL) as started:
        yield started


def test_kills_of_every_actor_break_no_promise(broker: BrokerProcess) -> None:
    run = Run(broker.bootstrap, "kills")
    with finishing(*run.all):
        run.await_progress("the start")
        for number in range(rounds(1, 20)):
            for victim in ("ray::PartitionActor", "ray::GatewayActor", "ray::ControllerActor"):
                before = run.progress()
                broker.kill_one(victim, number)
                assert run.progress()[0] >= before[0] > 0, "the producers were at work at the kill"
                run.await_progress(f"the kill of {victim}")
        leader = broker.leader("kills", 0)
        leader.kill()
        run.await_progress("the kill of the leader of kills-0")
    assert_kept(run.history, broker.bootstrap, "kills", PARTITIONS)


def cut(proxy: Proxy) -> None:
    dropped = proxy.dropped

    def are_reset() -> bool:
        proxy.drop()
        return proxy.dropped > dropped

    wait_until(are_reset, RECOVERY_S, "connections are reset")


def split(proxy: Proxy) -> None:
    proxy.piece_bytes = 11
    passed = proxy.passed
    wait_until(lambda: proxy.passed > passed + 5_000, RECOVERY_S, "requests passed in pieces of 11 bytes")


def delay(proxy: Proxy) -> None:
    proxy.delay_s = 0.3
    passed = proxy.passed
    wait_until(lambda: proxy.passed > passed + 20_000, RECOVERY_S, "requests passed late")


def stall_and_cut(proxy: Proxy) -> None:
    """Requests that the broker has answered lose their answers."""
    proxy.stall()
    threading.Event().wait(4.0)  # longer than the sessions of the members
    cut(proxy)


def half_close_to_broker(proxy: Proxy) -> None:
    half_close(proxy, toward_client=False)


def half_close_to_client(proxy: Proxy) -> None:
    half_close(proxy, toward_client=True)


def half_close(proxy: Proxy, toward_client: bool) -> None:
    half_closed = proxy.half_closed

    def are_half_closed() -> bool:
        proxy.half_close(toward_client)
        return proxy.half_closed > half_closed

    wait_until(are_half_closed, RECOVERY_S, "connections are half closed")


def refuse(proxy: Proxy) -> None:
    proxy.is_refusing = True
    proxy.drop()
    wait_until(lambda: proxy.refused > 5, RECOVERY_S, "clients tried again")


FAULTS: tuple[Callable[[Proxy], None], ...] = (
    cut, split, delay, stall_and_cut, half_close_to_broker, half_close_to_client, refuse,
)  # fmt: skip


def test_a_bad_network_breaks_no_promise(tmp_path: Path) -> None:
    port = free_port()
    configs = (*SEVERAL, f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}")
    with BrokerProcess(tmp_path / "data", configs) as broker, Proxy(broker.port, port) as proxy:
        run = Run(f"127.0.0.1:{port}", "proxied")
        with finishing(*run.all):
            run.await_progress("the start")
            for number in range(rounds(1, 10)):
                for fault in FAULTS:
                    connected = proxy.connected
                    fault(proxy)
                    proxy.heal()
                    run.await_progress(f"{fault.__name__}, round {number}")
            assert proxy.connected > connected, "clients connected again"
            assert run.batches.in_doubt > 0, "the stall outlasted a batch"
        assert_kept(run.history, f"127.0.0.1:{port}", "proxied", PARTITIONS)


def test_a_leader_paused_beyond_every_time_out_breaks_no_promise(
    broker: BrokerProcess,
) -> None:
    run = Run(broker.bootstrap, "paused", members=1)
    where = (run.history, broker.bootstrap, "paused", PARTITIONS)
    hasty = [RecordedProducer(*where, f"hasty{number}", delivery_timeout_ms=4000) for number in range(2)]
    with finishing(*run.all, *hasty):
        run.await_progress("the start")
        with paused([broker.leader("paused", 0)]):
            threading.Event().wait(PAUSE_S)
            impatient = (*hasty, run.batches)
            wait_until(lambda: all(each.in_doubt > 0 for each in impatient), RECOVERY_S, "their records time out")
        run.await_progress("the end of the pause")
    assert_kept(run.history, broker.bootstrap, "paused", PARTITIONS)
