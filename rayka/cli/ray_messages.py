"""Shortens each of Ray's messages about its cluster to one line.

Ray prints the errors of the whole cluster, such as the death of a process, on the standard output of every
driver: a paragraph each, whatever `log_to_driver` says. No setting turns that off, so the function that prints
is replaced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

FILE_NAME = "rayka-messages.log"
_PROCESS = re.compile(r"Worker PID: (\d+)")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def divert(handle: Callable[[str], None]) -> None:
    """Give `handle` each message instead of printing it. To be called before Ray is joined."""
    import ray

    def take(data: dict[str, Any], *_: object, **__: object) -> None:
        for line in data["lines"]:
            handle(_COLOR.sub("", line))

    worker: Any = ray._private.worker
    worker.print_to_stdstream = take


def drop(message: str) -> None:
    """For commands that come and go, and whose output is for other programs."""


def keep(message: str) -> str:
    """Put a message beside Ray's own logs; gives the line that is to be said of it."""
    import ray

    node: Any = ray._private.worker._global_node
    path = os.path.join(node.get_logs_dir_path(), FILE_NAME)
    with open(path, "a") as file:
        file.write(f"{message}\n")
    return f"{short(message)}; more in {path}"


def short(message: str) -> str:
    """The first sentence, and the process that it is about."""
    process = _PROCESS.search(message)
    sentence = message.strip().split("\n")[0].split(". ")[0].rstrip(".")
    return f"Ray: {sentence}" + (f" (process {process[1]})" if process else "")
