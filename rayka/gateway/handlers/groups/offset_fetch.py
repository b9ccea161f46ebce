"""OffsetFetch 0-10.

Version 0 answers a partition without an offset with an error, later ones with offset -1. Before version 2 the
error of a group is repeated for each partition. From version 2 on null stands for all partitions, from version 8 on a
request can name many groups, and from version 10 on topics are identified by their ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from rayka.coordinator.codec import ZERO_UUID
from rayka.coordinator.groups.requests import FetchedOffset, OffsetFetchRequest, OffsetFetchResponse, OffsetPartition
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.responses import NO_THROTTLE
from rayka.gateway.server.request import Call

_FIRST_WITH_GROUP_ERROR = 2
_FIRST_OF_MANY = 8
_FIRST_BY_ID = 10
_COMES_BACK_HERE = frozenset((ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR))
"""Answered as COORDINATOR_LOAD_IN_PROGRESS: with one node, the coordinator starts again on the same node, so a client
only has to wait. An error that makes it look the coordinator up crashes librdkafka's AdminClient, whose
`rd_kafka_handle_OffsetFetch` sends COORD_QUERY to the consumer group that such a client does not have."""


async def handle(call: Call) -> Any:
    """What groups have committed."""
    types = call.types
    if call.version < _FIRST_OF_MANY:
        fetched = await _fetch(call, call.request)
        return types.OffsetFetchResponse(
            throttle_time=NO_THROTTLE, topics=tuple(_topics(call, fetched)), error_code=fetched.error
        )
    # Each once, whatever member is named: a few bytes would become all offsets of a group again.
    asked = {(group.group_id, group.topics): group for group in call.request.groups}
    groups = await asyncio.gather(*(_fetch(call, group) for group in asked.values()))
    return types.OffsetFetchResponse(
        throttle_time=NO_THROTTLE,
        groups=tuple(
            types.OffsetFetchResponseGroup(
                group_id=fetched.group_id, topics=tuple(_topics(call, fetched)), error_code=fetched.error
            )
            for fetched in groups
        ),
    )


async def _fetch(call: Call, group: Any) -> OffsetFetchResponse:
    """The offsets of one group, each once, in the order of the request."""
    asked = None
    if group.topics is not None:
        asked = tuple(dict.fromkeys(place for topic in group.topics for place in _places(call, topic)))
    known = None if asked is None else tuple(place for place in asked if place.topic)
    request = OffsetFetchRequest(
        group.group_id,
        known,
        getattr(group, "member_id", None),
        getattr(group, "member_epoch", -1),
        call.field("require_stable", False),
    )
    try:
        fetched = await call.broker.groups.execute(request)
    except RaykaError as error:
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error.code in _COMES_BACK_HERE else error.code
        fetched = OffsetFetchResponse(group.group_id, code)
    if fetched.error != ErrorCode.NONE:
        return _failed(call, fetched, asked or ())
    offsets = iter(fetched.offsets)
    if asked is None:
        return replace(fetched, offsets=tuple(_of_current_topics(call, offsets)))
    return replace(
        fetched,
        offsets=tuple(
            next(offsets)._replace(topic_id=place.topic_id)
            if place.topic
            else FetchedOffset("", place.partition, error=ErrorCode.UNKNOWN_TOPIC_ID, topic_id=place.topic_id)
            for place in asked
        ),
    )


def _places(call: Call, topic: Any) -> Iterator[OffsetPartition]:
    """The partitions of a topic of the request; their topic has no name if its id is unknown."""
    topic_id = ZERO_UUID
    name = getattr(topic, "name", "")
    if call.version >= _FIRST_BY_ID:
        topic_id = topic.topic_id or ZERO_UUID
        known = call.broker.image.topic_by_id(topic_id)
        name = "" if known is None else known.name
    return (OffsetPartition(name, partition, topic_id) for partition in topic.partition_indexes)


def _failed(call: Call, fetched: OffsetFetchResponse, asked: Iterable[OffsetPartition]) -> OffsetFetchResponse:
    if call.version >= _FIRST_WITH_GROUP_ERROR:
        return replace(fetched, offsets=())
    return replace(
        fetched, offsets=tuple(FetchedOffset(place.topic, place.partition, error=fetched.error) for place in asked)
    )


def _of_current_topics(call: Call, offsets: Iterable[FetchedOffset]) -> Iterator[FetchedOffset]:
    """Where topics go by their ids, only the offsets of topics that are there under the id of the commit."""
    for offset in offsets:
        if call.version < _FIRST_BY_ID:
            yield offset._replace(topic_id=ZERO_UUID)
            continue
        topic = call.broker.image.topics.get(offset.topic)
        if topic is not None and offset.topic_id in (ZERO_UUID, topic.topic_id):
            yield offset._replace(topic_id=topic.topic_id)


def _topics(call: Call, fetched: OffsetFetchResponse) -> Iterator[Any]:
    types = call.types
    of_many = call.version >= _FIRST_OF_MANY
    topic_type = types.OffsetFetchResponseTopics if of_many else types.OffsetFetchResponseTopic
    for (name, topic_id), offsets in groupby(fetched.offsets, attrgetter("topic", "topic_id")):
        yield topic_type(name=name, topic_id=topic_id, partitions=tuple(_partition(call, offset) for offset in offsets))


def _partition(call: Call, offset: FetchedOffset) -> Any:
    types = call.types
    of_many = call.version >= _FIRST_OF_MANY
    build = types.OffsetFetchResponsePartitions if of_many else types.OffsetFetchResponsePartition
    is_missing = call.version == 0 and offset.offset < 0 and offset.error == ErrorCode.NONE
    return build(
        partition_index=offset.partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_missing else offset.error,
    )
