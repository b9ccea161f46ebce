"""What a program that sends records relies on."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from rayka.client.cluster import Cluster
from rayka.client.producer import filling, sender
from rayka.client.producer.accumulator import BufferFull
from rayka.client.producer.batch import BatchFuture, RecordFuture
from rayka.client.producer.blocking import Producer
from rayka.client.producer.partitioner import key_partition
from rayka.client.producer.producer import AsyncProducer
from rayka.errors import ErrorCode, RaykaError
from rayka.storage.format.builder import append_records
from rayka.testing import wait_until
from rayka.types import TimestampType
from tests.support.client_connection import LocalConnection
from tests.support.faulty_partitions import NO_LEADER, Fault, FaultyPartitions
from tests.unit.client.reading import read_all, values

pytestmark = pytest.mark.usefixtures("way_to_fill")


def test_a_record_comes_back_as_it_was_sent(cluster: Cluster) -> None:
    headers = [("trace", b"\x00\xff"), ("empty", b""), ("null", None), ("trace", b"again")]
    with cluster.producer() as producer:
        metadata = producer.send("events", b"value", b"key", headers, timestamp_ms=1_700_000_000_123).get(5)
    assert (metadata.topic, metadata.offset, metadata.timestamp) == ("events", 0, 1_700_000_000_123)
    (record,) = read_all(cluster, "events")
    assert (record.value, record.key, list(record.headers)) == (b"value", b"key", headers)
    assert (record.timestamp, record.offset) == (1_700_000_000_123, 0)


def test_a_batch_that_cannot_be_compressed_fails_alone(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its records would have no outcome, `flush` would wait for ever, and the next batches would be refused."""
    with cluster.producer(compression_type="gzip") as producer:
        producer.send("events", b"a").get(30)
        with monkeypatch.context() as full:
            full.setattr(zlib, "compress", no_memory)
            lost = producer.send("events", b"too much")
            with pytest.raises(RaykaError, match="MemoryError"):
                lost.get(30)
        producer.send("events", b"b").get(30)
        producer.flush(timeout_ms=30_000)
    assert values(cluster, "events") == [b"a", b"b"]


def no_memory(*_: object, **__: object) -> None:
    raise MemoryError


def test_null_and_empty_differ(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        producer.send("events", None, b"key")
        producer.send("events", b"", b"")
    assert [(record.key, record.value) for record in read_all(cluster, "events")] == [(b"key", None), (b"", b"")]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_each_codec(cluster: Cluster, codec: str | None) -> None:
    sent = [b"%d" % number * 50 for number in range(500)]
    with cluster.producer(compression_type=codec, linger_ms=5) as producer:
        for value in sent:
            producer.send("events", value)
    assert values(cluster, "events") == sent


def test_keys_choose_the_partition_that_kafka_would(cluster: Cluster) -> None:
    cluster.admin().create_topic("events", partitions=5)
    with cluster.producer() as producer:
        for number in range(100):
            producer.send("events", b"", key=b"key-%d" % number)
    assert all(record.partition == key_partition(record.key, 5) for record in read_all(cluster, "events"))


def test_a_partitioner_of_ones_own(cluster: Cluster) -> None:
    cluster.admin().create_topic("events", partitions=3)

    class Last:
        def __call__(self, key: bytes | None, partitions: Sequence[int], available: Sequence[int]) -> int:
            assert list(partitions) == list(available) == [0, 1, 2]
            return partitions[-1]

    for partitioner in (Last, Last()):
        with cluster.producer(partitioner=partitioner) as producer:
            assert producer.send("events", b"").get(5).partition == 2
            assert producer.send("events", b"", partition=0).get(5).partition == 0


def test_serializers(cluster: Cluster) -> None:
    with cluster.producer(key_serializer=str.encode, value_serializer=lambda value: b"%d" % value) as producer:
        producer.send("events", 7, "k")
        producer.send_batch("events", 0, [8, (9, "nine")])
    deserialized = read_all(cluster, "events", value_deserializer=int)
    assert [(record.key, record.value) for record in deserialized] == [(b"k", 7), (None, 8), (b"nine", 9)]


def test_callbacks_get_metadata_or_the_error(cluster: Cluster, faults: FaultyPartitions) -> None:
    seen: list[object] = []
    with cluster.producer() as producer:
        future = producer.send("events", b"1").add_callback(seen.append).add_errback(seen.append)
        assert seen == [future.get(30)]
        future.add_callback(lambda context, metadata: seen.append((context, metadata.offset)), "late")
        assert seen[1:] == [("late", 0)]
    faults.on_append = lambda _: NO_LEADER
    with cluster.producer(delivery_timeout_ms=20, retry_backoff_ms=1) as producer:
        lost = producer.send("events", b"2").add_both(seen.append)
        with pytest.raises(RaykaError):
            lost.get(30)
        assert seen[-1] is lost.exception


def test_a_failing_callback_does_not_stop_the_producer(cluster: Cluster) -> None:
    with cluster.producer(linger_ms=2) as producer:
        first = producer.send("events", b"1").add_callback(lambda _: 1 / 0)
        second = producer.send("events", b"2")
        assert (first.get(5).offset, second.get(5).offset) == (0, 1)


def test_a_callback_that_exits_does_not_stop_the_producer(cluster: Cluster) -> None:
    with cluster.producer(linger_ms=2) as producer:
        first = producer.send("events", b"1").add_callback(lambda _: sys.exit(3))
        assert first.get(30).offset == 0
        assert producer.send("events", b"2").get(30).offset == 1


def test_linger_gathers_records_into_batches(cluster: Cluster, faults: FaultyPartitions) -> None:
    with cluster.producer(linger_ms=20) as producer:
        for number in range(100):
            producer.send("events", b"%d" % number)
        producer.flush()
    assert faults.appends <= 5


@pytest.mark.parametrize("step", ["time_ns", "put_at"])
@pytest.mark.parametrize("first", [True, False])
def test_an_interrupt_while_a_record_is_added_leaves_no_part_of_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, step: str, first: bool
) -> None:
    """Ctrl-C when some columns of the batch have the record and others do not."""

    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    headers = [("name", b"value")] if step == "put_at" else None
    with cluster.producer(linger_ms=20) as producer:
        producer.send("events", b"first").get(5)
        if not first:
            producer.send("events", b"second", b"key")
        monkeypatch.setattr(filling, step, interrupted)
        with contextlib.suppress(KeyboardInterrupt):
            producer.send("events", b"third", b"key", headers)
        monkeypatch.undo()
        fourth = producer.send("events", b"fourth", b"key", timestamp_ms=4)
        assert fourth.get(5).timestamp == 4
    sent = {record.value: (record.key, list(record.headers)) for record in read_all(cluster, "events")}
    assert sent[b"fourth"] == (b"key", [])
    assert sent.get(b"third", (b"key", headers or [])) == (b"key", headers or [])


def test_an_interrupt_before_the_sender_has_heard_of_a_record_does_not_hold_up_the_next_ones(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook, or a Ray worker whose task was cancelled."""
    with cluster.producer() as producer:
        producer.send("events", b"first").get(30)

        def interrupt(*_: object) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(producer._core._sender, "wake", interrupt)
        with contextlib.suppress(KeyboardInterrupt):
            producer.send("events", b"second")
        assert producer.send("events", b"third").get(30).offset >= 1


def test_an_interrupt_while_records_are_sent_leaves_a_producer_that_sends(cluster: Cluster) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        with cluster.producer(linger_ms=1) as producer:
            for _ in range(30):
                with contextlib.suppress(KeyboardInterrupt):
                    signal.setitimer(signal.ITIMER_VIRTUAL, 0.001)
                    for _ in range(100_000):
                        producer.send("events", b"value")
                assert producer._core.lock.acquire(timeout=30)
                producer._core.lock.release()
            assert producer.send("events", b"last").get(30)
    finally:
        signal.signal(signal.SIGVTALRM, before)


def test_without_flush_lingering_records_are_sent_in_time(cluster: Cluster) -> None:
    producer = cluster.producer(linger_ms=5)
    assert producer.send("events", b"1").get(5).offset == 0
    producer.close()


def test_a_full_buffer_blocks_and_then_raises(cluster: Cluster, faults: FaultyPartitions) -> None:
    faults.on_append = lambda _: NO_LEADER
    producer = cluster.producer(buffer_memory=1000, max_block_ms=50, retry_backoff_ms=1, batch_size=100)
    for _ in range(6):
        producer.send("events", b"x" * 100)
    with pytest.raises(BufferFull, match="buffer_memory is 1000"):
        producer.send("events", b"x" * 100)
    assert issubclass(BufferFull, BufferError)
    assert issubclass(BufferFull, RaykaError)
    faults.fail_appends()
    producer.flush(timeout_ms=5_000)
    assert producer.send("events", b"again").get(5).offset > 0
    producer.close()


def test_a_full_buffer_slows_a_fast_sender(cluster: Cluster, faults: FaultyPartitions) -> None:
    faults.on_append = lambda _: Fault(delay_s=0.001)
    sent = [b"%05d" % number for number in range(2000)]
    with cluster.producer(buffer_memory=2000, batch_size=500) as producer:
        for value in sent:
            producer.send("events", value)
    assert values(cluster, "events") == sent


def test_who_waits_for_memory_is_woken_up_when_a_quarter_is_free(
    cluster: Cluster, faults: FaultyPartitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "_SOME_ROOM_S", 60)
    faults.on_append = lambda _: Fault(delay_s=0.001)
    records = [b"x" * 1000] * 4
    with cluster.producer(buffer_memory=100_000, max_in_flight=1) as producer:
        room, waits = producer._core._sender.room, 0

        async def counted() -> None:
            nonlocal waits
            waits += 1
            was_full = producer._core._accumulator.is_full
            await room()
            assert producer._core._accumulator.has_plenty or not was_full

        producer._core._sender.room = counted  # type: ignore[method-assign]
        for _ in range(100):
            producer.send_batch("events", 0, records)
    assert 5 <= waits <= 20
    assert len(read_all(cluster, "events")) == 400


def test_batches_behind_a_full_window_are_sent_without_waking_the_loop_for_each(
    cluster: Cluster, faults: FaultyPartitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer has the next one sent; a loop that is woken up takes the interpreter from the thread that sends."""
    faults.on_append = lambda _: Fault(delay_s=1 if faults.appends == 1 else 0)
    with cluster.producer(max_in_flight=1) as producer:
        futures = producer.send_batch("events", 0, [b"0"])
        wait_until(lambda: faults.appends == 1, 5, "append of the first batch")
        woken = []
        take_over = producer._core._sender.take_over
        monkeypatch.setattr(producer._core._sender, "take_over", lambda queue: (woken.append(queue), take_over(queue)))
        for number in range(1, 20):
            futures += producer.send_batch("events", 0, [b"%d" % number])
        assert not futures[0].done()
        assert not woken
        assert [future.get(5).base_offset for future in futures] == list(range(20))


def test_memory_that_a_leader_without_an_answer_holds_stops_no_other(
    cluster: Cluster, faults: FaultyPartitions
) -> None:
    """Less than a quarter is ever free: each record waits for a moment only."""
    cluster.admin().create_topic("events", partitions=2)
    faults.on_append = lambda request: Fault(delay_s=60 if request.topic_partition.partition else 0)
    with cluster.producer(buffer_memory=100_000, max_block_ms=20_000) as producer:
        for _ in range(8):
            producer.send_batch("events", 1, [b"x" * 11_000])
        futures = [producer.send_batch("events", 0, [b"y" * 11_000])[0] for _ in range(50)]
        assert futures[-1].get(20).base_offset == 49
        assert not producer._core._accumulator.has_plenty
        faults.on_append = lambda _: Fault()
        with contextlib.suppress(RaykaError):
            producer.close(timeout_ms=10)


def test_memory_that_is_free_at_the_end_of_the_wait_is_used(cluster: Cluster, faults: FaultyPartitions) -> None:
    faults.on_append = lambda request: Fault(delay_s=60 if request.topic_partition.partition else 0.01)
    cluster.admin().create_topic("events", partitions=2)
    with cluster.producer(buffer_memory=100_000, max_block_ms=12) as producer:
        for _ in range(8):
            producer.send_batch("events", 1, [b"x" * 11_000])
        for number in range(20):
            (future,) = producer.send_batch("events", 0, [b"y" * 11_000])
            assert future.get(20).base_offset == number
        producer.close(timeout_ms=10)


def test_close_ends_the_wait_for_memory(cluster: Cluster, faults: FaultyPartitions) -> None:
    faults.on_append = lambda _: NO_LEADER
    producer = cluster.producer(buffer_memory=1000, max_block_ms=60_000, batch_size=100)
    producer.send_batch("events", 0, [b"x" * 1000])
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(producer.send, "events", b"more")
        wait_until(lambda: producer._core._sender._room, 20, "a record that waits")
        producer.close(timeout_ms=10)
        with pytest.raises(RaykaError, match="closed"):
            waiting.result(20)


def test_many_threads_share_a_producer(cluster: Cluster) -> None:
    cluster.admin().create_topic("events", partitions=2)
    with cluster.producer(batch_size=1000) as producer:

        def work(name: int) -> None:
            for number in range(500):
                producer.send("events", b"%d-%05d" % (name, number), partition=name % 2)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = values(cluster, "events")
    assert len(found) == 3000
    for name in range(6):
        mine = [value for value in found if value.startswith(b"%d-" % name)]
        assert mine == sorted(mine)


def test_an_unknown_topic_is_created_as_the_broker_says(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        producer.send("fresh", b"1").get(5)
        assert producer.partitions_for("fresh") == {0}
    assert cluster.admin().list_topics() == ["fresh"]


def test_without_auto_creation_an_unknown_topic_is_an_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = str(tmp_path_factory.mktemp("strict"))
    with Cluster(LocalConnection(directory, {"auto.create.topics.enable": "false"})) as cluster:
        producer = cluster.producer(max_block_ms=50)
        with pytest.raises(RaykaError, match="topic missing does not exist") as caught:
            producer.send("missing", b"1")
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_added_partitions_are_used(cluster: Cluster) -> None:
    cluster.admin().create_topic("events", partitions=1)
    with cluster.producer() as producer:
        producer.send("events", b"1").get(5)
        cluster.admin().create_partitions({"events": 2})
        assert producer.send("events", b"2", partition=1).get(5).partition == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"value": "text"}, "value must be bytes or None, not str; value_serializer can make it so"),
        ({"key": 7}, "key must be bytes or None, not int"),
        ({"headers": [("name", "text")]}, "headers must be"),
        ({"headers": [(b"name", b"")]}, "headers must be"),
        ({"partition": 1}, "partition 1: topic events has partitions 0 to 0"),
        ({"partition": -1}, "partition -1"),
        ({"value": b"x" * 1_100_000}, "topic events has max.message.bytes=1048588"),
        ({"timestamp_ms": "now"}, "timestamp_ms must be"),
        ({"timestamp_ms": -5}, "timestamp_ms must be"),
        ({"timestamp_ms": 2**63}, "timestamp_ms must be"),
    ],
)
def test_bad_arguments_are_named(cluster: Cluster, arguments: dict[str, object], message: str) -> None:
    with cluster.producer() as producer:
        producer.send("events", b"1").get(5)
        with pytest.raises(RaykaError, match=message):
            producer.send("events", **arguments)
        assert producer.send("events", b"2").get(5).offset == 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"linger": 5}, "Unknown setting linger; known are acks, batch_size"),
        ({"acks": 2}, "Invalid value 2 for acks"),
        ({"acks": 1, "enable_idempotence": True}, "an idempotent producer needs"),
        ({"compression_type": "rar"}, "Invalid value 'rar' for compression_type"),
        ({"max_in_flight": 6}, "for max_in_flight"),
        ({"linger_ms": -1}, "for linger_ms"),
        ({"buffer_memory": "big"}, "for buffer_memory"),
        ({"delivery_timeout_ms": float("inf")}, "Invalid value inf for delivery_timeout_ms: it must be at most"),
        ({"compression_type": "gzip", "compression_level": 99}, "99 for compression_level: gzip has no such level"),
        ({"compression_type": "lz4", "compression_level": "x"}, "'x' for compression_level: lz4 has no such level"),
        ({"compression_type": "zstd", "compression_level": 2.0}, "2.0 for compression_level: zstd has no such level"),
        ({"value_serializer": 5}, "for value_serializer: it must be callable"),
    ],
)
def test_bad_settings_are_named(cluster: Cluster, config: dict[str, object], message: str) -> None:
    with pytest.raises(RaykaError, match=message) as caught:
        cluster.producer(**config)
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_dotted_names_are_settings_too(cluster: Cluster) -> None:
    with cluster.producer(**{"linger.ms": 1, "compression.type": "lz4"}) as producer:
        producer.send("events", b"1").get(5)


def test_send_batch_is_whole_and_in_a_row(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        producer.send("events", b"first").get(5)
        (future,) = producer.send_batch("events", 0, [b"1", (b"2", b"key"), (None, b"3", {"h": b"v"}, 1_000)])
        assert future.get(5) == ("events", 0, 1, 3)
    records = read_all(cluster, "events")
    assert [(record.key, record.value) for record in records[1:]] == [(None, b"1"), (b"key", b"2"), (b"3", None)]
    assert (records[3].headers, records[3].timestamp) == ((("h", b"v"),), 1_000)


def test_a_long_send_batch_is_split(cluster: Cluster) -> None:
    sent = [b"%07d" % number * 10 for number in range(50_000)]
    with cluster.producer(buffer_memory=500_000) as producer:
        futures = producer.send_batch("events", 0, iter(sent))
        assert len(futures) > 3
        assert sum(future.get(10).record_count for future in futures) == 50_000
    assert values(cluster, "events") == sent


def test_send_batch_keeps_its_place_between_sends(cluster: Cluster) -> None:
    with cluster.producer(linger_ms=50) as producer:
        producer.send("events", b"1")
        producer.send_batch("events", 0, [b"2", b"3"])
        producer.send("events", b"4")
    assert values(cluster, "events") == [b"1", b"2", b"3", b"4"]


def test_a_record_of_the_largest_size_fits(cluster: Cluster) -> None:
    cluster.admin().create_topic("events", configs={"max.message.bytes": 10_000})
    largest = next(size for size in range(10_000, 0, -1) if len(append_records((b"x" * size,), (), (), (0,))) == 10_000)
    with cluster.producer() as producer:
        assert producer.send("events", b"x" * largest).get(5).offset == 0
        assert producer.send_batch("events", 0, [b"x" * largest] * 2)[1].get(5).base_offset == 2
        with pytest.raises(RaykaError, match="has 10001 bytes, but topic events has max"):
            producer.send("events", b"x" * (largest + 1))


def test_batches_stay_below_the_topics_limit(cluster: Cluster) -> None:
    cluster.admin().create_topic("events", configs={"max.message.bytes": 1000})
    with cluster.producer(linger_ms=5) as producer:
        futures = [producer.send("events", b"x" * 100) for _ in range(100)]
        producer.flush()
        assert all(future.succeeded() for future in futures)
        assert all(future.get(5) for future in producer.send_batch("events", 0, [b"y" * 100] * 100))


def test_close_sends_what_is_left_and_takes_no_more(cluster: Cluster) -> None:
    producer = cluster.producer(linger_ms=10_000)
    future = producer.send("events", b"1")
    producer.close()
    producer.close()
    assert future.get(0).offset == 0
    with pytest.raises(RaykaError, match="The producer is closed"):
        producer.send("events", b"2")


def test_close_in_a_hurry_fails_what_is_left(cluster: Cluster, faults: FaultyPartitions) -> None:
    producer = cluster.producer()
    producer.send("events", b"1").get(5)
    faults.on_append = lambda _: NO_LEADER
    left = producer.send("events", b"2")
    with pytest.raises(RaykaError, match="bytes are not sent after"):
        producer.flush(timeout_ms=20)
    producer.close(timeout_ms=20)
    with pytest.raises(RaykaError, match="closed"):
        left.get(0)


def test_leaving_the_cluster_sends_what_is_left(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = str(tmp_path_factory.mktemp("left"))
    with Cluster(LocalConnection(directory)) as cluster:
        producer = cluster.producer(linger_ms=10_000)
        consumer = cluster.consumer()
        future = producer.send("events", b"1")
        cluster.close()
    assert future.get(0).offset == 0
    for call in (lambda: producer.send("events", b"2"), lambda: consumer.poll(0), cluster.admin().list_topics):
        with pytest.raises(RaykaError, match="closed"):
            call()


@pytest.mark.parametrize(
    "send", [lambda producer: producer.send("events", b"1"), lambda producer: producer.send_many("events", [b"1"])[0]]
)
def test_what_is_sent_when_the_connection_is_closed_fails(
    connection: LocalConnection, send: Callable[[Producer], RecordFuture | BatchFuture]
) -> None:
    """Another thread may close it between the look whether it is open and the append; nobody sends that any more."""
    cluster = Cluster(connection)
    cluster.admin().create_topic("events")
    producer = cluster.producer()
    connection.close()
    for _ in range(2):
        with pytest.raises(RaykaError, match="The connection to the cluster is closed") as failed:
            send(producer).get(5)
        assert failed.value.code is ErrorCode.INVALID_REQUEST


def test_what_is_sent_behind_a_full_window_when_the_connection_is_closed_fails(connection: LocalConnection) -> None:
    cluster = Cluster(connection)
    cluster.admin().create_topic("events")
    connection.faults.on_append = lambda _: Fault(delay_s=60)
    producer = cluster.producer(max_in_flight=1)
    producer.send("events", b"in flight")
    wait_until(lambda: connection.faults.appends == 1, 5, "append of the first batch")
    connection.close()
    with pytest.raises(RaykaError, match="The connection to the cluster is closed"):
        producer.send_batch("events", 0, [b"behind it"])


def test_a_record_in_a_batch_that_fills_when_the_connection_is_closed_fails(connection: LocalConnection) -> None:
    """And later ones, though `send` puts records into such a batch without looking at anything else."""
    cluster = Cluster(connection)
    cluster.admin().create_topic("events", partitions=1)
    connection.faults.on_append = lambda _: Fault(delay_s=60)
    producer = cluster.producer(max_in_flight=1)
    futures = [producer.send("events", b"in flight")]
    wait_until(lambda: connection.faults.appends == 1, 5, "append of the first batch")
    futures.append(producer.send("events", b"behind it"))
    connection.close()
    for future in futures:
        with pytest.raises(RaykaError, match="The connection to the cluster is closed"):
            future.get(5)
    with pytest.raises(RaykaError, match="The connection to the cluster is closed"):
        producer.send("events", b"later").get(5)


def test_a_record_that_lingers_when_another_user_of_the_connection_closes_it_fails(connection: LocalConnection) -> None:
    cluster, other = Cluster(connection), Cluster(connection)
    cluster.admin().create_topic("events", partitions=1)
    future = cluster.producer(linger_ms=60_000).send("events", b"first")
    other.close()
    with pytest.raises(RaykaError, match="The connection to the cluster is closed"):
        future.get(5)


def test_the_time_of_the_append(cluster: Cluster) -> None:
    cluster.admin().create_topic("events", configs={"message.timestamp.type": "LogAppendTime"})
    with cluster.producer() as producer:
        metadata = producer.send("events", b"1", timestamp_ms=1000).get(5)
    (record,) = read_all(cluster, "events")
    assert metadata.timestamp == record.timestamp > 1_700_000_000_000
    assert record.timestamp_type is TimestampType.LOG_APPEND_TIME


def test_a_topic_that_is_deleted_and_created_again(cluster: Cluster) -> None:
    admin = cluster.admin()
    with cluster.producer(retry_backoff_ms=1) as producer:
        for _ in range(3):
            admin.create_topic("events")
            assert [producer.send("events", b"%d" % number).get(5).offset for number in range(5)] == [*range(5)]
            admin.delete_topic("events")


def test_a_topic_that_is_created_again_with_fewer_partitions(cluster: Cluster) -> None:
    admin = cluster.admin()
    with cluster.producer() as producer:
        for partitions in (50, 1):
            admin.create_topic("events", partitions=partitions)
            assert {producer.send("events", b"value").get(30).partition for _ in range(3)} <= {*range(partitions)}
            admin.delete_topic("events")


def test_get_times_out(cluster: Cluster) -> None:
    producer = cluster.producer(linger_ms=10_000)
    with pytest.raises(RaykaError, match="REQUEST_TIMED_OUT"):
        producer.send("events", b"1").get(0.01)
    producer.close()


def test_a_blocking_call_in_a_callback_is_refused(cluster: Cluster, faults: FaultyPartitions) -> None:
    faults.on_append = lambda _: Fault(
        delay_s=0.1
    )  # the callback is there before the answer, and so runs in the client
    seen: list[Exception] = []
    done = threading.Event()
    producer = cluster.producer()

    def flush_in_callback(_: object) -> None:
        try:
            producer.flush()
        except RaykaError as error:
            seen.append(error)
        done.set()

    producer.send("events", b"1").add_callback(flush_in_callback)
    assert done.wait(5)
    assert "callback" in str(seen[0])
    producer.close()


def test_a_callback_may_send(cluster: Cluster) -> None:
    producer = cluster.producer()
    second: list[object] = []
    producer.send("events", b"1").add_callback(lambda _: second.append(producer.send("events", b"2"))).get(5)
    producer.flush()
    assert values(cluster, "events") == [b"1", b"2"]
    producer.close()


def test_the_asynchronous_form(connection: LocalConnection, cluster: Cluster) -> None:
    async def program() -> list[int]:
        async with AsyncProducer(connection.broker, linger_ms=1) as producer:
            futures = [await producer.send("events", b"%d" % number) for number in range(100)]
            metadata = await asyncio.gather(*futures)
            (batch,) = await producer.send_batch("events", 0, [b"100", b"101"])
            return [one.offset for one in metadata] + [(await batch).base_offset]

    assert connection.loop.run(program()) == [*range(101)]
    assert values(cluster, "events") == [b"%d" % number for number in range(102)]


def test_the_asynchronous_form_in_a_loop_of_the_programs_own(cluster: Cluster, faults: FaultyPartitions) -> None:
    faults.on_append = lambda _: Fault(delay_s=0.001)

    async def program() -> None:
        async with cluster.async_producer(buffer_memory=2000, batch_size=500) as producer:
            for number in range(500):
                await producer.send("events", b"%d" % number)
            await producer.flush()
            (batch,) = await producer.send_batch("events", None, [b"500"])
            assert (await batch).base_offset == 500
            assert (await (await producer.send("events", b"501"))).offset == 501

    asyncio.run(program())
    assert values(cluster, "events") == [b"%d" % number for number in range(502)]


def test_an_error_reaches_every_waiter_in_a_foreign_loop(cluster: Cluster, faults: FaultyPartitions) -> None:
    faults.on_append = lambda _: NO_LEADER

    async def program() -> list[object]:
        producer = cluster.async_producer(delivery_timeout_ms=20, retry_backoff_ms=1)
        futures = [await producer.send("events", b"%d" % number) for number in range(3)]
        return await asyncio.gather(*futures, return_exceptions=True)

    assert [getattr(error, "code", None) for error in asyncio.run(program())] == [ErrorCode.REQUEST_TIMED_OUT] * 3


def test_positional_arguments_are_those_of_kafka_python(cluster: Cluster) -> None:
    cluster.admin().create_topic("events", 3)
    with cluster.producer() as producer:
        metadata = producer.send("events", b"value", b"key", [("h", b"1")], 2, 1_700_000_000_123).get(5)
    assert (metadata.partition, metadata.timestamp) == (2, 1_700_000_000_123)


def test_records_with_and_without_keys_keep_their_order(cluster: Cluster) -> None:
    cluster.admin().create_topic("events", partitions=3)
    keys = [None if number % 4 == 0 else b"%d" % (number % 7) * (number % 3) for number in range(2000)]
    with cluster.producer(linger_ms=20) as producer:
        for number, key in enumerate(keys):
            producer.send("events", b"%d" % number, key)
    records = read_all(cluster, "events")
    assert sorted((int(record.value), record.key) for record in records) == [*enumerate(keys)]
    for partition in range(3):
        numbers = [int(record.value) for record in records if record.partition == partition]
        assert numbers == sorted(numbers)
    assert all(record.partition == key_partition(record.key, 3) for record in records if record.key is not None)
