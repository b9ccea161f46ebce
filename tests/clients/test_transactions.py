"""Clients that nobody here wrote, in transactions: commit, abort, offsets, and producers that were replaced."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import ProducerFenced
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import ProducerFencedError
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as PythonPartition

from rayka.testing import wait_until
from tests.clients import tools
from tests.clients.adapters.confluent import Confluent
from tests.clients.conftest import Tool, require
from tests.support.found_files import found_files

TIMEOUT_S = 90.0
NewTopic = Callable[..., str]


def producer(bootstrap: str, transactional_id: str, **settings: Any) -> Producer:
    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0, **settings})
    made.init_transactions(TIMEOUT_S)
    return made


def send(transactional: Producer, topic: str, *values: bytes, partition: int = 0) -> None:
    for value in values:
        transactional.produce(topic, value, partition=partition)
    assert transactional.flush(TIMEOUT_S) == 0


def read(bootstrap: str, topic: str, partitions: int = 1, isolation: str = "read_committed") -> list[bytes]:
    """All values, in the order of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
    values: list[bytes] = []
    ended: set[int] = set()
    deadline = time.monotonic() + TIMEOUT_S
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"{topic} was not read to its end"
        message = consumer.poll(0.2)
        if message is None:
            continue
        error = message.error()
        if error is None:
            values.append(message.value())
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
    consumer.close()
    return values


def await_values(bootstrap: str, topic: str, partitions: int, values: list[bytes]) -> None:
    """A transaction has ended for its producer before all partitions have its marker."""
    wait_until(lambda: len(read(bootstrap, topic, partitions)) >= len(values), TIMEOUT_S, f"the records of {topic}")
    assert sorted(read(bootstrap, topic, partitions)) == sorted(values)


def copying_consumer(bootstrap: str, group: str, topic: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    return consumer


def test_confluent_commits_and_aborts(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    transactional = producer(bootstrap, topic)
    for number in range(6):
        transactional.begin_transaction()
        for partition in range(3):
            send(transactional, topic, b"%d" % number, partition=partition)
        if number % 2:
            transactional.abort_transaction(TIMEOUT_S)
        else:
            transactional.commit_transaction(TIMEOUT_S)
    await_values(bootstrap, topic, 3, [b"0", b"2", b"4"] * 3)
    assert len(read(bootstrap, topic, 3, "read_uncommitted")) == 18


def test_readers_wait_for_open_transactions(bootstrap: str, topic: str) -> None:
    transactional = producer(bootstrap, topic)
    transactional.begin_transaction()
    send(transactional, topic, b"open")
    assert read(bootstrap, topic) == []
    assert read(bootstrap, topic, isolation="read_uncommitted") == [b"open"]
    transactional.commit_transaction(TIMEOUT_S)
    wait_until(lambda: read(bootstrap, topic) == [b"open"], TIMEOUT_S, "the committed record")


def test_a_zombie_is_fenced(bootstrap: str, topic: str) -> None:
    zombie = producer(bootstrap, topic)
    zombie.begin_transaction()
    send(zombie, topic, b"zombie")
    successor = producer(bootstrap, topic)
    with pytest.raises(KafkaException) as fenced:
        zombie.commit_transaction(TIMEOUT_S)
    assert fenced.value.args[0].code() == KafkaError._FENCED
    successor.begin_transaction()
    send(successor, topic, b"successor")
    successor.commit_transaction(TIMEOUT_S)
    wait_until(lambda: read(bootstrap, topic) == [b"successor"], TIMEOUT_S, "the record of the successor")


def test_a_transaction_that_its_producer_left_open_is_aborted(bootstrap: str, topic: str) -> None:
    left = producer(bootstrap, topic, **{"transaction.timeout.ms": 3000})
    left.begin_transaction()
    send(left, topic, b"left")
    plain = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    plain.produce(topic, b"after", partition=0)
    assert plain.flush(TIMEOUT_S) == 0
    wait_until(lambda: read(bootstrap, topic) == [b"after"], TIMEOUT_S, "the end of the transaction")
    with pytest.raises(KafkaException):
        left.commit_transaction(TIMEOUT_S)


def test_confluent_consumes_transforms_and_produces_once(
    bootstrap: str, topic: str, topic_name: str, confluent: Confluent
) -> None:
    """Every third transaction is aborted, and its member replaced by one that starts at the committed offsets."""
    output = f"{topic_name}-out"
    confluent.create_topic(output, 2)
    values = [b"%d" % number for number in range(100)]
    send_plain(bootstrap, topic, values)
    group, done, transactions = topic, 0, 0
    transactional = producer(bootstrap, topic)
    consumer = copying_consumer(bootstrap, group, topic)
    deadline = time.monotonic() + 2 * TIMEOUT_S
    while done < len(values):
        assert time.monotonic() < deadline, f"{done} of {len(values)} records were copied"
        messages = [message for message in consumer.consume(15, 0.5) if message.error() is None]
        if not messages:
            continue
        transactional.begin_transaction()
        for message in messages:
            transactional.produce(output, message.value(), partition=message.offset() % 2)
        transactional.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), TIMEOUT_S
        )
        transactions += 1
        if transactions % 3 == 0:
            transactional.abort_transaction(TIMEOUT_S)
            consumer.close()
            consumer = copying_consumer(bootstrap, group, topic)
        else:
            transactional.commit_transaction(TIMEOUT_S)
            done += len(messages)
    consumer.close()
    await_values(bootstrap, output, 2, values)
    assert committed(confluent, group, topic) == len(values)


def send_plain(bootstrap: str, topic: str, values: list[bytes]) -> None:
    plain = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for value in values:
        plain.produce(topic, value, partition=0)
    assert plain.flush(TIMEOUT_S) == 0


def committed(confluent: Confluent, group: str, topic: str) -> int:
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    (future,) = confluent.admin.list_consumer_group_offsets([asked]).values()
    (partition,) = future.result(TIMEOUT_S).topic_partitions
    offset: int = partition.offset
    return offset


def test_offsets_of_an_aborted_transaction_do_not_count(bootstrap: str, topic: str, confluent: Confluent) -> None:
    send_plain(bootstrap, topic, [b"a"])
    transactional = producer(bootstrap, topic)
    consumer = copying_consumer(bootstrap, topic, topic)
    wait_until(lambda: consumer.consume(1, 0.2) != [], TIMEOUT_S, "a record")
    for commits, expected in ((False, OFFSET_INVALID), (True, 1)):
        transactional.begin_transaction()
        transactional.send_offsets_to_transaction(
            [TopicPartition(topic, 0, 1)], consumer.consumer_group_metadata(), TIMEOUT_S
        )
        assert committed(confluent, topic, topic) == OFFSET_INVALID
        if commits:
            transactional.commit_transaction(TIMEOUT_S)
        else:
            transactional.abort_transaction(TIMEOUT_S)
        wait_until(lambda end=expected: committed(confluent, topic, topic) == end, TIMEOUT_S, f"offset {expected}")
    consumer.close()


def test_aiokafka(bootstrap: str, topic: str, confluent: Confluent) -> None:
    async def main() -> list[bytes]:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic) as transactional:
            async with transactional.transaction():
                await transactional.send_and_wait(topic, b"committed", partition=0)
                await transactional.send_offsets_to_transaction({AioPartition(topic, 0): 1}, topic)
            await transactional.begin_transaction()
            await transactional.send_and_wait(topic, b"aborted", partition=0)
            await transactional.abort_transaction()
            async with transactional.transaction():
                await transactional.send_and_wait(topic, b"last", partition=0)
            await transactional.begin_transaction()
            await transactional.send_and_wait(topic, b"of a zombie", partition=0)
            async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic):
                with pytest.raises(ProducerFenced):
                    await transactional.commit_transaction()
        values = []
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
        async with consumer:
            consumer.assign([AioPartition(topic, 0)])
            await consumer.seek_to_beginning()
            while values[-1:] != [b"last"]:
                values.append((await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value)
        return values

    assert asyncio.run(main()) == [b"committed", b"last"]
    wait_until(lambda: committed(confluent, topic, topic) == 1, TIMEOUT_S, "the committed offset")


def test_kafka_python(bootstrap: str, topic: str, confluent: Confluent) -> None:
    transactional = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
    transactional.init_transactions()
    for value, commits in ((b"committed", True), (b"aborted", False), (b"last", True)):
        transactional.begin_transaction()
        transactional.send(topic, value, partition=0)
        if commits:
            offsets = {PythonPartition(topic, 0): OffsetAndMetadata(1, "", -1)}
            transactional.send_offsets_to_transaction(offsets, topic)
            transactional.commit_transaction()
        else:
            transactional.abort_transaction()
    transactional.begin_transaction()
    transactional.send(topic, b"of a zombie", partition=0).get(TIMEOUT_S)
    successor = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
    successor.init_transactions()
    with pytest.raises(ProducerFencedError):
        transactional.commit_transaction()
    successor.close()
    transactional.close()
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed", consumer_timeout_ms=90_000)
    partition = PythonPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    values: list[bytes] = []
    for record in consumer:
        values.append(record.value)
        if record.value == b"last":
            break
    consumer.close()
    assert values == [b"committed", b"last"]
    wait_until(lambda: committed(confluent, topic, topic) == 1, TIMEOUT_S, "the committed offset")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_java_copies_once(bootstrap: str, new_topic: NewTopic, confluent: Confluent, protocol: str) -> None:
    """Java's clients speak version 2 of transactions: every transaction has an epoch of its own."""
    require(tools.kafka_tools)
    topic = new_topic(1)
    output = f"copy-{uuid.uuid4().hex}"
    confluent.create_topic(output, 3)
    values = [b"%d" % number for number in range(200)]
    send_plain(bootstrap, topic, values)
    source = str(tools.HERE / "java" / "Copier.java")
    command = tools.java("-Xmx256m", source, bootstrap, topic, output, str(len(values)), protocol)
    copies_once(command, bootstrap, topic, output, values, confluent)


def copies_once(
    command: list[str], bootstrap: str, topic: str, output: str, values: list[bytes], confluent: Confluent
) -> None:
    """Run a program that copies the values from one topic to another, and look at what it has written and committed."""
    tools.succeed(*command, NODE_PATH=str(tools.CACHE / "kafkajs" / "node_modules"))
    await_values(bootstrap, output, 3, values)
    wait_until(lambda: committed(confluent, f"copier-{output}", topic) == len(values), TIMEOUT_S, "the last offset")


@pytest.mark.parametrize("client", ["KafkaJS", "franz-go"])
def test_other_clients_copy_once(bootstrap: str, new_topic: NewTopic, confluent: Confluent, client: str) -> None:
    """KafkaJS speaks old versions, and its members' offsets name no member; franz-go speaks the newest."""
    found = require(tools.TOOLS[client])
    program = ["node", str(tools.HERE / "js" / "copier.js")] if client == "KafkaJS" else [str(found)]
    topic, output = new_topic(1), f"copy-{uuid.uuid4().hex}"
    confluent.create_topic(output, 3)
    values = [b"%d" % number for number in range(200)]
    send_plain(bootstrap, topic, values)
    command = [*program, bootstrap, topic, output, str(len(values))]
    copies_once(command, bootstrap, topic, output, values, confluent)


def test_dump_log_reads_our_transactions(tool: Tool, bootstrap: str, new_topic: NewTopic, data_dir: Path) -> None:
    """The partition with its aborted index and producer snapshot, and what coordinators keep of it."""
    topic = new_topic(1, **{"segment.bytes": "1048576"})
    transactional = producer(bootstrap, topic)
    for commits in (False, True):
        transactional.begin_transaction()
        send(transactional, topic, b"v" * 700_000)
        if commits:
            transactional.commit_transaction(TIMEOUT_S)
        else:
            transactional.abort_transaction(TIMEOUT_S)
    wait_until(lambda: read(bootstrap, topic) != [], TIMEOUT_S, "the end of the transactions")

    def dump(pattern: str, *options: str) -> str:
        files = ",".join(map(str, sorted(found_files(data_dir, pattern))))
        dumped = tool("org.apache.kafka.tools.DumpLogSegments", "--files", files, *options, server=False)
        assert "isvalid: false" not in dumped
        assert "Could not" not in dumped
        return dumped

    own = dump(f"*/{topic}-0/*[0-9].[lts][onx]*", "--deep-iteration")
    assert re.findall(r"endTxnMarker: (\w+) coordinatorEpoch", own) == ["ABORT", "COMMIT"]
    assert re.search(r"producerId: \d+ firstOffset: 0 lastOffset: 1 lastStableOffset: 2", own), "the aborted index"
    assert re.search(r"producerId: \d+ producerEpoch: 0 coordinatorEpoch: 0 currentTxnFirstOffset: ", own), "a snapshot"
    state = dump("*/__transaction_state-*/*.log", "--transaction-log-decoder")
    ours = [line for line in state.splitlines() if f'"transactionalId":"{topic}"' in line]
    empty, ongoing, prepare_commit, prepare_abort, complete_commit, complete_abort = "012345"
    assert re.findall(r'"transactionStatus":(\d)', "\n".join(ours)) == [
        empty, ongoing, prepare_abort, complete_abort, ongoing, prepare_commit, complete_commit
    ]  # fmt: skip


def test_kafkas_tool_shows_and_aborts_transactions(tool: Tool, bootstrap: str, topic: str) -> None:
    hanging = producer(bootstrap, topic, **{"transaction.timeout.ms": 600_000})
    hanging.begin_transaction()
    send(hanging, topic, b"hangs")

    def transactions(*arguments: str) -> str:
        return tool("org.apache.kafka.tools.TransactionsCommand", *arguments)

    assert [line.split()[3] for line in transactions("list").splitlines() if line.startswith(topic)] == ["Ongoing"]
    assert f"{topic}-0" in transactions("describe", "--transactional-id", topic)
    assert len(transactions("describe-producers", "--topic", topic, "--partition", "0").split()) == 12
    transactions("abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    plain = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    plain.produce(topic, b"after", partition=0)
    assert plain.flush(TIMEOUT_S) == 0
    assert read(bootstrap, topic) == [b"after"]
