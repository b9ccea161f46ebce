"""`rayka groups` beside groups of a Kafka client, live and left behind."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from rayka.testing import BrokerProcess, wait_until
from tests.integration.conftest import Cli

JOIN_TIMEOUT_S = 90.0
FIRST_MS = 1_600_000_000_000


@pytest.fixture
def topic(broker: BrokerProcess, cli: Cli) -> str:
    """Two partitions: ten records a second apart in the first, five in the second."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    cli(0, "topics", "create", name, "--partitions", "2")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for partition, count in ((0, 10), (1, 5)):
        for number in range(count):
            producer.produce(name, b"v", partition=partition, timestamp=FIRST_MS + number * 1000)
    assert producer.flush(90) == 0
    return name


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


def settings(broker: BrokerProcess, group: str, protocol: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "client.id": "reader",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }


@contextmanager
def member(broker: BrokerProcess, group: str, topic: str, protocol: str = "classic") -> Iterator[Consumer]:
    """A member that has been assigned the whole topic, and has said so to its group."""
    consumer = Consumer(settings(broker, group, protocol))
    consumer.subscribe([topic])

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def assigned() -> bool:
        consumer.poll(0.1)
        described = admin.describe_consumer_groups([group])[group].result(JOIN_TIMEOUT_S)
        return len(consumer.assignment()) == 2 and described.state.name == "STABLE"

    try:
        wait_until(assigned, JOIN_TIMEOUT_S, f"a member of {group} is assigned {topic}")
        yield consumer
    finally:
        consumer.close()


def commit(broker: BrokerProcess, group: str, topic: str, *offsets: int) -> None:
    """Commit from outside, which leaves a group without members."""
    consumer = Consumer(settings(broker, group, "classic"))
    places = [TopicPartition(topic, partition, offset) for partition, offset in enumerate(offsets)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def committed(broker: BrokerProcess, group: str, topic: str) -> list[int]:
    consumer = Consumer(settings(broker, group, "classic"))
    found = consumer.committed([TopicPartition(topic, partition) for partition in range(2)], JOIN_TIMEOUT_S)
    consumer.close()
    return [place.offset for place in found]


@pytest.mark.parametrize(("protocol", "kind"), [("classic", "Classic"), ("consumer", "Consumer")])
def test_a_live_group_is_described_and_left_alone(
    broker: BrokerProcess, cli: Cli, topic: str, group: str, protocol: str, kind: str
) -> None:
    with member(broker, group, topic, protocol) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
        rows = cli(0, "groups", "describe", group).rows()
        assert [row[:6] for row in rows] == [
            [group, topic, "0", "4", "10", "6"],
            [group, topic, "1", "-", "5", "-"],
        ]
        assert {row[8] for row in rows} == {"reader"}
        assert all("127.0.0.1" in row[7] for row in rows)
        (described,) = cli(0, "groups", "describe", group, "--json").json()
        assert (described["type"], described["state"]) == (kind, "Stable")
        assert [one["consumer_id"] for one in described["offsets"]] == [rows[0][6], rows[1][6]]
        (seen,) = cli(0, "groups", "describe", group, "--members").rows()
        assert (seen[1], seen[4]) == (rows[0][6], "2")
        (seen,) = cli(0, "groups", "describe", group, "--members", "--verbose").rows()
        assert f"{topic}:0,1" in seen
        assert (seen[5] == "-") is (kind == "Classic")
        (state,) = cli(0, "groups", "describe", group, "--state").rows()
        assert (state[1], state[4], state[5]) == (broker.bootstrap, "Stable", "1")
        assert [group, kind, "Stable"] in cli(0, "groups", "list", "--state", "stable", "--type", kind.lower()).rows()
        assert [group, "Stable"] not in cli(0, "groups", "list", "--state", "empty,dead").rows()
        subscribed = cli(1, "groups", "delete-offsets", group, "--topic", f"{topic}:0")
        assert subscribed.rows() == [[topic, "0", "Error:", "GROUP_SUBSCRIBED_TO_TOPIC"]]
        assert subscribed.err.startswith(f"rayka: members of group {group} still read {topic}, and would commit")

        refused = cli(1, "groups", "reset-offsets", group, "--all-topics", "--to-earliest", "--execute")
        assert refused.err.startswith("rayka: NON_EMPTY_GROUP")
        assert "NON_EMPTY_GROUP" in cli(1, "groups", "delete", group).err
        assert committed(broker, group, topic)[0] == 4


def test_a_group_without_members_is_described_reset_and_deleted(
    broker: BrokerProcess, cli: Cli, topic: str, group: str
) -> None:
    commit(broker, group, topic, 4, 5)
    described = cli(0, "groups", "describe", group)
    assert described.rows() == [
        [group, topic, "0", "4", "10", "6", "-", "-", "-"],
        [group, topic, "1", "5", "5", "0", "-", "-", "-"],
    ]
    assert described.err == f"rayka: group {group} has no members\n"
    assert group in cli(0, "groups", "list").out.splitlines()
    cli(0, "groups", "delete", group)
    assert group not in cli(0, "groups", "list").out.splitlines()
    gone = cli(3, "groups", "describe", group)
    assert gone.err.count("\n") == 1
    assert group in gone.err


@pytest.mark.parametrize(
    ("where", "offsets"),
    [
        (["--to-earliest"], [0, 0]),
        (["--to-latest"], [10, 5]),
        (["--to-offset", "7"], [7, 5]),
        (["--shift-by", "2"], [6, 5]),
        (["--shift-by", "-3"], [1, 1]),
        (["--to-datetime", f"@{FIRST_MS + 2500}"], [3, 3]),
        (["--to-datetime", "2020-09-13T12:26:46Z"], [6, 5]),
        (["--by-duration", "P365D"], [10, 5]),
        (["--to-current"], [4, 4]),
    ],
)
def test_offsets_go_where_a_reset_says(
    broker: BrokerProcess, cli: Cli, topic: str, group: str, where: list[str], offsets: list[int]
) -> None:
    commit(broker, group, topic, 4, 4)
    planned = cli(0, "groups", "reset-offsets", group, "--topic", topic, *where)
    assert planned.rows() == [[group, topic, str(number), str(offset)] for number, offset in enumerate(offsets)]
    assert "nothing was changed" in planned.err
    assert committed(broker, group, topic) == [4, 4]
    done = cli(0, "groups", "reset-offsets", group, "--all-topics", *where, "--execute")
    assert (done.rows(), done.err) == (planned.rows(), "")
    assert committed(broker, group, topic) == offsets


def test_a_new_group_begins_where_a_reset_of_one_partition_says(
    broker: BrokerProcess, cli: Cli, topic: str, group: str
) -> None:
    cli(0, "groups", "reset-offsets", group, "--topic", f"{topic}:0", "--to-offset", "9", "--execute")
    with member(broker, group, topic) as consumer:
        found = {(place.partition, place.offset) for place in consumer.committed(consumer.assignment(), JOIN_TIMEOUT_S)}
    assert found == {(0, 9), (1, -1001)}


def test_wrong_requests_say_what_was_wrong(cli: Cli, topic: str, group: str) -> None:
    for words, code, part in [
        (("describe", group), 3, group),
        (("delete", group), 3, f"can't delete {group}: the group does not exist"),
        (("reset-offsets", group, "--all-topics", "--to-latest"), 3, group),
        (("reset-offsets", group, "--topic", "nothing", "--to-latest"), 3, "nothing"),
        (("reset-offsets", group, "--topic", f"{topic}:7", "--to-latest"), 3, "no partition 7"),
        (("reset-offsets", group, "--topic", f"{topic}:x", "--to-latest"), 2, "TOPIC:N,N"),
        (("reset-offsets", group, "--topic", topic, "--to-datetime", "someday"), 2, "'someday' is neither a time"),
        (("reset-offsets", group, "--topic", topic, "--by-duration", "soon"), 2, "PnDTnHnMnS"),
        (("reset-offsets", group, "--to-latest"), 2, "--all-topics"),
        (("reset-offsets", group, "--from-file", "/no/file"), 2, "cannot read /no/file: No such file or directory\n"),
        (("delete-offsets", group, "--topic", topic), 3, group),
        (("import-offsets", "/no/file"), 2, "cannot read /no/file: No such file or directory\n"),
        (("list", "--state", "busy"), 2, "busy"),
        (("describe", group, "--all-groups"), 2, "not both"),
        (("reset-offsets", group, "--topic", topic, "--shift-by", "1"), 1, "nothing is committed"),
    ]:
        outcome = cli(code, "groups", *words)
        assert part in outcome.err, (words, outcome)
        assert outcome.err.startswith("rayka: ")
        assert outcome.err.count("\n") == 1, outcome.err


def test_the_committed_offsets_of_a_deleted_topic_are_no_obstacle(
    broker: BrokerProcess, cli: Cli, topic: str, group: str
) -> None:
    commit(broker, group, topic, 4, 5)
    cli(0, "topics", "delete", topic)

    def forgotten() -> bool:
        return cli(0, "groups", "describe", group).rows() == []

    wait_until(forgotten, JOIN_TIMEOUT_S, f"offsets of {topic} are gone from {group}")


def test_tree_shows_the_group_at_its_zookeeper_path(broker: BrokerProcess, cli: Cli, topic: str, group: str) -> None:
    with member(broker, group, topic) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
        (described,) = cli(0, "groups", "describe", group, "--json").json()
        (identity,) = [one["consumer_id"] for one in described["members"]]
        nodes = dict(line.split("\t") for line in cli(0, "tree", f"/consumers/{group}").out.splitlines())
        assert {path: json.loads(data) for path, data in nodes.items() if "/ids/" not in path} == {
            f"/consumers/{group}/offsets/{topic}/0": 4,
            f"/consumers/{group}/owners/{topic}/0": identity,
            f"/consumers/{group}/owners/{topic}/1": identity,
        }
        assert f"/consumers/{group}/ids/{identity}" in nodes
    partition = cli(0, "tree", f"/brokers/topics/{topic}/partitions/1").out.split("\t")
    assert partition[0] == f"/brokers/topics/{topic}/partitions/1/state"
    assert json.loads(partition[1])["leader"] == 1
    assert "/nowhere" in cli(3, "tree", "/nowhere").err


def test_a_plan_is_exported_edited_and_carried_out(
    broker: BrokerProcess, cli: Cli, topic: str, group: str, tmp_path: Path
) -> None:
    commit(broker, group, topic, 4, 5)
    exported = cli(0, "groups", "reset-offsets", group, "--all-topics", "--to-current", "--export")
    assert (exported.out, exported.err) == (f"{topic},0,4\n{topic},1,5\n", "")
    plan = tmp_path / "plan.csv"
    plan.write_text(exported.out.replace(",4", ",7").replace("1,5", "1,99"))
    reset = ["groups", "reset-offsets", group, "--from-file", str(plan)]
    assert cli(0, *reset).rows() == [[group, topic, "0", "7"], [group, topic, "1", "5"]]
    assert committed(broker, group, topic) == [4, 5]
    cli(0, *reset, "--execute")
    assert committed(broker, group, topic) == [7, 5]


def test_offsets_are_deleted_one_by_one(broker: BrokerProcess, cli: Cli, topic: str, group: str) -> None:
    commit(broker, group, topic, 4, 5)
    assert cli(0, "groups", "delete-offsets", group, "--topic", f"{topic}:0").rows() == [[topic, "0", "Successful"]]
    assert committed(broker, group, topic) == [-1001, 5]


def test_offsets_are_taken_over_from_zookeeper(
    broker: BrokerProcess, cli: Cli, topic: str, group: str, tmp_path: Path
) -> None:
    export = tmp_path / "offsets"
    other = f"{group}-other"
    lines = [f"/consumers/{group}/offsets/{topic}/0:4", f"/consumers/{group}/offsets/{topic}/0-1:77"]
    export.write_text("\n".join([*lines, f"/consumers/{other}/offsets/{topic}/0:1", ""]))
    planned = cli(0, "groups", "import-offsets", str(export), "--group", group, "--dry-run")
    assert planned.rows() == [[group, topic, "0", "4"], [group, topic, "1", "5"]]
    assert planned.err == "rayka: 1 offsets were beyond the ends of their logs\n"
    assert committed(broker, group, topic) == [-1001, -1001]
    cli(0, "groups", "import-offsets", str(export))
    assert committed(broker, group, topic) == [4, 5]
    assert committed(broker, other, topic) == [1, -1001]
    with member(broker, group, topic):
        assert cli(1, "groups", "import-offsets", str(export)).err.startswith("rayka: NON_EMPTY_GROUP")
    export.write_text(f"/consumers/{group}/offsets/nothing/0:4\n/consumers/{other}/offsets/{topic}/0:9\n")
    assert "nothing" in cli(3, "groups", "import-offsets", str(export)).err
    assert committed(broker, other, topic) == [1, -1001], "nothing is done where something stands in the way"
