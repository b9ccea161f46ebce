"""How long the event loop of a partition actor stands still while its logs are rolled, deleted and recovered.

    python -m benchmarks.loop_pauses [PARTITIONS]

The parts of a partition actor run here without Ray: log directory, disk thread, replica server, roles and maintenance.
A timer that is due every millisecond measures how late the loop comes back to it, less the time in which its thread
could have run but other programs had the processor (`schedstat`). What is left is waiting for the disk, for the
interpreter's lock, and computing; `cpu` is the longest computing alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from io import FileIO
from typing import NamedTuple

import uvloop

from rayka.actors.coordinator.runtime import CoordinatorRuntime
from rayka.actors.node.interpreter import tune_interpreter
from rayka.actors.replica.assignments import DirectoryAssignments
from rayka.actors.replica.disk import DiskThread
from rayka.actors.replica.maintenance import LogUpkeep
from rayka.actors.replica.roles import ReplicaRoles
from rayka.actors.replica.server import ReplicaServer
from rayka.config import BrokerConfig
from rayka.config.groups import GROUP_CONFIGS
from rayka.coordinator.groups.spec import GROUPS
from rayka.metadata.commands import ActorRegistration, BrokerRegistration, NewTopic
from rayka.metadata.controller import Controller
from rayka.metadata.image import MetadataImage
from rayka.replica.replicas import Replicas
from rayka.storage.directory.boot_record import BOOT_ID_FILE
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.format.records import Record, build_batch
from rayka.types import AppendParams, AppendRequest, TopicPartition

TICK_S = 0.001
PHASE_S = 5.0
BATCH_BYTES = 64 * 1024
BYTES_PER_S = 64 * 1024 * 1024
"""Slow enough for the disk to keep up: a system that has too much to write makes the append itself wait."""
CONFIGS = {
    "log.segment.bytes": str(1024 * 1024),
    "log.retention.bytes": str(2 * 1024 * 1024),
    "log.retention.check.interval.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "file.delete.delay.ms": "0",
}
NAME = "actor"
PARAMS = AppendParams(acks=1, timeout_ms=1000)


class Pauses(NamedTuple):
    """Milliseconds by which ticks were late, rising, and the longest computing between two ticks."""

    late_ms: list[float]
    cpu_ms: float

    def __str__(self) -> str:
        last = self.late_ms[-1]
        p99 = self.late_ms[len(self.late_ms) * 99 // 100]
        return f"longest {last:6.2f} ms   p99 {p99:5.2f} ms   cpu {self.cpu_ms:5.2f} ms   {len(self.late_ms)} turns"


async def measure(work: Awaitable[None]) -> Pauses:
    """Tick until `work` is done."""
    late: list[float] = []
    cpu_ms = 0.0
    task = asyncio.ensure_future(work)
    with open("/proc/thread-self/schedstat", "rb", buffering=0) as schedstat:
        while not task.done():
            due, computed, preempted = time.perf_counter() + TICK_S, time.thread_time(), preempted_ms(schedstat)
            await asyncio.sleep(TICK_S)
            late.append((time.perf_counter() - due) * 1000 - (preempted_ms(schedstat) - preempted))
            cpu_ms = max(cpu_ms, (time.thread_time() - computed) * 1000)
    await task
    return Pauses(sorted(late), cpu_ms)


def preempted_ms(schedstat: FileIO) -> float:
    """How long the thread has waited for a processor."""
    schedstat.seek(0)
    return int(schedstat.read().split()[1]) / 1e6


class Parts:
    """What a partition actor is made of."""

    def __init__(self, path: str) -> None:
        config = BrokerConfig.parse({**CONFIGS, "log.dirs": path})
        self.directory = LogDirectory.open(path, RealFiles(), now_ms=time.time_ns() // 1_000_000)
        self.disk = DiskThread()
        self.replicas = Replicas()
        self.server = ReplicaServer(self.replicas, self.directory, self.disk)
        registration = ActorRegistration(NAME, 1, path, "incarnation", uuid.UUID(int=9))
        assignments = DirectoryAssignments(registration, self.directory, self.disk, None)
        groups = CoordinatorRuntime(GROUPS, self.server, config, 1)
        self.roles = ReplicaRoles(
            NAME, self.replicas, self.directory, self.disk, self.server, {GROUPS.topic: groups}, assignments, config
        )
        self.upkeep = LogUpkeep(self.replicas, self.directory, self.disk, self.server, config)

    async def open(self, image: MetadataImage) -> None:
        """Open the logs of all partitions, recovering them if need be."""
        await self.roles.image_changed(MetadataImage(), image, frozenset())
        await self.disk.run(self.directory.opened)

    async def stop(self) -> None:
        """End as a process that is killed does: nothing is marked as clean."""
        await self.upkeep.stop()
        await self.roles.stop()
        await self.server.stop()
        self.disk.stop()
        for partition in self.replicas:
            partition.log.release()
        self.directory.release()


def image_of(path: str, partitions: int) -> MetadataImage:
    """A cluster of one broker with one topic."""
    core = Controller(MetadataImage(), {**CONFIGS, "log.dirs": path}, GROUP_CONFIGS)
    for command in (
        lambda: core.create_cluster("cluster"),
        lambda: core.register_broker(BrokerRegistration("node", "localhost", 9092, 1, log_dirs=(path,))),
        lambda: core.register_actor(ActorRegistration(NAME, 1, path, "incarnation", uuid.UUID(int=9))),
        lambda: core.create_topics([NewTopic("topic", partitions, 1)], False, [uuid.UUID(int=1)]),
    ):
        core.replay(command().records)
    return core.image


async def append(parts: Parts, partitions: int, until: Callable[[int], bool]) -> None:
    """Append a batch to one partition after another, one each turn of the loop."""
    batch = build_batch([Record(0, time.time_ns() // 1_000_000, None, os.urandom(BATCH_BYTES))])
    count = 0
    while not until(count):
        request = AppendRequest(TopicPartition("topic", count % partitions), memoryview(bytearray(batch)))
        parts.server.append([request], PARAMS, lambda results: None)
        count += 1
        await asyncio.sleep(BATCH_BYTES / BYTES_PER_S)


def for_seconds(seconds: float) -> Callable[[int], bool]:
    deadline = time.monotonic() + seconds
    return lambda _: time.monotonic() > deadline


@contextlib.contextmanager
def tuned_interpreter() -> Iterator[None]:
    """Collect garbage and switch threads as a serving process does."""
    tune_interpreter()
    yield
    gc.unfreeze()


async def run(path: str, partitions: int) -> None:
    image = image_of(path, partitions)
    parts = Parts(path)
    await parts.open(image)
    with tuned_interpreter():
        print(f"{'idle':34}", await measure(asyncio.sleep(PHASE_S)))
        print(f"{'appends and rolls':34}", await measure(append(parts, 8, for_seconds(PHASE_S))))
        parts.upkeep.start()
        print(f"{'... with retention, checkpoints':34}", await measure(append(parts, 8, for_seconds(PHASE_S))))
        await append(parts, partitions, lambda count: count >= partitions * 30)
        await parts.stop()
        with open(os.path.join(path, BOOT_ID_FILE), "w") as file:
            file.write("another\n")
        again = Parts(path)
        print(f"{f'recovery of {partitions} partitions':34}", await measure(again.open(image)))
        await again.stop()


def main() -> None:
    partitions = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory(prefix="rayka-pauses-") as path:
        uvloop.run(run(path, partitions))


if __name__ == "__main__":
    main()
