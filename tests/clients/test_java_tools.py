"""Apache Kafka's own command line tools, unmodified."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.adapters.confluent import Confluent
from tests.clients.conftest import Tool
from tests.clients.record import CODECS, Record
from tests.support.found_files import found_files

TOOLS = "org.apache.kafka.tools."


def test_topics(tool: Tool, topic_name: str) -> None:
    def topics(*arguments: str) -> str:
        return tool(TOOLS + "TopicCommand", *arguments, "--topic", topic_name)

    created = topics("--create", "--partitions", "3", "--config", "retention.ms=5000", "--config", "segment.ms=60000")
    assert f"Created topic {topic_name}." in created
    topics("--alter", "--partitions", "5")
    described = topics("--describe")
    assert topics("--list").split() == [topic_name]
    topics("--delete")

    assert re.search(r"PartitionCount: 5\s+ReplicationFactor: 1\s+Configs: .*retention\.ms=5000", described)
    leaders = re.findall(r"Partition: (\d+)\s+Leader: (\d+)\s+Replicas: (\d+)\s+Isr: (\d+)", described)
    assert [int(partition) for partition, *_ in leaders] == list(range(5))
    assert all(leader == replica == in_sync for _, leader, replica, in_sync in leaders)


@pytest.mark.parametrize("codec", CODECS)
def test_console_producer_and_consumer(tool: Tool, topic: str, codec: str) -> None:
    properties = ["parse.key=true", "parse.headers=true", "null.marker=NULL"]
    reader = [part for name in properties for part in ("--reader-property", name)]
    lines = ["a:1,b:2\tkey\tvalue", "c:3\tkey\tNULL", "d:4\tNULL\twithout a key"]
    tool(
        TOOLS + "ConsoleProducer", "--topic", topic, "--compression-codec", codec, *reader, stdin="\n".join(lines)
    )  # fmt: skip

    shown = ["print.key=true", "print.headers=true", "print.offset=true", "print.timestamp=true", "null.literal=NULL"]
    formatter = [part for name in shown for part in ("--formatter-property", name)]
    got = tool(
        TOOLS + "consumer.ConsoleConsumer", "--topic", topic, "--partition", "0", "--offset", "earliest",
        "--max-messages", "3", "--timeout-ms", "90000", *formatter,
    )  # fmt: skip

    expected = zip(range(3), lines, strict=True)
    assert [line.split("\t", 1)[1] for line in got.splitlines()] == [f"Offset:{n}\t{line}" for n, line in expected]
    assert all(line.startswith("CreateTime:") for line in got.splitlines())


def test_console_consumer_from_an_offset(tool: Tool, topic: str, confluent: Confluent) -> None:
    confluent.produce(topic, [Record(None, b"%d" % number) for number in range(100)])
    place = ["--topic", topic, "--partition", "0", "--offset", "97"]

    got = tool(TOOLS + "consumer.ConsoleConsumer", *place, "--max-messages", "3", "--timeout-ms", "90000")

    assert got.split() == ["97", "98", "99"]


def test_configs(tool: Tool, topic: str, confluent: Confluent, broker_id: int) -> None:
    def configs(*arguments: str, entity: tuple[str, ...] = ("--entity-type", "topics", "--entity-name", topic)) -> str:
        return tool("kafka.admin.ConfigCommand", *entity, *arguments)

    configs("--alter", "--add-config", "retention.ms=7000,cleanup.policy=[compact,delete]")
    assert confluent.topic_configs(topic)["cleanup.policy"] == "compact,delete"
    described = configs("--describe")
    configs("--alter", "--delete-config", "cleanup.policy")
    broker = configs("--describe", "--all", entity=("--entity-type", "brokers", "--entity-name", str(broker_id)))

    assert "retention.ms=7000" in described
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=7000" in described
    assert confluent.topic_configs(topic)["cleanup.policy"] == "delete"
    assert re.search(r"^\s*num\.partitions=\d+ ", broker, re.MULTILINE)


def test_delete_records(tool: Tool, topic: str, confluent: Confluent, tmp_path: Path) -> None:
    confluent.produce(topic, [Record(None, b"v")] * 10)
    request = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 6}]}
    (tmp_path / "offsets.json").write_text(json.dumps(request))

    said = tool(TOOLS + "DeleteRecordsCommand", "--offset-json-file", str(tmp_path / "offsets.json"))

    assert f"partition: {topic}-0\tlow_watermark: 6" in said
    assert confluent.offsets(topic) == (6, 10)


def test_log_dirs(tool: Tool, topic: str, confluent: Confluent, broker_id: int) -> None:
    confluent.produce(topic, [Record(None, b"x" * 1000)])

    said = tool(TOOLS + "LogDirsCommand", "--describe", "--topic-list", topic)

    (broker,) = json.loads(said.splitlines()[-1])["brokers"]
    assert broker["broker"] == broker_id
    ((partition,),) = (log_dir["partitions"] for log_dir in broker["logDirs"] if log_dir["partitions"])
    assert partition["partition"] == f"{topic}-0"
    assert partition["size"] > 1000
    assert (partition["offsetLag"], partition["isFuture"]) == (0, False)


def test_offsets(tool: Tool, topic: str, confluent: Confluent) -> None:
    confluent.produce(topic, [Record(None, b"v", timestamp=1000 + number) for number in range(5)])

    for time, offset in {"latest": 5, "earliest": 0, "1002": 2, "max-timestamp": 4}.items():
        assert tool(TOOLS + "GetOffsetShell", "--topic", topic, "--time", time).strip() == f"{topic}:0:{offset}"


def test_api_versions(tool: Tool) -> None:
    said = tool(TOOLS + "BrokerApiVersionsCommand")

    for api in ("Produce(0)", "Fetch(1)", "ListOffsets(2)", "Metadata(3)", "CreateTopics(19)", "DescribeCluster(60)"):
        usable = re.search(re.escape(api) + r": .*\[usable: (\d+)\]", said)
        assert usable, f"{api} is not usable:\n{said}"


def test_producer_performance(tool: Tool, topic: str, bootstrap: str, confluent: Confluent) -> None:
    command = ["--topic", topic, "--num-records", "20000", "--record-size", "100", "--throughput", "-1"]

    said = tool(
        TOOLS + "ProducerPerformance", *command, "--command-property", f"bootstrap.servers={bootstrap}", server=False
    )  # fmt: skip

    assert "20000 records sent" in said
    assert confluent.offsets(topic) == (0, 20_000)


def test_verifiable_producer(tool: Tool, topic: str) -> None:
    said = tool(TOOLS + "VerifiableProducer", "--topic", topic, "--max-messages", "50", "--acks", "-1")

    events = [json.loads(line) for line in said.splitlines()]
    acknowledged = [event for event in events if event["name"] == "producer_send_success"]
    assert sorted(event["offset"] for event in acknowledged) == list(range(50))
    assert events[-1]["name"] == "tool_data"
    assert (events[-1]["sent"], events[-1]["acked"]) == (50, 50)


def test_dump_log_reads_our_files(
    tool: Tool, new_topic: Callable[..., str], confluent: Confluent, data_dir: Path
) -> None:
    topic = new_topic(**{"segment.bytes": "1048576", "index.interval.bytes": "1000"})
    for codec in CODECS:
        values = [Record(b"%d" % n, os.urandom(200).hex().encode(), (("h", b"v"),)) for n in range(2000)]
        confluent.produce(topic, values, codec=codec, **{"batch.num.messages": 100})
    (folder,) = {path.parent for path in found_files(data_dir, f"*/{topic}-0/*.log")}
    logs = sorted(folder.glob("*.log"))
    # the index of the active segment may be preallocated while the broker runs
    rolled = [file.with_suffix(suffix) for file in logs[:-1] for suffix in (".log", ".index", ".timeindex")]

    def dump(files: list[Path], *options: str) -> str:
        return tool(TOOLS + "DumpLogSegments", "--files", ",".join(map(str, files)), *options, server=False)

    dumped = dump([*rolled, logs[-1]], "--deep-iteration", "--print-data-log")
    checked = dump(rolled, "--index-sanity-check")

    assert len(logs) > 1
    assert [int(offset) for offset in re.findall(r"^\| offset: (\d+)", dumped, re.MULTILINE)] == list(range(10_000))
    assert "isvalid: false" not in dumped
    assert set(re.findall(r"compresscodec: (\w+)", dumped)) == set(CODECS)
    assert checked.count("passed sanity check") == len(rolled) - len(logs[:-1])
    for complaint in (
        "Mismatches in",
        "Non-consecutive",
        "Found timestamp mismatch",
        "Found out of order",
        "Could not",
    ):
        assert complaint not in dumped
