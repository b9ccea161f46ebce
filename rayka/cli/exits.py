"""Exit codes of the `rayka` command, and the error that ends a command with one line.

Scripts may rely on these: 0 done, 1 failed, 2 wrong usage, 3 nothing there (no broker to reach, no such
topic or group), 4 `rayka up` gave up because the broker kept failing.
"""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """What the process tells the shell."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    GAVE_UP = 4


class CliError(Exception):
    """Ends the command: `message` is the one line that goes to stderr, `exit_code` what the shell gets."""

    def __init__(self, message: str, exit_code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
