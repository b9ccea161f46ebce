"""The key of a share-partition, which identifies its coordinator and its state."""

from __future__ import annotations

import base64
import uuid

from rayka.errors import ErrorCode, RaykaError
from rayka.types import SharePartitionKey

_SEPARATOR = ":"
_PARTS = 3


def coordinator_key(group_id: str, topic_id: uuid.UUID, partition: int) -> str:
    """`group:topicId:partition`, with the topic id in Kafka's base64."""
    encoded = base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
    return f"{group_id}{_SEPARATOR}{encoded}{_SEPARATOR}{partition}"


def parse_coordinator_key(text: str) -> SharePartitionKey:
    """The share-partition of a coordinator key. The group id may contain colons. Raises INVALID_REQUEST."""
    parts = text.rsplit(_SEPARATOR, _PARTS - 1)
    try:
        group_id, encoded, partition = parts
        topic_id = uuid.UUID(bytes=base64.b64decode(encoded + "==", altchars=b"-_", validate=True))
        return SharePartitionKey(group_id, topic_id, int(partition))
    except ValueError:
        reason = f"{text!r} is not the key of a share-partition: it must be groupId:topicId:partition"
        raise RaykaError(ErrorCode.INVALID_REQUEST, reason) from None
