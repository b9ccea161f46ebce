"""kill -9 and SIGSTOP amid transactions: a read_committed reader sees each whole and once, or not at all."""

from __future__ import annotations

import threading
import time
from collections import Counter
from enum import Enum

import pytest
from confluent_kafka import KafkaException, Producer

from rayka.testing import BrokerProcess, paused, wait_until
from tests.clients.test_transactions import read
from tests.faults.load import RECOVERY_S, create_topic
from tests.support.scale import rounds

PARTITIONS = 4
SETTINGS = (
    "partition.actors.per.node=3",
    "transaction.state.log.num.partitions=6",
    "offsets.topic.num.partitions=3",
)
CALL_S = 15.0
WRITERS = 3


class Outcome(Enum):
    """What a producer knows of a transaction. UNKNOWN: it asked for a commit and heard nothing."""

    COMMITTED = 1
    ABORTED = 2
    UNKNOWN = 3


class Writer:
    """Transactions of one record in every partition; every third is aborted. A failed producer is replaced."""

    def __init__(self, bootstrap: str, topic: str, name: str) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self.error: BaseException | None = None
        self._bootstrap = bootstrap
        self._topic = topic
        self._name = name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def committed(self) -> int:
        return sum(outcome is Outcome.COMMITTED for outcome in list(self.outcomes.values()))

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(RECOVERY_S)
        assert not self._thread.is_alive()
        assert self.error is None, repr(self.error)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._write_until_failure()
        except BaseException as error:
            self.error = error

    def _write_until_failure(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": self._name,
                "transaction.timeout.ms": 10_000,
                "retry.backoff.max.ms": 500,
                "reconnect.backoff.max.ms": 500,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        try:
            producer.init_transactions(CALL_S)
            while not self._stop.is_set():
                self._transaction(producer)
        except KafkaException:
            self._stop.wait(0.1)

    def _transaction(self, producer: Producer) -> None:
        number = len(self.outcomes)
        value = f"{self._name}:{number}"
        producer.begin_transaction()
        self.outcomes[value] = Outcome.ABORTED
        for partition in range(PARTITIONS):
            producer.produce(self._topic, value.encode(), partition=partition)
        try:
            if number % 3 == 2:
                producer.abort_transaction(CALL_S)
                return
            self.outcomes[value] = Outcome.UNKNOWN
            producer.commit_transaction(CALL_S)
            self.outcomes[value] = Outcome.COMMITTED
        except KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(CALL_S)
            self.outcomes[value] = Outcome.ABORTED


def more_commits(writers: list[Writer], count: int = 10) -> None:
    """Until every writer has committed so many more transactions."""
    wanted = [writer.committed + count for writer in writers]

    def have() -> bool:
        return all(writer.committed >= least for writer, least in zip(writers, wanted, strict=True))

    def so_far() -> str:
        return f"commits of each writer: {[(writer.committed, writer.error) for writer in writers]} of {wanted}"

    wait_until(have, RECOVERY_S, so_far)


def check(writers: list[Writer], bootstrap: str, topic: str) -> None:
    """Wait until no transaction is open any more, and compare what is read with what the producers know."""

    def is_decided() -> bool:
        """A reader gets to the end of the log only when nothing is open: the markers of aborted ones are there too."""
        plain = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        mark = f"end:{time.monotonic_ns()}".encode()
        for partition in range(PARTITIONS):
            plain.produce(topic, mark, partition=partition)
        assert plain.flush(RECOVERY_S) == 0
        return read(bootstrap, topic, PARTITIONS).count(mark) == PARTITIONS

    wait_until(is_decided, RECOVERY_S, "the end of all transactions")
    found = Counter(value.decode() for value in read(bootstrap, topic, PARTITIONS) if not value.startswith(b"end:"))
    for writer in writers:
        for value, outcome in writer.outcomes.items():
            expected = {Outcome.COMMITTED: (PARTITIONS,), Outcome.ABORTED: (0,), Outcome.UNKNOWN: (0, PARTITIONS)}
            assert found.pop(value, 0) in expected[outcome], f"{value} is {outcome}"
    assert not found, f"nobody wrote {found}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory):
    with BrokerProcess(tmp_path_factory.mktemp("transactions"), SETTINGS) as started:
        yield started


def test_kills_in_the_middle_of_transactions(broker: BrokerProcess) -> None:
    create_topic(broker.bootstrap, "killed", PARTITIONS)
    writers = [Writer(broker.bootstrap, "killed", f"killed-{number}") for number in range(WRITERS)]
    more_commits(writers)
    for number in range(rounds(4, 40)):
        broker.kill_one("ray::PartitionActor", number)
        more_commits(writers)
    for writer in writers:
        writer.finish()
    check(writers, broker.bootstrap, "killed")


def test_pauses_in_the_middle_of_transactions(broker: BrokerProcess) -> None:
    """An actor that stands still decides no transaction twice.

    The first pause is shorter than the timeout of transactions; in a long run every second one is longer.
    """
    create_topic(broker.bootstrap, "paused", PARTITIONS)
    writers = [Writer(broker.bootstrap, "paused", f"paused-{number}") for number in range(WRITERS)]
    more_commits(writers)
    for number in range(rounds(1, 10)):
        actors = broker.await_found("ray::PartitionActor")
        with paused([actors[number % len(actors)]]):
            time.sleep(11.0 if number % 2 else 2.0)
        more_commits(writers)
    for writer in writers:
        writer.finish()
    check(writers, broker.bootstrap, "paused")


def test_a_restart_after_everything_was_killed(broker: BrokerProcess) -> None:
    create_topic(broker.bootstrap, "restarted", PARTITIONS)
    writers = [Writer(broker.bootstrap, "restarted", f"restarted-{number}") for number in range(WRITERS)]
    more_commits(writers)
    broker.kill()
    broker.start()
    more_commits(writers)
    for writer in writers:
        writer.finish()
    check(writers, broker.bootstrap, "restarted")
