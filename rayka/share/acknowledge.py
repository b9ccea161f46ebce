"""What a member says about its records, checked before anything changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from rayka.errors import ErrorCode, RaykaError
from rayka.share.in_flight import InFlightBatches
from rayka.share.record_state import AcknowledgeType, acknowledge_type


class AcknowledgementBatch(NamedTuple):
    """As in the protocol: one type for all offsets, or one for each."""

    first_offset: int
    last_offset: int
    acknowledge_types: tuple[int, ...]


class Acknowledgement(NamedTuple):
    """The same for all offsets."""

    first_offset: int
    last_offset: int
    type: AcknowledgeType


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
            found.append(Acknowledgement(offset, offset + size - 1, _type(number, renew_allowed)))
            offset += size
    return found


def _type(number: int, renew_allowed: bool) -> AcknowledgeType:
    found = acknowledge_type(number)
    if found is AcknowledgeType.RENEW and not renew_allowed:
        raise RaykaError(ErrorCode.INVALID_REQUEST, "Renew acknowledgements need isRenewAck in the request")
    return found


def _check(batch: AcknowledgementBatch, previous_offset: int) -> None:
    first_offset, last_offset, types = batch
    if first_offset > last_offset:
        reason = f"first offset {first_offset} is greater than last offset {last_offset}"
    elif first_offset <= previous_offset:
        reason = f"first offset {first_offset} overlaps with the batch before it"
    elif not types:
        reason = f"no acknowledge type for offsets {first_offset} to {last_offset}"
    elif len(types) not in (1, last_offset - first_offset + 1):
        reason = f"{len(types)} acknowledge types for offsets {first_offset} to {last_offset}"
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
    for first_offset, last_offset, _ in acknowledgements:
        for batch in batches.within(first_offset, last_offset):
            if not batch.is_held_by(member_id, now_ms):
                reason = f"member {member_id} does not hold offsets {batch.first_offset} to {batch.last_offset}"
                raise RaykaError(ErrorCode.INVALID_RECORD_STATE, reason)
