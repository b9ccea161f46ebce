"""The share-partitions of one fetch, and acquiring records from them in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rayka.actors.channel.requests import ShareFetch
from rayka.actors.share.leader import LeadSharePartition
from rayka.errors import RaykaError
from rayka.share.acquire import AcquireParams
from rayka.share.config import AcquireMode
from rayka.share.requests import ShareFetchPartition, ShareFetchResult


class Found(NamedTuple):
    """A partition of a fetch with its share-partition, None where there is an error, or where it is not loaded yet."""

    request: ShareFetchPartition
    leader: LeadSharePartition | None
    error: RaykaError | None = None

    @property
    def is_fetched(self) -> bool:
        """Whether records can be acquired here."""
        return self.leader is not None and self.request.is_fetched


class FetchedPartitions:
    """The share-partitions that `request` names, as they were found."""

    def __init__(self, request: ShareFetch, found: Sequence[Found]) -> None:
        self._request = request
        self._found = found
        # Not the high watermark: what is above it may have been below that of the leader before this one.
        self._ends = [0 if one.leader is None else one.leader.partition.log.log_end_offset for one in found]

    def acquire(self, *, is_last: bool) -> list[ShareFetchResult]:
        """One attempt, over the partitions in order."""
        params = self._request.params
        # One byte is enough for most fetches, and acquiring finds that out itself: the log is read once.
        is_enough = not self._request.is_wait and (is_last or params.min_bytes <= 1 or self.has_enough())
        if params.min_records and is_enough:
            is_enough = self._have_records(params.min_records)
        records_left, bytes_left = (params.max_records, params.max_bytes) if is_enough else (0, 0)
        results = []
        for one, end_offset in zip(self._found, self._ends, strict=True):
            limits = AcquireParams(
                params.member_id, records_left, max(1, params.batch_size), AcquireMode(params.acquire_mode)
            )
            result = _acquire_from(one, limits, bytes_left, end_offset)
            records_left -= result.acquired_count
            bytes_left -= result.size
            results.append(result)
        return results

    def has_enough(self) -> bool:
        """Whether `min_bytes` can be read now, or there is an error to return."""
        size = 0
        for one in self._found:
            if one.leader is None or not one.is_fetched:
                continue
            try:
                readable = one.leader.readable(self._request.params.max_bytes)
            except RaykaError:
                return True
            if readable is not None:
                if readable.result.has_more:
                    return True
                size += readable.size
        return size >= max(1, self._request.params.min_bytes)

    def _have_records(self, count: int) -> bool:
        """Whether that many records can be acquired, or there is an error to return."""
        leaders = [one.leader for one in self._found if one.leader is not None and one.is_fetched]
        try:
            return sum(leader.acquirable_count() for leader in leaders) >= count
        except RaykaError:
            return True


def _acquire_from(found: Found, limits: AcquireParams, max_bytes: int, end_offset: int) -> ShareFetchResult:
    """What lies beyond `end_offset` came after the fetch."""
    if found.error is not None and found.request.is_fetched:
        return ShareFetchResult(found.error.code, found.error.message)
    if found.leader is None or not found.is_fetched or limits.max_records <= 0 or max_bytes <= 0:
        return ShareFetchResult()
    try:
        acquired, records = found.leader.acquire(limits, max_bytes)
    except RaykaError as error:
        return ShareFetchResult(error.code, error.message)
    is_new = bool(acquired) and acquired[0].first_offset >= end_offset
    return ShareFetchResult(acquired=acquired, records=records, is_new=is_new)
