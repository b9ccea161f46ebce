"""Each example with Spark runs alone and checks its own result; `./check` runs them beside other tests with brokers."""

from __future__ import annotations

import pytest

from tests.support import example


@pytest.mark.parametrize("name", example.WITH_SPARK)
def test_example(name: str) -> None:
    example.run(name)
