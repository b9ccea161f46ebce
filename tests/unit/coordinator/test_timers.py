"""The queue of deadlines."""

from __future__ import annotations

import random

from rayka.coordinator.timers import TimerQueue


def test_deadlines_come_in_order_and_once() -> None:
    queue: TimerQueue[str] = TimerQueue()
    for key, deadline in [("b", 20), ("a", 10), ("c", 30)]:
        queue.schedule(key, deadline, key.upper())
    assert queue.next_deadline() == 10
    assert queue.pop(9) is None
    assert [queue.pop(25), queue.pop(25), queue.pop(25)] == [("a", "A"), ("b", "B"), None]
    assert queue.next_deadline() == 30


def test_a_deadline_can_be_moved_both_ways_and_cancelled() -> None:
    queue: TimerQueue[str] = TimerQueue()
    queue.schedule("a", 10)
    queue.schedule("a", 50)
    assert (queue.next_deadline(), queue.pop(49)) == (50, None)
    queue.schedule("a", 20)
    assert (queue.next_deadline(), queue.deadline("a")) == (20, 20)
    queue.cancel("a")
    assert (queue.next_deadline(), queue.pop(99), "a" in queue) == (None, None, False)
    queue.schedule("a", 5)
    assert queue.pop(5) == ("a", None)


def test_the_queue_agrees_with_a_plain_table() -> None:
    chance = random.Random(1)
    queue: TimerQueue[int] = TimerQueue()
    table: dict[int, int] = {}
    now = 0
    for _ in range(20_000):
        key = chance.randrange(20)
        if chance.random() < 0.6:
            queue.schedule(key, now + chance.randrange(100))
            table[key] = queue.deadline(key) or 0
        elif chance.random() < 0.5:
            queue.cancel(key)
            table.pop(key, None)
        now += chance.randrange(3)
        while (due := queue.pop(now)) is not None:
            assert table.pop(due[0]) <= now
        assert queue.next_deadline() == min(table.values(), default=None)
    assert len(queue) == len(table)


def test_heartbeats_do_not_make_the_queue_grow() -> None:
    queue: TimerQueue[str] = TimerQueue()
    for now in range(10_000):
        queue.schedule("member", now + 45_000)
    assert len(queue._heap) == 1


def test_cancelled_deadlines_do_not_make_the_queue_grow() -> None:
    queue: TimerQueue[int] = TimerQueue()
    queue.schedule(-1, 5_000)
    for transaction in range(10_000):
        queue.schedule(transaction % 10, transaction + 900_000)
        assert queue.deadline(transaction % 10) == transaction + 900_000
        queue.cancel(transaction % 10)
    assert len(queue._heap) < 100
    assert queue.pop(5_000) == (-1, None)
    assert queue.next_deadline() is None


def test_a_queue_that_drops_cancelled_deadlines_keeps_the_others_in_order() -> None:
    chance = random.Random(2)
    queue: TimerQueue[int] = TimerQueue()
    deadlines = {key: chance.randrange(1_000) for key in range(2_000)}
    for key, deadline in deadlines.items():
        queue.schedule(key, deadline)
    kept = {key: deadlines[key] for key in chance.sample(range(2_000), 20)}
    for key in deadlines.keys() - kept.keys():
        queue.cancel(key)
    kept[-1] = 500
    queue.schedule(-1, 500)
    assert len(queue._heap) == len(kept)
    popped = []
    while (deadline_ms := queue.next_deadline()) is not None:
        key, _ = queue.pop(deadline_ms) or (None, None)
        popped.append((deadline_ms, key))
    assert sorted(popped) == sorted((deadline, key) for key, deadline in kept.items())
    assert [deadline for deadline, _ in popped] == sorted(kept.values())
