"""`rayka share-groups` beside share consumers of librdkafka, live and left behind."""

from __future__ import annotations

import json
import uuid

import pytest
from confluent_kafka import AcknowledgeType, Producer

from rayka.testing import BrokerProcess, wait_until
from tests.integration.conftest import Cli
from tests.support.share_members import TIMEOUT_S, consume, member


@pytest.fixture
def topic(broker: BrokerProcess, cli: Cli) -> str:
    """Two partitions with ten records each."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    cli(0, "topics", "create", name, "--partitions", "2")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(20):
        producer.produce(name, b"v", partition=number % 2)
    assert producer.flush(90) == 0
    return name


@pytest.fixture
def group(cli: Cli) -> str:
    """A group that starts with the first record."""
    name = f"share-{uuid.uuid4().hex[:8]}"
    cli(0, "configs", "set", "--group", name, "share.auto.offset.reset=earliest")
    return name


def lags(cli: Cli, group: str) -> list[str]:
    """How many records of each partition are not done."""
    return [row[-1] for row in cli(0, "share-groups", "describe", group).rows()]


def test_a_live_group_is_shown_with_its_members_and_lag(
    broker: BrokerProcess, cli: Cli, group: str, topic: str
) -> None:
    with member(broker.bootstrap, group, topic) as consumer:
        consume(consumer, 20)
        (row,) = cli(0, "share-groups", "describe", group, "--members", "--verbose").rows()
        assert (row[0], row[3], row[4], row[6]) == (group, "worker", "2", f"{topic}:0,1")
        (row,) = cli(0, "share-groups", "describe", group, "--state", "--verbose").rows()
        assert (row[3], row[-1]) == ("Stable", "1")
        wait_until(lambda: lags(cli, group) == ["0", "0"], TIMEOUT_S, "all records are acknowledged")
        refused = cli(1, "share-groups", "reset-offsets", group, "--all-topics", "--to-earliest", "--execute")
        assert "only while it has no members" in refused.err
        assert "NON_EMPTY_GROUP" in cli(1, "share-groups", "delete", group, "--yes").err
    assert group in cli(0, "share-groups", "list").out.split()
    assert [group, "Empty"] in cli(0, "share-groups", "list", "--state").rows()
    assert group not in cli(0, "groups", "list").out.split()
    assert [group, "Share"] in cli(0, "groups", "list", "--type", "share").rows()
    assert "use `rayka share-groups`" in cli(3, "groups", "describe", group).err


def test_records_are_shown_with_their_states_and_deliveries(
    broker: BrokerProcess, cli: Cli, group: str, topic: str
) -> None:
    with member(broker.bootstrap, group, topic, **{"share.acknowledgement.mode": "explicit"}) as consumer:
        seen: set[tuple[int, int]] = set()

        def is_answered() -> bool:
            for message in consumer.poll(0.2) or ():
                at = (message.partition(), message.offset())
                is_first = at == (0, 0) and at not in seen
                seen.add(at)
                kind = AcknowledgeType.RELEASE if is_first else AcknowledgeType.ACCEPT
                consumer.acknowledge(message, kind if at[1] < 5 else AcknowledgeType.REJECT)
            consumer.commit_sync()
            return len(seen) == 20

        wait_until(is_answered, TIMEOUT_S, "all records are answered once")
        (live,) = cli(0, "share-groups", "describe", group, "--in-flight", "--json").json()
        rows = cli(0, "share-groups", "describe", group, "--in-flight").rows()
        assert {row["topic"] for row in live["in_flight"]} <= {topic}
        assert len(rows) == len(live["in_flight"])
        assert {row[5] for row in rows} <= {"Available", "Acquired", "Acknowledged", "Archived"}
    (found,) = cli(0, "share-groups", "describe", group, "--json").json()
    assert (found["group"], found["type"], found["state"], found["members"]) == (group, "Share", "Empty", [])
    assert {(one["topic"], one["partition"]) for one in found["offsets"]} == {(topic, 0), (topic, 1)}
    shown = cli(0, "share-groups", "describe", group, "--records").rows()
    states = {row[5] for row in shown}
    assert states <= {"Available", "Acknowledged", "Archived"}
    assert len(found["batches"]) == len(shown)
    assert json.dumps(found)


def test_offsets_are_reset_only_with_execute(broker: BrokerProcess, cli: Cli, group: str, topic: str) -> None:
    with member(broker.bootstrap, group, topic) as consumer:
        consume(consumer, 20)
    shown = cli(0, "share-groups", "reset-offsets", group, "--all-topics", "--to-offset", "4")
    assert shown.rows() == [[group, topic, "0", "4"], [group, topic, "1", "4"]]
    assert "add --execute" in shown.err
    wait_until(lambda: lags(cli, group) == ["0", "0"], TIMEOUT_S, "all records are acknowledged")
    cli(0, "share-groups", "reset-offsets", group, "--topic", f"{topic}:1", "--to-offset", "4", "--execute")
    assert cli(0, "share-groups", "describe", group).rows()[1] == [group, topic, "1", "4", "6"]
    with member(broker.bootstrap, group, topic) as consumer:
        consume(consumer, 6)
    assert "is a share group: use `rayka share-groups`" in cli(3, "groups", "delete", group, "--yes").err
    moved = cli(3, "groups", "reset-offsets", group, "--topic", topic, "--to-latest")
    assert "is a share group: use `rayka share-groups`" in moved.err
    cli(0, "share-groups", "delete", group, "--yes")
    assert "GROUP_ID_NOT_FOUND" in cli(3, "share-groups", "describe", group).err


def test_wrong_uses_are_explained(cli: Cli) -> None:
    assert "give --topic or --all-topics" in cli(2, "share-groups", "reset-offsets", "g", "--to-earliest").err
    assert "give the new offsets" in cli(2, "share-groups", "reset-offsets", "g", "--all-topics").err
    assert "cannot be used together" in cli(2, "share-groups", "describe", "g", "--members", "--state").err
    assert "GROUP_ID_NOT_FOUND" in cli(3, "share-groups", "delete", "missing", "--yes").err
