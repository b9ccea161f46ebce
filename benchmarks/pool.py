"""A pool of actors beside the best schedule: `python -m benchmarks.pool`.

A hundred tasks of 10 ms, each a record of one partition, and 16 actors of `cluster.process`, of which two are killed on
the way. The pool has started and waits for records. The time is from the call that sends the records until the last
acknowledgement is durable, so it has in it what producing, leasing and acknowledging take. A task sleeps.

The ideal is the best schedule of the same tasks on the actors that live at each moment (`ideal_s`): nothing takes time
but the tasks, an actor starts the next task when one ends, a killed one loses the task that it is at, and no actor
takes its place, since a new process needs longer to start than all tasks take. Tasks are whole: a hundred on 16 actors
are seven turns, not 6.25, so the ideal is 70 ms, also with two actors killed after their first and third task.

"first" is the first batch of a new pool, which does not yet know how long a task takes; "quiet" has no kills.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

import rayka
from rayka.client.cluster import Cluster
from rayka.client.share.pool import ProcessingPool
from rayka.client.share.records import ShareRecord
from rayka.metadata.records import ConfigResource, ResourceType
from rayka.testing import wait_until

TASKS = 100
TASK_S = 0.01
ACTORS = 16
KILLS_AT = (1 / 3, 2 / 3)
"""When actors are killed, as parts of the ideal time."""
_TIMEOUT_S = 120.0
_POLL_S = 0.0005


def ideal_s(kills_s: Sequence[float] = (), tasks: int = TASKS, actors: int = ACTORS, task_s: float = TASK_S) -> float:
    """The time of the best schedule: whole tasks, one after the other on each actor until it is killed.

    `kills_s` are the times of the kills, from the beginning.
    """
    turns, done = 0, 0
    while done < tasks:
        turns += 1
        done += actors - sum(kill_s < turns * task_s for kill_s in kills_s)
    return turns * task_s


class Task:
    """Sleeps, and writes down which process began and ended which record, by the clock of the machine."""

    def __init__(self, journal: str) -> None:
        self.journal = journal
        self.file = -1

    def __call__(self, record: ShareRecord) -> None:
        if self.file < 0:
            self.file = os.open(self.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        began = time.monotonic()
        time.sleep(TASK_S)
        os.write(self.file, b"%d %d %f %f\n" % (os.getpid(), record.offset, began, time.monotonic()))


class Ended(NamedTuple):
    """A task that was processed."""

    process: int
    offset: int
    began: float
    ended: float


class Bench:
    """A topic, its group and the pool that processes it."""

    def __init__(self, cluster: Cluster, directory: str) -> None:
        self.cluster = cluster
        self.topic = f"tasks-{time.monotonic_ns()}"
        self.journal = Path(directory, self.topic)
        self.sent = 0
        cluster.admin().create_topic(self.topic, partitions=1)
        group = ConfigResource(ResourceType.GROUP, self.topic)
        cluster.admin().alter_configs(group, {"share.auto.offset.reset": "earliest"})
        self.producer = cluster.producer()
        cluster.admin().create_topic(f"warm-{self.topic}", partitions=1)
        self.producer.send_many(f"warm-{self.topic}", [b""] * TASKS)  # the first send of a program compiles
        self.producer.flush()
        self.pool: ProcessingPool = cluster.process(
            self.topic, self.topic, Task(str(self.journal)), actors=ACTORS, ray_actor_options={"num_cpus": 0}
        )

    def close(self) -> None:
        """End the pool and the producer."""
        self.pool.close()
        self.producer.close()

    def tasks(self, first: int) -> list[Ended]:
        """What was processed from an offset on."""
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        parts = [line.split() for line in lines]
        found = [Ended(int(part[0]), int(part[1]), float(part[2]), float(part[3])) for part in parts]
        return [task for task in found if task.offset >= first]

    def settle(self) -> None:
        """All actors live, and nothing has happened for a while."""
        wait_until(lambda: self.pool.ready_actors == ACTORS, _TIMEOUT_S, "all actors have started")
        self.pool.join(idle_ms=1000)

    def run(self, victims: Sequence[int] = ()) -> dict[str, float]:
        """One batch: milliseconds from its sending."""
        self.settle()
        first, before = self.sent, self.pool.counts.accepted
        began = time.monotonic()
        self.producer.send_many(self.topic, [b"%d" % number for number in range(TASKS)])
        self.producer.flush()
        self.sent += TASKS
        kills_s = [
            kill(victim, began + part * ideal_s(), began) for part, victim in zip(KILLS_AT, victims, strict=False)
        ]
        while self.pool.counts.accepted < before + TASKS:
            time.sleep(_POLL_S)
        took_s = time.monotonic() - began
        tasks = self.tasks(first)
        if {task.offset for task in tasks} != set(range(first, self.sent)):
            raise AssertionError("not all tasks were processed")
        if self.pool.counts.accepted != before + TASKS or self.pool.counts.lost:
            raise AssertionError(f"not each task was acknowledged once: {self.pool.counts}")
        return {
            "ratio": took_s / ideal_s(kills_s),
            "ideal_ms": 1e3 * ideal_s(kills_s),
            "took_ms": 1e3 * took_s,
            "first_began_ms": 1e3 * (min(task.began for task in tasks) - began),
            "last_ended_ms": 1e3 * (max(task.ended for task in tasks) - began),
        }

    def victims(self) -> list[int]:
        """Processes that live, as many as are to be killed."""
        living = sorted({task.process for task in self.tasks(self.sent - TASKS) if psutil.pid_exists(task.process)})
        return living[: len(KILLS_AT)]

    def left_over(self) -> int:
        """How many records another member of the group gets: none, if all are acknowledged."""
        with self.cluster.share_consumer(self.topic, [self.topic]) as consumer:
            return len(consumer.poll(timeout_ms=1000))


def kill(victim: int, at_s: float, began_s: float) -> float:
    """Kill a process at a time of the machine's clock; returns how long after the beginning that was."""
    time.sleep(max(0.0, at_s - time.monotonic()))
    os.kill(victim, signal.SIGKILL)
    return time.monotonic() - began_s


def main() -> None:
    """Print a line for each batch, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pools", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="batches without and with kills, of each pool")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    figures: dict[str, list[dict[str, float]]] = defaultdict(list)

    def report(kind: str, of_batch: dict[str, float]) -> None:
        figures[kind].append(of_batch)
        print(f"{kind:6}", " ".join(f"{name} {value:.2f}" for name, value in of_batch.items()), flush=True)

    with (
        tempfile.TemporaryDirectory() as directory,
        rayka.start(os.path.join(directory, "data"), "127.0.0.1:0") as cluster,
    ):
        for _ in range(options.pools):
            bench = Bench(cluster, directory)
            report("first", bench.run())
            for _ in range(options.rounds):
                report("quiet", bench.run())
            for _ in range(options.rounds):
                report("kills", bench.run(bench.victims()))
            bench.close()
            if bench.left_over():
                raise AssertionError("records are left over")
        cluster.stop()
    for kind, batches in figures.items():
        ratios = [batch["ratio"] for batch in batches]
        print(f"{kind}: {statistics.median(ratios):.2f} of the ideal ({min(ratios):.2f} to {max(ratios):.2f})")
    if options.json is not None:
        options.json.write_text(json.dumps({"load": os.getloadavg(), **figures}, indent=2))


if __name__ == "__main__":
    main()
