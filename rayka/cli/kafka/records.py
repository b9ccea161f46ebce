"""Reading records with confluent-kafka: of given partitions, or as a member of a group."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rayka.cli.exits import CliError
from rayka.cli.kafka.outage import STATISTICS_MS, BrokerOutage
from rayka.types import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from rayka.cli.text.record_text import Readable
    from rayka.client.kafka.cluster import KafkaCluster

POLL_S = 0.05
POLL_RECORDS = 10_000
_FETCH_WAIT_MS = 100


class ReadOptions(Protocol):
    """What the options of `rayka consume` say."""

    @property
    def topics(self) -> Sequence[str]: ...
    @property
    def is_pattern(self) -> bool: ...
    @property
    def start(self) -> str: ...
    @property
    def group(self) -> str | None: ...
    @property
    def max_messages(self) -> int | None: ...
    @property
    def follow(self) -> bool: ...
    @property
    def isolation(self) -> str: ...


class Received:
    """A consumed record as `--format` and `--json` read it."""

    __slots__ = ("headers", "key", "offset", "partition", "timestamp", "topic", "value")

    def __init__(self, message: Message) -> None:
        self.topic: str = message.topic() or ""
        self.partition: int = message.partition() or 0
        self.offset: int = message.offset() or 0
        self.timestamp: int = message.timestamp()[1]
        self.key: Any = message.key()
        self.value: Any = message.value()
        self.headers: Any = message.headers() or ()


class RecordPrinter:
    """Prints what a consumer receives, until every partition has reached its end or enough is printed."""

    def __init__(self, form: Callable[[Readable], bytes], wanted: ReadOptions, total: int | None = None) -> None:
        from rayka.cli.progress import ProgressBar

        self._form = form
        self._group = wanted.group
        self._out = sys.stdout.buffer
        self._shown = not sys.stdout.isatty()
        self.left = sys.maxsize if wanted.max_messages is None else wanted.max_messages
        self.ends: dict[TopicPartition, int] = {}
        self.at_end: set[TopicPartition] = set()
        self.progress = ProgressBar("reading", None if total is None else min(self.left, total))

    def take(self, consumer: Consumer) -> int:
        """Print what has arrived; return how many records."""
        messages = consumer.consume(min(self.left, POLL_RECORDS), POLL_S)
        records = [message for message in messages if not self._is_event(message)]
        self._out.write(b"".join([self._form(Received(message)) for message in records]))
        self._out.flush()
        self.left -= len(records)
        if self._shown:
            self.progress.add(len(records))
        return len(records)

    def _is_event(self, message: Message) -> bool:
        """Whether this is not a record to print: the end of a partition, or a record after `ends`. Raises CliError."""
        from confluent_kafka import KafkaError

        topic_partition, offset = TopicPartition(message.topic() or "", message.partition() or 0), message.offset() or 0
        error = message.error()
        end = self.ends.get(topic_partition, sys.maxsize)
        if error is None:
            if offset + 1 >= end:
                self.at_end.add(topic_partition)
            else:
                self.at_end.discard(topic_partition)
            return offset >= end
        if error.code() == KafkaError._PARTITION_EOF:
            self.at_end.add(topic_partition)
        elif error.fatal() or not error.retriable():
            place = (
                topic_partition if message.topic() else f"as a member of {self._group}" if self._group else "records"
            )
            raise CliError(f"cannot read {place}: {error.str()}")
        return True


def read_assigned(
    cluster: KafkaCluster,
    wanted: ReadOptions,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    form: Callable[[Readable], bytes],
) -> None:
    """Print the partitions from their start to their end; with --follow, without end."""
    import confluent_kafka

    total = None if wanted.follow else sum(max(0, end - start) for start, end in ranges.values())
    if total == 0:
        return
    printer = RecordPrinter(form, wanted, total)
    consumer = _consumer(cluster, wanted, "rayka-consume")
    pending = {topic_partition: span for topic_partition, span in ranges.items() if wanted.follow or span[0] < span[1]}
    if not wanted.follow:
        printer.ends = {topic_partition: end for topic_partition, (_, end) in pending.items()}
    consumer.assign(
        [confluent_kafka.TopicPartition(*topic_partition, start) for topic_partition, (start, _) in pending.items()]
    )
    with printer.progress:
        try:
            while printer.left > 0 and (wanted.follow or not printer.at_end >= pending.keys()):
                printer.take(consumer)
        finally:
            consumer.close()


def read_in_group(
    cluster: KafkaCluster, wanted: ReadOptions, topics: Sequence[str], form: Callable[[Readable], bytes]
) -> None:
    """Print what the group assigns to this member, committing after each batch is printed."""
    printer = RecordPrinter(form, wanted)
    assigned: set[TopicPartition] = set()
    was_assigned = False

    def on_assign(_: Consumer, partitions: Sequence[Any]) -> None:
        nonlocal was_assigned
        was_assigned = True
        assigned.update(
            TopicPartition(topic_partition.topic, topic_partition.partition) for topic_partition in partitions
        )

    def on_revoke(_: Consumer, partitions: Sequence[Any]) -> None:
        gone = {TopicPartition(topic_partition.topic, topic_partition.partition) for topic_partition in partitions}
        assigned.difference_update(gone)
        printer.at_end.difference_update(gone)

    consumer = _consumer(cluster, wanted, wanted.group or "")
    names = [f"^({topic})$" for topic in wanted.topics] if wanted.is_pattern else list(topics)
    consumer.subscribe(names, on_assign=on_assign, on_revoke=on_revoke)
    with printer.progress:
        try:
            while printer.left > 0 and (wanted.follow or not was_assigned or not printer.at_end >= assigned):
                if printer.take(consumer):
                    _commit(consumer)
        finally:
            consumer.close()


def _commit(consumer: Consumer) -> None:
    """Commit what is printed. After a rebalance the partitions' new owner prints it again."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        consumer.commit(asynchronous=False)
    except KafkaException as failure:
        error = failure.args[0]
        lost = (KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.UNKNOWN_MEMBER_ID)
        if error.code() not in (*lost, KafkaError.STALE_MEMBER_EPOCH, KafkaError._NO_OFFSET):
            raise CliError(f"cannot commit: {error.str()}") from None


def _consumer(cluster: KafkaCluster, wanted: ReadOptions, group: str) -> Consumer:
    from confluent_kafka import Consumer

    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "client.id": "rayka",
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": wanted.start if wanted.start in ("earliest", "latest") else "earliest",
            "enable.partition.eof": True,
            "isolation.level": wanted.isolation,
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
            "fetch.queue.backoff.ms": 5,
            "statistics.interval.ms": STATISTICS_MS,
            "stats_cb": BrokerOutage(cluster.bootstrap_servers).note,
            "log_level": 0,
        }
    )
