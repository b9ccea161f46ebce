"""The broker's directory for sockets and counters. Its name can be guessed, so it is used only if it is ours alone."""

from __future__ import annotations

import os
import stat

from rayka.errors import ErrorCode, RaykaError


def make_private_directory(path: str) -> None:
    """Make a directory with mode 0700, or make sure that one is there.

    Raises CLUSTER_AUTHORIZATION_FAILED if somebody else owns what is there or may use it, or if it is no directory.
    """
    try:
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)  # whatever the umask is
    except FileExistsError:
        fault = _fault(os.lstat(path))
        if fault is not None:
            raise RaykaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{path} {fault}; remove it") from None


def _fault(status: os.stat_result) -> str | None:
    if not stat.S_ISDIR(status.st_mode):
        return "is not a directory"
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}"
    mode = stat.S_IMODE(status.st_mode)
    return f"has mode {mode:04o} instead of 0700" if mode & 0o077 else None
