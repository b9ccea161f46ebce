"""A controller that can't come back: the operator is told, the broker serves on, and nothing is shortened."""

from __future__ import annotations

from pathlib import Path

from rayka.testing import BrokerProcess, wait_until
from tests.faults.load import RECOVERY_S, Writer, check, create_topic, read_all


def test_a_controller_with_a_damaged_log_is_reported_while_clients_are_served(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        create_topic(broker.bootstrap, "events", 2)
        writer = Writer(broker.bootstrap, "events", 2)
        writer.await_more(200)
        (segment,) = (tmp_path / "data").glob("controller/__cluster_metadata-0/*.log")
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 1
        segment.write_bytes(data)
        broker.kill_one("ray::ControllerActor")
        told = "the controller does not serve; the broker goes on without it: the metadata log is damaged"
        wait_until(lambda: any(told in line for line in broker.log), RECOVERY_S, "a line for the operator")
        assert segment.read_bytes() == data, "a damaged log is left as it is"
        writer.await_more(500, "without a controller")
        data[len(data) // 2] ^= 1
        segment.write_bytes(data)
        broker.kill_one("ray::ControllerActor")
        wait_until(lambda: any("serves again" in line for line in broker.log), RECOVERY_S, "a line that it is back")
        create_topic(broker.bootstrap, "later", 1)
        writer.finish()
        check([writer], read_all(broker.bootstrap, "events", 2))
