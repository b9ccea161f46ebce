"""`rayka transactions` beside producers of librdkafka, and a transaction that no coordinator knows."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import pytest
from confluent_kafka import Producer

from rayka.client.kafka.cluster import KafkaCluster
from rayka.client.kafka.connection import entity
from rayka.testing import BrokerProcess, wait_until
from tests.clients.test_transactions import read
from tests.integration.conftest import Cli
from tests.support.logs import batch

TIMEOUT_S = 90.0


@pytest.fixture
def topic(cli: Cli) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    cli(0, "topics", "create", name, "--partitions", "2")
    return name


def begin(broker: BrokerProcess, topic: str, transactional_id: str) -> Producer:
    """A producer with an open transaction of one record in each partition."""
    settings = {"transactional.id": transactional_id, "transaction.timeout.ms": 600_000}
    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for partition in range(2):
        producer.produce(topic, b"v", partition=partition)
    assert producer.flush(TIMEOUT_S) == 0
    return producer


def test_an_open_transaction_is_shown_with_its_partitions(broker: BrokerProcess, cli: Cli, topic: str) -> None:
    name = f"{topic}-copier"
    producer = begin(broker, topic, name)
    (row,) = cli(0, "transactions", "list", "--pattern", f"{topic}-.*", "--state", "Ongoing").rows()
    assert (row[0], row[-1]) == (name, "Ongoing")
    assert cli(0, "transactions", "list", "--state", "Ongoing", "--longer-than", "3600").out == ""
    assert "Ongoing" in cli(0, "transactions", "describe", name).out
    (found,) = cli(0, "transactions", "describe", name, "--json").json()
    assert (found["state"], found["partitions"]) == ("Ongoing", [[topic, 0], [topic, 1]])
    assert 0 <= time.time() * 1000 - found["start_ms"] < 600_000
    assert [row[-1] for row in cli(0, "transactions", "describe", "--topic", topic, "--open").rows()] == ["0", "0"]
    producer.commit_transaction(TIMEOUT_S)

    def state() -> str:
        (listed,) = cli(0, "transactions", "list", "--pattern", name, "--json").json()
        return str(listed["state"])

    wait_until(lambda: state() == "CompleteCommit", TIMEOUT_S, "the end of the transaction")
    assert "open for:         -" in cli(0, "transactions", "describe", name).out
    assert cli(0, "transactions", "describe", "--topic", topic, "--open").out == ""
    assert len(cli(0, "transactions", "describe", "--topic", f"{topic}:1", "--json").json()) == 1


def leave_hanging(broker: BrokerProcess, topic: str) -> int:
    """Begin a transaction in partition 0 that no coordinator knows, as old clients could; returns the producer id."""
    from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
    from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData

    with KafkaCluster(broker.bootstrap) as cluster:
        new_id = entity(InitProducerIdRequest, None, timedelta(seconds=60), -1, -1)
        producer_id: int = cluster.any_broker().request(new_id).producer_id
        records = batch(b"hangs", producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)
        topic_data = entity(TopicProduceData, topic, (entity(PartitionProduceData, 0, bytes(records)),))
        request = entity(ProduceRequest, "forgotten", -1, timedelta(seconds=30), (topic_data,))

        def is_written() -> bool:
            """The setting that lets this through may not be everywhere yet."""
            return cluster.any_broker().request(request).responses[0].partition_responses[0].error_code == 0

        wait_until(is_written, TIMEOUT_S, "a transaction without a coordinator")
    return producer_id


def test_a_hanging_transaction_is_found_and_aborted(broker: BrokerProcess, cli: Cli, topic: str) -> None:
    verification = "transaction.partition.verification.enable"
    cli(0, "configs", "set", "--all-brokers", f"{verification}=false")
    producer_id = leave_hanging(broker, topic)
    cli(0, "configs", "set", "--all-brokers", f"{verification}=true")
    assert cli(0, "transactions", "hanging", "--topic", topic).out == "", "it is younger than a quarter of an hour"
    find = ("transactions", "hanging", "--max-transaction-timeout", "0")
    (found,) = cli(0, *find, "--json").json()
    assert (found["topic"], found["partition"], found["producer_id"]) == (topic, 0, producer_id)
    assert read(broker.bootstrap, topic, 2) == []
    table, _, hint = cli(0, *find).out.partition("\n\n")
    assert topic in table
    cli(0, *hint.split()[1:], "--yes")
    assert cli(0, *find).out == ""
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    plain.produce(topic, b"after", partition=0)
    assert plain.flush(TIMEOUT_S) == 0
    assert read(broker.bootstrap, topic, 2) == [b"after"]


def test_a_transaction_that_a_coordinator_knows_does_not_hang(broker: BrokerProcess, cli: Cli, topic: str) -> None:
    producer = begin(broker, topic, f"{topic}-known")
    wait = ("--max-transaction-timeout", "0")
    assert cli(0, "transactions", "hanging", "--topic", topic, *wait).out == ""
    producer.abort_transaction(TIMEOUT_S)


def test_wrong_uses_are_explained(cli: Cli, topic: str) -> None:
    assert "transactional ids, or --topic" in cli(2, "transactions", "describe").err
    assert "TRANSACTIONAL_ID_NOT_FOUND" in cli(3, "transactions", "describe", "missing").err
    assert "does not exist" in cli(3, "transactions", "describe", "--topic", "missing").err
    assert "'Ongoin' is not known: use Empty, Ongoing," in cli(2, "transactions", "list", "--state", "Ongoin").err
    assert "(pattern '[')" in cli(1, "transactions", "list", "--pattern", "[").err
    assert "not both" in cli(2, "transactions", "describe", "some-id", "--topic", topic).err
    assert "--open needs --topic" in cli(2, "transactions", "describe", "some-id", "--open").err
    assert f"no open transaction in {topic}" in cli(0, "transactions", "describe", "--topic", topic, "--open").err
    nothing = cli(3, "transactions", "abort", "--topic", topic, "--partition", "0", "--start-offset", "7", "--yes")
    assert "begins at offset 7" in nothing.err
