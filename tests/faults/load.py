"""Writers that remember what was acknowledged, and the check that nothing of it is missing."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from rayka.testing import wait_until
from tests.support.scale import rounds

RECOVERY_S = rounds(120, 180)
"""How long a test waits for what follows a fault. It takes one or two seconds on a machine that does nothing else, and
half a minute on one with ten times more to do than it can."""


def create_topic(bootstrap: str, topic: str, partitions: int, **config: str) -> None:
    """Create a topic, as soon as there is a controller, and wait until a gateway knows it.

    Raises AssertionError with what is refused to the end.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    refusals: list[KafkaError] = []

    def is_created() -> bool:
        # An error that is raised keeps the client by its traceback. If librdkafka's thread, which has the answer, then
        # drops that last, the client ends in that thread, and librdkafka aborts the process.
        refused = admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].exception(RECOVERY_S)
        if refused is None:
            return True
        assert isinstance(refused, KafkaException), refused
        refusals.append(refused.args[0])
        return len(refusals) > 1 and bool(refusals[-1].code() == KafkaError.TOPIC_ALREADY_EXISTS)

    def is_known() -> bool:
        found = admin.list_topics(topic, RECOVERY_S).topics[topic]
        return found.error is None and len(found.partitions) == partitions

    wait_until(is_created, RECOVERY_S, lambda: f"the topic {topic}: {refusals[-3:]}")
    # A controller that was killed may have created it without an answer, so that the gateway has not heard of it yet.
    wait_until(is_known, RECOVERY_S, lambda: f"the topic {topic} in the metadata")


class Writer:
    """An idempotent producer in a thread: numbered records to each partition in turn, as fast as `pace_s` allows.

    `settings` are more of librdkafka's.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        pace_s: float = 0.0005,
        name: str = "w",
        **settings: object,
    ) -> None:
        self.topic = topic
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.failed: list[str] = []
        self.last_ack = time.monotonic()
        self.longest_pause = 0.0
        self._name = name
        self._partitions = partitions
        self._pace_s = pace_s
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "log_level": 0,
                "delivery.timeout.ms": 300_000,
                "retry.backoff.max.ms": 500,
                "reconnect.backoff.max.ms": 500,
                **settings,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._write()
        except KafkaException as failure:
            self.failed.append(f"the producer ended: {failure}")

    def _write(self) -> None:
        number = 0
        while not self._stop.is_set():
            value = f"{self._name}:{number}".encode()
            try:
                self._producer.produce(self.topic, value, partition=number % self._partitions, on_delivery=self._done)
                number += 1
            except BufferError:
                self._producer.poll(0.05)
            self._producer.poll(0)
            self._stop.wait(self._pace_s)

    def _done(self, error: KafkaError | None, message: Message) -> None:
        now = time.monotonic()
        if error is not None:
            self.failed.append(str(error))
            return
        self.longest_pause = max(self.longest_pause, now - self.last_ack)
        self.last_ack = now
        self.acknowledged[(message.partition(), message.offset())] = message.value()

    @property
    def count(self) -> int:
        return len(self.acknowledged)

    def await_more(self, count: int, what: str = "") -> float:
        """Wait until so many more records are acknowledged, and return the seconds it took."""
        wanted = self.count + count

        def so_far() -> str:
            return f"{wanted} acknowledged records {what}: {self.count}, failed {self.failed[:3]}"

        return wait_until(lambda: self.count >= wanted, RECOVERY_S, so_far)

    def finish(self) -> None:
        """Stop sending and wait for every answer."""
        self._stop.set()
        self._thread.join(RECOVERY_S)
        assert self._producer.flush(RECOVERY_S) == 0, "records without an answer are left"


def read_all(bootstrap: str, topic: str, partitions: int) -> dict[int, list[tuple[int, bytes]]]:
    """Every record of the topic: (offset, value) by partition, in the order in which they came."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])
    records: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    ended: set[int] = set()
    deadline = time.monotonic() + RECOVERY_S
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"only {len(ended)} of {partitions} partitions were read to their end"
        for message in consumer.consume(10_000, 0.2):
            error = message.error()
            if error is None:
                records[message.partition()].append((message.offset(), message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise AssertionError(str(error))
    consumer.close()
    return records


def check(writers: list[Writer], records: dict[int, list[tuple[int, bytes]]]) -> None:
    """Every acknowledged record is at its offset, each value once, each writer's records in their order."""
    assert not [failure for writer in writers for failure in writer.failed]
    for partition, rows in records.items():
        offsets = [offset for offset, _ in rows]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), f"gap in partition {partition}"
        last: dict[bytes, int] = {}
        for _, value in rows:
            name, _, number = value.partition(b":")
            assert int(number) > last.get(name, -1), f"{value!r} comes again or out of order in partition {partition}"
            last[name] = int(number)
    for writer in writers:
        for (partition, offset), value in writer.acknowledged.items():
            rows = records[partition]
            index = offset - rows[0][0]
            assert index < len(rows), f"{value!r} at {partition}/{offset} is lost: the partition ends at {rows[-1][0]}"
            assert rows[index] == (offset, value)
