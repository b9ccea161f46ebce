"""The local channel between two processes: each request fails alone, and what waits for a stalled peer is bounded."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rayka.actors.channel import socket as channel_socket
from rayka.actors.channel.channel_link import ChannelLeaderClient
from rayka.actors.channel.frames import encode
from rayka.actors.channel.requests import (
    NUMBERS,
    OPERATIONS,
    AppendedRecords,
    AppendFrame,
    AppendShared,
    CheckRecords,
    Coordinate,
    DeleteRecords,
    DescribedShareRecords,
    DescribeLogDir,
    DescribeProducers,
    DescribeShareRecords,
    DrainJournals,
    EndShareSession,
    FetchParams,
    FindEpochEnds,
    ListOffsets,
    MeasureShareDepth,
    OpenJournal,
    ReturnShareRecords,
    SharedRecords,
    ShareFetch,
    ShareFetched,
    ShareMemory,
    WriteTxnMarkers,
    decode_answer,
    decode_request,
    encode_value,
)
from rayka.actors.channel.server import ChannelRequest, ChannelServer
from rayka.actors.channel.service import FrameService
from rayka.actors.channel.socket import ChannelClosed, LocalChannel
from rayka.errors import ErrorCode, RaykaError
from rayka.share.acknowledge import AcknowledgementBatch
from rayka.share.acquire import AcquiredRecords
from rayka.share.requests import InFlightRecords, ShareDepth, ShareFetchParams, ShareFetchPartition, ShareFetchResult
from rayka.types import (
    AbortedTransaction,
    ActiveProducer,
    ActiveProducers,
    AppendParams,
    AppendRequest,
    AppendResult,
    DeleteRecordsResult,
    EpochEndOffset,
    EpochQuery,
    FetchPartition,
    FetchResult,
    FileSlice,
    IsolationLevel,
    LogDirDescription,
    OffsetAnswer,
    OffsetQuery,
    OpenedJournal,
    RecordError,
    ReplicaDescription,
    TopicPartition,
    TxnMarker,
)
from tests.unit.actors.test_coordinator_log import open_partition

PARTITION = TopicPartition("orders", 3)
PARAMS = AppendParams(-1, 10_000)
EXAMPLES: list[tuple[Any, Any]] = [
    (
        AppendFrame(PARAMS, (AppendedRecords(PARTITION, 5, 100),)),
        (AppendResult(0, 7), AppendResult(87, error_message="bad", record_errors=(RecordError(3, "null key"),))),
    ),
    (
        FetchParams((FetchPartition(PARTITION, 5, 1 << 20),), 0.5, 1, 1 << 20, IsolationLevel.READ_COMMITTED),
        (
            FetchResult(0, 9, 8, 1, (AbortedTransaction(4, 2),), FileSlice("/a/0.log", 5, 6)),
            FetchResult(0, 9, 9, 0, None, b"records"),
            FetchResult(3),
        ),
    ),
    (ListOffsets((OffsetQuery(PARTITION, -2),), IsolationLevel.READ_UNCOMMITTED), (OffsetAnswer(0, 5, 1, 2),)),
    (ShareMemory(7), True),
    (AppendShared(PARAMS, (SharedRecords(PARTITION, 5, bytes(61), 1 << 20, 1000),)), (AppendResult(0, 7),)),
    (FindEpochEnds((EpochQuery(PARTITION, 3),)), (EpochEndOffset(0, 3, 100),)),
    (DeleteRecords(((PARTITION, -1),)), (DeleteRecordsResult(0, 5),)),
    (DescribeLogDir(), LogDirDescription(0, "/d", (ReplicaDescription(PARTITION, 5),), 10, 9, ("/d/t.stray",))),
    (CheckRecords(FileSlice("/a/0.log", 5, 6, 7)), 6),
    (Coordinate("group", 7, b"message"), b"response"),
    (
        ShareFetch(
            ShareFetchParams("g", "m", 0.5, 1, 1 << 20, 500, 100, 1, True),
            (ShareFetchPartition(PARTITION, bytes(16), True, (AcknowledgementBatch(5, 6, (1, 2)),)),),
        ),
        ShareFetched(
            30_000,
            (
                ShareFetchResult(acquired=(AcquiredRecords(5, 9, 2),), records=FileSlice("/a/0.log", 5, 6)),
                ShareFetchResult(6, "not the leader", 121, "not held", (), b"records"),
            ),
        ),
    ),
    (EndShareSession("g", "m", True), 3),
    (
        DescribeShareRecords("g", PARTITION),
        DescribedShareRecords(True, (InFlightRecords(5, 9, 1, 2, "m", 1000), InFlightRecords(10, 10, 0, 1))),
    ),
    (MeasureShareDepth("g", PARTITION, bytes(16)), ShareDepth(5, 6, 7)),
    (ReturnShareRecords("g", "m", PARTITION, bytes(16), ((5, 6),)), 1),
    (WriteTxnMarkers((TxnMarker(7, 1, 3, True, 2, (PARTITION, PARTITION)),)), ((0, 6),)),
    (OpenJournal(PARTITION, bytes(16), 4711), OpenedJournal("/d/orders-3/4711.journal", 65536)),
    (DrainJournals(PARTITION), True),
    (DescribeProducers((PARTITION,)), (ActiveProducers(0, (ActiveProducer(7, 1, 5, 1_000, 3, -1),)),)),
]


@pytest.mark.parametrize(("request_", "answer"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_requests_and_answers_arrive_as_the_types_that_were_sent(request_: Any, answer: Any) -> None:
    number = NUMBERS[type(request_)]
    assert decode_request(number, memoryview(encode_value(request_))) == request_
    decoded = decode_answer(number, memoryview(encode_value(answer)))
    assert decoded == answer
    assert type(decoded) is type(answer)


def test_every_answered_operation_has_an_example() -> None:
    answered = {operation.request for operation in OPERATIONS if operation.answer is not None}
    assert answered == {type(example) for example, _ in EXAMPLES}


def run(path: Path, serve: Callable[[ChannelRequest], None], check: Callable[[str], Awaitable[None]]) -> None:
    async def main() -> None:
        directory = path / "sockets"
        server = ChannelServer(str(directory / "leader.1.sock"), serve)
        await server.start()
        try:
            await asyncio.wait_for(check(str(directory / "leader.1.sock")), 60)
        finally:
            await server.stop()

    uvloop.run(main())


def ask(channel: LocalChannel, message: Any, payload: tuple[memoryview, ...] = ()) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    channel.request(message, future.set_result, payload=payload)
    return future


def _unread(connection: socket.socket) -> int:
    """The bytes that have arrived."""
    (count,) = struct.unpack("i", fcntl.ioctl(connection, termios.FIONREAD, bytes(4)))
    return int(count)


BAD_CONTROLS = {
    "no msgpack": b"\xc1",
    "too few fields": encode_value((1,)),
    "another type": encode_value("text"),
    "trailing bytes": encode_value(DeleteRecords(())) + b"\0",
    "deep": b"\x91" * 100_000,
    "number out of range": encode_value(((("orders", 3), 2**64 - 1),)),
}


@pytest.mark.parametrize("name", BAD_CONTROLS)
@pytest.mark.parametrize("number", [NUMBERS[DeleteRecords], 999])
def test_a_bad_request_fails_alone(name: str, number: int, tmp_path: Path) -> None:
    """Those before and after it on the same channel are answered."""

    async def check(path: str) -> None:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(peer, path)
            good = encode_value(DescribeLogDir())
            await loop.sock_sendall(
                peer,
                encode(NUMBERS[DescribeLogDir], 1, good)
                + encode(number, 2, BAD_CONTROLS[name])
                + encode(NUMBERS[DescribeLogDir], 3, good),
            )
            received = b""
            answers = []
            while len(answers) < 3:
                received += await loop.sock_recv(peer, 65536)
                while len(received) >= 4 and len(received) >= (size := 4 + struct.unpack_from("<I", received)[0]):
                    answers.append(struct.unpack_from("<IIHHI", received)[1:4])
                    received = received[size:]
        assert sorted(answers) == [(1, NUMBERS[DescribeLogDir], 0), (2, number, 1), (3, NUMBERS[DescribeLogDir], 0)]

    services: list[FrameService] = []

    def serve(request: ChannelRequest) -> None:
        if not services:
            services.append(FrameService(open_partition(tmp_path / "log")[1]))
        services[0].serve(request)

    run(tmp_path, serve, check)


def test_an_exception_in_the_leader_answers_its_request_and_no_other(tmp_path: Path) -> None:
    def serve(request: ChannelRequest) -> None:
        if isinstance(request.message, DeleteRecords):
            raise ZeroDivisionError("unexpected")
        request.answer(LogDirDescription(0, "/d"))

    async def check(path: str) -> None:
        channel = LocalChannel(path)
        before, bad, after = (
            ask(channel, DescribeLogDir()),
            ask(channel, DeleteRecords(())),
            ask(channel, DescribeLogDir()),
        )
        assert await before == await after == LogDirDescription(0, "/d")
        error = await bad
        assert isinstance(error, RaykaError)
        assert error.code == ErrorCode.UNKNOWN_SERVER_ERROR
        channel.close()

    run(tmp_path, serve, check)


def test_a_request_that_can_not_be_encoded_fails_alone(tmp_path: Path) -> None:
    async def check(path: str) -> None:
        channel = LocalChannel(path)
        impossible = await ask(channel, DeleteRecords(((PARTITION, 2**70),)))
        assert isinstance(impossible, RaykaError)
        assert await ask(channel, DescribeLogDir()) == LogDirDescription(0, "/d")
        channel.close()

    run(tmp_path, lambda request: request.answer(LogDirDescription(0, "/d")), check)


def test_a_caller_that_fails_with_its_answer_keeps_none_from_another(tmp_path: Path) -> None:
    async def check(path: str) -> None:
        channel = LocalChannel(path)
        channel.request(DescribeLogDir(), _fail)
        assert await ask(channel, DescribeLogDir()) == LogDirDescription(0, "/d")
        assert channel.losses == 0
        channel.request(DeleteRecords(()), _fail)
        waiting = ask(channel, DeleteRecords(()))
        channel.close()
        assert isinstance(await waiting, ChannelClosed)

    def serve(request: ChannelRequest) -> None:
        if isinstance(request.message, DescribeLogDir):
            request.answer(LogDirDescription(0, "/d"))

    run(tmp_path, serve, check)


def test_a_caller_that_fails_with_its_time_out_keeps_none_from_another(tmp_path: Path) -> None:
    async def check(path: str) -> None:
        channel = LocalChannel(path)
        channel.request(DescribeLogDir(), _fail, timeout_s=0)
        late: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        channel.request(DescribeLogDir(), late.set_result, timeout_s=0)
        assert isinstance(await asyncio.wait_for(late, 20), ChannelClosed)
        channel.close()

    run(tmp_path, lambda request: None, check)


def _fail(answer: Any) -> None:
    raise ZeroDivisionError("unexpected")


def test_what_ended_before_there_was_a_connection_is_not_sent(tmp_path: Path) -> None:
    """Its caller may have asked again meanwhile, and an append would be done twice."""

    async def main() -> None:
        path = str(tmp_path / "sockets" / "leader.1.sock")
        received: list[Any] = []

        def serve(request: ChannelRequest) -> None:
            received.append(request.message)
            request.answer(LogDirDescription(0, "/d"))

        channel = LocalChannel(path)
        late: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        channel.request(DeleteRecords(()), late.set_result, timeout_s=0)
        channel.cancel(channel.request(FindEpochEnds(()), late.set_result))
        last = ask(channel, DescribeLogDir())
        answer = await late
        assert isinstance(answer, ChannelClosed)
        assert not answer.sent
        server = ChannelServer(path, serve)
        await server.start()
        assert await last == LogDirDescription(0, "/d")
        assert received == [DescribeLogDir()]
        channel.close()
        await server.stop()

    uvloop.run(main())


def test_a_request_that_is_repeated_as_its_failure_is_told_waits_for_the_next_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_socket, "CONNECT_TIMEOUT_S", 0.05)

    async def main() -> None:
        path = str(tmp_path / "sockets" / "leader.1.sock")
        channel, repeated = LocalChannel(path), asyncio.get_running_loop().create_future()
        server = ChannelServer(path, lambda request: request.answer(LogDirDescription(0, "/d")))
        starting: list[asyncio.Task[None]] = []

        def again(failure: Any) -> None:
            starting.append(asyncio.ensure_future(server.start()))
            channel.request(DescribeLogDir(), repeated.set_result)

        channel.request(DescribeLogDir(), again)
        assert await asyncio.wait_for(repeated, 20) == LogDirDescription(0, "/d")
        channel.close()
        await server.stop()

    uvloop.run(main())


def test_a_refused_request_can_be_cancelled(tmp_path: Path) -> None:
    async def check(path: str) -> None:
        channel = LocalChannel(path)
        answers: list[Any] = []
        channel.cancel(channel.request(DeleteRecords(((PARTITION, 2**70),)), answers.append))
        assert await ask(channel, DescribeLogDir()) == LogDirDescription(0, "/d")
        assert not answers
        channel.close()

    run(tmp_path, lambda request: request.answer(LogDirDescription(0, "/d")), check)


def test_the_system_takes_a_whole_batch_at_once(tmp_path: Path) -> None:
    """As much of it as `net.core.wmem_max` allows: a leader that is busy has it all when it reads the next time."""
    size, most = 1_000_000, int(Path("/proc/sys/net/core/wmem_max").read_text())

    async def wait_for_bytes(leader: socket.socket) -> None:
        while _unread(leader) < min(size, most):
            await asyncio.sleep(0.001)

    async def main() -> None:
        path = str(tmp_path / "leader.1.sock")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            channel = LocalChannel(path)
            frame = AppendFrame(PARAMS, (AppendedRecords(PARTITION, 1, size),))
            answer = ask(channel, frame, (memoryview(bytearray(size)),))
            with (await asyncio.to_thread(listener.accept))[0] as leader:
                await asyncio.wait_for(wait_for_bytes(leader), 60)
            channel.close()
            assert isinstance(await answer, ChannelClosed)

    uvloop.run(main())


def test_a_stalled_leader_takes_up_only_its_share_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_socket, "STALLED_S", 0.3)
    is_awake = False

    def serve(request: ChannelRequest) -> None:
        if is_awake:
            request.answer((AppendResult(0),))

    async def check(path: str) -> None:
        nonlocal is_awake
        channel = LocalChannel(path, share_bytes=1_000_000)
        records = memoryview(bytearray(100_000))
        frame = AppendFrame(PARAMS, (AppendedRecords(PARTITION, 1, len(records)),))
        waiting = [ask(channel, frame, (records,)) for _ in range(20)]
        dropped = await asyncio.gather(*waiting)
        assert all(isinstance(answer, ChannelClosed) and answer.sent for answer in dropped)
        later = [ask(channel, frame, (records,)) for _ in range(20)]
        await asyncio.sleep(0)
        refused = [future for future in later if future.done()]
        assert len(refused) == 10, "up to its share it may have"
        assert all(isinstance(future.result(), ChannelClosed) and not future.result().sent for future in refused)
        is_awake = True
        assert await asyncio.gather(*later[:10]) == [(AppendResult(0),)] * 10
        assert await ask(channel, frame, (records,)) == (AppendResult(0),)
        assert channel._payload_bytes == 0
        channel.close()

    run(tmp_path, serve, check)


def test_a_stalled_leader_is_sent_only_its_share_of_large_requests_without_records(tmp_path: Path) -> None:
    """The assignments of groups, for example, whose members come again and again meanwhile."""

    async def main() -> None:
        path = str(tmp_path / "leader.1.sock")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            channel = LocalChannel(path, share_bytes=10_000_000)
            answers = [ask(channel, DescribeLogDir())]
            while channel._transport is None:
                await asyncio.sleep(0.001)
            answers += [ask(channel, Coordinate("group", 7, bytes(1_000_000))) for _ in range(40)]
            await asyncio.sleep(0)
            refused = [answer.result() for answer in answers if answer.done()]
            assert 20 < len(refused) < 40
            assert all(isinstance(each, ChannelClosed) and not each.sent for each in refused)
            small = ask(channel, DescribeLogDir())
            await asyncio.sleep(0)
            assert not small.done(), "it takes no memory that counts"
            channel.close()
            assert isinstance(await small, ChannelClosed)

    uvloop.run(main())


def test_a_slow_leader_that_still_answers_is_not_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers one append after the other, with less than the limit in between: altogether that is much longer."""
    monkeypatch.setattr(channel_socket, "_SWEEP_S", 600.0)
    received: list[ChannelRequest] = []

    async def check(path: str) -> None:
        client = ChannelLeaderClient(path)
        channel = client._channel
        clock = channel._loop = SteppedClock(channel._loop)
        channel._share_bytes = 1
        answers: list[Any] = []
        for _ in range(20):
            client.append([AppendRequest(PARTITION, memoryview(bytearray(1000)), 1)], PARAMS, answers.append)
        while len(received) < 20:
            await asyncio.sleep(0.001)
        for count, request in enumerate(received, 1):
            clock.now_s += 0.7 * channel_socket.STALLED_S
            channel._expire()
            request.answer((AppendResult(0),))
            while len(answers) < count:
                await asyncio.sleep(0.001)
        assert answers == [(AppendResult(0),)] * 20
        assert not channel.losses
        client.close()

    run(tmp_path, received.append, check)


class SteppedClock:
    """An event loop whose time stands still until a test changes it."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self.now_s = loop.time()

    def time(self) -> float:
        return self.now_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


def test_sockets_of_earlier_starts_are_removed(tmp_path: Path) -> None:
    async def check(path: str) -> None:
        later = ChannelServer(path.replace(".1.", ".2."), lambda request: None)
        await later.start()
        assert [each.name for each in Path(path).parent.iterdir()] == ["leader.2.sock"]
        await later.stop()
        Path(path).touch()  # for the first to remove

    run(tmp_path, lambda request: None, check)
