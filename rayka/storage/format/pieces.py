"""Bytes in several pieces, which are written one after the other and never joined in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias


class Pieces:
    """A file that keeps what is written to it. A pickler writes large `bytes` objects to it as they are."""

    __slots__ = ("_size", "buffers")

    def __init__(self) -> None:
        self.buffers: list[bytes] = []
        self._size = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Add a piece. It is copied if it could change."""
        piece = data if type(data) is bytes else bytes(data)
        self.buffers.append(piece)
        self._size += len(piece)
        return len(piece)

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.buffers)


MaybePieces: TypeAlias = bytes | Pieces


def joined(values: Iterable[MaybePieces]) -> list[bytes]:
    """Each as one object."""
    return [value if isinstance(value, bytes) else bytes(value) for value in values]
