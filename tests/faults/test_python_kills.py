"""kill -9 of the leader under each call of the Python clients: nothing is lost, nothing is there twice."""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rayka
from rayka.client import runtime
from rayka.client.cluster import Cluster
from rayka.testing import BrokerProcess, wait_until
from tests.faults.load import RECOVERY_S
from tests.support.scale import rounds

CHUNK = 50
PACE_S = 0.005
AHEAD = 5
SHARED_VALUE_BYTES = 3000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("kills")) as started:
        yield started


@pytest.fixture(scope="module")
def cluster(broker: BrokerProcess) -> Iterator[Cluster]:
    running = runtime.find(Path(broker.data_dir))
    assert running is not None
    with rayka.connect(running.address) as connected:
        yield connected


def send(producer: Any, topic: str, values: list[bytes]) -> list[Any]:
    return [producer.send(topic, value) for value in values]


def send_and_wait(producer: Any, topic: str, values: list[bytes]) -> list[Any]:
    for value in values[:-1]:
        producer.send(topic, value).get(RECOVERY_S)
    return [producer.send(topic, values[-1])]


def send_many(producer: Any, topic: str, values: list[bytes]) -> list[Any]:
    return producer.send_many(topic, values)


def send_table(producer: Any, topic: str, values: list[bytes]) -> list[Any]:
    return producer.send_table(topic, {"value": values})


def send_shared(producer: Any, topic: str, values: list[bytes]) -> list[Any]:
    """Batches that are large enough for shared memory."""
    return producer.send_many(topic, [value.ljust(SHARED_VALUE_BYTES, b".") for value in values])


def iterate(consumer: Any) -> list[bytes]:
    return [record.value for record in itertools.islice(consumer, CHUNK)]


def poll(consumer: Any) -> list[bytes]:
    return [record.value for records in consumer.poll(timeout_ms=100).values() for record in records]


def poll_table(consumer: Any) -> list[bytes]:
    return consumer.poll_table(timeout_ms=100)["value"].to_pylist()


def poll_shared(consumer: Any) -> list[bytes]:
    return [value.rstrip(b".") for value in poll(consumer)]


class Program(threading.Thread, ABC):
    """Works in rounds until it is told to stop; what goes wrong is raised by `finish`."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.is_stopped = threading.Event()
        self.done = 0
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self._error = error

    @abstractmethod
    def work(self) -> None:
        """The program."""

    def require_more(self) -> None:
        """Wait until it has done more."""
        self.await_done(self.done + 3 * CHUNK)

    def await_done(self, wanted: int) -> None:
        """Wait until it has done so much."""
        wait_until(
            lambda: self.done >= wanted or self._error is not None,
            RECOVERY_S,
            lambda: f"{self.done} of {wanted} records by {self._call.__name__}",
        )
        self._raise()

    def finish(self) -> None:
        self.is_stopped.set()
        self.join(2 * RECOVERY_S)
        assert not self.is_alive()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


class Writer(Program):
    """Sends numbered records; `done` are acknowledged, and up to `AHEAD` futures behind them on their way."""

    def __init__(self, cluster: Cluster, topic: str, call: Callable[[Any, str, list[bytes]], list[Any]]) -> None:
        self._cluster, self._topic = cluster, topic
        self.sent = 0
        super().__init__(call)

    def work(self) -> None:
        waiting: list[tuple[Any, int]] = []
        with self._cluster.producer(retry_backoff_ms=20) as producer:
            while not self.is_stopped.wait(PACE_S):
                futures = self._call(producer, self._topic, [b"%08d" % (self.sent + each) for each in range(CHUNK)])
                self.sent += CHUNK
                waiting.append((futures, CHUNK))
                self._await(waiting, AHEAD)
            self._await(waiting, 0)

    def _await(self, waiting: list[tuple[Any, int]], ahead: int) -> None:
        while len(waiting) > ahead:
            futures, count = waiting.pop(0)
            for future in futures:
                future.get(RECOVERY_S)
            self.done += count


class Reader(Program):
    """Reads a topic from its beginning."""

    def __init__(self, cluster: Cluster, topic: str, call: Callable[[Any], list[bytes]]) -> None:
        self._cluster, self._topic = cluster, topic
        self.values: list[bytes] = []
        super().__init__(call)

    def work(self) -> None:
        with self._cluster.consumer(auto_offset_reset="earliest", consumer_timeout_ms=100) as consumer:
            consumer.assign([(self._topic, 0)])
            while not self.is_stopped.wait(PACE_S):
                self.values += self._call(consumer)
                self.done = len(self.values)


CALLS = {
    "one-by-one": (send_and_wait, poll),
    "each": (send, iterate),
    "many": (send_many, poll),
    "table": (send_table, poll_table),
    "shared": (send_shared, poll_shared),
}


def test_the_kill_of_the_leader_loses_and_doubles_nothing(broker: BrokerProcess, cluster: Cluster) -> None:
    for topic in CALLS:
        cluster.admin().create_topic(topic)
    writers = {topic: Writer(cluster, topic, call) for topic, (call, _) in CALLS.items()}
    readers = {topic: Reader(cluster, topic, call) for topic, (_, call) in CALLS.items()}
    for _ in range(rounds(1, 20)):
        for program in (*writers.values(), *readers.values()):
            program.require_more()
        broker.kill_one("ray::PartitionActor")
    for program in (*writers.values(), *readers.values()):
        program.require_more()
    for topic, writer in writers.items():
        writer.finish()
        reader = readers[topic]
        reader.await_done(writer.sent)
        reader.finish()
        assert reader.values == [b"%08d" % number for number in range(writer.sent)]
        assert cluster.consumer().end_offsets([(topic, 0)])[topic, 0] == writer.sent
