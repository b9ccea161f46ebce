"""The stateless reader."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.client.consumer.reader import FetchRequest
from rayka.errors import ErrorCode, RaykaError
from rayka.types import OffsetSpec
from tests.support.descriptors import open_files
from tests.support.faulty_partitions import FaultyPartitions
from tests.unit.client.test_consumer import fill


def test_fetch_reads_from_an_offset_to_the_end(cluster: Cluster) -> None:
    fill(cluster, 100)
    with cluster.reader(value_deserializer=int) as reader:
        position, values = 30, []
        while (found := reader.fetch("events", 0, position, 500)).records:
            values += [record.value for record in found.records]
            assert found.next_offset == found.records[-1].offset + 1
            position = found.next_offset
        assert values == [*range(30, 100)]
        assert (found.next_offset, found.high_watermark, found.log_start_offset) == (100, 100, 0)


def test_fetch_waits_for_a_record_if_asked_to(cluster: Cluster) -> None:
    fill(cluster, 1)
    writer = threading.Timer(0.05, fill, (cluster, 1))
    writer.start()
    found = cluster.reader().fetch("events", 0, 1, max_wait_ms=10_000)
    writer.join()
    assert [record.offset for record in found.records] == [1]


def test_multifetch_answers_in_order(cluster: Cluster) -> None:
    cluster.admin().create_topic("events", partitions=2)
    fill(cluster, 10, partition=0)
    fill(cluster, 5, partition=1)
    fill(cluster, 3, topic="other")
    requests = [FetchRequest("events", 1, 2), FetchRequest("other", 0, 3), FetchRequest("events", 0, 0)]
    reader = cluster.reader()
    found = reader.multifetch(requests)
    assert [(*one.topic_partition, len(one.records), one.next_offset) for one in found] == [
        ("events", 1, 3, 5),
        ("other", 0, 0, 3),
        ("events", 0, 10, 10),
    ]
    assert reader.multifetch([]) == []


def test_offsets_before_a_time_in_descending_order(cluster: Cluster) -> None:
    fill(cluster, 100)  # at 1_000_000 ms and on
    cluster.admin().delete_records({("events", 0): 10})
    reader = cluster.reader()
    assert reader.get_offsets_before("events", 0, OffsetSpec.LATEST, 10) == [100, 10]
    assert reader.get_offsets_before("events", 0, OffsetSpec.LATEST) == [100]
    assert reader.get_offsets_before("events", 0, OffsetSpec.EARLIEST, 10) == [10]
    assert reader.get_offsets_before("events", 0, 1_000_050, 10) == [50, 10]
    assert reader.get_offsets_before("events", 0, 2_000_000, 10) == [100, 10]


def test_a_reader_waits_for_a_new_leader(cluster: Cluster, faults: FaultyPartitions) -> None:
    fill(cluster, 3)
    reader = cluster.reader(retry_backoff_ms=1)
    faults.fail_fetches(ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE)
    assert len(reader.fetch("events", 0, 0).records) == 3
    faults.fail_fetches(*[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 10_000)
    with pytest.raises(RaykaError, match="NOT_LEADER_OR_FOLLOWER: events-0 can't be read at 1"):
        reader.fetch("events", 0, 1, timeout_ms=20)


def test_a_topic_that_was_created_again_is_not_read_by_old_offsets(cluster: Cluster) -> None:
    fill(cluster, 10)
    reader = cluster.reader(retry_backoff_ms=1)
    before = reader.fetch("events", 0, 5)
    cluster.admin().delete_topic("events")
    cluster.admin().create_topic("events")
    fill(cluster, 10)
    with pytest.raises(RaykaError, match=f"UNKNOWN_TOPIC_ID: .*{before.topic_id}; it was created again"):
        reader.fetch("events", 0, before.next_offset, topic_id=before.topic_id, timeout_ms=20)
    after = reader.fetch("events", 0, 5)
    assert after.topic_id != before.topic_id
    assert len(reader.fetch("events", 0, 5, topic_id=after.topic_id).records) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("events", 0, 4), "OFFSET_OUT_OF_RANGE"),
        (("events", 0, -1), "offset must be an int"),
        (("events", True, 0), "partition must be an int"),
        (("events", 0, 0, 0), "max_bytes must be an int"),
        ((7, 0, 0), "topic must be a str"),
    ],
)
def test_fetches_that_are_refused(cluster: Cluster, arguments: tuple[Any, ...], message: str) -> None:
    fill(cluster, 3)
    with pytest.raises(RaykaError, match=message):
        cluster.reader().fetch(*arguments)


def test_a_topic_that_does_not_exist_is_an_error(cluster: Cluster) -> None:
    reader = cluster.reader()
    with pytest.raises(RaykaError, match="UNKNOWN_TOPIC_OR_PARTITION: topic missing does not exist"):
        reader.fetch("missing", 0, 0, timeout_ms=30)
    with pytest.raises(RaykaError, match="UNKNOWN_TOPIC_OR_PARTITION: topic missing does not exist"):
        reader.get_offsets_before("missing", 0, OffsetSpec.LATEST, timeout_ms=30)
    cluster.admin().create_topic("events", partitions=2)
    with pytest.raises(RaykaError, match="UNKNOWN_TOPIC_OR_PARTITION: topic events has no partition 2; it has 2"):
        reader.fetch("events", 2, 0, timeout_ms=30)
    with pytest.raises(RaykaError, match="max_num_offsets must be 1 or more"):
        reader.get_offsets_before("missing", 0, 0, 0)


def test_the_asynchronous_form(cluster: Cluster) -> None:
    fill(cluster, 3)

    async def program() -> int:
        async with cluster.async_reader() as reader:
            return len((await reader.fetch("events", 0, 1)).records)

    assert asyncio.run(program()) == 2


def test_a_reader_keeps_no_segment_open_between_fetches(cluster: Cluster, tmp_path: Path) -> None:
    """Else the disk would not get the blocks back of those that retention deletes."""
    fill(cluster, 1)
    by_log = open_files(tmp_path)
    reader = cluster.reader()
    assert len(reader.fetch("events", 0, 0).records) == 1
    assert open_files(tmp_path) <= by_log
