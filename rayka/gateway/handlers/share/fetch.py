"""ShareFetch 1-2: acknowledge records, and acquire others under a lock (KIP-932).

A request reads from all partitions of its share session. Its response has those that it acknowledged records of, those
with new records, and those with an error. Version 2 has the acquire mode, and renewals of locks (KIP-1206, KIP-1222).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.responses import milliseconds
from rayka.gateway.handlers.share.request import (
    acknowledgements,
    fetch_partition,
    names_of,
    partition_ids,
    session_key,
    topic_partition,
)
from rayka.gateway.handlers.share.response import Answered, ShareFetchResponse
from rayka.gateway.server.context import Context
from rayka.gateway.server.eager_task import start_eagerly
from rayka.gateway.server.limits import COPIED_BYTES
from rayka.gateway.server.request import PendingRequest
from rayka.gateway.wire.reader import FrameReader
from rayka.gateway.wire.schema import ApiKey, schema
from rayka.share.config import AcquireMode
from rayka.share.requests import ShareFetchParams, ShareFetchResult
from rayka.share.session import FINAL_EPOCH, INITIAL_EPOCH, SharePartitionId
from rayka.types import TopicPartition

logger = logging.getLogger("rayka.gateway")

_LONGEST_WAIT_MS = 60_000


def handle(context: Context, pending: PendingRequest) -> None:
    """Ask the leaders; answer when they have."""
    reader = FrameReader(pending.frame, pending.position)
    request = schema(ApiKey.SHARE_FETCH, pending.version).read(reader)
    context.busy_poll.request_came(pending.size)
    pending.waiting = start_eagerly(_serve(context, pending, request), context.loop)


async def _serve(context: Context, pending: PendingRequest, request: Any) -> None:
    response = ShareFetchResponse(pending.correlation_id, context.broker.image, context.segment_files)
    try:
        parts = await PendingShareFetch(context, pending, request).answer(response)
        pending.answer_in_parts(parts)
    except RaykaError as error:
        pending.answer_in_parts(response.refuse(error))
    except Exception:
        logger.exception("%s failed", pending.describe())
        pending.refuse("internal error")


class PendingShareFetch:
    """One fetch under way. Raises RaykaError if it is refused as a whole."""

    def __init__(self, context: Context, pending: PendingRequest, request: Any) -> None:
        self._context = context
        self._broker = context.broker
        self._request = request
        self._key = session_key(request)
        self._epoch: int = request.share_session_epoch
        self._acknowledged = acknowledgements(request.topics)
        if self._epoch == INITIAL_EPOCH and self._acknowledged:
            raise RaykaError(ErrorCode.INVALID_REQUEST, "a request that opens a share session acknowledges nothing")
        pending.connection.affinity.stay()
        limit = int(context.broker.config["group.share.max.share.sessions"])
        self._session = context.share_sessions.fetch(self._key, self._epoch, pending.connection, limit)

    @property
    def _is_final(self) -> bool:
        return self._epoch == FINAL_EPOCH

    async def answer(self, response: ShareFetchResponse) -> Any:
        """The parts of the response."""
        self._update_session()
        image = self._broker.image
        wanted = self._wanted()
        named = [(partition, topic_partition(partition, image)) for partition in wanted]
        known = [(partition, name) for partition, name in named if name is not None]
        lock_duration_ms, results = await self._broker.share_leaders.fetch(
            self._params([name for _, name in known]),
            [
                fetch_partition(partition, name, self._acknowledged, is_fetched=self._is_fetched(partition))
                for partition, name in known
            ],
        )
        if self._is_final:
            await self._broker.share_leaders.end_session(
                *self._key, names_of(self._session, image), is_lost=False, session_id=self._session.session_id
            )
        by_partition = {partition: result for (partition, _), result in zip(known, results, strict=True)}
        unknown = ShareFetchResult(ErrorCode.UNKNOWN_TOPIC_ID, "unknown topic id")
        answered = [Answered(partition, name, by_partition.get(partition, unknown)) for partition, name in named]
        return response.write(lock_duration_ms, sorted(self._news(answered), key=lambda one: one.partition.topic_id))

    def _update_session(self) -> None:
        request = self._request
        forgotten = [
            SharePartitionId(topic.topic_id, number)
            for topic in request.forgotten_topics_data
            if topic.topic_id is not None
            for number in topic.partitions
        ]
        self._context.share_sessions.update(self._session, partition_ids(request.topics), forgotten)

    def _is_fetched(self, partition: SharePartitionId) -> bool:
        is_renewal = getattr(self._request, "is_renew_ack", False)
        return partition in self._session.partitions and not self._is_final and not is_renewal

    def _wanted(self) -> list[SharePartitionId]:
        """The partitions of the session, and those that are only acknowledged."""
        fetched = {} if self._is_final else self._session.partitions
        return list(dict.fromkeys((*fetched, *self._acknowledged)))

    def _params(self, names: list[TopicPartition]) -> ShareFetchParams:
        request = self._request
        is_copied = not self._broker.partitions.are_on_this_node(names)
        max_bytes = min(request.max_bytes, self._context.fetch_max_bytes)
        return ShareFetchParams(
            *self._key,
            max_wait_s=0.0 if self._is_final else min(milliseconds(request.max_wait), _LONGEST_WAIT_MS) / 1000,
            min_bytes=request.min_bytes,
            max_bytes=min(max_bytes, COPIED_BYTES) if is_copied else max_bytes,
            max_records=request.max_records,
            batch_size=request.batch_size,
            acquire_mode=_acquire_mode(getattr(request, "share_acquire_mode", 0)),
            is_renew_ack=getattr(request, "is_renew_ack", False),
            session_id=self._session.session_id,
        )

    def _news(self, answered: list[Answered]) -> Iterator[Answered]:
        """What the response must have. A partition that had records is read last next time."""
        for one in answered:
            result = one.result
            if result.acquired:
                self._session.read_last(one.partition)
            if result.acquired or result.error or one.partition in self._acknowledged or self._epoch == INITIAL_EPOCH:
                yield one


def _acquire_mode(number: int) -> int:
    try:
        return AcquireMode(number)
    except ValueError:
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"unknown share acquire mode {number}") from None
