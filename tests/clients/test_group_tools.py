"""Kafka's own tools and formatters on groups, and offsets that clients leave for one another."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from kafka import KafkaConsumer, OffsetAndMetadata
from kafka import TopicPartition as KafkaPythonPartition

from rayka.testing import wait_until
from tests.clients.adapters.confluent import Confluent
from tests.clients.conftest import Tool, unique
from tests.clients.members.process import members
from tests.clients.record import Record
from tests.support.found_files import found_files

TOOLS = "org.apache.kafka.tools."
GROUPS = TOOLS + "consumer.group.ConsumerGroupCommand"
TIMEOUT_S = 90.0


@pytest.fixture
def group_id(request: pytest.FixtureRequest) -> str:
    return unique(request.node.name)


def wait_for_members(confluent: Confluent, group_id: str, count: int) -> None:
    """Until the classic group is stable with so many members."""

    def settled() -> bool:
        group = confluent.admin.describe_consumer_groups([group_id])[group_id].result(TIMEOUT_S)
        return group.state.name == "STABLE" and len(group.members) == count

    wait_until(settled, TIMEOUT_S, f"{count} members in {group_id}")


def test_commits_with_metadata_are_seen_by_every_client(
    confluent: Confluent, tool: Tool, bootstrap: str, group_id: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    confluent.produce(topic, [Record(None, b"v")] * 10)
    writer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=group_id, enable_auto_commit=False)
    places = [KafkaPythonPartition(topic, number) for number in range(2)]
    writer.assign(places)
    writer.commit({places[0]: OffsetAndMetadata(4, "größe €", -1), places[1]: OffsetAndMetadata(0, "", -1)})
    writer.close()

    reader = confluent.consumer(**{"group.id": group_id})
    (seen,) = reader.committed([TopicPartition(topic, 0)], TIMEOUT_S)
    reader.close()
    described = tool(GROUPS, "--group", group_id, "--describe", "--offsets")

    assert (seen.offset, seen.metadata) == (4, "größe €")
    rows = {
        int(row[0]): [int(number) for number in row[1:]]
        for row in re.findall(rf"{re.escape(topic)}\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)", described)
    }
    assert rows == {0: [4, 10, 6], 1: [0, 0, 0]}


def test_a_group_continues_from_its_committed_offsets(
    confluent: Confluent, bootstrap: str, group_id: str, topic: str
) -> None:
    with members(bootstrap) as group:
        for number, kind in enumerate(["confluent-kafka", "aiokafka", "kafka-python", "confluent-kafka-consumer"]):
            values = [b"%d-%d" % (number, index) for index in range(100)]
            confluent.produce(topic, [Record(None, value) for value in values])
            member = group.start(kind, group_id, topic)
            wait_until(
                lambda member=member, values=values: len(member.values) >= len(values), TIMEOUT_S, f"{kind} reads"
            )
            member.leave()
            assert member.values == values, kind


def test_consumer_groups_command(
    confluent: Confluent, tool: Tool, bootstrap: str, group_id: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    confluent.produce(topic, [Record(None, b"%d" % number) for number in range(10)])
    with members(bootstrap) as group:
        group.start("confluent-kafka", group_id, topic)
        group.start("confluent-kafka", group_id, topic)
        wait_for_members(confluent, group_id, 2)
        wait_until(lambda: len(group.values()) == 10, TIMEOUT_S, "all records")
        state = tool(GROUPS, "--describe", "--group", group_id, "--state")
        listed = tool(GROUPS, "--describe", "--group", group_id, "--members", "--verbose")
        for member in group.all:
            member.leave()
    assert re.search(rf"{re.escape(group_id)}\s+.*roundrobin\s+Stable\s+.*2\s*$", state, re.MULTILINE)
    assert len(re.findall(rf"rdkafka-\S+\s+/127\.0\.0\.1\s+rdkafka\s+.*1\s.*{re.escape(topic)}", listed)) == 2

    assert re.search(rf"{re.escape(group_id)}\s+Empty", tool(GROUPS, "--list", "--state", "Empty"))
    reset = ["--reset-offsets", "--group", group_id, "--topic", topic, "--execute"]
    assert re.search(rf"{re.escape(topic)}\s+0\s+3\b", tool(GROUPS, *reset, "--to-offset", "3"))
    moved = tool(GROUPS, *reset, "--shift-by", "2")
    assert re.search(rf"{re.escape(topic)}\s+0\s+5\b", moved)
    deleted = tool(GROUPS, "--delete-offsets", "--group", group_id, "--topic", f"{topic}:1")
    assert re.search(rf"{re.escape(topic)}\s+1\s+Successful", deleted)
    assert "successful" in tool(GROUPS, "--delete", "--group", group_id)
    assert group_id not in tool(GROUPS, "--list")


def test_consumer_groups_command_on_a_group_of_the_consumer_protocol(
    confluent: Confluent, tool: Tool, bootstrap: str, group_id: str, topic: str
) -> None:
    confluent.produce(topic, [Record(None, b"v")] * 3)
    with members(bootstrap) as group:
        member = group.start("confluent-kafka-consumer", group_id, topic)
        wait_until(lambda: len(member.values) == 3, TIMEOUT_S, "all records")
        state = tool(GROUPS, "--describe", "--group", group_id, "--state", "--verbose")
        shown = tool(GROUPS, "--describe", "--group", group_id, "--members", "--verbose")
        kinds = tool(GROUPS, "--list", "--type", "consumer")
        member.leave()

    assert re.search(rf"{re.escape(group_id)}\s+.*uniform\s+Stable\s", state)
    assert re.search(rf"{re.escape(group_id)}\s+\S+\s+.*/127\.0\.0\.1\s+rdkafka\s", shown)
    assert re.search(rf"{re.escape(group_id)}\s+Consumer", kinds)


def test_group_configs(tool: Tool, group_id: str) -> None:
    entity = ["--entity-type", "groups", "--entity-name", group_id]

    tool("kafka.admin.ConfigCommand", *entity, "--alter", "--add-config", "consumer.session.timeout.ms=50000")

    assert "consumer.session.timeout.ms=50000" in tool("kafka.admin.ConfigCommand", *entity, "--describe")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consumer_performance(tool: Tool, topic: str, confluent: Confluent, group_id: str, protocol: str) -> None:
    confluent.produce(topic, [Record(None, b"x" * 100)] * 20_000)

    said = tool(
        TOOLS + "ConsumerPerformance", "--topic", topic, "--group", group_id, "--num-records", "20000",
        "--timeout", "90000", "--command-property", f"group.protocol={protocol}",
    )  # fmt: skip

    heads, figures = (line.split(", ") for line in said.splitlines())
    assert dict(zip(heads, figures, strict=True))["data.consumed.in.nMsg"] == "20000"


def test_end_to_end_latency(tool: Tool, topic: str, bootstrap: str) -> None:
    said = tool(
        TOOLS + "EndToEndLatency", "--bootstrap-server", bootstrap, "--topic", topic, "--num-records", "200",
        "--producer-acks", "all", "--record-size", "100", server=False,
    )  # fmt: skip

    assert "Percentiles" in said


def test_formatters_read_our_offsets_topic(
    confluent: Confluent, tool: Tool, bootstrap: str, group_id: str, topic: str, data_dir: Path
) -> None:
    confluent.produce(topic, [Record(None, b"v")] * 3)
    with members(bootstrap) as group:
        for kind in ("confluent-kafka", "confluent-kafka-consumer"):
            member = group.start(kind, f"{group_id}-{kind}", topic)
            wait_until(lambda member=member: len(member.values) == 3, TIMEOUT_S, f"{kind} reads")
            member.leave()
    files = sorted(found_files(data_dir, "*/__consumer_offsets-*/*.log"))

    dumped = tool(
        TOOLS + "DumpLogSegments", "--files", ",".join(map(str, files)), "--offsets-decoder", server=False
    )  # fmt: skip

    for kind in ("confluent-kafka", "confluent-kafka-consumer"):
        key = rf'"group":"{re.escape(group_id)}-{kind}","topic":"{re.escape(topic)}","partition":0'
        assert re.search(key + r'.*payload: .*"offset":3,', dumped), kind
    assert re.search(rf'"group":"{re.escape(group_id)}-confluent-kafka"\}}.*"protocolType":"consumer"', dumped)
    assert re.search(rf'"groupId":"{re.escape(group_id)}-confluent-kafka-consumer".*"epoch":', dumped)
    assert "Could not" not in dumped
    assert "isvalid: false" not in dumped


@pytest.mark.parametrize("formatter", ["OffsetsMessageFormatter", "GroupMetadataMessageFormatter"])
def test_console_consumer_formats_our_offsets_topic(
    confluent: Confluent, tool: Tool, bootstrap: str, group_id: str, topic: str, formatter: str
) -> None:
    confluent.produce(topic, [Record(None, b"v")] * 3)
    with members(bootstrap) as group:
        member = group.start("confluent-kafka", group_id, topic)
        wait_until(lambda: len(member.values) == 3, TIMEOUT_S, "all records")
        member.leave()

    def shown(silence_ms: int) -> str:
        """What the topic has; the tool ends when nothing has come for so long, also while it joins its group."""
        return tool(
            TOOLS + "consumer.ConsoleConsumer", "--topic", "__consumer_offsets", "--from-beginning",
            "--timeout-ms", str(silence_ms), "--formatter", f"org.apache.kafka.tools.consumer.{formatter}",
        )  # fmt: skip

    assert any(group_id in shown(silence_ms) for silence_ms in (3_000, 60_000))
