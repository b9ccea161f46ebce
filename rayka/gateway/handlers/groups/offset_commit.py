"""OffsetCommit 0-10 and OffsetDelete 0.

Version 0, which wrote to ZooKeeper in old Kafka, is stored in `__consumer_offsets` like all others. From version 10 on
topics are identified by their ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rayka.coordinator.groups.requests import (
    CommittedOffset,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)
from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.groups.commit_template import FIRST_BY_ID, FIRST_VERSION, MOST_BYTES, CommitTemplate
from rayka.gateway.handlers.responses import NO_THROTTLE, signed_milliseconds
from rayka.gateway.ports import Broker
from rayka.gateway.server.context import Context
from rayka.gateway.server.request import Call, PendingRequest
from rayka.metadata.image import TopicImage

_FIRST_WITH_MEMBER_EPOCHS = 9


class RequestedPartition(NamedTuple):
    """A partition of the request and, if there are such, its topic and error NONE."""

    topic: TopicImage | None
    partition: Any
    error: ErrorCode


def handle_frame(context: Context, pending: PendingRequest) -> None:
    """Commit offsets of the same partitions as the connection's last request; decode any other request."""
    connection = pending.connection
    template = connection.commit_template
    request = template.match(pending, context.broker.image) if template else None
    if template is None or request is None:
        connection.start_call(pending)
    else:
        connection.affinity.follow_group(request.group_id)
        connection.serve(pending, _commit_again(context.broker, pending, template, request))


async def _commit_again(
    broker: Broker, pending: PendingRequest, template: CommitTemplate, request: OffsetCommitRequest
) -> bytearray:
    errors = await _execute(broker, request)
    if not any(errors):
        return template.response(pending.correlation_id)
    call = pending.connection.decode(pending)
    return call.encode(_response(call, errors))


async def handle(call: Call) -> Any:
    """Commit offsets, each of which may be refused on its own."""
    call.pending.connection.affinity.follow_group(call.request.group_id)
    image = call.broker.image  # another one may come while the coordinator works
    requested = list(requested_partitions(call, by_id=call.version >= FIRST_BY_ID))
    existing = [
        committed_offset(one.topic, one.partition) for one in requested if one.topic is not None and not one.error
    ]
    request = _request(call, existing)
    committed = await _execute(call.broker, request)
    following = iter(committed)
    errors = [one.error or next(following) for one in requested]
    response = _response(call, errors)
    if call.version >= FIRST_VERSION and call.pending.size <= MOST_BYTES and not any(errors):
        template = CommitTemplate(call.pending, image, request, call.encode(response))
        call.pending.connection.commit_template = template
    return response


def _response(call: Call, errors: Sequence[ErrorCode]) -> Any:
    """`errors` has one for each partition, in the order of the request."""
    types, following = call.types, iter(errors)
    return types.OffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            types.OffsetCommitResponseTopic(
                name=getattr(topic, "name", ""),
                topic_id=getattr(topic, "topic_id", None),
                partitions=tuple(
                    types.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=next(following)
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in call.request.topics
        ),
    )


def requested_partitions(call: Call, *, by_id: bool) -> Iterator[RequestedPartition]:
    """The partitions of a commit, by topic id or by name."""
    image = call.broker.image
    missing = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for one in call.request.topics:
        topic = image.topic_by_id(one.topic_id) if by_id else image.topics.get(one.name)
        for partition in one.partitions:
            if topic is None:
                yield RequestedPartition(None, partition, missing)
            elif 0 <= partition.partition_index < len(topic.partitions):
                yield RequestedPartition(topic, partition, ErrorCode.NONE)
            else:
                yield RequestedPartition(topic, partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def committed_offset(topic: TopicImage, partition: Any) -> CommittedOffset:
    """One partition of a commit, for the coordinator."""
    return CommittedOffset(
        topic.name,
        partition.partition_index,
        partition.committed_offset,
        getattr(partition, "committed_leader_epoch", -1),
        partition.committed_metadata,
        getattr(partition, "commit_timestamp", -1),
        topic.topic_id,
    )


def _request(call: Call, offsets: Sequence[CommittedOffset]) -> OffsetCommitRequest:
    retention = call.field("retention_time", None)
    return OffsetCommitRequest(
        call.request.group_id,
        tuple(offsets),
        call.field("generation_id_or_member_epoch", -1),
        call.field("member_id", ""),
        call.field("group_instance_id", None),
        -1 if retention is None else signed_milliseconds(retention),
        call.version >= _FIRST_WITH_MEMBER_EPOCHS,
    )


async def _execute(broker: Broker, request: OffsetCommitRequest) -> Sequence[ErrorCode]:
    """An error for each offset."""
    if not request.offsets:
        return ()
    try:
        errors: Sequence[ErrorCode] = (await broker.groups.execute(request)).errors
    except RaykaError as error:
        errors = [error.code] * len(request.offsets)
    return errors


async def handle_delete(call: Call) -> Any:
    """Forget offsets of topics that nobody in the group reads (KIP-496)."""
    asked = [(topic.name, partition.partition_index) for topic in call.request.topics for partition in topic.partitions]
    known = [key for key in asked if _exists(call, *key)]
    answer = await _delete(call, tuple(known))
    errors = dict(zip(known, answer.errors, strict=False))
    topics = _deletions(call, errors) if answer.error == ErrorCode.NONE else ()
    return call.types.OffsetDeleteResponse(error_code=answer.error, throttle_time=NO_THROTTLE, topics=tuple(topics))


def _exists(call: Call, name: str, partition: int) -> bool:
    topic = call.broker.image.topics.get(name)
    return topic is not None and 0 <= partition < len(topic.partitions)


async def _delete(call: Call, partitions: tuple[tuple[str, int], ...]) -> OffsetDeleteResponse:
    """What the coordinator says; its errors are in the order of the partitions."""
    group_id = call.request.group_id
    try:
        answer = await call.broker.groups.execute(OffsetDeleteRequest(group_id, partitions))
    except RaykaError as error:
        return OffsetDeleteResponse(error.code)
    return answer


def _deletions(call: Call, errors: dict[tuple[str, int], ErrorCode]) -> Iterator[Any]:
    types, missing = call.types, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for topic in call.request.topics:
        yield types.OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=tuple(
                types.OffsetDeleteResponsePartition(
                    partition_index=partition.partition_index,
                    error_code=errors.get((topic.name, partition.partition_index), missing),
                )
                for partition in topic.partitions
            ),
        )
