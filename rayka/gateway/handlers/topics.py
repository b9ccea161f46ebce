"""CreateTopics 0-7, DeleteTopics 0-6 and CreatePartitions 0-3: requests to the controller."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, TypeVar

from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.handlers.responses import NO_THROTTLE, message_of, milliseconds
from rayka.gateway.server.request import Call
from rayka.metadata.commands import NewPartitions, NewTopic, TopicResult

Requested = TypeVar("Requested")

_FIRST_WITH_DELETION_DISABLED = 3


async def handle_create(call: Call) -> Any:
    """Create topics, or only say whether they could be."""
    asked = list(call.request.topics)
    faults = _duplicates([topic.name for topic in asked], "topic name")
    for index, topic in enumerate(asked):
        fault = faults[index] or _assignment_fault(topic)
        faults[index] = fault and TopicResult(topic.name, error=fault.error, error_message=fault.error_message)

    async def create(topics: Sequence[Any]) -> list[TopicResult]:
        return await call.broker.controller.create_topics(
            [_new_topic(topic) for topic in topics],
            validate_only=call.field("validate_only", False),
            timeout_ms=milliseconds(call.request.timeout),
        )

    results = await _all_results(asked, faults, create)
    return call.types.CreateTopicsResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(_creation(call, topic.name, result) for topic, result in zip(asked, results, strict=True)),
    )


def _new_topic(topic: Any) -> NewTopic:
    assignments = {entry.partition_index: entry.broker_ids for entry in topic.assignments}
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        assignments or None,
        {config.name: config.value for config in topic.configs},
    )


def _assignment_fault(topic: Any) -> TopicResult | None:
    """A mapping would hide it if a partition were named twice."""
    if len({entry.partition_index for entry in topic.assignments}) == len(topic.assignments):
        return None
    return _failed(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"topic {topic.name} assigns a partition twice")


def _creation(call: Call, name: str, result: TopicResult) -> Any:
    types = call.types
    configs = tuple(
        types.CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.is_sensitive,
        )
        for entry in result.configs
    )
    return types.CreatableTopicResult(
        name=name,
        topic_id=result.topic_id,
        error_code=result.error,
        error_message=message_of(result.error, result.error_message),
        num_partitions=result.num_partitions,
        replication_factor=result.replication_factor,
        configs=configs,
    )


async def handle_delete(call: Call) -> Any:
    """Delete topics, by name or from version 6 on also by id."""
    asked = _topics_to_delete(call)
    faults: list[TopicResult | None] = [_deletion_fault(call, name, topic_id) for name, topic_id in asked]
    for index, twice in enumerate(_duplicates(asked, "topic")):
        faults[index] = faults[index] or twice

    async def delete(topics: Sequence[tuple[str | None, uuid.UUID | None]]) -> list[TopicResult]:
        names_or_ids = [name if name is not None else topic_id or uuid.UUID(int=0) for name, topic_id in topics]
        return await call.broker.controller.delete_topics(names_or_ids, milliseconds(call.request.timeout))

    results = await _all_results(asked, faults, delete)
    types = call.types
    return types.DeleteTopicsResponse(
        throttle_time=NO_THROTTLE,
        responses=tuple(
            types.DeletableTopicResult(
                name=name if name is not None else result.name,
                topic_id=result.topic_id or topic_id,
                error_code=result.error,
                error_message=message_of(result.error, result.error_message),
            )
            for (name, topic_id), result in zip(asked, results, strict=True)
        ),
    )


def _topics_to_delete(call: Call) -> list[tuple[str | None, uuid.UUID | None]]:
    names = call.field("topic_names", None)
    if names is not None:
        return [(name, None) for name in names]
    return [(topic.name, topic.topic_id) for topic in call.request.topics]


def _deletion_fault(call: Call, name: str | None, topic_id: uuid.UUID | None) -> TopicResult | None:
    if not call.broker.config["delete.topic.enable"]:
        disabled = call.version >= _FIRST_WITH_DELETION_DISABLED
        error = ErrorCode.TOPIC_DELETION_DISABLED if disabled else ErrorCode.INVALID_REQUEST
        return _failed(error, "topic deletion is disabled (delete.topic.enable)")
    if name is not None and topic_id is not None:
        return _failed(ErrorCode.INVALID_REQUEST, "a topic is deleted by name or by id, not by both")
    if name is None and topic_id is None:
        return _failed(ErrorCode.INVALID_REQUEST, "neither a name nor an id is given")
    return None


async def handle_create_partitions(call: Call) -> Any:
    """Raise the number of partitions of topics."""
    asked = list(call.request.topics)

    async def create(topics: Sequence[Any]) -> list[TopicResult]:
        requests = [
            NewPartitions(
                topic.name,
                topic.count,
                None if topic.assignments is None else tuple(entry.broker_ids for entry in topic.assignments),
            )
            for topic in topics
        ]
        return await call.broker.controller.create_partitions(
            requests, call.request.validate_only, milliseconds(call.request.timeout)
        )

    results = await _all_results(asked, _duplicates([topic.name for topic in asked], "topic name"), create)
    types = call.types
    return types.CreatePartitionsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            types.CreatePartitionsTopicResult(
                name=topic.name,
                error_code=result.error,
                error_message=message_of(result.error, result.error_message),
            )
            for topic, result in zip(asked, results, strict=True)
        ),
    )


async def _all_results(
    asked: Sequence[Requested],
    faults: Sequence[TopicResult | None],
    run: Callable[[Sequence[Requested]], Awaitable[list[TopicResult]]],
) -> list[TopicResult]:
    """Results in the order of the request: faults found here, and what the controller says of the rest."""
    sound = [topic for topic, fault in zip(asked, faults, strict=True) if fault is None]
    try:
        results = iter(await run(sound) if sound else ())
    except RaykaError as error:
        results = iter([_failed(error.code, error.message)] * len(sound))
    return [next(results) if fault is None else fault for fault in faults]


def _duplicates(keys: Sequence[Hashable], what: str) -> list[TopicResult | None]:
    """A fault for each key that stands more than once in the request."""
    times = Counter(keys)
    return [_failed(ErrorCode.INVALID_REQUEST, f"duplicate {what}") if times[key] > 1 else None for key in keys]


def _failed(error: ErrorCode, message: str) -> TopicResult:
    return TopicResult(None, error=error, error_message=message)
