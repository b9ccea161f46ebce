"""The messages between a partition actor and its cleaner process: msgpack, each after its length.

The actor sends a plan with limits; the process answers with each segment when it is complete and the end of the round,
or with an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, TypeVar

import msgspec

from rayka.storage.cleaner.plan import CleanerLimits, CleaningPlan, RoundEnd
from rayka.storage.log.replacement import CleanedSegment

_LENGTH_BYTES = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CleaningRequest:
    """A round to carry out."""

    plan: CleaningPlan
    limits: CleanerLimits


@dataclass(frozen=True, slots=True)
class CleaningFailure:
    """The round has ended early. `errno` is that of an OSError, else 0; `code` that of a RaykaError, else 0."""

    message: str
    errno: int = 0
    code: int = 0


@dataclass(frozen=True, slots=True)
class CleaningEvent:
    """What the cleaner process reports: a complete segment, the end of the round, or its failure."""

    segment: CleanedSegment | None = None
    end: RoundEnd | None = None
    failure: CleaningFailure | None = None


def send(stream: IO[bytes], message: CleaningRequest | CleaningEvent) -> None:
    """Write a message. Raises OSError when the other side is gone."""
    data = msgspec.msgpack.encode(message)
    stream.write(len(data).to_bytes(_LENGTH_BYTES) + data)
    stream.flush()


def receive(stream: IO[bytes], kind: type[T]) -> T | None:
    """Wait for a message; None when the other side is gone."""
    length = stream.read(_LENGTH_BYTES)
    if len(length) < _LENGTH_BYTES:
        return None
    data = stream.read(int.from_bytes(length))
    if len(data) < int.from_bytes(length):
        return None
    return msgspec.msgpack.decode(data, type=kind)
