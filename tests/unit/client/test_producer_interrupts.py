"""Ctrl-C at any place of the producer's code that runs in the program's own threads, and a fork at the worst time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from rayka.client.cluster import Cluster
from rayka.client.producer.accumulator import Accumulator, PartitionQueue
from rayka.client.producer.batch import ProducerBatch, RecordFuture
from rayka.client.producer.direct_sender import DirectAppend
from rayka.client.producer.future import BatchCompletion
from rayka.client.settings import ProducerConfig, configure
from rayka.errors import RaykaError
from rayka.testing import wait_until
from rayka.types import TopicPartition
from tests.support.faulty_channel import FaultyChannel
from tests.support.faulty_partitions import PASS, Fault, FaultyPartitions
from tests.unit.client.interrupts import interrupted_at
from tests.unit.client.reading import values

pytestmark = pytest.mark.usefixtures("way_to_fill")

WAIT_S = 30.0
OURS = ("rayka.client.producer", "rayka.actors.channel.blocking_channel")
EVENTS = TopicPartition("events", 0)
IDLE = SimpleNamespace(is_closed=False)
"""A channel that nobody uses."""


def ended(future: RecordFuture) -> None:
    """Wait for the outcome for a moment."""
    with contextlib.suppress(RaykaError):
        future.get(0.001)


class Records:
    """An accumulator with one queue, and the futures of the records that were given to it."""

    def __init__(self) -> None:
        self.config = configure(ProducerConfig, {"batch_size": 200})
        self.accumulator = Accumulator(self.config)
        self.queue: PartitionQueue = self.accumulator.queue(EVENTS)
        self.futures: list[RecordFuture] = []

    def append(self) -> None:
        """Append one record of 50 bytes, of which a batch takes two."""
        appended = self.accumulator.append(self.queue, None, b"x" * 50, (), 1, 90, 1 << 20, None)
        assert appended is not None
        self.futures.append(appended[0])

    def put(self) -> None:
        """Put a whole batch behind the one that is filling."""
        batch = ProducerBatch(EVENTS, self.config, 1000)
        batch.add(None, b"x" * 50, 1, (), 90)
        assert self.accumulator.put(self.queue, batch)

    def check(self) -> None:
        """Each batch will be sent once; the next records fit in."""
        assert all(batch.reserved for batch in self.queue.waiting())
        self.append()
        waiting = self.queue.waiting()
        assert len(set(waiting)) == len(waiting)
        assert {future._completion for future in self.futures} <= set(waiting)
        assert self.accumulator.used_bytes == sum(batch.reserved for batch in waiting)


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("operation", [Records.append, Records.put])
def test_an_interrupt_leaves_each_batch_in_its_queue(before: int, operation: Callable[[Records], None]) -> None:
    for place in itertools.count():
        records = Records()
        for _ in range(before):
            records.append()
        was_interrupted = interrupted_at(place, OURS, lambda: operation(records))  # noqa: B023
        records.check()
        if not was_interrupted:
            break
    assert place > 5


def test_an_interrupt_of_a_thread_that_waits_lets_the_batch_complete() -> None:
    for place in itertools.count():
        batch = BatchCompletion()
        was_interrupted = interrupted_at(place, OURS, lambda: batch.wait(0.0001))  # noqa: B023
        completing = threading.Thread(target=batch.complete, args=(1, -1, None), daemon=True)
        completing.start()
        completing.join(WAIT_S)
        assert not completing.is_alive()
        assert batch.wait(WAIT_S)
        if not was_interrupted:
            break
    assert place > 3


def test_completing_a_batch_again_calls_back_whom_an_interrupt_has_left() -> None:
    for place in itertools.count():
        batch, called = BatchCompletion(), list[int]()
        for number in range(3):
            batch.when_done(partial(called.append, number))
        waiter = threading.Thread(target=batch.wait, args=(None,), daemon=True)
        waiter.start()
        was_interrupted = interrupted_at(place, OURS, lambda: batch.complete(7, -1, None))  # noqa: B023
        batch.complete(8, -1, None)
        waiter.join(WAIT_S)
        assert not waiter.is_alive()
        assert batch.done
        assert called == [0, 1, 2]
        if not was_interrupted:
            break
    assert place > 10


def test_an_interrupt_while_a_task_is_woken_leaves_it_to_who_completes_the_batch_again() -> None:
    """The task waits in an event loop of plain asyncio, whose `call_soon_threadsafe` is Python code."""

    async def main() -> int:
        for place in itertools.count():
            batch = BatchCompletion()
            waiting = asyncio.create_task(batch.done_in(asyncio.get_running_loop()))
            await asyncio.sleep(0)
            was_interrupted = interrupted_at(place, (*OURS, "asyncio"), lambda: batch.complete(7, -1, None))  # noqa: B023
            batch.complete(8, -1, None)
            await asyncio.wait_for(waiting, WAIT_S)
            if not was_interrupted:
                return place
        raise AssertionError

    assert asyncio.run(main()) > 10


def test_a_fork_fails_the_batch_that_its_parent_is_about_to_send() -> None:
    records = Records()
    records.append()
    taken = records.accumulator.take(records.queue, inf)
    records.accumulator.forked()
    assert records.futures[0]._completion is taken
    with pytest.raises(RaykaError, match="fork"):
        records.futures[0].get(WAIT_S)


def test_a_fork_fails_the_batch_whose_answer_its_parent_waits_for() -> None:
    records = Records()
    records.append()
    append: Any = SimpleNamespace(queue=records.queue, link=SimpleNamespace(user=None, channel=IDLE), claimed_by=None)
    assert records.accumulator.take_alone(append)
    assert records.accumulator.claim_for_loop(records.queue) is append
    records.accumulator.forked()
    assert records.futures[0].failed()


def test_who_waits_does_not_wait_for_callbacks() -> None:
    batch, is_released, order = BatchCompletion(), threading.Event(), list[str]()
    batch.when_done(lambda: (is_released.wait(WAIT_S), order.append("callback")))
    waiter = threading.Thread(target=lambda: (batch.wait(WAIT_S), order.append("waiter"), is_released.set()))
    waiter.start()
    wait_until(lambda: len(batch._callbacks) == 2, WAIT_S, "the thread to wait")
    batch.complete(0, -1, None)
    waiter.join(WAIT_S)
    assert order == ["waiter", "callback"]


def test_an_answer_that_another_thread_has_claimed_stays_its_own() -> None:
    records = Records()
    records.append()
    append: Any = SimpleNamespace(
        queue=records.queue, link=SimpleNamespace(user=None, channel=IDLE), claimed_by=None, is_wanted=False
    )
    assert records.accumulator.take_alone(append)
    other = threading.Thread(target=records.accumulator.claim, args=(append,))
    other.start()
    other.join(WAIT_S)
    records.accumulator.unclaim(append)
    assert append.claimed_by == other.ident


def test_a_batch_keeps_nothing_of_waits_that_were_too_short() -> None:
    batch = BatchCompletion()
    for _ in range(100):
        assert not batch.wait(0)
    assert not batch._callbacks


def test_an_interrupt_of_a_second_thread_that_waits_leaves_the_answer_to_the_first(
    cluster: Cluster, channel: FaultyChannel, faults: FaultyPartitions
) -> None:
    producer = cluster.producer(retry_backoff_ms=1)
    queue = producer._core._accumulator.queue(EVENTS)

    def send_and_wait() -> tuple[RecordFuture, DirectAppend, threading.Thread]:
        """A record for whose answer a thread waits; the event loop is quicker on a busy machine."""
        while True:
            faults.on_append = lambda _: PASS
            producer.send("events", b"before").get(WAIT_S)
            faults.on_append = lambda _: Fault(delay_s=0.05)
            future = producer.send("events", b"value")
            append = queue.direct
            waiting = threading.Thread(target=future.get, args=(WAIT_S,), daemon=True)
            waiting.start()
            if append is not None:
                wait_until(lambda: append.claimed_by is not None or future.is_done, WAIT_S, "somebody to wait")  # noqa: B023
                if append.claimed_by == waiting.ident:
                    return future, append, waiting
            waiting.join(WAIT_S)

    for place in itertools.count():
        future, append, first = send_and_wait()
        was_interrupted = interrupted_at(place, OURS, lambda: ended(future))  # noqa: B023
        first.join(WAIT_S)
        assert not first.is_alive()
        assert future.get(WAIT_S).offset >= 0
        assert not append.link.channel.is_closed
        if not was_interrupted:
            break
    assert place > 10
    producer.close()


def test_a_program_that_waits_for_each_record_may_be_interrupted_anywhere(
    cluster: Cluster, channel: FaultyChannel
) -> None:
    """Nothing is lost, doubled, or without an outcome, and the next records go by the channel again."""
    producer = cluster.producer(retry_backoff_ms=1)
    sent: dict[bytes, RecordFuture] = {}

    def send(value: bytes) -> Any:
        sent[value] = producer.send("events", value)
        return sent[value].get(WAIT_S)

    def send_by_the_channel() -> None:
        before = channel.appends
        for number in itertools.count():
            send(b"between %d %d" % (len(sent), number))
            if channel.appends > before:
                break
            assert number < 100

    for place in itertools.count():
        send_by_the_channel()
        value = b"%06d" % place
        was_interrupted = interrupted_at(place, OURS, lambda: send(value))  # noqa: B023
        producer.flush(timeout_ms=WAIT_S * 1000)
        if value in sent:
            assert sent[value].get(WAIT_S).offset >= 0
        if not was_interrupted:
            break
    assert place > 50
    found = values(cluster, "events")
    assert len(set(found)) == len(found)
    assert set(sent) <= set(found)
    assert not producer._core._accumulator.used_bytes
    producer.close()
