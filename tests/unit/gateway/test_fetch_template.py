"""Fetch requests of one connection that repeat the one before, and those that only seem to.

Each answer is compared, byte for byte, with that on a connection of its own, which has nothing to repeat.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from rayka.errors import ErrorCode
from rayka.gateway.handlers.fetch.template import FIRST_VERSION
from rayka.gateway.server.connection import ClientConnection
from rayka.gateway.server.segment_files import SegmentFile
from rayka.gateway.wire.schema import ApiKey
from rayka.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from rayka.types import AbortedTransaction, FetchPartition, FetchResult, FileSlice, TopicPartition
from tests.unit.gateway.scripted_broker import MemoryTransport, ScriptedBroker, connect, feed, new_context, settle
from tests.unit.gateway.test_produce_fetch import FETCH_VERSIONS, fetch_request
from tests.unit.gateway.wire_client import encode, request_frame

TOPIC_ID = uuid.UUID(int=77)
ABORTED = (AbortedTransaction(4, 2),)
Check = Callable[["Case"], Coroutine[Any, Any, None]]


class Case:
    """A connection that has read records once, so that it has a template where the version has one."""

    def __init__(self, version: int, path: Path) -> None:
        self.version = version
        self.path = path / "a.log"
        self.path.write_bytes(bytes(range(256)) * 100)
        self.broker = ScriptedBroker()
        self.broker.image = self.image(TOPIC_ID)
        self.context = new_context(self.broker)
        self.connection, self.transport = connect(self.context)

    @staticmethod
    def image(topic_id: uuid.UUID) -> MetadataImage:
        partitions = tuple(PartitionImage(number, 2, 5, (2,), (2,), 0, ("actor",)) for number in range(2))
        return MetadataImage(
            brokers={2: BrokerImage(2, "elsewhere", 9093, "rack-b", False, "node", 1)},
            topics={"orders": TopicImage("orders", topic_id, partitions, False)},
            topic_names_by_id={topic_id: "orders"},
        )

    def slice(self, size: int, position: int = 7) -> FileSlice:
        return FileSlice(str(self.path), position, size)

    async def ask(
        self,
        connection: ClientConnection,
        transport: MemoryTransport,
        result: FetchResult | None,
        offsets: dict[int, int],
        correlation_id: int,
        **options: Any,
    ) -> bytes:
        """Send a request; return the frame that answers it, once the leader has given `result` for each partition."""
        transport.written.clear()
        request = fetch_request(self.version, "orders", TOPIC_ID, offsets, **options)
        feed(connection, request_frame(ApiKey.FETCH, self.version, encode(request), correlation_id=correlation_id))
        if result is not None:
            wanted, answer = self.broker.partitions.fetches[-1]
            answer.set_result([result] * len(wanted))
        await settle()
        (frame,) = transport.frames()
        return frame

    async def check(
        self, result: FetchResult | None, offsets: dict[int, int], correlation_id: int, **options: Any
    ) -> None:
        """The connection is answered as a new one, and the leader is asked for the same."""
        partitions = self.broker.partitions
        repeated = await self.ask(self.connection, self.transport, result, offsets, correlation_id, **options)
        asked = [(list(wanted), options) for (wanted, _), options in self.asked()]
        partitions.fetches.clear()
        partitions.fetch_options.clear()
        connection, transport = connect(self.context)
        assert repeated == await self.ask(connection, transport, result, offsets, correlation_id, **options)
        assert asked == [(list(wanted), options) for (wanted, _), options in self.asked()]
        partitions.fetches.clear()
        partitions.fetch_options.clear()
        connection.abort()
        await settle()

    def asked(self) -> list[Any]:
        return list(zip(self.broker.partitions.fetches, self.broker.partitions.fetch_options, strict=True))


def run(version: int, path: Path, check: Check) -> None:
    async def main() -> None:
        case = Case(version, path)
        await case.check(FetchResult(0, 9, 9, 0, None, case.slice(100)), {0: 3}, 8)
        assert (case.connection.fetch_template is not None) == (version >= FIRST_VERSION)
        await check(case)
        case.connection.abort()
        await settle()

    asyncio.run(main())


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_every_answer_is_that_of_its_own_request(version: int, tmp_path: Path) -> None:
    async def check(case: Case) -> None:
        results = [
            FetchResult(0, 9, 8, 1, None, case.slice(100)),
            FetchResult(0, 2**40, 2**40 - 1, 2**33, (), case.slice(126, position=200)),
            FetchResult(0, 9, 8, 1, (), case.slice(127)),
            FetchResult(0, 9, 8, 1, ABORTED, case.slice(100)),
            FetchResult(0, 9, 8, 1, (), case.slice(16 << 10)),
            FetchResult(0, 9, 8, 1, (), case.slice((16 << 10) + 1), has_more=True),
            FetchResult(0, 9, 8, 1, (), b"of another node"),
            FetchResult(0, 9, 8, 1, ()),
            FetchResult(int(ErrorCode.OFFSET_OUT_OF_RANGE), 9, 8, 1),
            FetchResult(int(ErrorCode.NOT_LEADER_OR_FOLLOWER)),
            FetchResult(0, 10, 10, 0, None, case.slice(1)),
        ]
        for number, result in enumerate(results):
            await case.check(result, {0: 1 << number * 4}, 100 + number)

    run(version, tmp_path, check)


@pytest.mark.parametrize(
    ("offsets", "options"),
    [
        ({1: 3}, {}),
        ({0: 3, 1: 3}, {}),
        ({0: 3}, {"max_bytes": 1000}),
        ({0: 3}, {"max_bytes": 32 << 20}),
        ({0: 3}, {"min_bytes": 5}),
        ({0: 3}, {"min_bytes": 1 << 20}),
        ({0: 3}, {"leader_epoch": 5}),
    ],
)
def test_another_request_asks_for_what_it_says(
    offsets: dict[int, int], options: dict[str, Any], tmp_path: Path
) -> None:
    async def check(case: Case) -> None:
        result = FetchResult(0, 9, 9, 0, None, case.slice(50))
        await case.check(result, offsets, 9, **options)
        await case.check(result, offsets, 10, **options)
        await case.check(result, {0: 3}, 11)

    run(16, tmp_path, check)


def test_each_request_waits_as_long_as_it_says(tmp_path: Path) -> None:
    async def check(case: Case) -> None:
        waits = []
        for max_wait_ms in (20_000, 20_000, 500, 500, 100_000, 100_000):
            result = FetchResult(0, 9, 9, 0, None, case.slice(50))
            await case.ask(case.connection, case.transport, result, {0: 3}, 9, max_wait_ms=max_wait_ms)
            waits.append(case.broker.partitions.fetch_options[-1]["max_wait_ms"])
        assert waits[0] > 10_000
        assert (waits[1], waits[3], waits[5]) == (20_000, 500, 60_000)

    run(16, tmp_path, check)


@pytest.mark.parametrize("version", [12, 16])
def test_requests_of_sessions_are_not_repeated(version: int, tmp_path: Path) -> None:
    async def check(case: Case) -> None:
        result = FetchResult(0, 9, 9, 0, None, case.slice(50))
        kept = case.connection.fetch_template
        first = await case.ask(case.connection, case.transport, result, {0: 3}, 9, session=(0, 0))
        session_id = int.from_bytes(first[11:15])
        assert session_id > 0
        for epoch in (1, 2):
            frame = await case.ask(case.connection, case.transport, result, {0: 4}, 9, session=(session_id, epoch))
            assert int.from_bytes(frame[11:15]) == session_id
        assert case.connection.fetch_template is kept

    run(version, tmp_path, check)


def test_a_topic_that_was_created_again_is_another(tmp_path: Path) -> None:
    async def check(case: Case) -> None:
        case.broker.image = case.image(uuid.UUID(int=78))
        await case.check(None, {0: 3}, 9)
        case.broker.image = case.image(TOPIC_ID)
        await case.check(FetchResult(0, 9, 9, 0, None, case.slice(50)), {0: 3}, 10)

    run(16, tmp_path, check)


def test_a_topic_that_is_deleted_while_its_reader_waits_is_not_known(tmp_path: Path) -> None:
    async def check(case: Case) -> None:
        request = request_frame(ApiKey.FETCH, 16, encode(fetch_request(16, "orders", TOPIC_ID, {0: 3})))
        feed(case.connection, request)
        case.broker.image = MetadataImage()
        case.transport.written.clear()
        case.broker.partitions.fetches[-1][1].set_result([FetchResult(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))])
        await settle()
        (frame,) = case.transport.frames()
        assert int(ErrorCode.UNKNOWN_TOPIC_ID).to_bytes(2) in frame

    run(16, tmp_path, check)


@pytest.mark.parametrize("topic_id", [TOPIC_ID, uuid.UUID(int=78)])
def test_no_template_is_kept_where_the_metadata_changed_during_the_wait(topic_id: uuid.UUID, tmp_path: Path) -> None:
    async def check(case: Case) -> None:
        result = FetchResult(0, 9, 9, 0, None, case.slice(50))
        case.connection, case.transport = connect(case.context)
        feed(case.connection, request_frame(ApiKey.FETCH, 16, _request()))
        case.broker.image = case.image(topic_id)
        case.broker.partitions.fetches.pop()[1].set_result([result])
        case.broker.partitions.fetch_options.clear()
        await settle()
        case.broker.partitions.are_here = False
        await case.check(result if topic_id == TOPIC_ID else None, {0: 3}, 9)

    run(16, tmp_path, check)


def test_a_changed_limit_is_taken_up(tmp_path: Path) -> None:
    async def check(case: Case) -> None:
        case.context.fetch_max_bytes = 1000
        await case.check(FetchResult(0, 9, 9, 0, None, case.slice(50)), {0: 3}, 9)

    run(16, tmp_path, check)


def test_records_that_the_page_cache_lacks_are_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(case: Case) -> None:
        result = FetchResult(0, 9, 9, 0, None, case.slice(50))
        expected = await case.ask(case.connection, case.transport, result, {0: 3}, 9)
        monkeypatch.setattr(SegmentFile, "read_cached", lambda self, target, position: 0)
        case.transport.written.clear()
        feed(case.connection, request_frame(ApiKey.FETCH, 16, _request(), correlation_id=9))
        case.broker.partitions.fetches[-1][1].set_result([result])
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        while not case.transport.written or len(case.transport.written) < len(expected) + 4:
            await asyncio.sleep(0)
        assert case.transport.frames() == [expected]

    run(16, tmp_path, check)


def _request() -> bytes:
    return encode(fetch_request(16, "orders", TOPIC_ID, {0: 3}))


def test_a_segment_that_is_gone_is_asked_for_once_more(tmp_path: Path) -> None:
    async def check(case: Case) -> None:
        feed(case.connection, request_frame(ApiKey.FETCH, 16, _request()))
        case.transport.written.clear()
        gone = FileSlice(str(tmp_path / "gone.log"), 0, 10)
        case.broker.partitions.fetches[-1][1].set_result([FetchResult(0, 9, 9, 0, None, gone)])
        await settle()
        assert not case.transport.written
        ((wanted,), answer) = case.broker.partitions.fetches[-1]
        assert wanted == FetchPartition(TopicPartition("orders", 0), 3, 1 << 20, topic_id=TOPIC_ID.bytes)
        answer.set_result([FetchResult(0, 9, 9, 0, None, case.slice(50))])
        await settle()
        (frame,) = case.transport.frames()
        assert case.path.read_bytes()[7:57] in frame

    run(16, tmp_path, check)


def test_a_reader_that_leaves_is_waited_for_no_longer(tmp_path: Path) -> None:
    async def check(case: Case) -> None:
        feed(case.connection, request_frame(ApiKey.FETCH, 16, _request()))
        case.connection.abort()
        await settle()
        assert case.broker.partitions.fetches[-1][1].cancelled()

    run(16, tmp_path, check)


def test_a_large_request_is_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
        case = Case(16, tmp_path)
        frame = request_frame(ApiKey.FETCH, 16, _request(), client_id=b"c" * 1024)
        feed(case.connection, frame)
        result = FetchResult(0, 9, 9, 0, None, case.slice(50))
        case.broker.partitions.fetches[-1][1].set_result([result])
        await settle()
        assert len(case.transport.frames()) == 1
        assert case.connection.fetch_template is None
        case.connection.abort()
        await settle()

    asyncio.run(main())
