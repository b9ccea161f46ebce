"""A command that must be heard is repeated while that helps, and an error that stays is not taken for success."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
import ray.exceptions

from rayka.actors.controller import client
from rayka.actors.controller.client import execute_until_heard
from rayka.errors import ErrorCode, RaykaError
from rayka.metadata.commands import ActorDied

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


def test_a_registration_that_is_refused_is_an_error() -> None:
    controller = Controller(RaykaError(ErrorCode.BROKER_ID_NOT_REGISTERED, "who?"))
    with pytest.raises(RaykaError, match="who"):
        asyncio.run(execute_until_heard(controller, REQUEST))
