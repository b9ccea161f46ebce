"""An actor of a pool as the pool sees it, with stand-ins for Ray's actors."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rayka.client.share.record_socket import ProcessedRecord
from rayka.client.share.records import RecordAcknowledgement, ShareRecord
from rayka.client.share.worker import RecordActor, Worker
from rayka.share.record_state import AcknowledgeType


class Call:
    """A call of an actor, whose result comes when the test says so."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.arguments = arguments
        self.result: Future[Any] = Future()

    def future(self) -> Future[Any]:
        return self.result


class Method:
    """A method of an actor on another machine. It answers at once if there is a `function`."""

    def __init__(self, function: Any = None) -> None:
        self.calls: list[Call] = []
        self._function = function

    def remote(self, *arguments: Any) -> Call:
        self.calls.append(Call(arguments))
        if self._function is not None:
            self.calls[-1].result.set_result(self._function(*arguments))
        return self.calls[-1]


class Handle:
    """The handle of an actor that gets its records by calls."""

    def __init__(self) -> None:
        self.listen = Method(RecordActor(print, (), None).listen)
        self.process = Method()


def record(offset: int) -> ShareRecord:
    return ShareRecord("tasks", 0, offset, 0, None, None, (), 1)


def processed(kind: AcknowledgeType, count: int) -> list[ProcessedRecord]:
    return [ProcessedRecord(RecordAcknowledgement(kind), 0.0)] * count


class Pool:
    """Takes what was processed, as the pool does it."""

    def __init__(self) -> None:
        self.kinds: dict[int, int] = {}
        self.released: list[int] = []

    def on_processed(self, worker: Worker, results: Sequence[ProcessedRecord]) -> None:
        for acknowledgement, _ in results:
            self.kinds[worker.records.popleft().offset] = acknowledgement.type

    def on_lost(self, worker: Worker, begun: int) -> None:
        self.released = [each.offset for each in list(worker.records)[:begun]]


async def given(handle: Handle, pool: Pool) -> Worker:
    """A worker that has five records in two calls."""
    worker = Worker(handle)
    await worker.ready(pool.on_processed, pool.on_lost)
    worker.serve()
    worker.give([record(offset) for offset in range(5)])
    assert [len(call.arguments[0]) for call in handle.process.calls] == [3, 2]
    return worker


@pytest.fixture
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that is too long for a socket, as if the actor were on another machine."""
    (long_path := tmp_path / ("x" * 100)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long_path))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.usefixtures("_elsewhere")
def test_a_result_that_overtakes_an_earlier_one_waits_for_it() -> None:
    """Ray fetches large results, as those with many tracebacks, later than small ones."""
    pool, handle = Pool(), Handle()

    async def process() -> None:
        await given(handle, pool)
        first, second = handle.process.calls
        second.result.set_result(processed(AcknowledgeType.ACCEPT, 2))
        await turns()
        assert pool.kinds == {}
        first.result.set_result(processed(AcknowledgeType.REJECT, 3))
        await turns()

    asyncio.run(process())
    assert pool.kinds == dict.fromkeys(range(3), AcknowledgeType.REJECT) | dict.fromkeys((3, 4), AcknowledgeType.ACCEPT)


@pytest.mark.usefixtures("_elsewhere")
@pytest.mark.parametrize("failed_first", [True, False])
def test_a_failed_call_releases_the_records_without_a_result(failed_first: bool) -> None:
    pool, handle = Pool(), Handle()

    async def process() -> None:
        await given(handle, pool)
        first, second = handle.process.calls
        if failed_first:
            second.result.set_exception(OSError("died"))
            await turns()
            first.result.set_result(processed(AcknowledgeType.ACCEPT, 3))
        else:
            first.result.set_result(processed(AcknowledgeType.ACCEPT, 3))
            second.result.set_exception(OSError("died"))
        await turns()

    asyncio.run(process())
    assert sorted(pool.kinds) + pool.released == [0, 1, 2, 3, 4]
    assert pool.released == ([0, 1, 2, 3, 4] if failed_first else [3, 4])


def test_without_a_directory_for_a_socket_an_actor_gets_its_records_by_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    handle = Handle()
    asyncio.run(given(handle, Pool()))
