"""A unit test that needs a program which a fresh machine does not have is told apart here, and not only there."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable

import pytest


@pytest.mark.parametrize(
    "start",
    [
        lambda: subprocess.run(["kcat", "-V"], check=False),
        lambda: subprocess.run("kcat -V", shell=True, check=False),
        lambda: os.system("kcat -V"),
        lambda: os.posix_spawn("/bin/true", ["true"], {}),
        lambda: asyncio.run(asyncio.create_subprocess_exec("kcat", "-V")),
    ],
    ids=["program", "shell", "system", "spawn", "asyncio"],
)
def test_a_unit_test_cannot_start_other_programs(start: Callable[[], object]) -> None:
    with pytest.raises(AssertionError, match="must start no program but Python"):
        start()


def test_a_unit_test_can_start_python() -> None:
    assert subprocess.run([sys.executable, "-c", "print(7)"], capture_output=True, check=True).stdout == b"7\n"
