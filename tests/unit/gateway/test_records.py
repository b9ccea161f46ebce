"""Offsets, records and producers, in every version of each API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayka.errors import ErrorCode
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.commands import NewTopic
from rayka.types import TopicPartition
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.asking import SECOND, append, create, make, run
from tests.unit.gateway.wire_client import WireClient, versions


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.LIST_OFFSETS))
def test_list_offsets(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def ask(client: WireClient, timestamp: int, *partitions: int, most: int = 5, topic: str = "a") -> list[Any]:
        entries = tuple(
            make(
                key, version, "ListOffsetsPartition",
                partition_index=partition, timestamp=timestamp, max_num_offsets=most, current_leader_epoch=-1,
            )
            for partition in partitions
        )  # fmt: skip
        asked = make(key, version, "ListOffsetsTopic", name=topic, partitions=entries)
        request = make(
            key, version, "ListOffsetsRequest", replica_id=-1, isolation_level=0, topics=(asked,), timeout=SECOND
        )
        return list((await client.call(key, version, request)).topics[0].partitions)

    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 1))
        append(broker, "a", 1000, 3000, 2000)
        latest, missing = await ask(client, -1, 0, 8)
        assert (latest.error_code, missing.error_code) == (0, 3)
        if version == 0:
            assert latest.old_style_offsets == (3, 0)
            assert (await ask(client, -1, 0, most=1))[0].old_style_offsets == (3,)
            assert (await ask(client, -2, 0))[0].old_style_offsets == (0,)
            assert (await ask(client, -1, 0, most=0))[0].old_style_offsets == ()
            assert (await ask(client, 3000, 0))[0].old_style_offsets == (), "no segment was written by then"
            assert (await ask(client, broker.now_ms() + 60_000, 0))[0].old_style_offsets == (3, 0)
            assert [one.error_code for one in await ask(client, -3, 0)] == [35]
            return
        assert latest.offset == 3
        assert (missing.offset, missing.timestamp) == (-1, -1)
        assert [one.offset for one in await ask(client, -2, 0)] == [0]
        (by_time,) = await ask(client, 1500, 0)
        assert (by_time.offset, by_time.timestamp) == (1, 3000)
        assert [one.offset for one in await ask(client, 9999, 0)] == [-1]
        assert [one.error_code for one in await ask(client, -1, 0, 0)] == [42, 42]
        for timestamp, first, offset in ((-3, 7, 1), (-4, 8, 0), (-5, 9, -1), (-6, 11, -1)):
            (answer,) = await ask(client, timestamp, 0)
            assert (answer.error_code, answer.offset) == ((0, offset) if version >= first else (35, -1))
        unknown = ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE  # KIP-207
        await create(broker, NewTopic("a-flushed", 1, configs={"flush.messages": "1"}))
        append(broker, "a-flushed", 1000)
        broker.partitions.replicas.get(TopicPartition("a-flushed", 0)).become_leader(9)
        assert (await ask(client, -1, 0, topic="a-flushed"))[0].error_code == unknown

    run(tmp_path, check)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.OFFSET_FOR_LEADER_EPOCH))
def test_offset_for_leader_epoch(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 1))
        append(broker, "a", 1000, 2000)
        epoch = broker.image.topics["a"].partitions[0].leader_epoch
        partitions = tuple(
            make(
                key, version, "OffsetForLeaderPartition", partition=number, current_leader_epoch=-1, leader_epoch=epoch
            )
            for number in (0, 4)
        )
        topic = make(key, version, "OffsetForLeaderTopic", topic="a", partitions=partitions)
        request = make(key, version, "OffsetForLeaderEpochRequest", replica_id=-1, topics=(topic,))
        known, unknown = (await client.call(key, version, request)).topics[0].partitions
        assert (known.partition, known.error_code, known.end_offset) == (0, 0, 2)
        assert getattr(known, "leader_epoch", epoch) == epoch
        assert (unknown.partition, unknown.error_code) == (4, 3)

    run(tmp_path, check)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.INIT_PRODUCER_ID))
def test_init_producer_id(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        async def ask(transactional_id: str | None, producer_id: int = -1) -> Any:
            request = make(
                key, version, "InitProducerIdRequest",
                transactional_id=transactional_id, transaction_timeout=SECOND,
                producer_id=producer_id, producer_epoch=-1,
            )  # fmt: skip
            return await client.call(key, version, request)

        first, second = await ask(None), await ask(None)
        assert (first.error_code, first.producer_epoch) == (0, 0)
        assert second.producer_id > first.producer_id >= 0
        assert (await ask("tx")).producer_epoch == 0
        again = await ask("tx")
        assert (again.error_code, again.producer_epoch) == (0, 1)
        assert (await ask("")).error_code == ErrorCode.INVALID_REQUEST
        if version >= 3:
            assert (await ask(None, 5)).error_code == ErrorCode.INVALID_REQUEST

    run(tmp_path, check)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.DELETE_RECORDS))
def test_delete_records(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 1))
        append(broker, "a", 1, 2, 3, 4)
        for partition, offset, expected in (
            (0, 2, (2, 0)), (0, 1, (2, 0)), (0, -1, (4, 0)), (0, 9, (-1, 1)), (0, -2, (-1, 1)), (7, 0, (-1, 3)),
        ):  # fmt: skip
            asked = make(key, version, "DeleteRecordsPartition", partition_index=partition, offset=offset)
            topic = make(key, version, "DeleteRecordsTopic", name="a", partitions=(asked,))
            request = make(key, version, "DeleteRecordsRequest", topics=(topic,), timeout=SECOND)
            (result,) = (await client.call(key, version, request)).topics[0].partitions
            assert (result.low_watermark, result.error_code) == expected

    run(tmp_path, check)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.DELETE_RECORDS))
def test_records_of_internal_and_compacted_topics_are_not_deleted(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(
            broker, NewTopic("__consumer_offsets", 1), NewTopic("compacted", 1, configs={"cleanup.policy": "compact"})
        )
        for name, error in (
            ("__consumer_offsets", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("compacted", ErrorCode.POLICY_VIOLATION),
        ):
            asked = make(key, version, "DeleteRecordsPartition", partition_index=0, offset=-1)
            topic = make(key, version, "DeleteRecordsTopic", name=name, partitions=(asked,))
            request = make(key, version, "DeleteRecordsRequest", topics=(topic,), timeout=SECOND)
            (result,) = (await client.call(key, version, request)).topics[0].partitions
            assert (result.low_watermark, result.error_code) == (-1, error)

    run(tmp_path, check)


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.DESCRIBE_LOG_DIRS))
def test_describe_log_dirs(key: ApiKey, version: int, tmp_path: Path) -> None:
    async def check(client: WireClient, broker: LocalBroker) -> None:
        await create(broker, NewTopic("a", 2), NewTopic("b", 1))
        append(broker, "a", 1)
        (result,) = (await client.call(key, version, make(key, version, "DescribeLogDirsRequest", topics=None))).results
        assert (result.error_code, result.log_dir) == (0, str(tmp_path))
        sizes = {
            (topic.name, partition.partition_index): partition.partition_size
            for topic in result.topics
            for partition in topic.partitions
        }
        assert set(sizes) == {("a", 0), ("a", 1), ("b", 0)}
        assert sizes["a", 0] > 0 == sizes["b", 0]
        if version >= 4:
            assert result.total_bytes >= result.usable_bytes > 0
        asked = make(key, version, "DescribableLogDirTopic", topic="a", partitions=(1,))
        (result,) = (
            await client.call(key, version, make(key, version, "DescribeLogDirsRequest", topics=(asked,)))
        ).results
        (topic,) = result.topics
        assert [partition.partition_index for partition in topic.partitions] == [1]

    run(tmp_path, check)
