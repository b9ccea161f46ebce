"""A place in the middle of a read where its tasks wait, so that a test can kill somebody there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from rayka.testing import wait_until

TIMEOUT_S = 300.0


class Gate:
    """A file that says the way is free, and one for each partition whose read has come here."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def reading(self) -> set[int]:
        """The partitions of which a task has the first records, and waits with them."""
        return {int(path.name.partition("-")[2]) for path in self.directory.glob("reading-*")}

    def wait_for_readers(self) -> set[int]:
        """Return when a task is here."""
        wait_until(lambda: bool(self.reading()), TIMEOUT_S, "a task has come to the gate")
        return self.reading()

    def open(self) -> None:
        """Let the tasks go on, and those that come later."""
        (self.directory / "open").touch()

    def waiting(self) -> Callable[[Iterable[Any]], Iterator[Any]]:
        """A function over batches with a column `partition` that waits with the first one; is pickled by value."""
        directory, timeout_s = os.fspath(self.directory), TIMEOUT_S

        def pass_on(batches: Iterable[Any]) -> Iterator[Any]:
            import os
            import time

            for batch in batches:
                if batch.num_rows:
                    open(os.path.join(directory, f"reading-{batch['partition'][0]}"), "w").close()
                deadline_s = time.monotonic() + timeout_s
                while not os.path.exists(os.path.join(directory, "open")) and time.monotonic() < deadline_s:
                    time.sleep(0.02)
                yield batch

        return pass_on
