"""kill -9 of any one of our processes, and of Ray's, under load: nothing acknowledged is lost, clients recover."""

from __future__ import annotations

import pytest

from rayka.testing import BrokerProcess
from tests.faults.load import Writer, check, create_topic, read_all
from tests.support.scale import rounds

PARTITIONS = 4
SEVERAL = ("partition.actors.per.node=3", "gateways.per.node=1")
MORE = 200
"""So many records, every partition's among them."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory):
    """With several processes of each kind, so that requests cross from one to another."""
    with BrokerProcess(tmp_path_factory.mktemp("kills"), SEVERAL) as started:
        yield started
    assert started.exit_code == 0
    assert not started.children()


@pytest.mark.parametrize("victim", ["ray::PartitionActor", "ray::GatewayActor", "ray::ControllerActor"])
def test_repeated_kills_of_an_actor_lose_nothing_acknowledged(broker: BrokerProcess, victim: str) -> None:
    topic = f"kill-{victim.removeprefix('ray::').lower()}"
    create_topic(broker.bootstrap, topic, PARTITIONS)
    writer = Writer(broker.bootstrap, topic, PARTITIONS)
    writer.await_more(MORE)
    for number in range(rounds(3, 20)):
        broker.kill_one(victim, number)
        writer.await_more(MORE)
        broker.await_found(victim)
        writer.await_more(MORE)
    writer.finish()
    check([writer], read_all(broker.bootstrap, topic, PARTITIONS))
    create_topic(broker.bootstrap, f"{topic}-after", 1)


@pytest.mark.parametrize("victim", ["raylet/raylet", "gcs/gcs_server"])
def test_the_kill_of_a_ray_process_loses_nothing_acknowledged(broker: BrokerProcess, victim: str) -> None:
    topic = victim.partition("/")[0]
    create_topic(broker.bootstrap, topic, PARTITIONS)
    writer = Writer(broker.bootstrap, topic, PARTITIONS)
    writer.await_more(MORE)
    broker.kill_one(victim)
    writer.await_more(2000, "after Ray came back")
    writer.finish()
    check([writer], read_all(broker.bootstrap, topic, PARTITIONS))


def test_a_restart_after_everything_was_killed_loses_nothing_acknowledged(broker: BrokerProcess) -> None:
    create_topic(broker.bootstrap, "restarted", PARTITIONS)
    writer = Writer(broker.bootstrap, "restarted", PARTITIONS)
    writer.await_more(MORE)
    broker.kill()
    broker.start()
    writer.await_more(MORE)
    writer.finish()
    check([writer], read_all(broker.bootstrap, "restarted", PARTITIONS))
