"""Each example without Spark runs alone and checks its own result."""

from __future__ import annotations

import pytest

from tests.support import example


@pytest.mark.parametrize("name", [name for name in example.NAMES if name not in example.WITH_SPARK])
def test_example(name: str) -> None:
    example.run(name)
