"""Fetch 0-3: record batches converted to messages of magic 0 (Fetch 0 and 1) or 1, in a thread.

Versions 0-2 have a limit for each partition that holds even for its first message: a client that gets only a part of a
message knows that it must fetch more. From version 3 on the first message of a response is always whole (KIP-74).
"""

from __future__ import annotations

import logging
from asyncio import Future
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.fetch.request import FIRST_WITH_MAX_BYTES
from rayka.gateway.server.context import Context
from rayka.gateway.server.segment_files import SegmentFile, SegmentGone
from rayka.types import FetchResult, FileSlice

logger = logging.getLogger("rayka.gateway")

FIRST_WITH_MAGIC_2: Final = 4
_FIRST_WITH_MAGIC_1: Final = 2


class Fetched(NamedTuple):
    """What the leader answered for a partition, and what its client asked: from which offset, and how many bytes."""

    result: FetchResult
    fetch_offset: int
    max_bytes: int


class Converted(NamedTuple):
    """The answer with messages. Without any, the records that were read are none for the client: `next_offset` is
    where they end."""

    result: FetchResult
    next_offset: int


class _Source(NamedTuple):
    fetched: Fetched
    file: SegmentFile | None

    def read(self) -> bytes:
        """The batches. Raises OSError and SegmentGone."""
        records = self.fetched.result.records
        if isinstance(records, FileSlice):
            assert self.file is not None
            return self.file.read(records.size, records.position)
        return records or b""


def convert(context: Context, version: int, fetched: Sequence[Fetched], max_bytes: int) -> Future[list[Converted]]:
    """Read and convert; at most `max_bytes` for all partitions together.

    Raises OSError and SegmentGone. The errors of single partitions are in the results.
    """
    files = context.segment_files
    sources = [
        _Source(one, files.open(one.result.records) if isinstance(one.result.records, FileSlice) else None)
        for one in fetched
    ]
    return context.conversions.run(partial(_convert_all, sources, version, max_bytes))


def _convert_all(sources: Sequence[_Source], version: int, max_bytes: int) -> list[Converted]:
    converted = []
    left = max_bytes
    is_first = True
    for source in sources:
        one = _convert(source, version, left, is_first)
        left -= one.result.size
        is_first = is_first and not one.result.size
        converted.append(one)
    return converted


def _convert(source: _Source, version: int, left: int, is_first: bool) -> Converted:
    from rayka.storage.format.legacy.down_conversion import convert_down

    result, fetch_offset, max_bytes = source.fetched
    limit = max(min(max_bytes, left), 0)
    is_hard_limit = version < FIRST_WITH_MAX_BYTES
    has_room = limit or (is_first and not is_hard_limit)
    if result.error or not result.size or not has_room:
        return Converted(result._replace(records=None), fetch_offset)
    magic = 0 if version < _FIRST_WITH_MAGIC_1 else 1
    try:
        found = convert_down(source.read(), magic, fetch_offset, limit, is_hard_limit=is_hard_limit)
    except RaykaError as error:
        return Converted(FetchResult(error.code), fetch_offset)
    except (OSError, SegmentGone) as error:
        logger.error("cannot read records to convert: %s", error)
        return Converted(FetchResult(ErrorCode.KAFKA_STORAGE_ERROR), fetch_offset)
    if len(found.messages) > limit and not is_first:
        return Converted(result._replace(records=None), fetch_offset)
    return Converted(result._replace(records=found.messages), fetch_offset if found.messages else found.next_offset)
