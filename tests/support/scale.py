"""How much a run of the tests does. `RAYKA_CHECK=long`, which `./check long` sets, makes it do much more."""

from __future__ import annotations

import os

IS_LONG = os.environ.get("RAYKA_CHECK") == "long"
LONG_EXAMPLES = 50
"""How many times as many examples Hypothesis tries in a long run."""


def examples(count: int) -> int:
    """The number of examples of a property test that tries `count` in a short run."""
    return count * LONG_EXAMPLES if IS_LONG else count


def rounds(short: int, long: int) -> int:
    """The number of repetitions of a test, such as kills."""
    return long if IS_LONG else short
