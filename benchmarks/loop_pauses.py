"""How long the event loop of a partition actor stands still while its logs are rolled, deleted and recovered.

    python -m benchmarks.loop_pauses [PARTITIONS]

The parts of a partition actor run here without Ray: log directory, disk thread, replica server, roles and maintenance.
A timer that is due every millisecond measures how late the loop comes back to it, less the time in which its thread
could have run but other programs had the processor (`schedstat`). What is left is waiting for the disk, for the
interpreter's lock, and computing; `cpu` is the longest computing alone.

The host of a virtual machine takes its processors away at times. So on each of them a process that does nothing ticks
in the same way. `machine` is their longest pause, and `longest` leaves out what they had at the same moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
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
SHARED_MS = 0.5
"""From this length on a pause of the idle process is one of the machine."""
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


class Pause(NamedTuple):
    """A tick that was due at `due_s` (of the clock that all processes share) and came late; `cpu_ms` were computed."""

    due_s: float
    late_ms: float
    cpu_ms: float

    @property
    def end_s(self) -> float:
        """When it ended."""
        return self.due_s + self.late_ms / 1000

    def late_alone_ms(self, others: list[Pause]) -> float:
        """Without the time in which other processes were late too; `others` in the order of time."""
        alone_s, start_s = 0.0, self.due_s
        for other in others:
            if other.end_s > start_s and other.due_s < self.end_s:
                alone_s += max(0.0, other.due_s - start_s)
                start_s = other.end_s
        return 1000 * (alone_s + max(0.0, self.end_s - start_s))


def summary(pauses: list[Pause], machine: list[Pause]) -> str:
    """One line; `machine` are the pauses of the processes that do nothing."""
    long = sorted(other for other in machine if other.late_ms > SHARED_MS)
    late = sorted(pause.late_alone_ms(long) for pause in pauses)
    cpu_ms = max(pause.cpu_ms for pause in pauses)
    machine_ms = max(pause.late_ms for pause in machine)
    return (
        f"longest {late[-1]:6.2f} ms   p99 {late[len(late) * 99 // 100]:5.2f} ms   cpu {cpu_ms:5.2f} ms   "
        f"machine {machine_ms:6.2f} ms   {len(late)} turns"
    )


async def measure(work: Awaitable[None]) -> str:
    """The pauses until `work` is done."""
    with contextlib.ExitStack() as stack:
        beside = [stack.enter_context(start_idle(cpu)) for cpu in os.sched_getaffinity(0)]
        pauses = await tick(asyncio.ensure_future(work))
        lines = "".join(process.communicate()[0] for process in beside).splitlines()
    return summary(pauses, [Pause(*map(float, line.split())) for line in lines])


def start_idle(cpu: int) -> subprocess.Popen[str]:
    """A process that is bound to a processor and ticks until its input ends."""
    command = [sys.executable, "-m", "benchmarks.loop_pauses", "idle", str(cpu)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


async def tick(work: asyncio.Future[None]) -> list[Pause]:
    """Tick until `work` is done."""
    pauses: list[Pause] = []
    with open("/proc/thread-self/schedstat", "rb", buffering=0) as schedstat:
        while not work.done():
            due_s, computed, preempted = time.monotonic() + TICK_S, time.thread_time(), preempted_ms(schedstat)
            await asyncio.sleep(TICK_S)
            late_ms = (time.monotonic() - due_s) * 1000 - (preempted_ms(schedstat) - preempted)
            pauses.append(Pause(due_s, late_ms, (time.thread_time() - computed) * 1000))
    await work
    return pauses


def wait_for_end() -> None:
    sys.stdin.read()


async def idle(cpu: int) -> None:
    """Tick until the input ends, then print the pauses."""
    os.sched_setaffinity(0, {cpu})
    print("ready", flush=True)
    for pause in await tick(asyncio.ensure_future(asyncio.to_thread(wait_for_end))):
        print(*pause)


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
    if sys.argv[1:2] == ["idle"]:
        uvloop.run(idle(int(sys.argv[2])))
        return
    partitions = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory(prefix="rayka-pauses-") as path:
        uvloop.run(run(path, partitions))


if __name__ == "__main__":
    main()
