"""Members of a group copy a topic in transactions while processes die, pause, and old requests come again.

The checker knows what each producer was told. What was aborted is never read (G1a); what was committed is read whole,
from every partition; each input is copied once; and what a reader of committed records has seen never changes.
"""

from __future__ import annotations

import subprocess
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition

from rayka.testing import BrokerProcess, free_port, paused, wait_until
from tests.clients import tools
from tests.clients.conftest import require
from tests.clients.test_transactions import read, send_plain
from tests.faults.load import RECOVERY_S, create_topic
from tests.faults.proxy import Proxy
from tests.faults.test_transactions import CALL_S, SETTINGS, Outcome
from tests.support.scale import IS_LONG, rounds

INPUTS, OUTPUTS, COPIERS = 4, 3, 3
RECORDS = 2
"""At most so many are copied in one transaction."""
TRANSACTIONS = rounds(300, 10_000)
PART = rounds(45, 60)
PAUSE_S = 2.0
Fault = Callable[[BrokerProcess, int], None]
PRODUCE, END_TXN = 0, 26
FIRST_WITH_EPOCH_BUMP = 5
"""The version of EndTxn from which on each transaction has an epoch of its own (KIP-890)."""


@dataclass
class Attempt:
    """A transaction: what it copies, and what its producer knows of it."""

    values: list[str]
    outcome: Outcome = Outcome.ABORTED


@dataclass
class Workload:
    """The topics, and what the clients have recorded."""

    bootstrap: str
    name: str
    attempts: dict[str, Attempt] = field(default_factory=dict)
    seen: dict[tuple[int, int], str] = field(default_factory=dict)
    """By partition and offset, what a reader of committed records saw while everything went on."""
    counts: Counter[int] = field(default_factory=Counter)
    fed: int = 0

    def __post_init__(self) -> None:
        create_topic(self.bootstrap, self.input, INPUTS)
        create_topic(self.bootstrap, self.output, OUTPUTS)

    @property
    def input(self) -> str:
        return f"{self.name}-in"

    @property
    def output(self) -> str:
        return f"{self.name}-out"

    def client(self, **settings: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "retry.backoff.max.ms": 500,
            "reconnect.backoff.max.ms": 500,
            # librdkafka 2.16 may wait for ever for a coordinator that it has dropped when all brokers were away.
            "metadata.recovery.strategy": "none",
            "log_level": 0,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }

    def reader(self, **settings: Any) -> Consumer:
        committed = {"isolation_level": "read_committed", "enable_auto_commit": False, "auto_offset_reset": "earliest"}
        return Consumer(self.client(**committed, **settings))

    def feed(self, count: int) -> None:
        producer = Producer(self.client(enable_idempotence=True))
        for number in range(self.fed, self.fed + count):
            producer.produce(self.input, str(number).encode(), partition=number % INPUTS)
        assert producer.flush(RECOVERY_S) == 0
        self.fed += count

    def await_copies(self, what: str) -> float:
        """Wait until a reader of committed records has seen each input in each partition; return the seconds."""

        def is_copied() -> bool:
            return all(self.counts[partition] >= self.fed for partition in range(OUTPUTS))

        return wait_until(
            is_copied, RECOVERY_S, lambda: f"everything is copied after {what}: {self.counts} of {self.fed}"
        )


def copy(workload: Workload, name: str, stop: threading.Event) -> None:
    """Copy as a member of the group, with one producer after the other."""
    consumer = workload.reader(group_id=workload.name, session_timeout_ms=6000)
    consumer.subscribe([workload.input])
    while not stop.is_set():
        try:
            copy_until_failure(workload, name, consumer, stop)
        except KafkaException:
            stop.wait(0.1)
    consumer.close()


def copy_until_failure(workload: Workload, name: str, consumer: Consumer, stop: threading.Event) -> None:
    """Make transactions until one fails, or is left open: then the next producer aborts it."""
    settings = {"transactional_id": f"{workload.name}-{name}", "transaction_timeout_ms": 10_000, "linger_ms": 0}
    producer = Producer(workload.client(**settings))
    producer.init_transactions(CALL_S)
    rewind(consumer)
    is_open = False
    while not (stop.is_set() or is_open):
        messages = [one for one in consumer.consume(RECORDS, 0.2) if one.error() is None]
        if messages:
            is_open = not copy_some(workload, name, producer, consumer, messages)


def rewind(consumer: Consumer) -> None:
    """Go on at the committed offsets."""
    assigned = consumer.assignment()
    for at in consumer.committed(assigned, CALL_S) if assigned else ():
        consumer.seek(TopicPartition(at.topic, at.partition, at.offset if at.offset >= 0 else OFFSET_BEGINNING))


def copy_some(workload: Workload, name: str, producer: Producer, consumer: Consumer, messages: list[Message]) -> bool:
    """Write each record to every partition of the output, with the offsets, in one transaction.

    Some transactions are aborted, and some left open: then this returns False.
    """
    number = len(workload.attempts)
    key = f"{name}:{number}"
    attempt = workload.attempts[key] = Attempt([(one.value() or b"").decode() for one in messages])
    producer.begin_transaction()
    for value in attempt.values:
        for partition in range(OUTPUTS):
            producer.produce(workload.output, f"{value}|{key}".encode(), partition=partition)
    try:
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), CALL_S)
        if number % 17 == 16:
            producer.flush(CALL_S)
            return False
        if number % 5 != 4:
            attempt.outcome = Outcome.UNKNOWN
            producer.commit_transaction(CALL_S)
            attempt.outcome = Outcome.COMMITTED
            return True
    except KafkaException as failure:
        if not failure.args[0].txn_requires_abort():
            raise
    producer.abort_transaction(CALL_S)
    attempt.outcome = Outcome.ABORTED
    rewind(consumer)
    return True


def watch(workload: Workload, stop: threading.Event) -> None:
    """Read what is committed, as it comes."""
    consumer = workload.reader(group_id="unused")
    consumer.assign([TopicPartition(workload.output, number, OFFSET_BEGINNING) for number in range(OUTPUTS)])
    last: dict[int, int] = defaultdict(lambda: -1)
    while not stop.is_set():
        for message in consumer.consume(1000, 0.1):
            if message.error() is None:
                partition, offset = message.partition() or 0, message.offset() or 0
                assert offset > last[partition], "the reader went back"
                last[partition] = offset
                workload.seen[partition, offset] = (message.value() or b"").decode()
                workload.counts[partition] += 1
    consumer.close()


@contextmanager
def running(workload: Workload) -> Iterator[None]:
    """The copiers and the reader."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def guarded(work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(workload, *arguments, stop)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(copy, f"c{number}"), daemon=True) for number in range(COPIERS)]
    threads.append(threading.Thread(target=guarded, args=(watch,), daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()  # after a failure nobody waits for them
    for thread in threads:
        thread.join(RECOVERY_S)
    assert not any(thread.is_alive() for thread in threads), "a client hangs"
    assert not failures, failures


def check(workload: Workload) -> None:
    """Compare what is read in the end with what each producer knows, and with what was seen on the way."""
    final = final_records(workload)
    for at, value in workload.seen.items():
        assert final.get(at) == value, f"{at} was {value} and is {final.get(at)}"
    copies: dict[str, Counter[tuple[int, str]]] = defaultdict(Counter)
    inputs: Counter[tuple[int, str]] = Counter()
    for (partition, _), text in final.items():
        value, key = text.split("|")
        copies[key][partition, value] += 1
        inputs[partition, value] += 1
    for key, attempt in workload.attempts.items():
        whole = Counter((partition, value) for partition in range(OUTPUTS) for value in attempt.values)
        found = copies.pop(key, Counter())
        assert not (found and attempt.outcome is Outcome.ABORTED), f"{key} was aborted, and {found} is read"
        assert not (attempt.outcome is Outcome.COMMITTED and not found), f"{key} was committed and is lost"
        assert found in (Counter(), whole), f"{key} is half visible: {found} of {whole}"
    assert not copies, f"nobody wrote {copies}"
    once = {(partition, str(number)) for partition in range(OUTPUTS) for number in range(workload.fed)}
    assert inputs == Counter(once), f"lost {once - inputs.keys()}, double {[at for at in inputs if inputs[at] > 1]}"


def final_records(workload: Workload) -> dict[tuple[int, int], str]:
    """Everything that is committed, by partition and offset, read anew."""
    again = Workload.__new__(Workload)
    again.bootstrap, again.name, again.seen, again.counts = workload.bootstrap, workload.name, {}, Counter()
    stop = threading.Event()
    reading = threading.Thread(target=watch, args=(again, stop), daemon=True)
    reading.start()
    try:
        wait_until(
            lambda: len(again.seen) >= len(workload.seen),
            RECOVERY_S,
            lambda: f"the output is read again: {len(again.seen)} of {len(workload.seen)}",
        )
    finally:
        stop.set()
        reading.join(RECOVERY_S)
    return again.seen


def kill(part: str) -> Fault:
    def end(broker: BrokerProcess, number: int) -> None:
        broker.kill_one(part, number)

    return end


def pause(part: str) -> Fault:
    def suspend(broker: BrokerProcess, number: int) -> None:
        processes = broker.await_found(part)
        with paused([processes[number % len(processes)]]):
            time.sleep(PAUSE_S)

    return suspend


SHORT = {
    "the kill of a partition actor": kill("ray::PartitionActor"),
    "the pause of a partition actor": pause("ray::PartitionActor"),
    "the kill of the controller": kill("ray::ControllerActor"),
}
LONG = {
    **SHORT,
    "the kill of a gateway": kill("ray::GatewayActor"),
    "the pause of a gateway": pause("ray::GatewayActor"),
    "the pause of the controller": pause("ray::ControllerActor"),
    "the kill of Ray's GCS": kill("gcs_server"),
    "the pause of Ray's GCS": pause("gcs_server"),
    "the kill of the raylet": kill("raylet"),
    "the pause of the raylet": pause("raylet"),
}


def survive(
    broker: BrokerProcess, transactions: int, faults: dict[str, Callable[[BrokerProcess, int], None]]
) -> Workload:
    """Copy in at least so many transactions, with a fault in the middle of each part of them."""
    workload = Workload(broker.bootstrap, f"once-{uuid.uuid4().hex[:8]}")
    with running(workload):
        workload.feed(PART)
        workload.await_copies("the start")
        number = 0
        while len(workload.attempts) < transactions:
            for what, fault in faults.items():
                workload.feed(PART * RECORDS)
                fault(broker, number)
                workload.feed(PART * RECORDS)
                took_s = workload.await_copies(f"{what}, number {number}")
                print(f"{what}, number {number}: {len(workload.attempts)} transactions, copied {took_s:.1f} s later")
            number += 1
    check(workload)
    return workload


def test_kills_and_pauses_lose_and_double_nothing(tmp_path: Path) -> None:
    is_short = TRANSACTIONS < 1000
    settings = SETTINGS if is_short else (*SETTINGS, "gateways.per.node=1")
    with BrokerProcess(tmp_path / "data", settings) as broker:
        workload = survive(broker, TRANSACTIONS, SHORT if is_short else LONG)
    outcomes = Counter(attempt.outcome for attempt in workload.attempts.values())
    assert outcomes[Outcome.COMMITTED] > TRANSACTIONS / 4, outcomes
    assert outcomes[Outcome.ABORTED] > TRANSACTIONS / 20, outcomes


def test_requests_that_come_again_late_decide_nothing(tmp_path: Path) -> None:
    """Every Produce and EndTxn comes a second time, amid a later transaction of the same producer (KIP-890)."""
    copier = require(tools.franz_go)
    port = free_port()
    configs = (*SETTINGS, f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}")
    with BrokerProcess(tmp_path / "data", configs) as broker, Proxy(broker.port, port) as proxy:
        create_topic(broker.bootstrap, "in", 1)
        create_topic(broker.bootstrap, "out", 3)
        values = [b"%d" % number for number in range(1000)]
        send_plain(broker.bootstrap, "in", values)
        proxy.repeat_late({PRODUCE, END_TXN}, 0.05)
        command = [str(copier), f"127.0.0.1:{port}", "in", "out", str(len(values))]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=2 * RECOVERY_S)
        assert ran.returncode == 0, ran.stderr[-2000:]
        wait_until(
            lambda: proxy.repeated[END_TXN] > 40 and proxy.repeated[PRODUCE] > 40,
            RECOVERY_S,
            lambda: f"requests came again: {proxy.repeated}",
        )
        assert min(proxy.repeated_versions[END_TXN]) >= FIRST_WITH_EPOCH_BUMP
        assert sorted(read(broker.bootstrap, "out", 3)) == sorted(values)


@pytest.mark.skipif(not IS_LONG, reason="starts a JVM for each change")
def test_the_version_of_transactions_changes_while_they_go_on(tmp_path: Path) -> None:
    """A client learns of the level of the feature between two transactions; one that is open ends as it began."""
    copier = require(tools.franz_go)
    require(tools.kafka_tools)
    with BrokerProcess(tmp_path / "data", SETTINGS) as broker:
        create_topic(broker.bootstrap, "in", 1)
        create_topic(broker.bootstrap, "out", 3)
        values = [b"%d" % number for number in range(3000)]
        command = [str(copier), broker.bootstrap, "in", "out", str(len(values))]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as copying:
            for number, change in enumerate(("downgrade=1", "upgrade=2", "downgrade=0", "upgrade=2", "downgrade=1")):
                send_plain(broker.bootstrap, "in", values[number * 600 : (number + 1) * 600])
                set_transaction_version(broker.bootstrap, *change.split("="))
            assert copying.wait(90) == 0, copying.stderr and copying.stderr.read()[-2000:]
        assert sorted(read(broker.bootstrap, "out", 3)) == sorted(values)


def set_transaction_version(bootstrap: str, change: str, level: str) -> None:
    name = "org.apache.kafka.tools.FeatureCommand"
    feature = f"transaction.version={level}"
    command = tools.java("-Xmx256m", name, "--bootstrap-server", bootstrap, change, "--feature", feature)
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-2000:]
