"""What Fetch and Produce do with the leaders' answers: bytes, slices, lost segments, leaders elsewhere."""

from __future__ import annotations

import asyncio
import importlib
import struct
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from kio.serial import entity_reader

from rayka.errors import ErrorCode
from rayka.gateway.server.context import Context
from rayka.gateway.server.segment_files import SegmentFile
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from rayka.types import AbortedTransaction, AppendResult, FetchPartition, FetchResult, FileSlice, TopicPartition
from tests.unit.gateway.requests import TOPIC, batch, fetch_v0, fetch_v3, produce_v0, produce_v3
from tests.unit.gateway.scripted_broker import MemoryTransport, ScriptedBroker, connect, feed, new_context, settle
from tests.unit.gateway.test_produce_fetch import fetch_request, produce_request
from tests.unit.gateway.wire_client import encode, request_frame, response_body

END_V12 = b"\0\0\0"  # of partition, topic and response
TOPIC_ID = uuid.UUID(int=77)
Check = Callable[["Case"], Coroutine[Any, Any, None]]


class Case:
    """A connection to a scripted broker that has one topic of three partitions, led by node 2."""

    def __init__(self) -> None:
        self.broker = ScriptedBroker()
        partitions = tuple(PartitionImage(number, 2, 5, (2,), (2,), 0, ("actor",)) for number in range(3))
        self.broker.image = MetadataImage(
            cluster_id="scripted",
            brokers={2: BrokerImage(2, "elsewhere", 9093, "rack-b", False, "node", 1)},
            topics={"orders": TopicImage("orders", TOPIC_ID, partitions, False)},
            topic_names_by_id={TOPIC_ID: "orders"},
        )
        self.context: Context = new_context(self.broker)
        self.connection, self.transport = connect(self.context)

    def fetch(self, version: int, offsets: dict[int, int], **options: Any) -> None:
        request = fetch_request(version, "orders", TOPIC_ID, offsets, **options)
        feed(self.connection, request_frame(ApiKey.FETCH, version, encode(request)))

    async def answer(self, *results: FetchResult) -> None:
        self.broker.partitions.fetches[-1][1].set_result(list(results))
        await settle()

    def response(self, key: ApiKey, version: int) -> Any:
        (frame,) = self.transport.frames()
        module = importlib.import_module(f"kio.schema.{key.name.lower()}.v{version}.response")
        body = response_body(key, version, frame)
        entity, size = entity_reader(getattr(module, f"{key.title}Response"))(body, 0)
        assert size == len(body)
        return entity


def run(check: Check) -> None:
    async def main() -> None:
        case = Case()
        await check(case)
        case.connection.abort()
        await settle()

    asyncio.run(main())


@pytest.mark.parametrize("version", range(4, 19))
def test_bytes_slices_and_nothing_in_one_response(version: int, tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(bytes(range(200)))

    async def check(case: Case) -> None:
        case.fetch(version, {0: 0, 1: 0, 2: 0})
        await case.answer(
            FetchResult(
                0, 9, 8, 1, (AbortedTransaction(4, 2), AbortedTransaction(5, 3)), FileSlice(str(path), 10, 150)
            ),
            FetchResult(0, 9, 9, 0),
            FetchResult(0, 9, 9, 0, (), b"from another node"),
        )
        first, second, third = case.response(ApiKey.FETCH, version).responses[0].partitions
        assert first.records == bytes(range(10, 160))
        assert [(one.producer_id, one.first_offset) for one in first.aborted_transactions] == [(4, 2), (5, 3)]
        assert (first.high_watermark, first.last_stable_offset) == (9, 8)
        assert getattr(first, "log_start_offset", 1) == 1
        assert not second.records
        assert second.aborted_transactions is None
        assert third.records == b"from another node"
        assert third.aborted_transactions == ()

    run(check)


@pytest.mark.parametrize(("are_here", "largest"), [(True, 16 << 20), (False, 4 << 20)])
def test_the_request_reaches_the_leaders_as_it_was_meant(are_here: bool, largest: int) -> None:
    """No response is larger than `largest`, whatever the client allows, and what comes as bytes even smaller."""

    async def check(case: Case) -> None:
        partitions = case.broker.partitions
        partitions.are_here = are_here
        case.fetch(12, {1: 44}, max_bytes=1000, min_bytes=7, max_wait_ms=60_000, leader_epoch=5)
        ((partition,), _) = partitions.fetches[0]
        assert partition == FetchPartition(TopicPartition("orders", 1), 44, 1000, 5, -1)
        options = partitions.fetch_options[0]
        assert 30_000 < options["max_wait_ms"] <= 60_000, "less what has passed since it came"
        assert (options["min_bytes"], options["max_bytes"]) == (7, largest)
        await case.answer(FetchResult(0))
        case.fetch(12, {0: 0, 1: 0}, max_bytes=50 << 20)
        assert [one.max_bytes for one in partitions.fetches[1][0]] == [largest // 2, largest // 2]

    run(check)


def test_records_that_the_page_cache_lacks_are_read_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"0123456789")

    async def check(case: Case) -> None:
        monkeypatch.setattr(SegmentFile, "read_cached", lambda self, target, position: 0)
        case.fetch(12, {0: 0, 1: 0})
        case.broker.partitions.fetches[0][1].set_result(
            [FetchResult(0, 9, 9, 0, None, FileSlice(str(path), at, 3)) for at in (2, 6)]
        )
        while not case.transport.written.endswith(b"678" + END_V12):
            await asyncio.sleep(0.001)
        partitions = case.response(ApiKey.FETCH, 12).responses[0].partitions
        assert [partition.records for partition in partitions] == [b"234", b"678"]

    run(check)


def test_a_segment_lost_on_the_way_is_asked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "b.log"
    path.write_bytes(b"moved here")
    gone = FileSlice(str(tmp_path / "gone.log"), 0, 10)

    async def check(case: Case) -> None:
        case.fetch(12, {0: 0, 1: 0})
        await case.answer(FetchResult(0, 9, 9, 0, None, gone), FetchResult(0, 4, 4, 0))
        assert not case.transport.written
        assert case.broker.partitions.fetch_options[1]["max_wait_ms"] == 0
        await case.answer(FetchResult(0, 9, 9, 0, None, FileSlice(str(path), 0, 10)), FetchResult(0, 4, 4, 0))
        first, second = case.response(ApiKey.FETCH, 12).responses[0].partitions
        assert first.records == b"moved here"
        assert second.high_watermark == 4

    run(check)


def test_a_segment_that_stays_lost_is_an_error_that_clients_retry(tmp_path: Path) -> None:
    gone = FileSlice(str(tmp_path / "gone.log"), 0, 10)

    async def check(case: Case) -> None:
        case.fetch(12, {0: 0, 1: 0})
        for _ in range(2):
            await case.answer(FetchResult(0, 9, 9, 0, None, gone), FetchResult(0, 4, 4, 0))
        first, second = case.response(ApiKey.FETCH, 12).responses[0].partitions
        assert first.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert ErrorCode.KAFKA_STORAGE_ERROR.retriable
        assert not first.records
        assert second.error_code == 0

    run(check)


@pytest.mark.parametrize("version", range(7))
def test_consumers_before_the_storage_error_are_told_to_look_for_the_leader(version: int) -> None:
    """They take an error that they do not know for one that does not pass, and end."""

    async def check(case: Case) -> None:
        old = fetch_v0() if version < 3 else fetch_v3()
        body = old if version < 4 else encode(fetch_request(version, "orders", TOPIC_ID, {0: 0}))
        feed(case.connection, request_frame(ApiKey.FETCH, version, body))
        await case.answer(FetchResult(ErrorCode.KAFKA_STORAGE_ERROR))
        while not case.transport.frames():
            await asyncio.sleep(0.001)
        (frame,) = case.transport.frames()
        head = bytes(4 if version else 0) + struct.pack(">i", 1) + TOPIC + struct.pack(">ii", 1, 0)
        body = response_body(ApiKey.FETCH, version, frame)
        assert body.startswith(head)
        expected = ErrorCode.NOT_LEADER_OR_FOLLOWER if version < 6 else ErrorCode.KAFKA_STORAGE_ERROR
        assert struct.unpack_from(">h", body, len(head)) == (expected,)

    run(check)


@pytest.mark.parametrize("version", range(5))
def test_producers_before_the_storage_error_are_told_to_look_for_the_leader(version: int) -> None:
    """As on a full disk: they take an error that they do not know for one that does not pass, and drop the records."""

    async def check(case: Case) -> None:
        body = produce_v3(batch(70)) if version > 2 else produce_v0(batch(70))
        feed(case.connection, request_frame(ApiKey.PRODUCE, version, body))
        case.broker.partitions.appends[0][1].set_result([AppendResult(ErrorCode.KAFKA_STORAGE_ERROR)])
        await settle()
        (frame,) = case.transport.frames()
        head = struct.pack(">i", 1) + TOPIC + struct.pack(">ii", 1, 0)
        body = response_body(ApiKey.PRODUCE, version, frame)
        assert body.startswith(head)
        expected = ErrorCode.NOT_LEADER_OR_FOLLOWER if version < 4 else ErrorCode.KAFKA_STORAGE_ERROR
        assert struct.unpack_from(">h", body, len(head)) == (expected,)

    run(check)


def test_a_truncated_segment_is_not_served_half(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"0123")

    async def check(case: Case) -> None:
        case.fetch(12, {0: 0})
        for _ in range(2):
            await case.answer(FetchResult(0, 9, 9, 0, None, FileSlice(str(path), 0, 10)))
        (partition,) = case.response(ApiKey.FETCH, 12).responses[0].partitions
        assert partition.error_code == ErrorCode.KAFKA_STORAGE_ERROR

    run(check)


def test_a_disk_error_in_a_response_closes_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"0123")

    def fail(self: SegmentFile, size: int, position: int) -> bytes:
        raise OSError(5, "Input/output error")

    async def check(case: Case) -> None:
        monkeypatch.setattr(SegmentFile, "read_cached", lambda self, target, position: 0)
        monkeypatch.setattr(SegmentFile, "read", fail)
        case.fetch(12, {0: 0})
        case.broker.partitions.fetches[-1][1].set_result([FetchResult(0, 9, 9, 0, None, FileSlice(str(path), 0, 4))])
        while case.transport.ended is None:
            await asyncio.sleep(0.001)
        assert case.transport.ended == "aborted"
        assert [(one.path, one.size) for one in case.broker.partitions.checked] == [(str(path), 4)]

    run(check)


@pytest.mark.parametrize("version", [11, 12, 15, 16, 18])
def test_fetch_names_the_current_leader(version: int) -> None:
    async def check(case: Case) -> None:
        case.fetch(version, {0: 0, 1: 0})
        await case.answer(FetchResult(ErrorCode.NOT_LEADER_OR_FOLLOWER), FetchResult(0, 1, 1, 0))
        response = case.response(ApiKey.FETCH, version)
        moved, here = response.responses[0].partitions
        assert moved.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        if version >= 12:
            assert (moved.current_leader.leader_id, moved.current_leader.leader_epoch) == (2, 5)
            assert here.current_leader.leader_id == -1
        if version >= 16:
            (node,) = response.node_endpoints
            assert (node.node_id, node.host, node.port, node.rack) == (2, "elsewhere", 9093, "rack-b")

    run(check)


@pytest.mark.parametrize("version", [9, 10, 13])
def test_produce_names_the_current_leader(version: int) -> None:
    async def check(case: Case) -> None:
        request = produce_request(version, "orders", TOPIC_ID, {1: batch(70)})
        feed(case.connection, request_frame(ApiKey.PRODUCE, version, encode(request)))
        case.broker.partitions.appends[0][1].set_result([AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)])
        await settle()
        response = case.response(ApiKey.PRODUCE, version)
        (partition,) = response.responses[0].partition_responses
        assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        if version >= 10:
            assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (2, 5)
            (node,) = response.node_endpoints
            assert (node.node_id, node.host, node.port, node.rack) == (2, "elsewhere", 9093, "rack-b")

    run(check)


def test_the_answer_of_the_leader_is_the_answer_to_the_producer() -> None:
    async def check(case: Case) -> None:
        request = produce_request(9, "orders", TOPIC_ID, {0: batch(70), 1: None, 2: batch(80)})
        feed(case.connection, request_frame(ApiKey.PRODUCE, 9, encode(request)))
        (requests, future) = case.broker.partitions.appends[0]
        assert [one.topic_partition.partition for one in requests] == [0, 2]
        future.set_result([AppendResult(0, 100, 5555, 3), AppendResult(10, error_message="too large")])
        await settle()
        first, second, third = case.response(ApiKey.PRODUCE, 9).responses[0].partition_responses
        assert (first.base_offset, first.log_start_offset, first.log_append_time.timestamp()) == (100, 3, 5.555)
        assert second.error_code == ErrorCode.INVALID_RECORD
        assert (third.error_code, third.error_message, third.base_offset) == (10, "too large", -1)

    run(check)


def test_followers_do_not_fetch_over_the_wire() -> None:
    async def check(case: Case) -> None:
        import dataclasses

        request = dataclasses.replace(fetch_request(12, "orders", TOPIC_ID, {0: 0}), replica_id=3)
        feed(case.connection, request_frame(ApiKey.FETCH, 12, encode(request)))
        (partition,) = case.response(ApiKey.FETCH, 12).responses[0].partitions
        assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(check)


def test_an_empty_fetch_is_answered_immediately() -> None:
    async def check(case: Case) -> None:
        case.fetch(12, {}, max_wait_ms=60_000)
        assert case.response(ApiKey.FETCH, 12).responses == ()
        assert isinstance(case.transport, MemoryTransport)

    run(check)
