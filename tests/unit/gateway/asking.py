"""Asking a gateway over the cores of storage and metadata, with the request classes of any version."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from rayka.errors import ErrorCode
from rayka.gateway.wire.schema import ApiKey, schema
from rayka.metadata.commands import NewTopic
from rayka.storage.format.records import Record, build_batch
from rayka.types import AppendParams, AppendRequest, TopicPartition
from tests.support.local_broker import LocalBroker
from tests.unit.gateway.wire_client import WireClient, connected

SECOND = datetime.timedelta(seconds=1)
Check = Callable[[WireClient, LocalBroker], Coroutine[Any, Any, None]]


def run(directory: Path, check: Check, **configs: str) -> None:
    async def main() -> None:
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        async with connected(directory, settings) as (client, broker):
            await check(client, broker)

    asyncio.run(main())


def make(key: ApiKey, version: int, name: str, /, **values: Any) -> Any:
    """A request's class of this version with those of the values that it has."""
    import sys

    cls = getattr(sys.modules[schema(key, version).request.__module__], name)
    return cls(**{field: value for field, value in values.items() if field in cls.__dataclass_fields__})


async def create(broker: LocalBroker, *topics: NewTopic) -> None:
    results = await broker.controller.create_topics(list(topics), validate_only=False, timeout_ms=1000)
    assert all(result.error == ErrorCode.NONE for result in results)


def append(broker: LocalBroker, topic: str, *timestamps: int, partition: int = 0) -> None:
    """One batch for each timestamp; who waits for records is woken."""
    topic_partition = TopicPartition(topic, partition)
    for timestamp in timestamps:
        records = memoryview(build_batch([Record(0, timestamp, None, b"v", ())]))
        request = AppendRequest(topic_partition, records)
        assert broker.partitions.replicas.append(request, AppendParams(1, 1000), 0).result.error == 0
    broker.partitions.more_bytes(topic_partition)
