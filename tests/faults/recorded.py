"""Real clients, each in a thread, that record in a `History` whatever they do and see."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka import errors as aiokafka_errors
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka import KafkaConsumer
from kafka import errors as kafka_errors
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaTopicPartition

from tests.faults.history import (
    Commit,
    CommittedOffset,
    Fetch,
    History,
    Joined,
    LogOffsets,
    Outcome,
    Produce,
    violations,
)
from tests.faults.load import RECOVERY_S, read_all

UNASSIGNED_S = 10.0
PATIENT_MS = 600_000
LOOK_TIMEOUT_S = 3.0
BATCH_RECORDS = 4
BATCH_PATIENCE_MS = 1_500
QUICK = {"log_level": 0, "reconnect.backoff.max.ms": 300, "retry.backoff.max.ms": 300, "socket.timeout.ms": 10_000}
SURELY_NOT_DONE = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError._QUEUE_FULL,
}
"""Errors of a delivery after which the record cannot be in the log; after all others it may be."""


class Client:
    """A thread that repeats `step` until it is told to end."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.step()
            self.close()
        except BaseException as failure:
            self.failure = failure

    def step(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Leave, in the client's thread."""

    def finish(self) -> None:
        """End the thread. Raises what ended it before."""
        self._stop.set()
        self._thread.join(RECOVERY_S)
        if self.failure is not None:
            raise self.failure
        assert not self._thread.is_alive(), f"{self} does not end"


class RecordedProducer(Client):
    """An idempotent confluent-kafka producer: numbered values to each partition in turn.

    With a `delivery_timeout_ms` that a fault outlasts it may write a record twice, to any broker. When records time out
    in its queue, librdkafka drains what is under way and begins a new epoch, in which the sequences begin again at the
    first record that is left. That record may have been written in the old epoch without an answer, and the broker
    can't know it again. Source: librdkafka 2.x, `rd_kafka_toppar_producer_serve` in src/rdkafka_broker.c ("Bump the
    epoch to reset the base msgid"), `rd_kafka_idemp_drain_done` in src/rdkafka_idempotence.c, and
    `rd_kafka_toppar_pid_change` in src/rdkafka_partition.c, which numbers anew.
    """

    def __init__(
        self,
        history: History,
        bootstrap: str,
        topic: str,
        partitions: int,
        name: str,
        delivery_timeout_ms: int = PATIENT_MS,
    ) -> None:
        self.history = history
        self.name = name
        self.acknowledged = 0
        self.in_doubt = 0
        self._is_patient = delivery_timeout_ms >= PATIENT_MS
        self._topic, self._partitions, self._number = topic, partitions, 0
        self._producer = Producer(
            {
                **QUICK,
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "request.timeout.ms": 2_000,
                "delivery.timeout.ms": delivery_timeout_ms,
            }
        )
        super().__init__()

    def step(self) -> None:
        value = f"{self.name}:{self._number}".encode()
        try:
            self._producer.produce(
                self._topic,
                value,
                partition=self._number % self._partitions,
                on_delivery=partial(self._done, self._number),
            )
            self._number += 1
        except BufferError:
            self._producer.poll(0.05)
        self._producer.poll(0.001)

    def _done(self, number: int, error: KafkaError | None, message: Message) -> None:
        outcome = Outcome.DONE
        if error is not None:
            outcome = Outcome.REFUSED if error.code() in SURELY_NOT_DONE else Outcome.IN_DOUBT
        self.acknowledged += outcome is Outcome.DONE
        self.in_doubt += outcome is Outcome.IN_DOUBT
        place = (self._topic, message.partition())
        offset = -1 if error is not None or message.offset() is None else message.offset()
        sent = Produce(self.name, number, place, message.value(), outcome, offset, is_idempotent=self._is_patient)
        self.history.produces.append(sent)

    def close(self) -> None:
        assert self._producer.flush(RECOVERY_S) == 0


class RecordedBatches(Client):
    """An aiokafka producer that makes its record batches itself: it knows which records were sent together.

    It gives each batch up after a short time, and then does not know whether it was written, but never half of it. As
    it is not idempotent, a batch that it sent again may be there twice.
    """

    def __init__(self, history: History, bootstrap: str, topic: str, partitions: int, name: str = "batches") -> None:
        self.history = history
        self.name = name
        self.acknowledged = 0
        self.in_doubt = 0
        self._bootstrap, self._topic, self._partitions, self._number = bootstrap, topic, partitions, 0
        self._loop = asyncio.new_event_loop()
        self._producer: Any = None
        super().__init__()

    def step(self) -> None:
        self._loop.run_until_complete(self._open() if self._producer is None else self._send())
        self._stop.wait(0.01)

    async def _open(self) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap, request_timeout_ms=BATCH_PATIENCE_MS)
        try:
            await producer.start()
        except aiokafka_errors.KafkaError:
            await producer.stop()
        else:
            self._producer = producer

    async def _send(self) -> None:
        place = (self._topic, self._number % self._partitions)
        values = [f"{self.name}:{self._number}:{index}".encode() for index in range(BATCH_RECORDS)]
        batch = self._producer.create_batch()
        for value in values:
            assert batch.append(key=None, value=value, timestamp=None) is not None
        offset, outcome = -1, Outcome.DONE
        try:
            offset = (await (await self._producer.send_batch(batch, self._topic, partition=place[1]))).offset
        except aiokafka_errors.KafkaError:
            outcome = Outcome.IN_DOUBT
        self.acknowledged += outcome is Outcome.DONE
        self.in_doubt += outcome is Outcome.IN_DOUBT
        for index, value in enumerate(values):
            number, at = self._number * BATCH_RECORDS + index, -1 if offset < 0 else offset + index
            sent = Produce(self.name, number, place, value, outcome, at, str(self._number), is_idempotent=False)
            self.history.produces.append(sent)
        self._number += 1

    def close(self) -> None:
        if self._producer is not None:
            self._loop.run_until_complete(self._producer.stop())
        self._loop.close()


class RecordedReader(Client):
    """A confluent-kafka consumer that reads all partitions from the beginning and goes on by itself."""

    def __init__(self, history: History, bootstrap: str, topic: str, partitions: int, name: str = "reader") -> None:
        self.history = history
        self.name = name
        self.count = 0
        settings = {"group.id": name, "enable.auto.commit": False, "auto.offset.reset": "error"}
        self._consumer = Consumer({**QUICK, "bootstrap.servers": bootstrap, **settings})
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        super().__init__()

    def step(self) -> None:
        for message in self._consumer.consume(1000, 0.1):
            if message.error() is None:
                self.count += 1
                place = (message.topic(), message.partition())
                epoch = -1 if message.leader_epoch() is None else message.leader_epoch()
                self.history.fetches.append(Fetch(self.name, place, message.offset(), message.value(), epoch))
            elif message.error().code() == KafkaError._AUTO_OFFSET_RESET:
                raise AssertionError(f"the reader's offset is out of range: {message.error()}")

    def close(self) -> None:
        self._consumer.close()


class RecordedMember(Client, ConsumerRebalanceListener):
    """A kafka-python member of a group, which commits after each poll under the generation that it is in.

    kafka-python 3.0 can throw its assignment away: if `poll` times out just when the group has been joined, the client
    counts as joined, without partitions and without heartbeats, for ever. Such a consumer is replaced.
    """

    def __init__(self, history: History, bootstrap: str, topic: str, group: str, name: str) -> None:
        self.history = history
        self.name, self.group = name, group
        self.count = 0
        self._assignments = 0
        self._assigned_s = time.monotonic()
        self._bootstrap, self._topic = bootstrap, topic
        self._consumer: Any = None
        super().__init__()

    def _open(self) -> Any:
        consumer = KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=self.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=3000,
            heartbeat_interval_ms=300,
            request_timeout_ms=10_000,
            reconnect_backoff_max_ms=300,
        )
        consumer.subscribe([self._topic], listener=self)
        return consumer

    def on_partitions_revoked(self, revoked: Any) -> None:
        """The next assignment begins at the committed offsets."""

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._assignments += 1
        owned = frozenset((each.topic, each.partition) for each in assigned)
        generation = self._consumer.group_metadata().generation_id
        self.history.joins.append(Joined(self.group, self.name, generation, owned, time.monotonic()))

    def step(self) -> None:
        if self._consumer is None:
            with contextlib.suppress(kafka_errors.KafkaError):
                self._consumer = self._open()
                self._assigned_s = time.monotonic()
            return
        with contextlib.suppress(kafka_errors.KafkaError):
            polled = self._consumer.poll(200)
            position = f"{self.name}/{self._assignments}"
            for at, records in polled.items():
                place = (at.topic, at.partition)
                self.count += len(records)
                self.history.fetches += [Fetch(position, place, each.offset, each.value) for each in records]
                self._commit(place, records[-1].offset + 1)
        self._replace_if_unassigned()

    def _replace_if_unassigned(self) -> None:
        if self._consumer.assignment():
            self._assigned_s = time.monotonic()
        elif time.monotonic() > self._assigned_s + UNASSIGNED_S:
            with contextlib.suppress(kafka_errors.KafkaError):
                self.close()
            self._consumer = None

    def _commit(self, place: tuple[str, int], offset: int) -> None:
        generation = self._consumer.group_metadata().generation_id
        began_s = time.monotonic()
        try:
            self._consumer.commit({KafkaTopicPartition(*place): OffsetAndMetadata(offset, "", -1)}, timeout_ms=5000)
            outcome = Outcome.DONE
        except (kafka_errors.CommitFailedError, kafka_errors.RebalanceInProgressError):
            outcome = Outcome.REFUSED
        except kafka_errors.KafkaError:
            outcome = Outcome.IN_DOUBT
        ended_s = time.monotonic()
        self.history.commits.append(Commit(self.group, self.name, generation, place, offset, outcome, began_s, ended_s))

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close(timeout_ms=5000)


class OffsetWatcher(Client):
    """Looks at the offsets of all partitions, and at those that a group committed."""

    def __init__(self, history: History, bootstrap: str, topic: str, partitions: int, group: str | None = None) -> None:
        self.history = history
        self.looks = 0
        self._group = group
        self._places = [TopicPartition(topic, number) for number in range(partitions)]
        self._bootstrap = bootstrap
        self._admin = self._open()
        super().__init__()

    def _open(self) -> AdminClient:
        return AdminClient({**QUICK, "bootstrap.servers": self._bootstrap})

    def step(self) -> None:
        try:
            self._look_at_log()
            self._look_at_group()
            self.looks += 1
        except KafkaException:
            self._admin = self._open()  # librdkafka's ListOffsets keeps to a leader epoch that has been fenced
        self._stop.wait(0.05)

    def _look_at_log(self) -> None:
        began_s = time.monotonic()
        starts = self._offsets(OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)
        stable = self._offsets(OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
        high = self._offsets(OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        ended_s = time.monotonic()
        self.history.log_offsets += [
            LogOffsets(place, starts[place], stable[place], high[place], began_s, ended_s)
            for place in starts
            if min(starts[place], stable[place], high[place])
            >= 0  # librdkafka: -1001 for what it did not learn in time
        ]

    def _offsets(self, spec: OffsetSpec, isolation: IsolationLevel) -> dict[tuple[str, int], int]:
        wanted = dict.fromkeys(self._places, spec)
        found = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=LOOK_TIMEOUT_S)
        return {(at.topic, at.partition): future.result().offset for at, future in found.items()}

    def _look_at_group(self) -> None:
        if self._group is None:
            return
        began_s = time.monotonic()
        wanted = [ConsumerGroupTopicPartitions(self._group, self._places)]
        (future,) = self._admin.list_consumer_group_offsets(wanted, request_timeout=LOOK_TIMEOUT_S).values()
        found = future.result().topic_partitions
        ended_s = time.monotonic()
        self.history.committed += [
            CommittedOffset(self._group, (at.topic, at.partition), at.offset, began_s, ended_s)
            for at in found
            if at.error is None and at.offset >= 0
        ]


@contextlib.contextmanager
def finishing(*clients: Client) -> Iterator[None]:
    """End all clients afterwards, whatever happened, the first ones first."""
    with contextlib.ExitStack() as stack:
        for client in reversed(clients):
            stack.callback(client.finish)
        yield


def assert_kept(history: History, bootstrap: str, topic: str, partitions: int) -> None:
    """Read the log, past the clients' own way to the broker, and let the history decide."""
    rows = read_all(bootstrap, topic, partitions)
    history.log = {(topic, number): rows.get(number, []) for number in range(partitions)}
    found = violations(history)
    assert found == [], "\n".join(map(str, found[:20]))
