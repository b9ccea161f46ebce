"""`rayka consume` says that it waits for its broker."""

from __future__ import annotations

import json
import socket
from types import SimpleNamespace

import pytest

from rayka.cli.kafka import outage
from rayka.cli.kafka.outage import BrokerOutage
from rayka.cli.kafka.records import _consumer
from rayka.testing import wait_until


def test_an_outage_is_said_once_after_three_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now_s, said = 0.0, []
    waits = BrokerOutage("127.0.0.1:9092", lambda: now_s)
    for state in ("UP", "DOWN", "TRY_CONNECT", "CONNECT", "DOWN", "DOWN", "UP", "DOWN", "DOWN", "DOWN", "DOWN"):
        now_s += 1
        waits.note(json.dumps({"brokers": {"a": {"state": "INIT"}, "b": {"state": state}}}))
        said.append(capsys.readouterr().err)
    line = "rayka: waiting for 127.0.0.1:9092\n"
    assert said == ["", "", "", line, "", "", "", "", "", line, ""]


def test_a_consumer_without_a_broker_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "_SAID_AFTER_S", 0.0)
    monkeypatch.setattr("rayka.cli.kafka.records.STATISTICS_MS", 50)
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{nobody_listens.getsockname()[1]}"
        wanted = SimpleNamespace(start="earliest", isolation="read_uncommitted")
        consumer = _consumer(SimpleNamespace(bootstrap_servers=servers), wanted, "g")  # type: ignore[arg-type]
        heard: list[str] = []

        def is_said() -> bool:
            consumer.consume(1, 0.05)
            heard.append(capsys.readouterr().err)
            return any(heard)

        wait_until(is_said, 30, "it says that it waits")
        consumer.close()
    assert "".join(heard) == f"rayka: waiting for {servers}\n"
