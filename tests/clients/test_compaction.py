"""A compacted topic through clients that rayka did not write: gaps, tombstones, transactions, all codecs."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from benchmarks.brokers import Kafka
from rayka.config import LogConfig
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import iter_headers
from rayka.storage.format.isolation import iter_visible
from rayka.storage.format.records import read_batch
from rayka.storage.segments.reader import SegmentReader
from rayka.testing import BrokerProcess, wait_until
from rayka.types import TopicPartition
from tests.clients import tools
from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.kcat import Kcat
from tests.clients.conftest import Tool, require
from tests.clients.record import CODECS
from tests.support.found_files import found_files

KEYS = 50
ROUNDS = 400
SETTINGS = ("log.cleaner.backoff.ms=100", "log.flush.scheduler.interval.ms=100")
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "100",
    "index.interval.bytes": "1000",
}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compaction")


@pytest.fixture(scope="module")
def broker(data_dir: Path) -> Iterator[BrokerProcess]:
    """A broker that looks for dirty logs often; the last test stops it."""
    with BrokerProcess(data_dir, SETTINGS) as started:
        yield started


@pytest.fixture(scope="module")
def bootstrap(broker: BrokerProcess) -> str:
    """Its address."""
    return broker.bootstrap


@pytest.fixture(scope="module")
def compacted(bootstrap: str, data_dir: Path) -> str:
    """A topic in which each key was written again and again with each codec, the even ones deleted at last."""
    topic = "compacted"
    confluent = Confluent(bootstrap)
    confluent.create_topic(topic, 1, CONFIGS)
    for codec in CODECS:
        _write(bootstrap, topic, [(b"%d" % key, _value(codec, key)) for _ in range(ROUNDS // 5) for key in range(KEYS)],
               {"compression.type": codec})  # fmt: skip
    _write(bootstrap, topic, [(b"%d" % key, None) for key in range(0, KEYS, 2)])
    _write_transaction(bootstrap, topic, b"aborted", is_committed=False)
    _write_transaction(bootstrap, topic, b"committed", is_committed=True)
    _write(bootstrap, topic, [(b"filler", bytes(1000))] * 2200)  # closes the segment with all of that
    wait_until(lambda: _is_clean(data_dir, topic), 120, "all closed segments are compacted")
    return topic


def _is_clean(data_dir: Path, topic: str) -> bool:
    """Whether the checkpoint of the cleaner is at the active segment."""
    (folder,) = {path.parent for path in found_files(data_dir, f"*/{topic}-0/*.log")}
    active = max(int(file.stem) for file in folder.glob("*.log"))
    checkpoint = folder.parent / "cleaner-offset-checkpoint"
    return checkpoint.exists() and f"{topic} 0 {active}\n" in checkpoint.read_text()


def _value(codec: str, key: int) -> bytes:
    return f"{codec} {key} ".encode() * 20


def _write(bootstrap: str, topic: str, records: list[tuple[bytes, bytes | None]], configs: Any = None) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "batch.num.messages": 70}
        | (configs or {})
    )
    for key, value in records:
        producer.produce(topic, value, key)
    assert producer.flush(120) == 0


def _write_transaction(bootstrap: str, topic: str, value: bytes, *, is_committed: bool) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "compaction"})
    producer.init_transactions(90)
    producer.begin_transaction()
    for key in range(1, 9, 2):
        producer.produce(topic, value, b"%d" % key)
    producer.flush(90)
    producer.commit_transaction(90) if is_committed else producer.abort_transaction(90)


def _read(bootstrap: str, topic: str) -> list[tuple[int, bytes, bytes | None]]:
    """Every committed record, by confluent-kafka."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True}
        | {"enable.auto.commit": False, "isolation.level": "read_committed"}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    found = []
    while True:
        message = consumer.poll(90)
        assert message is not None
        if message.error():
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            consumer.close()
            return found
        found.append((message.offset(), message.key(), message.value()))


def _expected() -> dict[bytes, bytes | None]:
    """The last committed value of each key."""
    last: dict[bytes, bytes | None] = {b"%d" % key: _value(CODECS[-1], key) for key in range(1, KEYS, 2)}
    last |= {b"%d" % key: None for key in range(0, KEYS, 2)}
    return last | {b"%d" % key: b"committed" for key in range(1, 9, 2)} | {b"filler": bytes(1000)}


def test_confluent_kafka_reads_the_last_value_of_each_key(bootstrap: str, compacted: str) -> None:
    records = _read(bootstrap, compacted)
    assert {key: value for _, key, value in records} == _expected()
    offsets = [offset for offset, _, _ in records]
    assert offsets == sorted(offsets)
    assert offsets[0] > KEYS, "there are gaps"
    assert b"aborted" not in {value for _, _, value in records}
    low, high = Confluent(bootstrap).offsets(compacted)
    assert low == 0
    assert high > len(CODECS) * KEYS * ROUNDS // 5


def test_kcat_reads_from_within_a_gap(bootstrap: str, compacted: str) -> None:
    kcat: Kcat = require(lambda: Kcat(bootstrap))
    offsets = [offset for offset, _, _ in _read(bootstrap, compacted)]
    in_a_gap = next(one + 1 for one, two in itertools.pairwise(offsets) if two > one + 1)
    for start in (0, in_a_gap):
        lines = kcat.run("-C", "-q", "-e", "-J", "-t", compacted, "-p", "0", "-o", str(start)).splitlines()
        assert [json.loads(line)["offset"] for line in lines] == [offset for offset in offsets if offset >= start]


def test_java_reads_the_last_value_of_each_key(tool: Tool, bootstrap: str, compacted: str) -> None:
    expected = [offset for offset, _, _ in _read(bootstrap, compacted)]
    shown = tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--topic", compacted, "--partition", "0", "--offset", "earliest", "--max-messages", str(len(expected)),
        "--timeout-ms", "90000", "--isolation-level", "read_committed",
        "--formatter-property", "print.offset=true", "--formatter-property", "print.value=false",
    )  # fmt: skip
    assert [int(offset) for offset in re.findall(r"^Offset:(\d+)", shown, re.MULTILINE)] == expected


@pytest.fixture(scope="module")
def plain(bootstrap: str) -> str:
    """A topic with records of every codec, and an aborted transaction."""
    topic = "plain"
    Confluent(bootstrap).create_topic(topic, 1, {"index.interval.bytes": "100"})
    for codec in CODECS:
        _write(bootstrap, topic, [(b"%d" % key, _value(codec, key)) for key in range(500)], {"compression.type": codec})
    _write_transaction(bootstrap, topic, b"aborted", is_committed=False)
    _write_transaction(bootstrap, topic, b"committed", is_committed=True)
    return topic


def test_dump_log_reads_our_compacted_segments(tool: Tool, compacted: str, data_dir: Path) -> None:
    (folder,) = {path.parent for path in found_files(data_dir, f"*/{compacted}-0/*.log")}
    closed = sorted(folder.glob("*.log"))[:-1]
    files = [str(file.with_suffix(suffix)) for file in closed for suffix in (".log", ".index", ".timeindex")]
    options = ("--files", ",".join(files), "--deep-iteration", "--print-data-log")
    dumped = tool("org.apache.kafka.tools.DumpLogSegments", *options, server=False)
    assert "isvalid: false" not in dumped
    assert "deleteHorizonMs: OptionalLong[" in dumped, "tombstones wait for their time"
    for complaint in ("Mismatches in", "Found timestamp mismatch", "Found out of order", "Could not"):
        assert complaint not in dumped


def test_a_kafka_server_goes_on_with_our_directory_and_rayka_with_its(
    broker: BrokerProcess, compacted: str, plain: str, data_dir: Path, tmp_path: Path
) -> None:
    require(tools.kafka_tools)
    kafka = Kafka(tmp_path / "kafka")
    with kafka:
        for topic in (compacted, plain):
            Confluent(kafka.bootstrap).create_topic(topic, 1, CONFIGS if topic == compacted else {})
    ours = {topic: _read(broker.bootstrap, topic) for topic in (compacted, plain)}
    broker.stop()
    for topic in ours:
        (folder,) = {path.parent for path in found_files(data_dir, f"*/{topic}-0/*.log")}
        _hand_over(folder, tmp_path / "kafka" / "data")

    with kafka:
        theirs = {topic: _read(kafka.bootstrap, topic) for topic in ours}
        for topic in ours:
            # its producer ids begin at 0 once more, and it knows those of our logs
            _write(kafka.bootstrap, topic, [(b"more", b"by Kafka")], {"enable.idempotence": False})
        longer = {topic: _read(kafka.bootstrap, topic) for topic in ours}

    assert theirs == ours
    for topic, records in longer.items():
        assert records[: len(ours[topic])] == ours[topic]
        assert [record[1:] for record in records[len(ours[topic]) :]] == [(b"more", b"by Kafka")]
        assert _in_log(tmp_path / "kafka" / "data" / f"{topic}-0") == records


def _hand_over(folder: Path, kafka_data: Path) -> None:
    """Put a partition's directory in the place of Kafka's, as the topic that Kafka's metadata names.

    Of the checkpoints Kafka gets the entry of the partition. Its metadata is all that can't come from our directory.
    """
    theirs = kafka_data / folder.name
    identity = (theirs / "partition.metadata").read_text()
    shutil.rmtree(theirs)
    shutil.copytree(folder, theirs)
    (theirs / "partition.metadata").write_text(identity)
    prefix = folder.name.rpartition("-")[0] + " 0 "
    for name in ("recovery-point", "log-start", "replication", "cleaner"):
        file = f"{name}-offset-checkpoint"
        entries = [line for line in _entries(kafka_data / file) if not line.startswith(prefix)]
        entries += [line for line in _entries(folder.parent / file) if line.startswith(prefix)]
        (kafka_data / file).write_text("".join(f"{line}\n" for line in ("0", str(len(entries)), *entries)))


def _entries(checkpoint: Path) -> list[str]:
    return checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []


def _in_log(folder: Path) -> list[tuple[int, bytes, bytes | None]]:
    """Every committed record of a directory, as rayka's own log reads it."""
    directory = LogDirectory.open(str(folder.parent), RealFiles(), now_ms=0)
    topic_partition = TopicPartition(folder.name.rpartition("-")[0], 0)
    log = directory.open_log(topic_partition, None, LogConfig(retention_ms=-1), now_ms=0)
    log.update_high_watermark(log.log_end_offset)
    found, offset = [], 0
    while (file_slice := log.read(offset, 1 << 20, log.last_stable_offset)) is not None:
        data, aborted = SegmentReader().read(file_slice), log.aborted_transactions(offset, file_slice)
        headers = list(iter_headers(data))
        for position, header in iter_visible(data, headers, aborted):
            found += [(each.offset, each.key or b"", each.value) for each in read_batch(data, position, header)]
        offset = headers[-1][1].next_offset
    directory.close([log], now_ms=0)
    return found
