"""Brokers that several modules share. One runs at a time, since a process is on one Ray cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import ray

from rayka.cli.main import main
from rayka.client.cluster import Cluster
from rayka.testing import BrokerProcess
from tests.support.embedded import CONFIGS, embedded

EMBEDDED = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "3",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.unsettled.heartbeat.interval.ms": "50",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.session.timeout.ms": "2000",
    "group.consumer.session.timeout.ms": "3000",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "200",
    "group.share.heartbeat.interval.ms": "200",
    "errors.deadletterqueue.auto.create.topics.enable": "true",
}
COMMANDED = ("offsets.topic.num.partitions=4", "group.initial.rebalance.delay.ms=0")


class OneAtATime:
    """Keeps what was started last, until something else is asked for."""

    def __init__(self) -> None:
        self._name = ""
        self._value: Any = None
        self._running = ExitStack()

    def get(self, name: str, start: Callable[[], AbstractContextManager[Any]]) -> Any:
        """What has this name; it is started, and what ran before is stopped, if it does not run."""
        if name != self._name:
            self.close()
            self._value = self._running.enter_context(start())
            self._name = name
        return self._value

    def close(self) -> None:
        """Stop what runs."""
        self._name = ""
        self._running.close()


@pytest.fixture(scope="package")
def one_at_a_time() -> Iterator[OneAtATime]:
    """What runs for several modules."""
    kept = OneAtATime()
    yield kept
    kept.close()


@pytest.fixture(scope="module")
def cluster(one_at_a_time: OneAtATime, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Ray and a broker in this process, for all modules with Python on actor handles."""
    data_dir = tmp_path_factory.mktemp("data")
    started: Cluster = one_at_a_time.get("embedded", lambda: embedded(data_dir, cpus=8, configs=EMBEDDED))
    return started


@contextmanager
def commanded(data_dir: Path, configs: tuple[str, ...] = ()) -> Iterator[BrokerProcess]:
    """`rayka up`, and commands in this process, which stays connected to its Ray from one to the next."""
    with BrokerProcess(data_dir, (*configs, *(f"{name}={value}" for name, value in CONFIGS.items()))) as started:
        yield started
        ray.shutdown()


@pytest.fixture(scope="module")
def broker(one_at_a_time: OneAtATime, tmp_path_factory: pytest.TempPathFactory) -> BrokerProcess:
    """A broker for the modules with commands for groups and transactions."""
    data_dir = tmp_path_factory.mktemp("groups")
    started: BrokerProcess = one_at_a_time.get("commanded", lambda: commanded(data_dir, COMMANDED))
    return started


class Outcome(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    def rows(self) -> list[list[str]]:
        """The table without its head."""
        return [line.split() for line in self.out.splitlines()[1:]]

    def json(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(broker: BrokerProcess, capfd: pytest.CaptureFixture[str]) -> Cli:
    """`cli(code, *words)` runs a command, which must end with this code."""

    def run(code: int, *words: str) -> Outcome:
        capfd.readouterr()
        ended = main([*words, "--data-dir", str(broker.data_dir)])
        sys.stdout.flush()
        outcome = Outcome(ended, *capfd.readouterr())
        assert outcome.code == code, outcome
        return outcome

    return run
