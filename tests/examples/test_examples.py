"""Each example runs as its reader runs it, and checks its own result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.quick_java import QUICK_JAVA

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("clickstream_sessions", "nightly_load", "word_counts", "batch_inference", "group", "kafka_client_and_spark")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_example(name: str) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        env=os.environ | QUICK_JAVA,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.strip()
