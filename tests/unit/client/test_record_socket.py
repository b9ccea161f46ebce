"""The socket by which a pool gives records to an actor on its node."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
import uuid
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rayka.client.share import record_socket
from rayka.client.share.record_socket import ProcessedRecord, RecordConnection, listen, serve
from rayka.client.share.records import RecordAcknowledgement, ShareRecord
from rayka.share.record_state import AcknowledgeType

RECORDS = [
    ShareRecord("tasks", 3, 1 << 40, 5, b"key", b"x" * 300_000, [("header", None), ("no UTF-8: \udcff", b"1")], 1),
    ShareRecord("tasks", 3, 7, -1, None, None, [], 2, uuid.UUID(int=9)),
]
TOKEN = b"0123456789abcdef"
REJECTED = RecordAcknowledgement(AcknowledgeType.REJECT, headers=(("__dlq.errors.message", b"\xff"),))


class Actor:
    """The actor's end, in a thread. It stops before the record at `stop_at`."""

    def __init__(self, path: str, stop_at: int | None = None) -> None:
        found = listen(path)
        assert found is not None
        self.listener: socket.socket = found
        self.processed: list[ShareRecord] = []
        self.stop_at = stop_at
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(SystemExit):
            serve(self.listener, TOKEN, self._process)

    def _process(self, record: ShareRecord) -> ProcessedRecord:
        if len(self.processed) == self.stop_at:
            raise SystemExit
        self.processed.append(record)
        return ProcessedRecord(REJECTED, 0.5)


class Pool:
    """The pool's end."""

    def __init__(self) -> None:
        self.processed: list[ProcessedRecord] = []
        self.lost_after: int | None = None
        self.event = asyncio.Event()

    def on_processed(self, processed: Sequence[ProcessedRecord]) -> None:
        self.processed.extend(processed)
        self.event.set()

    def on_lost(self) -> None:
        self.lost_after = len(self.processed)
        self.event.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await self.event.wait()
                self.event.clear()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "records")


def test_each_record_is_answered_in_order_until_the_pool_closes(path: str) -> None:
    actor = Actor(path)

    async def process() -> Pool:
        pool = Pool()
        connection = await RecordConnection.connected(path, TOKEN, pool.on_processed, pool.on_lost)
        assert connection is not None
        connection.send(RECORDS)
        connection.send(RECORDS[:1])
        await pool.until(lambda: len(pool.processed) == 3)
        connection.close()
        return pool

    pool = uvloop.run(process())
    actor.thread.join(30)
    assert not actor.thread.is_alive()
    assert actor.processed == [*RECORDS, RECORDS[0]]
    assert pool.processed == [ProcessedRecord(REJECTED, 0.5)] * 3
    assert pool.lost_after is None


def test_acknowledgements_of_an_actor_that_died_arrive_before_its_loss(path: str) -> None:
    actor = Actor(path, stop_at=1)

    async def process() -> Pool:
        pool = Pool()
        connection = await RecordConnection.connected(path, TOKEN, pool.on_processed, pool.on_lost)
        assert connection is not None
        connection.send(RECORDS)
        await pool.until(lambda: pool.lost_after is not None)
        connection.send(RECORDS)
        connection.close()
        return pool

    assert uvloop.run(process()).lost_after == 1
    actor.thread.join(30)


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_acknowledgements_of_an_actor_that_died_arrive_after_a_failed_write(
    path: str, run: Callable[[Coroutine[Any, Any, Pool]], Pool]
) -> None:
    """The write fails, and that ends the connection before the loop has read from it."""
    actor = Actor(path, stop_at=1)

    async def process() -> Pool:
        pool = Pool()
        connection = await RecordConnection.connected(path, TOKEN, pool.on_processed, pool.on_lost)
        assert connection is not None
        connection.send(RECORDS[1:] * 2)
        await asyncio.sleep(0)
        actor.thread.join(30)  # the loop stands still until the actor is dead
        connection.send(RECORDS)
        await pool.until(lambda: pool.lost_after is not None)
        return pool

    assert run(process()).lost_after == 1


@pytest.mark.parametrize("said", [b"", b"0123456789abcdeg", TOKEN[:5]])
def test_a_connection_without_the_token_gets_no_answer(path: str, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing, something else, or too little."""
    monkeypatch.setattr(record_socket, "_TOKEN_TIMEOUT_S", 0.2)
    actor = Actor(path)

    async def process() -> Pool:
        pool = Pool()
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(path)
            stranger.send(said)
            connection = await RecordConnection.connected(path, TOKEN, pool.on_processed, pool.on_lost)
            assert connection is not None
            connection.send(RECORDS)
            await pool.until(lambda: len(pool.processed) == 2)
            connection.close()
        return pool

    assert uvloop.run(process()).processed == [ProcessedRecord(REJECTED, 0.5)] * 2
    actor.thread.join(30)
    assert actor.processed == RECORDS


def test_on_another_machine_there_is_no_socket(path: str) -> None:
    assert listen(f"{path}/missing/records") is None

    async def connected() -> RecordConnection | None:
        pool = Pool()
        return await RecordConnection.connected(path, TOKEN, pool.on_processed, pool.on_lost)

    assert uvloop.run(connected()) is None


def test_without_free_file_descriptors_there_is_no_connection(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def connected() -> RecordConnection | None:
        pool = Pool()
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", refused)
            return await RecordConnection.connected(path, TOKEN, pool.on_processed, pool.on_lost)

    assert uvloop.run(connected()) is None
