"""How daemons of Ray are started again: with the ports that everybody knows already."""

from __future__ import annotations

from pathlib import Path

from rayka.cli.daemon import agent
from rayka.cli.daemon.gcs_server import with_port


def test_a_gcs_server_that_chose_its_port_is_started_again_on_that_port() -> None:
    arguments = ["gcs_server", "--log_dir=/tmp/logs", "--gcs_server_port=0"]
    assert with_port(arguments, 41937) == ["gcs_server", "--log_dir=/tmp/logs", "--gcs_server_port=41937"]


def test_an_agent_is_started_again_on_the_port_that_the_raylet_learned(tmp_path: Path) -> None:
    command = ["python", "main.py", "--node-id=abc", "--runtime-env-agent-port=0", f"--session-dir={tmp_path}"]
    assert agent.with_ports(command) == command, "the first one chooses"
    (tmp_path / "runtime_env_agent_port_abc").write_text("40123")
    assert agent.with_ports(command)[3] == "--runtime-env-agent-port=40123"


def test_a_port_that_was_given_stays(tmp_path: Path) -> None:
    (tmp_path / "dashboard_agent_listen_port_abc").write_text("1")
    command = ["python", "agent.py", "--node-id=abc", "--listen-port=52365", f"--session-dir={tmp_path}"]
    assert agent.with_ports(command) == command
