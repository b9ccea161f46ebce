"""Each example runs alone and checks its own result; so does the demo, on a part of its data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.quick_java import QUICK_JAVA

TIMEOUT_S = 560
EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_example(name: str) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        env=os.environ | QUICK_JAVA,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.strip()


def test_the_demo() -> None:
    demo = EXAMPLES.parent / "scripts" / "demo" / "demo.py"
    done = subprocess.run(
        [sys.executable, demo, "--records", "30000"],
        env=os.environ | QUICK_JAVA, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "Everything was as it must be" in done.stdout
