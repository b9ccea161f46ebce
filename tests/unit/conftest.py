"""Unit tests run without Ray: a core that needs it is no core."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting Ray in a unit test fails it."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a unit test must not start Ray")

    monkeypatch.setattr("ray.init", refuse)
