"""`rayka.Queue` beside `ray.util.queue.Queue`: `python -m benchmarks.queue`.

One Ray cluster with one broker; the queues take turns. One actor puts and four get, each in a process of its own. "put"
is the rate at which one producer puts; "moved" is the rate from the first put until the last item was got, which is the
figure of the aim. "cpu" is what an item takes of all processes of the cluster together, in microseconds: other work on
the machine changes it least. Singly, `put` returns when the item is acknowledged, and `get` waits for an item. In
batches it is `put_nowait_batch` and `get_nowait_batch` with 100 items (10 of 1 MB). "ahead" is rayka's queue with
`put_ahead=1000`, which does not wait for each acknowledgement; its producer flushes before its time is taken. Before
each turn 5 GB of memory are used and given back, without which the first use of memory is what one measures on many
virtual machines. `benchmarks.queue_limit` says what a queue of this design can move at most.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import ray
import ray.util.queue

import rayka
from benchmarks.machine import touch
from rayka.queue import Empty, Queue
from rayka.testing import cpu_s

CONSUMERS = 4
SIZES = {100: 100, 1_000_000: 10}
"""Items of a batch by their size in bytes."""
QUEUES: dict[str, Callable[[], Any]] = {
    "ray": ray.util.queue.Queue,
    "rayka": Queue,
    "ahead": partial(Queue, put_ahead=1000),
}
_PAUSE_S = 0.001


class Case(NamedTuple):
    """One figure: which queue, items of how many bytes, and how many in a call."""

    queue: str
    size: int
    batch: int


@ray.remote(num_cpus=0)
class Producer:
    """Puts items."""

    def ready(self, queue: Any) -> None:
        """Connect, by putting an item for each consumer."""
        queue.put_nowait_batch([b""] * CONSUMERS)

    def put(self, queue: Any, case: Case, seconds: float, done: str) -> tuple[int, float, float]:
        """How many items, and when it began and ended, by the clock of the machine."""
        value, count = os.urandom(case.size), 0
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            if case.batch == 1:
                queue.put(value)
            else:
                queue.put_nowait_batch([value] * case.batch)
            count += case.batch
        if case.queue == "ahead":
            queue.flush()
        ended = time.monotonic()
        Path(done).touch()
        return count, began, ended


@ray.remote(num_cpus=0)
class Consumer:
    """Gets items until the producer has ended and nothing is left."""

    def ready(self, queue: Any) -> None:
        """Connect."""
        queue.get()

    def get(self, queue: Any, batch: int, done: str) -> tuple[int, float]:
        """How many items, and when it got the last one."""
        count, last = 0, 0.0
        while True:
            try:
                count, last = count + take(queue, batch), time.monotonic()
            except Empty:
                if not os.path.exists(done):
                    time.sleep(_PAUSE_S)
                elif batch == 1:
                    return count, last
                else:
                    batch = 1


def take(queue: Any, batch: int) -> int:
    """Get so many items."""
    if batch > 1:
        return len(queue.get_nowait_batch(batch))
    queue.get(timeout=0.5)
    return 1


def run(case: Case, seconds: float, directory: str) -> dict[str, float]:
    """One round: items a second."""
    queue = QUEUES[case.queue]()
    done = os.path.join(directory, f"{time.monotonic_ns()}")
    producer, consumers = Producer.remote(), [Consumer.remote() for _ in range(CONSUMERS)]
    ray.get([producer.ready.remote(queue), *(each.ready.remote(queue) for each in consumers)])
    os.sync()
    touch()
    before = used_s()
    gets = [each.get.remote(queue, case.batch, done) for each in consumers]
    count, began, ended = ray.get(producer.put.remote(queue, case, seconds, done))
    counts, lasts = zip(*ray.get(gets), strict=True)
    if sum(counts) != count:
        raise AssertionError(f"{case}: {sum(counts)} of {count} items came")
    cpu = (used_s() - before) / count * 1e6
    for actor in (producer, *consumers):
        ray.kill(actor)
    queue.shutdown()
    return {"put": count / (ended - began), "moved": count / (max(lasts) - began), "cpu": cpu}


def used_s() -> float:
    """Processor seconds of the cluster's processes so far."""
    return cpu_s(psutil.Process().children(recursive=True))


def report(case: Case, ours: dict[str, float], rays: dict[str, float]) -> None:
    """One line."""
    print(
        f"{case.queue:6} {case.size:>8} B, {case.batch:>3} in a call: put {ours['put']:,.0f}/s, moved"
        f" {ours['moved']:,.0f}/s ({ours['moved'] / rays['moved']:.1f} times Ray's), cpu {ours['cpu']:,.0f} us"
        f" ({rays['cpu'] / ours['cpu']:.1f} times the items)",
        flush=True,
    )


def main() -> None:
    """Print a line for each case, and how many times Ray's rate it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="for how long the producer puts")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as directory, rayka.start(os.path.join(directory, "data"), "127.0.0.1:0"):
        for size in options.sizes:
            for together in (1, SIZES[size]):
                cases = [Case(queue, size, together) for queue in QUEUES]
                rounds = [[run(case, options.seconds, directory) for case in cases] for _ in range(options.rounds)]
                for index, case in enumerate(cases):
                    figures[f"{case.queue} {size} B x {together}"] = both = {
                        key: statistics.median(each[index][key] for each in rounds) for key in ("put", "moved", "cpu")
                    }
                    report(case, both, figures[f"ray {size} B x {together}"])
    if options.json is not None:
        options.json.write_text(json.dumps({"load": os.getloadavg(), **figures}, indent=2))


if __name__ == "__main__":
    main()
