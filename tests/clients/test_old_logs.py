"""Partitions that Apache Kafka 0.10 wrote, under a broker of today: read by clients, and by Kafka's own dump tool."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from rayka.testing import BrokerProcess
from tests.clients import tools
from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.old import OldConfluent
from tests.clients.conftest import require
from tests.support.found_files import found_files
from tests.support.logs import NOW_MS, open_log

DATA = Path(__file__).parents[1] / "data" / "kafka-0.10-log"
START_MS = 1_450_000_000_000
TOPICS = ("magic0", "magic1", "appendtime")


@pytest.mark.parametrize("topic", [*TOPICS, "compacted"])
def test_kafkas_dump_tool_reads_converted_logs(topic: str, tmp_path: Path) -> None:
    require(tools.kafka_tools)
    directory = tmp_path / f"{topic}-0"
    shutil.copytree(DATA / f"{topic}-0", directory)
    open_log(directory, clean_shutdown=True, retention_ms=-1, index_interval_bytes=1000).close(NOW_MS)
    files = [str(path) for suffix in ("log", "index", "timeindex") for path in sorted(directory.glob(f"*.{suffix}"))]

    dumped = dump(files, "--deep-iteration")

    assert "isvalid: false" not in dumped
    assert set(re.findall(r" magic: (\d)", dumped)) == {"2"}
    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+)", dumped, re.MULTILINE)]
    assert offsets == (list(range(400)) if topic in TOPICS else [*offsets[:25], *range(210, 240)])
    for complaint in ("Mismatches in", "Found timestamp mismatch", "Found out of order", "Could not"):
        assert complaint not in dumped
    checked = dump([file for file in files if not file.endswith(".log")], "--index-sanity-check")
    assert "passed sanity check" in checked


def dump(files: list[str], *options: str) -> str:
    command = tools.java("-Xmx256m", "org.apache.kafka.tools.DumpLogSegments", "--files", ",".join(files), *options)
    return tools.succeed(*command)


def test_a_broker_serves_partitions_of_an_old_kafka(tmp_path: Path) -> None:
    """The topics are created, and their directories replaced while the broker is down."""
    broker = BrokerProcess(tmp_path / "data", ("log.retention.ms=-1",))
    with broker:
        for topic in TOPICS:
            Confluent(broker.bootstrap).create_topic(topic)
    for topic in TOPICS:
        (directory,) = {path.parent for path in found_files(tmp_path / "data", f"*/{topic}-0/*.log")}
        for path in directory.iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        for path in (DATA / f"{topic}-0").iterdir():
            shutil.copy(path, directory)
    with broker:
        for client in (Confluent(broker.bootstrap), OldConfluent(broker.bootstrap, "0.10.2")):
            for topic in TOPICS:
                records = client.fetch(topic, count=400)
                assert [record.offset for record in records] == list(range(400))
                assert [record.value for record in records] == [value(offset) for offset in range(400)]
                if topic == "magic1":
                    assert records[123].timestamp == START_MS + 1_023
                assert client.offsets(topic) == (0, 400)


def value(offset: int) -> bytes | None:
    """See the README of the files."""
    index = offset % 100
    return b"value-%d " % (1000 * (offset // 100) + index) * 20 if index % 7 else None
