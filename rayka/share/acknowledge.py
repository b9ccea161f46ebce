"""Acknowledgements of a member, checked before any state changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from rayka.config.shares import MAX_RETRY_DELAY_MS
from rayka.errors import ErrorCode, RaykaError
from rayka.share.in_flight import Headers, InFlightBatches
from rayka.share.record_state import AcknowledgeType, acknowledge_type

GROUP_BACKOFF: Final = -1
"""A delay that is left to the settings of the group."""
MAX_HEADERS_BYTES: Final = 16 << 10


class AcknowledgementBatch(NamedTuple):
    """As in the protocol: one type for all offsets, or one for each.

    The rest is rayka's own, for programs that reach the leader without the protocol: released records wait for
    `delay_ms`, and rejected ones take `headers` to the dead-letter queue.
    """

    first_offset: int
    last_offset: int
    acknowledge_types: tuple[int, ...]
    delay_ms: int = GROUP_BACKOFF
    headers: Headers = ()


class Acknowledgement(NamedTuple):
    """One acknowledgement for all offsets of a range."""

    first_offset: int
    last_offset: int
    type: AcknowledgeType
    delay_ms: int = GROUP_BACKOFF
    headers: Headers = ()


def acknowledgements_of(
    batches: Iterable[AcknowledgementBatch], *, renew_allowed: bool = True
) -> list[Acknowledgement]:
    """Acknowledgements by runs of the same type. Raises INVALID_REQUEST unless batches are sound and in order."""
    found: list[Acknowledgement] = []
    for batch in batches:
        _check(batch, found[-1].last_offset if found else -1)
        if len(batch.acknowledge_types) == 1:
            runs = [(batch.acknowledge_types[0], batch.last_offset - batch.first_offset + 1)]
        else:
            runs = [(number, len(list(group))) for number, group in groupby(batch.acknowledge_types)]
        offset = batch.first_offset
        for number, size in runs:
            kind = _type(number, renew_allowed)
            found.append(Acknowledgement(offset, offset + size - 1, kind, batch.delay_ms, batch.headers))
            offset += size
    return found


def _type(number: int, renew_allowed: bool) -> AcknowledgeType:
    found = acknowledge_type(number)
    if found is AcknowledgeType.RENEW and not renew_allowed:
        raise RaykaError(ErrorCode.INVALID_REQUEST, "Renew acknowledgements need isRenewAck in the request")
    return found


def _check(batch: AcknowledgementBatch, previous_offset: int) -> None:
    first_offset, last_offset, types, delay_ms, headers = batch
    if first_offset > last_offset:
        reason = f"first offset {first_offset} is greater than last offset {last_offset}"
    elif first_offset <= previous_offset:
        reason = f"first offset {first_offset} overlaps with the batch before it"
    elif not types:
        reason = f"no acknowledge type for offsets {first_offset} to {last_offset}"
    elif len(types) not in (1, last_offset - first_offset + 1):
        reason = f"{len(types)} acknowledge types for offsets {first_offset} to {last_offset}"
    elif not GROUP_BACKOFF <= delay_ms <= MAX_RETRY_DELAY_MS:
        reason = f"a delay of {delay_ms} ms is not between 0 and {MAX_RETRY_DELAY_MS}"
    elif delay_ms != GROUP_BACKOFF and set(types) != {AcknowledgeType.RELEASE}:
        reason = "only records that are released can be delayed"
    elif headers and set(types) != {AcknowledgeType.REJECT}:
        reason = "only records that are rejected take headers along"
    elif sum(len(name) + len(value) for name, value in headers) > MAX_HEADERS_BYTES:
        reason = f"the headers have more than {MAX_HEADERS_BYTES} bytes"
    else:
        return
    raise RaykaError(ErrorCode.INVALID_REQUEST, f"Invalid acknowledgement batch: {reason}")


def check_held(
    batches: InFlightBatches, acknowledgements: Sequence[Acknowledgement], member_id: str, now_ms: int
) -> None:
    """Check that the member holds all these records that are not below the start offset. They are in order.

    Raises INVALID_REQUEST for offsets that were never acquired, and INVALID_RECORD_STATE for records that the member
    does not hold, because their lock has expired or they have been acknowledged, perhaps only just now.
    """
    if acknowledgements and acknowledgements[-1].last_offset >= batches.end_offset:
        reason = f"offset {acknowledgements[-1].last_offset} is past the acquired records"
        raise RaykaError(ErrorCode.INVALID_REQUEST, reason)
    for acknowledgement in acknowledgements:
        for batch in batches.within(acknowledgement.first_offset, acknowledgement.last_offset):
            if not batch.is_held_by(member_id, now_ms):
                reason = f"member {member_id} does not hold offsets {batch.first_offset} to {batch.last_offset}"
                raise RaykaError(ErrorCode.INVALID_RECORD_STATE, reason)
