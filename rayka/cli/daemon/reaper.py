"""Stands between the supervisor and the broker process, so that nothing survives even the supervisor's kill -9.

The kernel can kill a child with its parent, but not a whole tree, and some of Ray's agents live on for a
minute without their raylet. This process runs the command that it is given and adopts what that leaves behind.
When the supervisor dies, the kernel tells it so with PARENT_DIED and it kills everything below; when
the command ends, too. When this process itself is killed, the command dies with it, and the supervisor, which
adopts the rest, does the same. Signals to stop are passed on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from rayka.cli.daemon import processes

PARENT_DIED = signal.SIGUSR1
KILLED = 128
"""Added to the number of the signal that ended the command, as shells do."""


def main(command: Sequence[str]) -> int:
    """Runs the command; its exit code."""
    processes.adopt_orphans()
    signal.signal(PARENT_DIED, _parent_died)
    # Descriptors are passed on, the pipe to the supervisor among them.
    child = subprocess.Popen(list(command), close_fds=False, preexec_fn=processes.dies_with(os.getpid()))
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(child.pid, number))
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child.pid:
            break
    child.returncode = os.waitstatus_to_exitcode(status)
    processes.kill_descendants()
    return child.returncode if child.returncode >= 0 else KILLED - child.returncode


def _parent_died(number: int, frame: FrameType | None) -> None:
    processes.kill_descendants()
    os._exit(KILLED + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
