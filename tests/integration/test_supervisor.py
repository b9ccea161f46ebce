"""`rayka up` with the real broker below it: what follows when one of the processes that hold it together is killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from rayka.testing import BrokerProcess, await_ended, wait_until
from tests.faults.load import Writer, check, create_topic, read_all


def write(bootstrap: str, topic: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 120_000})
    producer.produce(topic, value, partition=0)
    assert producer.flush(125) == 0


def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = [message.value() for message in consumer.consume(count, 120)]
    consumer.close()
    return values


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Each test leaves it as it was, or starts it again."""
    with BrokerProcess(tmp_path_factory.mktemp("supervised")) as started:
        yield started
    assert started.exit_code == 0


@pytest.mark.parametrize("victim", ["rayka.cli.daemon.reaper", "rayka.cli.daemon.serve"])
def test_a_process_between_is_killed_and_the_broker_comes_back(broker: BrokerProcess, victim: str) -> None:
    create_topic(broker.bootstrap, victim, 1)
    write(broker.bootstrap, victim, "before")
    family, printed = broker.children(), len(broker.log)
    broker.kill_one(victim)
    wait_until(lambda: any("serving on" in line for line in broker.log[printed:]), 120, "the broker is back")
    assert not set(family) & set(broker.children())
    write(broker.bootstrap, victim, "after")
    assert read(broker.bootstrap, victim, 2) == [b"before", b"after"]
    assert sum("is ready on" in line for line in broker.log) == 1


def test_nothing_survives_rayka_up_and_the_next_one_serves_the_same(broker: BrokerProcess) -> None:
    create_topic(broker.bootstrap, "kept", 1)
    write(broker.bootstrap, "kept", "acknowledged")
    family = broker.children()
    broker.signal(signal.SIGKILL)
    assert await_ended(family, 90) == []
    broker.start()
    assert read(broker.bootstrap, "kept", 1) == [b"acknowledged"]


def test_the_death_of_an_actor_is_one_line_on_the_terminal(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).start()
    try:
        create_topic(broker.bootstrap, "kept", 1)
        victim = broker.kill_one("ray::PartitionActor").pid
        wait_until(lambda: any(f"(process {victim})" in line for line in broker.log), 90, "the death is told of")
        write(broker.bootstrap, "kept", "after")
    finally:
        broker.stop()
    (line,) = [line for line in broker.log if not line.startswith(("rayka is ready on ", "The data is in "))]
    assert " rayka: Ray: " in line
    assert f"(process {victim})" in line
    assert len(line) < 250


def test_a_data_directory_that_was_moved_is_served_from_its_new_place(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "before").start()
    create_topic(broker.bootstrap, "kept", 1)
    write(broker.bootstrap, "kept", "acknowledged")
    broker.stop()
    (tmp_path / "before").rename(tmp_path / "after")
    moved = BrokerProcess(tmp_path / "after").start()
    try:
        assert read(moved.bootstrap, "kept", 1) == [b"acknowledged"]
    finally:
        moved.stop()


@pytest.mark.alone
def test_a_killed_gcs_server_starts_again_in_place_and_producers_do_not_notice(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        create_topic(broker.bootstrap, "kept", 4)
        writer = Writer(broker.bootstrap, "kept", 4, pace_s=0.002)
        wait_until(lambda: writer.count > 1000, 30, "the producer is under way")
        raylet = broker.find("raylet/raylet")
        usual_s = writer.longest_pause  # a machine that is overloaded pauses anyway
        for kill in (1, 2):
            writer.longest_pause = 0.0
            victim = broker.kill_one("gcs/gcs_server")
            wait_until(lambda kill=kill: len(restarts(broker)) == kill, 30, "the GCS is back")
            assert broker.find("gcs/gcs_server") != [victim]
            written = writer.count
            wait_until(lambda written=written: writer.count > written + 1000, 30, "records go on")
            assert writer.longest_pause < max(0.2, 2 * usual_s)
        writer.finish()
        assert broker.find("raylet/raylet") == raylet
        assert not any("restarting it" in line for line in broker.log)
        broker.kill_one("ray::PartitionActor")  # a new GCS starts actors again
        create_topic(broker.bootstrap, "later", 1)
        check([writer], read_all(broker.bootstrap, "kept", 4))


HELPERS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent", "log_monitor.py")


def test_killed_helpers_of_ray_leave_the_raylet_and_the_broker_alone(broker: BrokerProcess) -> None:
    create_topic(broker.bootstrap, "helped", 1)
    raylet, printed = broker.find("raylet/raylet"), len(broker.log)
    assert broker.find("dashboard.py") == []
    assert broker.find("monitor.py") == broker.find("log_monitor.py"), "the autoscaler's runs"
    for helper in HELPERS:
        broker.kill_one(helper)
    for agent in HELPERS[:2]:
        wait_until(lambda agent=agent: broker.find(agent) != [], 90, "the agent is back")
    broker.kill_one("ray::PartitionActor")  # which needs the agents to start again
    write(broker.bootstrap, "helped", "after")
    assert broker.find("raylet/raylet") == raylet
    assert not any("restarting it" in line for line in broker.log[printed:])


def restarts(broker: BrokerProcess) -> list[str]:
    """The lines that tell of a GCS that was started again."""
    return [line for line in broker.log if "gcs_server died and was restarted" in line]
