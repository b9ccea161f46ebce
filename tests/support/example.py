"""The examples, and how a test runs one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.quick_java import QUICK_JAVA

TIMEOUT_S = 560
EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
WITH_SPARK = [name for name in NAMES if "rayka.spark" in (EXAMPLES / f"{name}.py").read_text()]


def run(name: str) -> None:
    """Run an example alone. It checks its own result."""
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
