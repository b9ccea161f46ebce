"""The records that a share consumer holds, and their acknowledgements."""

from __future__ import annotations

import traceback
import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from rayka.client.consumer.completed_fetch import CompletedFetch
from rayka.client.settings import ConsumerConfig
from rayka.errors import ErrorCode, RaykaError
from rayka.share.acknowledge import GROUP_BACKOFF, AcknowledgementBatch
from rayka.share.acquire import AcquiredRecords
from rayka.share.in_flight import Headers
from rayka.types import TopicIdPartition, TopicPartition

_ANY_RECORDS: Final = ConsumerConfig()
_NO_TOPIC_ID: Final = uuid.UUID(int=0)
_MESSAGE_BYTES: Final = 2 << 10
_NAME_BYTES: Final = 1 << 10
_STACKTRACE_BYTES: Final = 12 << 10


class ShareRecord(NamedTuple):
    """A locked record in its `delivery_count`th delivery. `timestamp` is in ms since the epoch.

    `topic_id` tells it from a record at the same offset of another topic, which has got the name of a deleted one.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    delivery_count: int
    topic_id: uuid.UUID = _NO_TOPIC_ID

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """The partition of this topic, and of no other with its name."""
        return TopicIdPartition(self.topic_id, self.topic_partition)


class RecordAcknowledgement(NamedTuple):
    """What a program says of one record. `type` is the number of an `AcknowledgeType`."""

    type: int
    delay_ms: int = GROUP_BACKOFF
    headers: Headers = ()


def acquired_records(
    topic_id_partition: TopicIdPartition, data: bytes, acquired: Sequence[AcquiredRecords]
) -> Iterator[ShareRecord]:
    """The acquired records, from whole batches up to the last of them. Raises CORRUPT_MESSAGE."""
    if not acquired:
        return
    topic_id, topic_partition = topic_id_partition
    fetch = CompletedFetch(topic_partition, acquired[0].first_offset, data, None, _ANY_RECORDS)
    if fetch.size < len(data) or fetch.next_offset <= acquired[-1].last_offset:
        reason = f"{topic_partition} has no record batch for offset {fetch.next_offset}"
        raise RaykaError(ErrorCode.CORRUPT_MESSAGE, reason)
    new = tuple.__new__
    while records := fetch.take(len(data)):
        for first_offset, last_offset, delivery_count in acquired:
            for topic, partition, offset, timestamp, _, key, value, headers in records.within(
                first_offset, last_offset
            ):
                fields = topic, partition, offset, timestamp, key, value, headers, delivery_count, topic_id
                yield new(ShareRecord, fields)


def acknowledgement_batches(acknowledgements: Mapping[int, RecordAcknowledgement]) -> tuple[AcknowledgementBatch, ...]:
    """Acknowledgements by offset as the protocol has them: runs of offsets, each with its types."""
    batches = []
    numbered = enumerate(sorted(acknowledgements.items()))
    for (_, *rest), group in groupby(numbered, key=lambda pair: (pair[1][0] - pair[0], *pair[1][1][1:])):
        run = [one for _, one in group]
        types = tuple(acknowledgement.type for _, acknowledgement in run)
        batches.append(AcknowledgementBatch(run[0][0], run[-1][0], types[:1] if len(set(types)) == 1 else types, *rest))
    return tuple(batches)


def rejection_headers(reason: str | BaseException | None) -> Headers:
    """The headers of a dead letter that tell why: the message, and for an exception its class and its traceback."""
    if reason is None:
        return ()
    message = reason if isinstance(reason, str) else "".join(traceback.format_exception_only(reason)).rstrip()
    headers = (("__dlq.errors.message", _encoded(message)[:_MESSAGE_BYTES]),)
    if isinstance(reason, str):
        return headers
    name = f"{type(reason).__module__}.{type(reason).__qualname__}"
    stacktrace = _encoded("".join(traceback.format_exception(reason)))[-_STACKTRACE_BYTES:]
    return (
        *headers,
        ("__dlq.errors.exception.class.name", _encoded(name)[-_NAME_BYTES:]),
        ("__dlq.errors.exception.stacktrace", stacktrace),
    )


def _encoded(text: str) -> bytes:
    """A text that can't be UTF-8, such as one with a file name of other bytes, must not keep the record from its
    dead-letter topic."""
    return text.encode(errors="backslashreplace")
