"""A command that must be heard is repeated while that helps, and an error that stays is not taken for success."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest
import ray.exceptions

from rayka.actors.controller import client
from rayka.actors.controller.client import ControllerClient, execute_until_heard
from rayka.actors.controller.watch import ImageWatch
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.server.eager_task import start_eagerly
from rayka.metadata.commands import ActorDied, AllocateProducerIds, ProducerIdBlock

REQUEST = ActorDied("a", 3)


class Controller:
    """A handle whose calls end with these outcomes, one after the other."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)

    @property
    def execute(self) -> Controller:
        return self

    def remote(self, request: Any) -> Awaitable[Any]:
        assert request == REQUEST
        return self._answer(self.outcomes.pop(0))

    async def _answer(self, outcome: Any) -> Any:
        if isinstance(outcome, ray.exceptions.RayError):
            raise outcome
        return 7, outcome


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_RETRY_S", 0.0001)


def test_a_command_is_repeated_until_the_controller_has_heard_it() -> None:
    controller = Controller(
        ray.exceptions.RayActorError(),
        RaykaError(ErrorCode.KAFKA_STORAGE_ERROR, "full"),
        RaykaError(ErrorCode.BROKER_NOT_AVAILABLE, "starting"),
        None,
    )
    assert asyncio.run(execute_until_heard(controller, REQUEST)) is None


def test_a_controller_of_which_ray_knows_nothing_is_unavailable() -> None:
    """Else the producer that asks for its id would wait for ever."""

    def refuse(*_: object) -> None:
        raise Exception("Failed to submit task to actor")

    async def main() -> None:
        controller = SimpleNamespace(execute=SimpleNamespace(remote=refuse))
        with pytest.raises(RaykaError) as unavailable:
            await ControllerClient(controller, ImageWatch(controller, "client"), 1).allocate_producer_id()
        assert unavailable.value.code is ErrorCode.REQUEST_TIMED_OUT

    asyncio.run(main())


def test_a_registration_that_is_refused_is_an_error() -> None:
    controller = Controller(RaykaError(ErrorCode.BROKER_ID_NOT_REGISTERED, "who?"))
    with pytest.raises(RaykaError, match="who"):
        asyncio.run(execute_until_heard(controller, REQUEST))


class Blocks:
    """A handle that gives blocks of ten producer ids, after one call that fails with `error`."""

    def __init__(self, error: RaykaError | None = None) -> None:
        self.given = 0
        self._error = error

    @property
    def execute(self) -> Blocks:
        return self

    async def remote(self, request: Any) -> tuple[int, Any]:
        assert request == AllocateProducerIds(1)
        await asyncio.sleep(0)
        if self._error is not None:
            error, self._error = self._error, None
            return -1, error
        self.given += 1
        return 0, ProducerIdBlock(10 * self.given, 10)


def test_producers_that_start_together_share_blocks_of_ids() -> None:
    """Each block is a change of the metadata, which every process of the cluster hears of."""

    async def test() -> None:
        controller = Blocks()
        client = ControllerClient(controller, ImageWatch(None, "client"), 1)
        cancelled = asyncio.ensure_future(client.allocate_producer_id())
        asked = [asyncio.ensure_future(client.allocate_producer_id()) for _ in range(25)]
        await asyncio.sleep(0)
        cancelled.cancel()
        assert sorted(await asyncio.gather(*asked)) == list(range(10, 35))
        assert controller.given == 3

    asyncio.run(test())


def test_a_request_that_runs_in_no_task_yet_gets_an_id() -> None:
    """A gateway starts each in the callback that has read it."""

    async def test() -> None:
        loop = asyncio.get_running_loop()
        client = ControllerClient(Blocks(), ImageWatch(None, "client"), 1)
        given = loop.create_future()

        async def request() -> None:
            given.set_result(await client.allocate_producer_id())

        loop.call_soon(start_eagerly, request(), loop)
        assert await asyncio.wait_for(given, 60) == 10

    asyncio.run(test())


def test_producers_that_start_while_the_controller_is_away_all_hear_of_it() -> None:
    async def test() -> None:
        away = RaykaError(ErrorCode.BROKER_NOT_AVAILABLE, "starting")
        client = ControllerClient(Blocks(away), ImageWatch(None, "client"), 1)
        answers = await asyncio.gather(*(client.allocate_producer_id() for _ in range(5)), return_exceptions=True)
        assert answers == [away] * 5
        assert await client.allocate_producer_id() == 10

    asyncio.run(test())


def test_a_producer_waits_for_its_own_time_though_it_came_late_to_a_call_that_is_not_answered() -> None:
    async def test() -> None:
        loop, passed_s = asyncio.get_running_loop(), 0.0
        clock = loop.time
        loop.time = lambda: clock() + passed_s  # type: ignore[method-assign]
        blocks, unanswered = Blocks(), [loop.create_future()]

        async def remote(request: Any) -> tuple[int, Any]:
            return await (unanswered.pop() if unanswered else blocks.remote(request))

        controller = SimpleNamespace(execute=SimpleNamespace(remote=remote))
        client = ControllerClient(controller, ImageWatch(None, "client"), 1)
        first = asyncio.ensure_future(client.allocate_producer_id())
        while unanswered:
            await asyncio.sleep(0)
        passed_s = 20.0
        second = asyncio.ensure_future(client.allocate_producer_id())
        await asyncio.sleep(0)
        passed_s = 40.0
        with pytest.raises(RaykaError) as late:
            await first
        assert late.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert await second == 10

    asyncio.run(test())
