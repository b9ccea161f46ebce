"""ShareAcknowledge 1-2: acknowledge records without acquiring others (KIP-932); version 2 renews locks (KIP-1222)."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.responses import NO_THROTTLE, message_of
from rayka.gateway.handlers.share.request import (
    acknowledgements,
    fetch_partition,
    names_of,
    partition_ids,
    session_key,
    topic_partition,
)
from rayka.gateway.handlers.share.response import CurrentLeaders
from rayka.gateway.server.request import Call
from rayka.share.requests import ShareFetchParams, ShareFetchResult
from rayka.share.session import FINAL_EPOCH, SharePartitionId

_UNKNOWN = ShareFetchResult(acknowledge_error=ErrorCode.UNKNOWN_TOPIC_ID, acknowledge_error_message="unknown topic id")


async def handle(call: Call) -> Any:
    """Answer when the acknowledgements are durable. With the final epoch the session ends."""
    try:
        lock_duration_ms, results = await _acknowledge(call)
    except RaykaError as error:
        return _response(call, 0, {}, error)
    return _response(call, lock_duration_ms, results)


async def _acknowledge(call: Call) -> tuple[int, dict[SharePartitionId, ShareFetchResult]]:
    request = call.request
    image, leaders = call.broker.image, call.broker.share_leaders
    key = session_key(request)
    session = call.context.share_sessions.acknowledge(key, request.share_session_epoch)
    acknowledged = acknowledgements(request.topics)
    named = [(partition, topic_partition(partition, image)) for partition in partition_ids(request.topics)]
    known = [(partition, name) for partition, name in named if name is not None]
    params = ShareFetchParams(*key, is_renew_ack=call.field("is_renew_ack", False), session_id=session.session_id)
    lock_duration_ms, results = await leaders.fetch(
        params, [fetch_partition(partition, name, acknowledged, is_fetched=False) for partition, name in known]
    )
    if request.share_session_epoch == FINAL_EPOCH:
        await leaders.end_session(*key, names_of(session, image), is_lost=False, session_id=session.session_id)
    found = {partition: result for (partition, _), result in zip(known, results, strict=True)}
    return lock_duration_ms, {partition: found.get(partition, _UNKNOWN) for partition, _ in named}


def _response(
    call: Call,
    lock_duration_ms: int,
    results: Mapping[SharePartitionId, ShareFetchResult],
    error: RaykaError | None = None,
) -> Any:
    types = call.types
    current = CurrentLeaders(call.broker.image)
    topics = groupby(results.items(), key=lambda item: item[0].topic_id)
    return types.ShareAcknowledgeResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
        acquisition_lock_timeout=datetime.timedelta(milliseconds=lock_duration_ms),
        responses=tuple(
            types.ShareAcknowledgeTopicResponse(
                topic_id=topic_id,
                partitions=tuple(_partition(call, current, partition, result) for partition, result in group),
            )
            for topic_id, group in topics
        ),
        node_endpoints=tuple(
            types.NodeEndpoint(node_id=broker_id, host=host, port=port, rack=rack)
            for broker_id, host, port, rack in current.endpoints()
        ),
    )


def _partition(call: Call, current: CurrentLeaders, partition: SharePartitionId, result: ShareFetchResult) -> Any:
    error = ErrorCode(result.acknowledge_error)
    name = topic_partition(partition, call.broker.image)
    leader_id, leader_epoch = current.of(name, error)
    return call.types.PartitionData(
        partition_index=partition.partition,
        error_code=error,
        error_message=message_of(error, result.acknowledge_error_message),
        current_leader=call.types.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch),
    )
