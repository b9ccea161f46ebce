"""The partitions that a query reads, and their offsets, from the brokers over the Kafka protocol."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import TypeVar

from rayka.client import runtime
from rayka.client.kafka.admin import KafkaAdmin
from rayka.client.kafka.cluster import KafkaCluster
from rayka.client.kafka.values import TopicDescription
from rayka.errors import ErrorCode, RaykaError
from rayka.ranges.plan import NO_TOPIC_ID, TopicIds
from rayka.spark.source.options import SourceOptions, TopicChoice, invalid
from rayka.types import OffsetSpec, TopicPartition

T = TypeVar("T")
_RETRY_S = 0.1


def bootstrap_servers_of(given: str | None) -> str:
    """Where the brokers are: as given, else as `rayka up` left word on this machine. Raises INVALID_REQUEST."""
    if given is not None:
        return given
    running = runtime.find(runtime.latest_data_dir())
    if running is None:
        raise invalid("Option kafka.bootstrap.servers is missing, and no `rayka up` of this user runs on this machine")
    return running.bootstrap_servers


def ask(bootstrap_servers: str, options: SourceOptions, question: Callable[[SourceTopics], T]) -> T:
    """Ask the brokers; while none answers, retry until the time or the retries are used up. Raises the last error."""
    deadline_s = time.monotonic() + options.timeout_ms / 1000
    retries = options.offset_retries
    for tried in itertools.count():
        try:
            with closing(SourceTopics(bootstrap_servers, options)) as topics:
                return question(topics)
        except RaykaError as error:
            is_over = time.monotonic() >= deadline_s if retries is None else tried >= retries
            if error.code is not ErrorCode.BROKER_NOT_AVAILABLE or is_over:
                raise
        time.sleep(_RETRY_S if retries is None else options.retry_interval_ms / 1000)
    raise AssertionError("unreachable")


class SourceTopics:
    """`ranges.batches.StreamOffsets` of a query, over one connection to the cluster until `close`."""

    def __init__(self, bootstrap_servers: str, options: SourceOptions) -> None:
        self._choice = options.choice
        self._isolation = options.isolation
        self._cluster = KafkaCluster(bootstrap_servers, options.timeout_ms / 1000)

    def close(self) -> None:
        """Close the connection."""
        self._cluster.__exit__(None, None, None)

    def topic_ids(self, *, existing_only: bool = False) -> TopicIds:
        """The partitions that there are now, each with its topic's id.

        Raises UNKNOWN_TOPIC_OR_PARTITION where one that the query names does not exist, unless `existing_only`.
        """
        found = self._existing() if existing_only else self._cluster.metadata(self._names()).topics
        return {
            TopicPartition(topic.name, partition): topic.topic_id or NO_TOPIC_ID
            for topic in map(found.__getitem__, self._chosen(found))
            for partition in self._partitions(topic, existing_only)
        }

    def list_offsets(self, timestamps: Mapping[TopicPartition, int], /) -> Mapping[TopicPartition, int]:
        """The offset of each timestamp (ms) or `OffsetSpec`; -1 for a time after the last record."""
        admin, found = KafkaAdmin(self._cluster), dict[TopicPartition, int]()
        for timestamp in set(timestamps.values()):
            partitions = [each for each, wanted in timestamps.items() if wanted == timestamp]
            found |= admin.list_offsets(partitions, timestamp, self._isolation)
        return found

    def high_watermarks(self, partitions: Sequence[TopicPartition], /) -> Mapping[TopicPartition, int]:
        """Where the logs end for readers of uncommitted records."""
        return KafkaAdmin(self._cluster).list_offsets(partitions, OffsetSpec.LATEST)

    def _names(self) -> Iterable[str] | None:
        """The topics to ask for, None for all."""
        return None if self._choice.pattern is not None else self._choice.names

    def _existing(self) -> Mapping[str, TopicDescription]:
        names = self._names()
        found: dict[str, TopicDescription] = {}
        for asked in [None] if names is None else [[name] for name in names]:
            try:
                found |= self._cluster.metadata(asked).topics
            except RaykaError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
        return found

    def _chosen(self, found: Mapping[str, TopicDescription]) -> list[str]:
        """Their names. As in Spark's Kafka source a pattern may match a part of the name, but no internal topic."""
        if self._choice.pattern is None:
            return sorted(found)
        pattern = _compiled(self._choice)
        return sorted(name for name, topic in found.items() if pattern.search(name) and not topic.is_internal)

    def _partitions(self, topic: TopicDescription, existing_only: bool) -> Iterable[int]:
        present = {partition.partition for partition in topic.partitions}
        wanted = present if self._choice.assigned is None else set(self._choice.assigned[topic.name])
        if existing_only:
            return sorted(wanted & present)
        if missing := sorted(wanted - present):
            message = f"{topic.name} has no partition {missing[0]}; it has {len(present)}"
            raise RaykaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        return sorted(wanted)


def _compiled(choice: TopicChoice) -> re.Pattern[str]:
    try:
        return re.compile(choice.pattern or "")
    except re.error as error:
        raise invalid(f"Option subscribePattern={choice.pattern!r} is not valid: {error}") from None
