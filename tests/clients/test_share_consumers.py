"""Share consumers that we did not write: librdkafka's ShareConsumer and Kafka's console share consumer (KIP-932)."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from tests.clients import tools
from tests.clients.adapters.confluent import Confluent
from tests.clients.conftest import require
from tests.clients.record import Record

TIMEOUT_S = 90.0
LOCK_MS = 1000
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT

NewGroup = Callable[..., str]
NewConsumer = Callable[..., "Member"]


class Member:
    """A share consumer of one topic."""

    def __init__(self, bootstrap: str, group: str, topic: str, mode: str) -> None:
        self.consumer = ShareConsumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": mode, "log_level": 0}
        )
        self.consumer.subscribe([topic])

    def poll(self, timeout_s: float = 0.5) -> list[Message]:
        records = list(self.consumer.poll(timeout_s))
        assert not [record.error() for record in records if record.error()]
        return records

    def take(self, count: int, said: AcknowledgeType | None = None) -> list[Message]:
        """At least so many records, acknowledged like this."""
        taken: list[Message] = []
        end = time.monotonic() + TIMEOUT_S
        while len(taken) < count:
            assert time.monotonic() < end, f"{len(taken)} of {count} records came"
            for record in self.poll():
                taken.append(record)
                if said is not None:
                    self.consumer.acknowledge(record, said)
        return taken

    def commit(self) -> None:
        """Every acknowledgement is durable when this returns."""
        results = self.consumer.commit_sync(TIMEOUT_S)
        assert not any(results.values()), results


def values(records: list[Message]) -> list[bytes]:
    return sorted(record.value() or b"" for record in records)


@pytest.fixture
def new_group(confluent: Confluent) -> NewGroup:
    """`new_group(**configs)` names a group that reads from the beginning and has these settings, `_` for `.`."""

    def create(**configs: str) -> str:
        group = f"share-{uuid.uuid4().hex[:8]}"
        settings = {"share.auto.offset.reset": "earliest"}
        settings |= {name.replace("_", "."): value for name, value in configs.items()}
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
        ]
        resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=entries)
        for future in confluent.admin.incremental_alter_configs([resource]).values():
            future.result(TIMEOUT_S)
        return group

    return create


@pytest.fixture
def join(bootstrap: str, topic: str) -> Iterator[NewConsumer]:
    """`join(group, mode="explicit")` is a new member of the group, closed after the test."""
    with ExitStack() as stack:

        def create(group: str, mode: str = "explicit") -> Member:
            member = Member(bootstrap, group, topic, mode)
            stack.callback(member.consumer.close)
            return member

        yield create


@pytest.fixture
def produce(confluent: Confluent, topic: str) -> Callable[[int], list[bytes]]:
    """`produce(count)` appends so many records, the same values each time, and returns the values."""

    def append(count: int) -> list[bytes]:
        sent = [b"%06d" % number for number in range(count)]
        confluent.produce(topic, [Record(None, value) for value in sent])
        return sent

    return append


def test_records_are_accepted_with_the_next_poll_in_implicit_mode(
    new_group: NewGroup, join: NewConsumer, produce: Callable[[int], list[bytes]]
) -> None:
    sent, group = produce(2000), new_group()
    first = join(group, "implicit")
    assert values(first.take(2000)) == sent
    first.commit()
    first.consumer.close()
    assert join(group, "implicit").poll(2.0) == []


def test_each_record_is_accepted_released_or_rejected_on_its_own(
    new_group: NewGroup, join: NewConsumer, produce: Callable[[int], list[bytes]]
) -> None:
    produce(9)
    member = join(new_group())
    said = {0: ACCEPT, 1: RELEASE, 2: REJECT}
    for record in member.take(9):
        member.consumer.acknowledge(record, said[record.offset() % 3])
    member.commit()
    again = member.take(3, ACCEPT)
    assert [(record.offset(), record.delivery_count()) for record in again] == [(1, 2), (4, 2), (7, 2)]
    member.commit()
    assert member.poll(1.0) == []


def test_released_records_go_to_another_member(
    new_group: NewGroup, join: NewConsumer, produce: Callable[[int], list[bytes]]
) -> None:
    sent, group = produce(10), new_group()
    first = join(group)
    first.take(10, RELEASE)
    first.commit()
    first.consumer.close()
    assert values(join(group).take(10, ACCEPT)) == sent


def test_records_come_back_when_their_lock_expires(
    new_group: NewGroup, join: NewConsumer, produce: Callable[[int], list[bytes]]
) -> None:
    produce(5)
    group = new_group(share_record_lock_duration_ms=str(LOCK_MS))
    slow = join(group)
    slow.take(5)
    again = join(group).take(5, ACCEPT)  # any other lock lasts ten minutes here
    assert {record.delivery_count() for record in again} == {2}


def test_records_of_a_member_that_leaves_come_back_at_once(
    new_group: NewGroup, join: NewConsumer, produce: Callable[[int], list[bytes]]
) -> None:
    sent, group = produce(5), new_group()
    leaving = join(group)
    leaving.take(5)
    leaving.consumer.close()
    assert values(join(group).take(5, ACCEPT)) == sent  # a lock lasts ten minutes here


def test_a_record_is_delivered_as_often_as_the_limit_and_no_more(
    new_group: NewGroup, join: NewConsumer, produce: Callable[[int], list[bytes]]
) -> None:
    produce(4)
    member = join(new_group(share_delivery_count_limit="3"))
    deliveries: Counter[int] = Counter()
    while deliveries.total() < 12:
        for record in member.take(1, RELEASE):
            deliveries[record.offset()] += 1
            assert record.delivery_count() == deliveries[record.offset()]
        member.commit()
    assert deliveries == dict.fromkeys(range(4), 3)
    assert member.poll(1.5) == []


def test_members_share_one_partition_and_get_different_records(
    new_group: NewGroup, join: NewConsumer, produce: Callable[[int], list[bytes]]
) -> None:
    sent, group = produce(5000), new_group()
    members = [join(group, "implicit") for _ in range(3)]
    taken: list[Message] = []
    end = time.monotonic() + TIMEOUT_S
    while len(taken) < len(sent):
        assert time.monotonic() < end, f"{len(taken)} records came"
        for member in members:
            taken += member.poll(0.2)
    assert values(taken) == sent


def test_groups_get_all_records_each(
    new_group: NewGroup, join: NewConsumer, produce: Callable[[int], list[bytes]]
) -> None:
    sent = produce(100)
    assert [values(join(new_group(), "implicit").take(100)) for _ in range(2)] == [sent, sent]


def test_a_new_group_reads_what_comes_after_it_by_default(
    new_group: NewGroup, join: NewConsumer, produce: Callable[[int], list[bytes]]
) -> None:
    produce(10)
    member = join(new_group(share_auto_offset_reset="latest"), "implicit")
    end = time.monotonic() + TIMEOUT_S
    while not (records := member.poll()):
        assert time.monotonic() < end
        produce(1)  # when the group begins is for the broker to decide
    assert records[0].offset() >= 10


def test_rejected_records_are_in_the_dead_letter_topic_with_where_they_came_from(
    new_group: NewGroup, join: NewConsumer, produce: Callable[[int], list[bytes]], confluent: Confluent, topic: str
) -> None:
    queue = f"dlq.{topic}"
    confluent.create_topic(queue, 1, {"errors.deadletterqueue.group.enable": "true"})
    group = new_group(errors_deadletterqueue_topic_name=queue, errors_deadletterqueue_copy_record_enable="true")
    sent = produce(5)
    member = join(group)
    for record in member.take(5):
        member.consumer.acknowledge(record, REJECT if record.offset() == 3 else ACCEPT)
    member.commit()
    (letter,) = confluent.fetch(queue, count=1)
    assert letter.value == sent[3]
    headers = dict(letter.headers)
    assert headers.pop("__dlq.errors.message")
    assert headers == {
        "__dlq.errors.topic": topic.encode(),
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"3",
        "__dlq.errors.group": group.encode(),
        "__dlq.errors.delivery.count": b"1",
    }
    assert member.poll(1.0) == []


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_aborted_records_are_left_out_where_the_group_says_so(
    new_group: NewGroup, join: NewConsumer, bootstrap: str, topic: str, isolation: str
) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{isolation}", "log_level": 0})
    producer.init_transactions(TIMEOUT_S)
    for value, is_committed in ((b"committed", True), (b"aborted", False), (b"committed too", True)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(TIMEOUT_S)
        if is_committed:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)
    member = join(new_group(share_isolation_level=isolation))
    expected = [b"committed", b"committed too"]
    if isolation == "read_uncommitted":
        expected.insert(0, b"aborted")
    assert values(member.take(len(expected), ACCEPT)) == expected
    member.commit()
    assert member.poll(1.0) == []


@pytest.fixture
def console(bootstrap: str, topic: str) -> Callable[..., list[str]]:
    """`console(group, count, *arguments)` runs Kafka's console share consumer for so many records; what it prints."""
    require(tools.kafka_tools)

    def run(group: str, count: int, *arguments: str) -> list[str]:
        name = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
        target = ["--bootstrap-server", bootstrap, "--topic", topic, "--group", group]
        limits = ["--max-messages", str(count), "--timeout-ms", "90000"]
        command = tools.java("-Xmx256m", name, *target, *limits, *arguments)
        done = tools.run(*command)
        assert f"Processed a total of {count} messages" in done.stderr
        return done.stdout.split()

    return run


def test_javas_share_consumer_shares_a_group_with_librdkafkas(
    new_group: NewGroup,
    join: NewConsumer,
    produce: Callable[[int], list[bytes]],
    console: Callable[..., list[str]],
) -> None:
    sent, group = produce(20), new_group()
    assert [line.encode() for line in console(group, 20, "--release")] == sent
    again = join(group).take(20, ACCEPT)
    assert {record.delivery_count() for record in again} == {2}


def test_what_javas_share_consumer_accepts_or_rejects_is_done(
    new_group: NewGroup,
    join: NewConsumer,
    produce: Callable[[int], list[bytes]],
    console: Callable[..., list[str]],
) -> None:
    sent, group = produce(10), new_group()
    assert [line.encode() for line in console(group, 10)] == sent
    produce(4)
    console(group, 4, "--reject")
    assert join(group).poll(2.0) == []
