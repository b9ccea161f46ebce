"""Where the time of a read into Spark goes, stage by stage.

The partition actors say how long their steps took: fetching bytes from the segments, decoding them, putting tables into
the object store (seconds in their decoding threads, which share the cores with all others). For everything else the
processor time of each process and thread is read from /proc: the executors' Python workers map tables and write
them to Java; the executor's task threads turn Arrow into rows and aggregate; what else Java does is mostly compiling.
How much of the task threads' time is aggregation tells a second query without the aggregate.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import ray

from rayka.actors.node.spec import DEFAULT_NAMESPACE
from rayka.client.cluster import Cluster
from rayka.testing import cpu_s, title

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ACTOR_STEPS = ("fetch", "decode", "put")
STAGES = (
    "Python workers: map, transfer to Java",
    "executor: Arrow to rows, aggregation",
    "executor: compiler, garbage collector",
    "driver's Java",
    "partition actors",
    "others",
)
_WORKERS, _TASKS, _JAVA, _DRIVER, _ACTORS, _OTHERS = STAGES


class Stages(NamedTuple):
    """`wall_s`: the query's duration; `steps`: seconds in the actors' threads; `cpu_s`: processor time by stage."""

    wall_s: float
    steps: dict[str, float]
    cpu_s: dict[str, float]

    def __str__(self) -> str:
        steps = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.steps.items())
        lines = [f"  {self.wall_s:.2f} s; in the actors' decoding threads: {steps} s; processor time:"]
        lines += [f"    {stage:<40} {self.cpu_s[stage]:6.2f} s" for stage in STAGES]
        return "\n".join([*lines, f"    {'in all':<40} {sum(self.cpu_s.values()):6.2f} s"])


def staged(cluster: Cluster, topic: str, query: Callable[[], Any]) -> Stages:
    """Run a query and see what it took where."""
    steps, cpu, began = _steps(cluster, topic), _cpu(), time.perf_counter()
    query()
    wall_s = time.perf_counter() - began
    cpu_after, steps_after = _cpu(), _steps(cluster, topic)
    return Stages(
        wall_s,
        {name: steps_after[name] - steps[name] for name in ACTOR_STEPS},
        {stage: cpu_after[stage] - cpu[stage] for stage in STAGES},
    )


def _steps(cluster: Cluster, topic: str) -> dict[str, float]:
    """What the steps of all actors that lead the topic took so far."""
    names = {each.leader_actor for each in cluster.admin().describe_topics([topic])[0].partitions}
    actors = [ray.get_actor(name, namespace=DEFAULT_NAMESPACE) for name in names if name is not None]
    done: list[Any] = ray.get([actor.published.remote() for actor in actors])
    return {
        "fetch": sum(each.read_s for each in done),
        "decode": sum(each.decode_s for each in done),
        "put": sum(each.put_s for each in done),
    }


def _cpu() -> dict[str, float]:
    """The processor time so far of all processes below this one, by stage."""
    below = {child.pid: child for child in psutil.Process().children(recursive=True)}
    executors = {_parent(child) for child in below.values() if "spark.worker" in title(child)}
    spent = dict.fromkeys(STAGES, 0.0)
    for pid, child in below.items():
        command, used_s = title(child), cpu_s([child])
        if "spark.worker" in command:
            spent[_WORKERS] += used_s
        elif pid in executors and "java" in command:
            tasks_s = _task_seconds(pid)
            spent[_TASKS] += tasks_s
            spent[_JAVA] += used_s - tasks_s
        elif "java" in command and _parent(child) == os.getpid():
            spent[_DRIVER] += used_s
        else:
            spent[_ACTORS if command.startswith("ray::PartitionActor") else _OTHERS] += used_s
    return spent


def _parent(process: psutil.Process) -> int | None:
    with contextlib.suppress(psutil.Error):
        return process.ppid()
    return None


def _task_seconds(pid: int) -> float:
    """The processor time of the threads that run Spark's tasks; psutil does not know the names of threads."""
    spent_s = 0.0
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            name, _, fields = thread.read_text(errors="replace").rpartition(")")
            if "(Executor task" in name:
                user, system = fields.split()[11:13]
                spent_s += (int(user) + int(system)) / TICKS_PER_S
    return spent_s
