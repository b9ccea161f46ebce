"""Blocks for a file before its bytes: `fallocate` of Linux, in the form that Python does not have."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_KEEP_SIZE: Final = 1
_EXT4_MAGIC: Final = 0xEF53
_STATFS_WORDS: Final = 64
"""More than `struct statfs` has on any architecture; its first word is the type of the file system."""

_MOST_OF_FREE: Final = 0.01

_libc = ctypes.CDLL(None, use_errno=True)


def is_ext4(descriptor: int) -> bool:
    """Whether a file is on ext4."""
    words = (ctypes.c_long * _STATFS_WORDS)()
    return _libc.fstatfs(descriptor, words) == 0 and words[0] == _EXT4_MAGIC


def set_blocks_aside(descriptor: int, position: int, size: int) -> bool:
    """Give a file on ext4 the blocks for `size` bytes from `position` on. Its own size stays. Raises OSError.

    Returns False, having done nothing, on any other file system. There it was not measured, and tmpfs would take the
    memory at once. The same holds where that is more than a hundredth of what the file system has left: others need it.
    """
    if not is_ext4(descriptor) or size > _free_bytes(descriptor) * _MOST_OF_FREE:
        return False
    if _libc.fallocate(descriptor, _KEEP_SIZE, ctypes.c_int64(position), ctypes.c_int64(size)):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return True


def _free_bytes(descriptor: int) -> int:
    status = os.fstatvfs(descriptor)
    return status.f_bavail * status.f_frsize
