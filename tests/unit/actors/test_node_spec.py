"""What a node's settings come to: one listener, one address for clients, and DescribeConfigs tells them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from rayka.actors.node import node
from rayka.actors.node.node import node_spec
from rayka.actors.node.spec import NodeSpec


@pytest.fixture(autouse=True)
def no_node_id(monkeypatch: pytest.MonkeyPatch) -> None:
    class Context:
        def get_node_id(self) -> str:
            return "node"

    monkeypatch.setattr(node.ray, "get_runtime_context", Context)


def spec(path: Path, listen: str, configs: Mapping[str, str] | None = None) -> NodeSpec:
    return node_spec(str(path), listen, configs or {})


def test_the_settings_in_force_are_those_that_were_given_on_the_command_line(tmp_path: Path) -> None:
    configs = spec(tmp_path, "127.0.0.1:29123").configs
    assert configs["listeners"] == "PLAINTEXT://127.0.0.1:29123"
    assert configs["advertised.listeners"] == "PLAINTEXT://127.0.0.1:29123"
    assert configs["log.dirs"] == str(tmp_path / "logs")


def test_the_advertised_listener_with_the_name_of_the_listener_is_used(tmp_path: Path) -> None:
    given = {
        "listeners": "INSIDE://0.0.0.0:29123",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "advertised.listeners": "INSIDE://inner:1,OUTSIDE://outer:2",
    }
    found = spec(tmp_path, "0.0.0.0:29123", given)
    assert (found.advertised_host, found.advertised_port) == ("inner", 1)
    assert found.configs["advertised.listeners"] == "INSIDE://inner:1"


def test_a_log_dir_of_kafka_is_used(tmp_path: Path) -> None:
    found = spec(tmp_path, "127.0.0.1:29123", {"log.dir": str(tmp_path / "one")})
    assert found.log_dirs == (str(tmp_path / "one"),)
    assert found.configs["log.dirs"] == str(tmp_path / "one")


def test_partition_actors_stay_in_their_directories_when_log_dirs_change(tmp_path: Path) -> None:
    before = spec(tmp_path, "127.0.0.1:29123", {"log.dirs": f"{tmp_path}/a,{tmp_path}/b"})
    path = Path(before.log_dir_of(1))
    path.mkdir(parents=True)
    (path / "meta.properties").touch()
    after = spec(tmp_path, "127.0.0.1:29123", {"log.dirs": f"{tmp_path}/new,{tmp_path}/c,{tmp_path}/b"})
    assert after.log_dir_of(1) == str(path)
    assert after.log_dir_of(2) == f"{tmp_path}/b/{after.partition_actor_name(2)}"
