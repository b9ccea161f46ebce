"""Topics that do not exist yet."""

from __future__ import annotations

import asyncio

from rayka.errors import ErrorCode, RaykaError
from rayka.gateway.ports import Broker
from rayka.metadata.commands import NewTopic

_LOOK_AGAIN_S = 0.02
_IMAGE_LAG_MS = 2_000
"""How long another client's new topic may take to reach this process."""


async def wait_for_topic(broker: Broker, topic: str, timeout_ms: int) -> None:
    """Return when the image has the topic; it is created if the broker's settings say so.

    Raises UNKNOWN_TOPIC_OR_PARTITION, or why the topic could not be created.
    """
    if not isinstance(topic, str):
        raise RaykaError(ErrorCode.INVALID_REQUEST, f"topic must be a str, not {type(topic).__name__}")
    if broker.config["auto.create.topics.enable"]:
        await _create(broker, topic, timeout_ms)
    deadline_s = asyncio.get_running_loop().time() + min(timeout_ms, _IMAGE_LAG_MS) / 1000
    while topic not in broker.image.topics:
        if asyncio.get_running_loop().time() > deadline_s:
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} does not exist")
        await asyncio.sleep(_LOOK_AGAIN_S)


async def _create(broker: Broker, topic: str, timeout_ms: int) -> None:
    results = await broker.controller.create_topics([NewTopic(topic)], validate_only=False, timeout_ms=timeout_ms)
    for result in results:
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise RaykaError(result.error, result.error_message or f"topic {topic} can't be created")
