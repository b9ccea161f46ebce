"""What the state machines of property tests over one log have in common."""

from __future__ import annotations

import shutil
import tempfile
from unittest.mock import patch

from hypothesis.stateful import RuleBasedStateMachine

from rayka.storage.log.log import Log
from rayka.storage.segments.reader import SegmentReader
from tests.support.logs import NOW_MS

SIZES = {"log.recovery.CHECKED_BYTES": 300, "segments.index.WRITE_BYTES": 16, "log.appends.SNAPSHOT_BYTES": 500}
"""Constants of the storage, so small that a few batches reach them."""


class LogMachine(RuleBasedStateMachine):
    """A log in a directory of its own, which goes with the machine."""

    log: Log

    def __init__(self) -> None:
        super().__init__()
        self.patches = [patch(f"rayka.storage.{name}", size) for name, size in SIZES.items()]
        for one in self.patches:
            one.start()
        self.directory = tempfile.mkdtemp(prefix="rayka-log-")
        self.reader = SegmentReader()
        self.end = 0
        self.now_ms = NOW_MS

    def teardown(self) -> None:
        for one in self.patches:
            one.stop()
        self.log.release()
        shutil.rmtree(self.directory)
