"""Read tasks of compacted topics, which Ray must not repeat."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray.data")

from rayka.data.read import _no_retries
from rayka.errors import ErrorCode, RaykaError


def test_this_ray_can_be_told_to_run_a_read_task_once() -> None:
    assert _no_retries() == {"max_retries": 0}


def test_a_ray_that_would_ignore_the_wish_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_datasource(datasource: Any, *, override_num_blocks: int | None = None, **read_args: Any) -> None:
        """As Ray is to be from 2.64 on."""

    monkeypatch.setattr("ray.data.read_datasource", read_datasource)
    with pytest.raises(RaykaError, match="cannot read a compacted topic") as refused:
        _no_retries()
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
