"""Records of a remote store on their way to a share group."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayka.actors.background import BackgroundTasks
from rayka.actors.share import remote_records
from rayka.actors.share.remote_records import RemoteRecords
from rayka.errors import ErrorCode, RaykaError
from rayka.types import AbortedTransaction, FetchResult, FileSlice, IsolationLevel

UNCOMMITTED, COMMITTED = IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED


class Remote:
    """A remote store that answers for the offsets that are `open`; `asked` are those it was asked for."""

    def __init__(self, path: Path, *offsets: int) -> None:
        path.touch()
        self.path = path
        self.open = set(offsets)
        self.asked: list[int] = []
        self.errors: list[ErrorCode] = []

    async def read(self, partition: Any, offset: int, max_bytes: int, isolation: IsolationLevel) -> Any:
        self.asked.append(offset)
        if self.errors:
            raise RaykaError(self.errors.pop(0), "the store says no")
        while offset not in self.open:
            await asyncio.sleep(0)
        aborted = (AbortedTransaction(1, offset),) if isolation is COMMITTED else None
        return FileSlice(str(self.path), 0, 1), aborted


async def waited(records: RemoteRecords, offset: int, isolation: IsolationLevel = UNCOMMITTED) -> FetchResult:
    """The records, when they are here."""
    async with asyncio.timeout(30):
        while (found := records.at(offset, 100, isolation)) is None:
            await asyncio.sleep(0)
    return found


def made(remote: Any) -> RemoteRecords:
    partition: Any = SimpleNamespace(topic_partition="t-0")
    return RemoteRecords(remote, partition, BackgroundTasks("test"), lambda: None)


def test_what_was_read_for_another_isolation_level_is_read_again(tmp_path: Path) -> None:
    async def read() -> None:
        records = made(Remote(tmp_path / "segment", 5))
        assert (await waited(records, 5)).aborted_transactions is None
        assert (await waited(records, 5, COMMITTED)).aborted_transactions == (AbortedTransaction(1, 5),)

    asyncio.run(read())


def test_an_offset_that_is_being_read_is_not_read_twice(tmp_path: Path) -> None:
    async def read() -> list[int]:
        remote = Remote(tmp_path / "segment")
        records = made(remote)
        for offset in (5, 6):
            assert records.at(offset, 100, UNCOMMITTED) is None
            await asyncio.sleep(0)
        remote.open.add(5)
        for _ in range(10):
            await asyncio.sleep(0)
            assert records.at(6, 100, UNCOMMITTED) is None
        remote.open.add(6)
        await waited(records, 6)
        return remote.asked

    assert asyncio.run(read()) == [5, 6]


def test_an_error_that_does_not_pass_reaches_the_members_and_the_records_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read() -> None:
        remote = Remote(tmp_path / "segment", 5)
        remote.errors.append(ErrorCode.CORRUPT_MESSAGE)
        records = made(remote)
        for _ in range(2):
            with pytest.raises(RaykaError, match="CORRUPT_MESSAGE: the store says no"):
                await waited(records, 5)
        assert remote.asked == [5]
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time.monotonic() + 2)
        await waited(records, 5)
        assert remote.asked == [5, 5]

    asyncio.run(read())


@pytest.mark.parametrize("error", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.OFFSET_OUT_OF_RANGE])
def test_members_wait_for_a_store_that_may_answer_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ErrorCode
) -> None:
    monkeypatch.setattr(remote_records, "_PAUSE_S", 0.0)
    remote = Remote(tmp_path / "segment", 5)
    remote.errors.append(error)

    async def read() -> None:
        await waited(made(remote), 5)

    asyncio.run(read())
    assert remote.asked == [5, 5]


def test_members_do_not_ask_without_a_pause_where_nothing_is_visible_behind_the_store(tmp_path: Path) -> None:
    """As behind a gap at the end of the store while a transaction is open."""

    class Empty(Remote):
        async def read(self, partition: Any, offset: int, max_bytes: int, isolation: IsolationLevel) -> Any:
            self.asked.append(offset)
            return None, ()

    async def read() -> list[int]:
        remote, background = Empty(tmp_path / "segment"), BackgroundTasks("test")
        partition: Any = SimpleNamespace(topic_partition="t-0")
        records = RemoteRecords(remote, partition, background, lambda: records.at(5, 100, COMMITTED))
        assert records.at(5, 100, COMMITTED) is None
        for _ in range(50):
            await asyncio.sleep(0)
        await background.stop()
        return remote.asked

    assert asyncio.run(read()) == [5]
