"""Tiered storage under kills of the leader and failures of the store: every record is read, nothing is left behind."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer, ShareConsumer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient, OffsetSpec

from rayka.storage.remote.metadata_records import decode
from rayka.storage.remote.remote_partition import FINISHED, RemotePartition
from rayka.testing import BrokerProcess, wait_until
from tests.clients import tools
from tests.clients.conftest import require
from tests.faults.load import RECOVERY_S, Writer, check, create_topic, read_all
from tests.support.found_files import found_files
from tests.support.scale import rounds

TOPIC = ConfigResource.Type.TOPIC
METADATA_PARTITIONS = 2
SEGMENT_ID = re.compile(r"-([0-9a-f]{32})\.[a-z-]+(\.part)?$")
TIERED = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": "20000",
    "local.retention.bytes": "40000",
    "file.delete.delay.ms": "0",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that is the remote store."""
    return tmp_path_factory.mktemp("tiered") / "store"


@pytest.fixture(scope="module")
def broker(store: Path) -> Iterator[BrokerProcess]:
    """With work on the remote store every 0.2 seconds."""
    configs = (
        "remote.log.storage.system.enable=true",
        f"rsm.config.url=file://{store}",
        "remote.log.manager.task.interval.ms=200",
        "remote.log.manager.task.retry.backoff.max.ms=1000",
        "log.retention.check.interval.ms=300",
        f"rlmm.config.remote.log.metadata.topic.num.partitions={METADATA_PARTITIONS}",
        "rsm.config.chunk.size=8192",
        "rsm.config.fetch.chunk.cache.size=65536",
        "partition.actors.per.node=2",
    )
    with BrokerProcess(store.parent / "data", configs) as started:
        # long before the group's first fetch: each actor takes in settings in its own time
        alter(started, ConfigResource.Type.GROUP, "sharers", share_auto_offset_reset="earliest")
        yield started


def local_segments(broker: BrokerProcess, topic: str) -> int:
    return len(found_files(broker.data_dir, f"*/{topic}-0/*.log"))


def written(broker: BrokerProcess, topic: str, count: int) -> Writer:
    """A writer that has so many records acknowledged, and goes on."""
    writer = Writer(broker.bootstrap, topic, 1, pace_s=0.0002, name="w" * 100, **{"batch.size": 4_000})
    writer.await_more(count)
    return writer


def await_copied(broker: BrokerProcess, topic: str, segments: int = 1) -> None:
    """Until so many segments, the oldest ones, are in the store alone."""

    def are_copied() -> bool:
        local = min((path.name for path in found_files(broker.data_dir, f"*/{topic}-0/*.log")), default="0")
        copied = sorted(path.name for path in (broker.data_dir.parent / "store").glob(f"{topic}-*/0/*.log"))
        return len([name for name in copied if name[:20] < local[:20]]) >= segments

    wait_until(are_copied, RECOVERY_S, f"{segments} segments are in the store alone")


def in_store(store: Path) -> set[str]:
    """The ids of the segments that have any object."""
    found = (SEGMENT_ID.search(path.name) for path in store.rglob("*") if path.is_file())
    return {match.group(1) for match in found if match is not None}


def files_of(store: Path, topic: str) -> list[Path]:
    return [path for path in store.glob(f"{topic}-*/**/*") if path.is_file()]


def alter(broker: BrokerProcess, kind: ConfigResource.Type, name: str, **configs: str) -> None:
    entries = [
        ConfigEntry(config.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for config, value in configs.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(RECOVERY_S)


def in_metadata(broker: BrokerProcess) -> set[str]:
    """The ids of the segments that are complete, as a client reads it from the topic; empty while others are there."""
    partitions: dict[object, RemotePartition] = {}
    for rows in read_all(broker.bootstrap, "__remote_log_metadata", METADATA_PARTITIONS).values():
        for _, value in rows:
            event = decode(value)
            assert event is not None
            partitions.setdefault(event.partition, RemotePartition(event.partition)).replay(event)
    segments = [segment for partition in partitions.values() for segment in partition.segments]
    return {segment.segment_id.hex for segment in segments if segment.state is FINISHED}


def offset_of(broker: BrokerProcess, topic: str, spec: int) -> int:
    """What ListOffsets answers to an `OffsetSpec` or a timestamp, by kafka-python."""
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        name = TopicPartition(topic, 0)
        return int(admin.list_partition_offsets({name: spec})[name].offset)
    finally:
        admin.close()


@pytest.fixture(scope="module")
def old(broker: BrokerProcess) -> Writer:
    """Who wrote the topic `old`, most of which is in the store alone."""
    create_topic(broker.bootstrap, "old", 1, **TIERED)
    writer = written(broker, "old", 3_000)
    writer.finish()
    await_copied(broker, "old", 10)
    return writer


def test_a_consumer_reads_every_record_from_the_beginning(broker: BrokerProcess, old: Writer) -> None:
    records = read_all(broker.bootstrap, "old", 1)

    check([old], records)
    assert records[0][0][0] == 0


@pytest.mark.usefixtures("old")
def test_offsets_tell_what_is_local_and_what_is_in_the_store(broker: BrokerProcess) -> None:
    local_start, copied = (
        offset_of(broker, "old", spec) for spec in (OffsetSpec.EARLIEST_LOCAL, OffsetSpec.LATEST_TIERED)
    )

    assert offset_of(broker, "old", OffsetSpec.EARLIEST) == 0
    assert 1_000 < local_start <= copied + 1 <= offset_of(broker, "old", OffsetSpec.LATEST)


@pytest.mark.usefixtures("old")
def test_a_share_group_gets_records_of_the_store(broker: BrokerProcess) -> None:
    consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap, "group.id": "sharers", "log_level": 0})
    consumer.subscribe(["old"])
    found: set[int] = set()

    def have_come() -> bool:
        found.update(record.offset() for record in consumer.poll(0.5) if record.error() is None)
        return len(found) >= 1_000

    wait_until(have_come, RECOVERY_S, "a thousand records of the store")
    consumer.close()
    assert set(range(1_000)) <= found


@pytest.mark.usefixtures("old")
def test_deleted_records_leave_the_store(broker: BrokerProcess, store: Path) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_records([Position("old", 0, 1_000)])[Position("old", 0)].result(RECOVERY_S)

    def first_copy() -> int:
        return min(int(path.name[:20]) for path in store.glob("old-*/0/*.log"))

    wait_until(lambda: 500 < first_copy() <= 1_000, RECOVERY_S, "the store has no segment below the log start")
    assert read_all(broker.bootstrap, "old", 1)[0][0][0] == 1_000


def test_a_topic_that_has_no_tiered_storage_any_more_leaves_nothing_in_the_store(
    broker: BrokerProcess, store: Path
) -> None:
    create_topic(broker.bootstrap, "disabled", 1, **TIERED)
    written(broker, "disabled", 1_000).finish()
    await_copied(broker, "disabled", 3)

    with pytest.raises(KafkaException, match="without deleting remote data"):
        alter(broker, TOPIC, "disabled", remote_storage_enable="false")
    alter(broker, TOPIC, "disabled", remote_storage_enable="false", remote_log_delete_on_disable="true")

    wait_until(lambda: not files_of(store, "disabled"), RECOVERY_S, "the store has nothing of the topic")
    rows = read_all(broker.bootstrap, "disabled", 1)[0]
    assert rows[0][0] > 0


def test_aborted_records_in_the_store_are_not_seen(broker: BrokerProcess) -> None:
    create_topic(broker.bootstrap, "decided", 1, **TIERED)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "decided", "batch.size": 4_000})
    producer.init_transactions(RECOVERY_S)
    for number in range(8):
        producer.begin_transaction()
        for _ in range(100):
            producer.produce("decided", b"aborted" * 40 if number % 2 else b"committed" * 40)
        assert producer.flush(RECOVERY_S) == 0
        producer.abort_transaction(RECOVERY_S) if number % 2 else producer.commit_transaction(RECOVERY_S)
    await_copied(broker, "decided", 3)

    values = [value for _, value in read_all(broker.bootstrap, "decided", 1)[0]]

    assert values == [b"committed" * 40] * 400


def test_a_store_that_is_away_is_waited_for(broker: BrokerProcess, store: Path) -> None:
    create_topic(broker.bootstrap, "away", 1, **TIERED)
    writer = written(broker, "away", 1_000)
    await_copied(broker, "away", 3)
    elsewhere = store.with_name("elsewhere")
    store.rename(elsewhere)
    segments = local_segments(broker, "away")
    writer.await_more(1_000, "while the store is away")
    wait_until(lambda: local_segments(broker, "away") > segments, RECOVERY_S, "more segments are kept here")
    writer.finish()
    found: list[dict[int, list[tuple[int, bytes]]]] = []
    reader = threading.Thread(target=lambda: found.append(read_all(broker.bootstrap, "away", 1)))
    reader.start()
    reader.join(1)
    assert reader.is_alive()

    elsewhere.rename(store)

    reader.join(2 * RECOVERY_S)
    check([writer], found[0])
    assert found[0][0][0][0] == 0
    await_copied(broker, "away", 8)


def test_kills_of_the_leader_while_it_copies_lose_nothing_and_leave_nothing_behind(
    broker: BrokerProcess, store: Path
) -> None:
    create_topic(broker.bootstrap, "killed", 1, **TIERED)
    writer = written(broker, "killed", 500)
    for _ in range(rounds(1, 15)):
        before = in_store(store)
        wait_until(lambda before=before: in_store(store) - before, RECOVERY_S, "another segment is copied")
        broker.leader("killed", 0).kill()
        writer.await_more(500, "when the leader is back")
    writer.finish()
    await_copied(broker, "killed")

    check([writer], read_all(broker.bootstrap, "killed", 1))
    wait_until(
        lambda: in_store(store) == in_metadata(broker),
        RECOVERY_S,
        lambda: f"the store has what the metadata says; in one of them: {in_store(store) ^ in_metadata(broker)}",
    )


def test_kafkas_dump_tool_reads_what_is_in_the_store(broker: BrokerProcess) -> None:
    require(tools.kafka_tools)
    files = ",".join(map(str, found_files(broker.data_dir, "*/__remote_log_metadata-*/*.log")))
    command = tools.java(
        "-Xmx256m", "org.apache.kafka.tools.DumpLogSegments", "--remote-log-metadata-decoder", "--files", files
    )
    ran = subprocess.run(command, capture_output=True, text=True, timeout=RECOVERY_S)
    assert ran.returncode == 0, ran.stderr[-2000:]
    dumped = ran.stdout

    kinds = ("RemoteLogSegmentMetadata{", "RemoteLogSegmentMetadataUpdate{")
    states = ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED")
    assert [part for part in (*kinds, *states) if part not in dumped] == []
    assert dumped.count("payload: RemoteLog") == dumped.count("| offset:")


def test_deleted_topics_leave_nothing_in_the_store(broker: BrokerProcess, store: Path) -> None:
    create_topic(broker.bootstrap, "deleted", 1, **TIERED)
    written(broker, "deleted", 1_000).finish()
    wait_until(lambda: list(store.glob("deleted-*/**/*.log")), RECOVERY_S, "copies")

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["deleted"])["deleted"].result(RECOVERY_S)

    wait_until(lambda: not files_of(store, "deleted"), RECOVERY_S, "the store has nothing of the topic")
