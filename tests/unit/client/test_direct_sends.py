"""A program that waits for each record: its thread writes to the leader's channel itself, and nothing else changes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rayka.actors.channel.blocking_channel import BlockingChannel
from rayka.client.cluster import Cluster
from rayka.client.producer import batch
from rayka.client.producer.accumulator import Accumulator
from rayka.client.producer.batch import RecordFuture
from rayka.client.producer.blocking import Producer
from rayka.client.producer.direct_sender import DirectSender
from rayka.errors import ErrorCode, RaykaError
from rayka.testing import wait_until
from tests.support.client_connection import LocalConnection
from tests.support.faulty_channel import FaultyChannel
from tests.support.faulty_partitions import NO_LEADER, PASS, REFUSED, TEMPORARY, Fault, FaultyPartitions
from tests.unit.client.reading import read_all, values

pytestmark = pytest.mark.usefixtures("way_to_fill")

WAIT_S = 30.0


@pytest.fixture
def producer(cluster: Cluster, channel: FaultyChannel) -> Producer:
    """A producer whose program has waited for records, so that the next one goes by the channel."""
    return waiting_producer(cluster, channel)


def waiting_producer(cluster: Cluster, channel: FaultyChannel, **config: object) -> Producer:
    producer = cluster.producer(**{"retry_backoff_ms": 1, **config})
    before = channel.appends
    while channel.appends == before:
        producer.send("events", b"first").get(WAIT_S)
    return producer


def ended(future: RecordFuture) -> RecordFuture:
    """Block for the outcome, whatever it is."""
    with contextlib.suppress(RaykaError):
        future.get(WAIT_S)
    assert future.is_done
    return future


def numbered(cluster: Cluster) -> list[bytes]:
    """The values in the log, without those that made the program one that waits."""
    return [value for value in values(cluster, "events") if value != b"first"]


def test_each_record_goes_by_the_channel(cluster: Cluster, channel: FaultyChannel, producer: Producer) -> None:
    before = channel.appends
    futures = [ended(producer.send("events", b"%06d" % number)) for number in range(100)]
    assert channel.appends == before + 100
    records = {record.value: record.offset for record in read_all(cluster, "events")}
    assert [records[b"%06d" % number] for number in range(100)] == [future.get().offset for future in futures]


def test_records_that_were_sent_leave_nothing_for_the_garbage_collector(
    channel: FaultyChannel, producer: Producer
) -> None:
    before = channel.appends
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for number in range(20):
            producer.send("events", b"%06d" % number).get(WAIT_S)
        gc.collect()
        left = [type(each).__name__ for each in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert channel.appends > before
    assert not {"ProducerBatch", "DirectAppend"} & set(left)


def test_flush_waits_for_a_record_that_went_by_the_channel(
    cluster: Cluster, channel: FaultyChannel, producer: Producer
) -> None:
    before = channel.appends
    for number in range(100):
        future = producer.send("events", b"%06d" % number)
        producer.flush()
        assert future.succeeded()
    assert channel.appends == before + 100


def test_a_program_that_flushes_each_record_takes_the_channel(cluster: Cluster, channel: FaultyChannel) -> None:
    def send_and_flush() -> bool:
        producer.send("events", b"record")
        producer.flush()
        return channel.appends > 0

    with cluster.producer() as producer:
        wait_until(send_and_flush, WAIT_S, "an append by the channel")


def test_a_thread_gets_its_answer_though_the_connection_is_closed_meanwhile(
    channel: FaultyChannel, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, direct, before = asyncio.new_event_loop(), producer._core._sender._direct, channel.appends
    closed.close()
    monkeypatch.setattr(direct, "_loop", closed)
    monkeypatch.setattr(direct, "_is_watching", False)
    assert producer.send("events", b"last").get(WAIT_S).offset > 0
    assert channel.appends == before + 1


@pytest.mark.parametrize("fault", [*TEMPORARY, NO_LEADER], ids=str)
def test_one_fault(cluster: Cluster, producer: Producer, faults: FaultyPartitions, fault: Fault) -> None:
    faults.fail_appends(PASS, PASS, fault)
    futures = [ended(producer.send("events", b"%06d" % number)) for number in range(20)]
    assert all(future.succeeded() for future in futures)
    assert numbered(cluster) == [b"%06d" % number for number in range(20)]


def test_a_refused_record_fails_alone(cluster: Cluster, producer: Producer, faults: FaultyPartitions) -> None:
    faults.fail_appends(PASS, REFUSED)
    futures = [ended(producer.send("events", b"%06d" % number)) for number in range(10)]
    assert [number for number, future in enumerate(futures) if future.failed()] == [1]
    assert numbered(cluster) == [b"%06d" % number for number in range(10) if number != 1]


@pytest.mark.parametrize("seed", range(10))
def test_any_mixture_of_calls_and_faults(
    cluster: Cluster, channel: FaultyChannel, producer: Producer, faults: FaultyPartitions, seed: int
) -> None:
    """Two threads that wait for some records, flush after others and go on after the rest."""
    before = channel.appends
    faults.fail_at_random(seed, share=0.1, faults=(*TEMPORARY, REFUSED))
    sent: list[list[RecordFuture]] = [[], []]

    def work(thread: int) -> None:
        chance = random.Random(f"{seed} {thread}")
        for number in range(150):
            future = producer.send("events", b"%d %06d" % (thread, number))
            sent[thread].append(future)
            chance.choice([ended, ended, lambda _: producer.flush(), lambda _: None])(future)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    producer.flush(timeout_ms=30_000)
    assert channel.appends > before
    records = [record for record in read_all(cluster, "events") if record.value != b"first"]
    for number, futures in enumerate(sent):
        assert all(future.is_done for future in futures)
        expected = [b"%d %06d" % (number, index) for index, future in enumerate(futures) if future.succeeded()]
        of_thread = [record for record in records if record.value.startswith(b"%d " % number)]
        assert [record.value for record in of_thread] == expected
        assert [record.offset for record in of_thread] == [each.get().offset for each in futures if each.succeeded()]


def test_the_event_loop_completes_sends_that_no_thread_waits_for(channel: FaultyChannel, producer: Producer) -> None:
    before = channel.appends
    future = producer.send("events", b"alone")
    wait_until(future.done, WAIT_S, "the outcome")
    assert future.succeeded()
    assert channel.appends == before + 1


def test_callbacks_are_called_for_a_record_that_went_by_the_channel(channel: FaultyChannel, producer: Producer) -> None:
    before = channel.appends
    offsets: list[int] = []
    producer.send("events", b"record").add_callback(lambda metadata: offsets.append(metadata.offset))
    wait_until(lambda: bool(offsets), WAIT_S, "the callback")
    assert channel.appends == before + 1


def test_another_thread_may_wait_for_the_record(channel: FaultyChannel, producer: Producer) -> None:
    before = channel.appends
    futures = [producer.send("events", b"record")]
    thread = threading.Thread(target=futures[0].get)
    thread.start()
    thread.join(WAIT_S)
    assert futures[0].succeeded()
    assert channel.appends == before + 1


def test_after_a_leader_that_hangs_up_records_take_the_usual_way(
    cluster: Cluster, channel: FaultyChannel, producer: Producer
) -> None:
    channel.close()
    before = channel.appends
    futures = [ended(producer.send("events", b"%06d" % number)) for number in range(10)]
    assert all(future.succeeded() for future in futures)
    assert channel.appends == before
    assert numbered(cluster) == [b"%06d" % number for number in range(10)]


def test_when_the_leader_is_back_records_go_by_the_channel_again(
    cluster: Cluster, channel: FaultyChannel, producer: Producer
) -> None:
    channel.close()
    ended(producer.send("events", b"away"))
    channel.open()
    cluster.admin().create_topic("others", partitions=1)  # as with each start of a leader, the image changes
    before = channel.appends
    for _ in range(10):
        ended(producer.send("events", b"back"))
    assert channel.appends > before


def test_get_gives_up_in_time_and_the_record_arrives_later(
    cluster: Cluster, channel: FaultyChannel, connection: LocalConnection, faults: FaultyPartitions
) -> None:
    producer = waiting_producer(cluster, channel, request_timeout_ms=200)
    connection.loop.run(as_coroutine(faults.stall))
    future = producer.send("events", b"late")
    with pytest.raises(RaykaError) as caught:
        future.get(0.05)
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    connection.loop.run(as_coroutine(faults.go_on))
    assert future.get(WAIT_S).offset >= 0
    assert numbered(cluster) == [b"late"]


def test_closing_fails_what_another_thread_waits_for(
    cluster: Cluster, channel: FaultyChannel, connection: LocalConnection, faults: FaultyPartitions
) -> None:
    producer = waiting_producer(cluster, channel)
    connection.loop.run(as_coroutine(faults.stall))
    future = producer.send("events", b"lost")
    thread = threading.Thread(target=ended, args=(future,))
    thread.start()
    producer.close(timeout_ms=50)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert future.failed()


@pytest.mark.parametrize(("step", "is_late"), [("request", False), ("request", True), ("receive", False)])
def test_an_interrupt_of_the_thread_loses_and_doubles_nothing(
    cluster: Cluster, producer: Producer, monkeypatch: pytest.MonkeyPatch, step: str, is_late: bool
) -> None:
    """Ctrl-C before or after each step; the program goes on with the same producer."""
    undisturbed = getattr(BlockingChannel, step)

    def interrupted(*arguments: object) -> object:
        monkeypatch.setattr(BlockingChannel, step, undisturbed)
        if is_late:
            undisturbed(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(BlockingChannel, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        producer.send("events", b"000000").get(WAIT_S)
    futures = [ended(producer.send("events", b"%06d" % number)) for number in range(1, 10)]
    assert all(future.succeeded() for future in futures)
    producer.flush(timeout_ms=WAIT_S * 1000)
    assert numbered(cluster) == [b"%06d" % number for number in range(10)]


def test_an_interrupt_while_a_record_is_encoded_does_not_lose_it(
    cluster: Cluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no sequence then: a second one would leave a gap, and the leader would refuse it."""
    seal_batch = batch.seal_batch

    def interrupted(*_: object, **__: object) -> None:
        monkeypatch.setattr(batch, "seal_batch", seal_batch)
        raise KeyboardInterrupt

    monkeypatch.setattr(batch, "seal_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        producer.send("events", b"000000")
    assert ended(producer.send("events", b"000001")).succeeded()
    assert numbered(cluster) == [b"000000", b"000001"]


@pytest.mark.parametrize("failures", [1, 2])
def test_a_record_for_whose_encoding_there_is_no_memory_is_encoded_later_or_fails_alone(
    cluster: Cluster, channel: FaultyChannel, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    producer, seal_batch, left = waiting_producer(cluster, channel), batch.seal_batch, [MemoryError()] * failures

    def without_memory(*arguments: Any, **fields: Any) -> Any:
        if left:
            raise left.pop()
        return seal_batch(*arguments, **fields)

    monkeypatch.setattr(batch, "seal_batch", without_memory)
    is_encoded = ended(producer.send("events", b"000000")).succeeded()
    assert is_encoded == (failures == 1)
    assert ended(producer.send("events", b"000001")).succeeded()
    producer.flush(timeout_ms=WAIT_S * 1000)
    assert numbered(cluster) == ([b"000000", b"000001"] if is_encoded else [b"000001"])


def test_an_interrupt_loses_no_part_of_an_answer(
    cluster: Cluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C when bytes were received and are not kept yet."""
    undisturbed = BlockingChannel.receive_now

    def interrupted(channel: BlockingChannel) -> object:
        try:
            channel._socket.recv(1)
        except BlockingIOError:
            return None
        monkeypatch.setattr(BlockingChannel, "receive_now", undisturbed)
        raise KeyboardInterrupt

    monkeypatch.setattr(BlockingChannel, "receive_now", interrupted)
    future = producer.send("events", b"000000")
    with pytest.raises(KeyboardInterrupt):
        future.get(WAIT_S)
    assert future.get(WAIT_S / 3).offset >= 0
    assert ended(producer.send("events", b"000001")).succeeded()
    assert numbered(cluster) == [b"000000", b"000001"]


def test_an_interrupt_with_an_error_in_hand_leaves_one_answer(
    cluster: Cluster, producer: Producer, faults: FaultyPartitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop hears of the error, and then of the interrupt; the partition still recovers from the next errors."""
    undisturbed = DirectSender._answered

    def interrupted(*arguments: Any) -> None:
        monkeypatch.setattr(DirectSender, "_answered", undisturbed)
        undisturbed(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(DirectSender, "_answered", interrupted)
    faults.fail_appends(NO_LEADER, NO_LEADER, NO_LEADER)
    future = producer.send("events", b"000000")
    with pytest.raises(KeyboardInterrupt):
        future.get(WAIT_S)
    assert future.get(WAIT_S).offset >= 0
    assert numbered(cluster) == [b"000000"]


def test_an_interrupt_before_the_batch_is_taken_leaves_the_partition_usable(
    cluster: Cluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = Accumulator.take_alone

    def interrupted(*arguments: Any) -> bool:
        monkeypatch.setattr(Accumulator, "take_alone", undisturbed)
        undisturbed(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(Accumulator, "take_alone", interrupted)
    with pytest.raises(KeyboardInterrupt):
        producer.send("events", b"000000")
    futures = [ended(producer.send("events", b"%06d" % number)) for number in range(1, 10)]
    assert all(future.succeeded() for future in futures)
    assert numbered(cluster) == [b"%06d" % number for number in range(10)]


def test_a_thread_that_waits_for_room_goes_on_when_another_one_has_its_answer(
    cluster: Cluster, channel: FaultyChannel, faults: FaultyPartitions
) -> None:
    producer = waiting_producer(cluster, channel, buffer_memory=100, max_block_ms=10_000)
    faults.fail_appends(Fault(delay_s=0.3))
    before = channel.appends
    thread = threading.Thread(target=lambda: ended(producer.send("events", b"x" * 200)))
    thread.start()
    wait_until(lambda: channel.appends > before, WAIT_S, "the first append")
    assert ended(producer.send("events", b"second")).succeeded()
    thread.join(WAIT_S)
    assert numbered(cluster) == [b"x" * 200, b"second"]


def test_after_an_append_that_timed_out_records_go_by_the_channel_again(
    cluster: Cluster, channel: FaultyChannel, connection: LocalConnection, faults: FaultyPartitions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("rayka.client.producer.direct_sender.GRACE_S", -0.03)  # before the leader's own answer
    producer = waiting_producer(cluster, channel, request_timeout_ms=50)
    connection.loop.run(as_coroutine(faults.stall))
    future = producer.send("events", b"000000")
    with pytest.raises(RaykaError):
        future.get(0.2)
    connection.loop.run(as_coroutine(faults.go_on))
    future.get(WAIT_S)
    before = channel.appends
    for number in range(1, 10):
        ended(producer.send("events", b"%06d" % number))
    assert channel.appends > before
    assert numbered(cluster) == [b"%06d" % number for number in range(10)]


def in_a_fork(work: Callable[[], None]) -> str:
    """The RaykaError that `work` raises in a fork of this process, as text; empty if it raises none."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest's handler would go on with the tests in the fork
            signal.alarm(int(WAIT_S))
            work()
        except RaykaError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        said = answer.read().decode()
    _, status = os.waitpid(child, 0)
    assert status == 0, "the fork waits for ever"
    return said


def test_a_forked_process_sends_nothing_in_the_name_of_its_parent(
    cluster: Cluster, channel: FaultyChannel, producer: Producer
) -> None:
    """Its record would have the number that the parent's next one has, which the leader then takes for a repetition."""
    before = channel.appends
    assert "fork" in in_a_fork(lambda: producer.send("events", b"child").get())
    producer.send("events", b"parent").get(WAIT_S)
    assert channel.appends == before + 1
    assert numbered(cluster) == [b"parent"]


def test_in_a_forked_process_no_use_of_the_producer_waits_for_ever(cluster: Cluster, channel: FaultyChannel) -> None:
    """Neither where a batch has room, nor for records of before, nor while a thread of the parent holds the lock."""
    producer = cluster.producer(linger_ms=60_000)
    while not producer.partitions_for("events"):
        producer.send("events", b"to know the topic")
    filling = producer.send("events", b"parent")
    uses: list[Callable[[], object]] = [
        lambda: producer.send("events", b"child").get(),
        lambda: producer.send_many("events", [b"child"])[0].get(),
        lambda: producer.flush(),
        lambda: filling.get(),
    ]
    for use in uses:
        assert "fork" in in_a_fork(use)
    with producer._core.lock:
        assert "fork" in in_a_fork(lambda: producer.send("events", b"child").get())
    producer.flush()
    assert b"child" not in numbered(cluster)


def test_a_record_that_is_sent_while_the_producer_closes_is_refused_or_has_an_outcome(
    cluster: Cluster, channel: FaultyChannel
) -> None:
    """The thread looks whether the producer is open, then another one closes it, then the record is put in a batch."""
    is_sending, is_closed = threading.Event(), threading.Event()

    def slow_partitioner(key: bytes | None, partitions: Sequence[int], available: Sequence[int]) -> int:
        is_sending.set()
        is_closed.wait(WAIT_S)
        return 0

    def close() -> None:
        is_sending.wait(WAIT_S)
        producer.close()
        is_closed.set()

    producer = cluster.producer(partitioner=slow_partitioner)
    thread = threading.Thread(target=close)
    thread.start()
    with pytest.raises(RaykaError, match="closed"):
        producer.send("events", b"late").get(WAIT_S)
    thread.join(WAIT_S)


def test_nothing_is_sent_after_closing(producer: Producer) -> None:
    producer.close()
    with pytest.raises(RaykaError, match="closed"):
        producer.send("events", b"record")


async def as_coroutine(function: Callable[[], None]) -> None:
    """Run in the loop."""
    function()
