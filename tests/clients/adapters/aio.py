"""aiokafka: a client with its own protocol code, of somewhat older versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import BrokerResponseError, KafkaError, for_code

from tests.clients.record import Record, Refused

T = TypeVar("T")
TIMEOUT_S = 120.0


@contextmanager
def refusals() -> Iterator[None]:
    try:
        yield
    except BrokerResponseError as failure:
        raise Refused(failure.errno, str(failure)) from failure


def run(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(work, TIMEOUT_S)

    with refusals():
        return asyncio.run(bounded())


def check(code: int, message: str | None) -> None:
    if code:
        failure: type[KafkaError] = for_code(code)
        raise failure(message)


class Aiokafka:
    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        client = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await client.start()
        try:
            yield client
        finally:
            await client.close()

    @asynccontextmanager
    async def consumer(self, **settings: Any) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap, group_id=None, **settings)
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: int = -1,
        **settings: Any,
    ) -> list[int]:
        options = {
            "compression_type": None if codec == "none" else codec,
            "acks": "all" if acks == -1 else acks,
            "enable_idempotence": acks == -1,
            "max_request_size": 20_000_000,
        }

        async def work() -> list[int]:
            producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, **{**options, **settings})
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic,
                        record.value,
                        record.key,
                        partition,
                        record.timestamp,
                        list(record.headers),
                    )
                    for record in records
                ]
                return [written.offset for written in await asyncio.gather(*futures) if acks]
            finally:
                await producer.stop()

        return run(work())

    def fetch(self, topic: str, *, partition: int = 0, offset: int = 0, count: int, **settings: Any) -> list[Record]:
        async def work() -> list[Record]:
            records: list[Record] = []
            async with self.consumer(**{"auto_offset_reset": "none", **settings}) as consumer:
                consumer.assign([TopicPartition(topic, partition)])
                consumer.seek(TopicPartition(topic, partition), offset)
                while len(records) < count:
                    batches = await consumer.getmany(timeout_ms=1000, max_records=count - len(records))
                    for batch in batches.values():
                        records += [
                            Record(got.key, got.value, tuple(map(tuple, got.headers)), got.timestamp, got.offset)
                            for got in batch
                        ]
            return records

        return run(work())

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        where = TopicPartition(topic, partition)

        async def work() -> tuple[int, int]:
            async with self.consumer() as consumer:
                earliest, latest = await consumer.beginning_offsets([where]), await consumer.end_offsets([where])
                return earliest[where], latest[where]

        return run(work())

    def offset_for_time(self, topic: str, timestamp: int, partition: int = 0) -> int | None:
        where = TopicPartition(topic, partition)

        async def work() -> int | None:
            async with self.consumer() as consumer:
                found = (await consumer.offsets_for_times({where: timestamp}))[where]
                return None if found is None else found.offset

        return run(work())

    def create_topic(self, topic: str, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
        async def work() -> None:
            async with self.admin() as admin:
                answer = await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs or {})])
                for _, code, message, *_ in answer.topic_errors:
                    check(code, message)

        run(work())

    def delete_topic(self, topic: str) -> None:
        async def work() -> None:
            async with self.admin() as admin:
                answer = await admin.delete_topics([topic])
                for _, code, *_ in answer.topic_error_codes:
                    check(code, None)

        run(work())

    def topics(self) -> set[str]:
        async def work() -> set[str]:
            async with self.admin() as admin:
                return set(await admin.list_topics())

        return run(work())

    def partition_count(self, topic: str) -> int:
        async def work() -> int:
            async with self.admin() as admin:
                (described,) = await admin.describe_topics([topic])
                return len(described["partitions"])

        return run(work())

    def create_partitions(self, topic: str, total: int) -> None:
        async def work() -> None:
            async with self.admin() as admin:
                await admin.create_partitions({topic: NewPartitions(total)})

        run(work())

    def topic_configs(self, topic: str) -> dict[str, str]:
        async def work() -> dict[str, str]:
            async with self.admin() as admin:
                (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
                ((code, message, _, _, entries),) = answer.resources
                check(code, message)
                return {entry[0]: entry[1] for entry in entries}

        return run(work())

    def alter_topic_configs(self, topic: str, configs: dict[str, str]) -> None:
        """The old AlterConfigs: what is not named goes back to its default."""

        async def work() -> None:
            async with self.admin() as admin:
                (answer,) = await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])
                for code, message, *_ in answer.resources:
                    check(code, message)

        run(work())

    def delete_records(self, topic: str, before_offset: int, partition: int = 0) -> None:
        async def work() -> None:
            async with self.admin() as admin:
                await admin.delete_records({TopicPartition(topic, partition): RecordsToDelete(before_offset)})

        run(work())
