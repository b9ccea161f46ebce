"""The schedule of `./check`."""

from __future__ import annotations

import os
import re
import subprocess
import sys

FILES = ("tests/unit/test_history.py", "tests/unit/config/test_definition.py")


def test_tests_that_share_a_broker_run_on_one_worker() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "2",
        "--dist",
        "loadgroup",
        "--no-loadscope-reorder",
        "-vv",
        *FILES,
    ]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200, check=True)
    ran = set(re.findall(r"\[(gw\d)\].* PASSED (\S+?)::", done.stdout))
    assert len(ran) == len(FILES)
