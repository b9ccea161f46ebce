"""What becomes of acquired records that a share consumer can't read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.client.share.consumer import AsyncShareConsumer
from rayka.client.share.pool import AsyncProcessingPool
from rayka.errors import ErrorCode, RaykaError
from rayka.types import FileSlice
from tests.unit.client.test_share_consumer import ACCEPT, cluster, configure, count_in_flight, take
from tests.unit.client.test_share_consumer import broker_config as broker_config
from tests.unit.client.test_share_pool import Accepting, member, until

__all__ = ["broker_config", "cluster"]  # fixtures


@pytest.fixture
def damaged_second(cluster: Cluster, tmp_path: Path) -> None:
    """Three batches of one record. The second one has been damaged on the disk."""
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    for value in (b"first", b"second", b"third"):
        with cluster.producer() as producer:
            producer.send("tasks", value)
    (log,) = [path for path in tmp_path.rglob("*.log") if b"second" in path.read_bytes()]
    place = log.read_bytes().index(b"second")
    with log.open("r+b") as file:
        file.seek(place)
        file.write(b"damage")


@pytest.mark.usefixtures("damaged_second")
def test_damaged_records_are_rejected_with_one_error_and_others_are_delivered(cluster: Cluster) -> None:
    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as consumer:
        first, third = take(consumer, 2, ACCEPT)
        assert [(one.value, one.delivery_count) for one in (first, third)] == [(b"first", 1), (b"third", 1)]
        with pytest.raises(RaykaError, match="offsets 1 to 1 of tasks-0") as raised:
            consumer.poll()
        assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
        assert consumer.poll() == []
        consumer.commit()
        assert count_in_flight(cluster) == 0


@pytest.mark.usefixtures("damaged_second")
def test_damaged_records_do_not_end_a_pool(cluster: Cluster) -> None:
    async def process() -> int:
        worker = Accepting()
        worker.gate.set()
        pool = AsyncProcessingPool(member(cluster, AsyncShareConsumer), lambda: worker, 1)
        await until(lambda: pool.counts.accepted == 2 or pool._failure is not None)
        await pool.close()
        return pool.counts.accepted

    assert cluster._connection.loop.run(process()) == 2
    assert count_in_flight(cluster) == 0


def test_records_whose_file_can_not_be_read_now_are_given_back_and_others_are_delivered(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(cluster, **{"share.record.lock.duration.ms": "30000"})
    cluster.admin().create_partitions({"tasks": 2})
    with cluster.producer() as producer:
        for partition in (0, 1):
            producer.send("tasks", b"task", partition=partition)
    with cluster.share_consumer("workers", ["tasks"], acknowledgement_mode="explicit") as consumer:
        reader: Any = consumer._core._arrivals._reader
        read, failed = reader.read, []

        def fail_once(file_slice: FileSlice) -> bytes:
            if not failed:
                failed.append(file_slice)
                raise RaykaError(ErrorCode.KAFKA_STORAGE_ERROR, "too many open files")
            return bytes(read(file_slice))

        monkeypatch.setattr(reader, "read", fail_once)
        records = take(consumer, 2, ACCEPT)
    assert sorted((one.partition, one.delivery_count) for one in records) == [(0, 1), (1, 1)]
