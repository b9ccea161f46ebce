"""What this machine can do at most, and memory that does not distort what a benchmark measures.

Many virtual machines give memory that is free back to their host within seconds, and the first use of it afterwards
costs several times what copying to it does: writing to the page cache then has a tenth of its rate. A load that begins
with `touch` measures the brokers and not that.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from mmap import PROT_READ, mmap
from multiprocessing.synchronize import Barrier, Semaphore
from pathlib import Path

from crc32c import crc32c

MB = 1 << 20
_FILE_MB = 256
_SHARED_MB = 32
"""As much as a producer's default `buffer_memory`."""
_FILES = 4
_ROUNDS = 3
_MOST_S = 60
"""Two processes wait no longer for each other: one may have failed."""
TOUCHED_BYTES = 5 << 30
_MOST_SETTLE_S = 10
_LOOK_S = 0.3
_QUIET_SHARE = 0.15
"""Of one processor; a broker at rest takes less."""


def touch(size: int) -> None:
    """Use so many bytes of memory and free them: the kernel gives them out again first."""
    used(size).close()


def used(size: int) -> mmap:
    """So many bytes of memory that were used. Once they are closed, the kernel gives that memory out first."""
    memory = mmap(-1, size)
    for start in range(0, size, MB):
        memory[start : start + MB] = bytes(min(MB, size - start))
    return memory


def settle(most_s: float = _MOST_SETTLE_S) -> None:
    """Wait until nothing else works on this machine, such as a worker that Ray starts ahead, but at most so long."""
    deadline_s = time.monotonic() + most_s
    while time.monotonic() < deadline_s and _busy_s(_LOOK_S) > _LOOK_S * _QUIET_SHARE:
        pass


def _busy_s(wait_s: float) -> float:
    """The processor seconds of all processes while this one waits so long."""
    before = _used_s()
    time.sleep(wait_s)
    return _used_s() - before


def _used_s() -> float:
    """The processor seconds since the start in programs and the kernel; between their columns are idle and iowait."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split(maxsplit=8)[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def rates(directory: Path) -> str:
    """GB/s of one core that copies memory, writes files to the page cache and reads them, and of producing and polling.

    "produce" is one process that copies into memory that it shares with another one, which writes that to files.
    "poll" is one process that copies a mapped file to its place, 1 MB at a time. No client can do less. "on two cores"
    are two processes that do so at the same time.
    "with CRC" is what the batches of Kafka's format need beside that: each process computes the CRC of each MB, and who
    writes files copies it before, since shared memory may change after the check.
    """
    touch(TOUCHED_BYTES)
    source, target = memoryview(os.urandom(_FILE_MB * MB)), memoryview(bytearray(_FILE_MB * MB))
    parts = [slice(start, start + MB) for start in range(0, len(source), MB)]
    path = directory / "machine"
    with path.open("w+b", buffering=0) as file:
        works: dict[str, Callable[[], object]] = {
            "memory copy": lambda: target.__setitem__(slice(None), source),
            "page cache, write": lambda: [file.write(source[part]) for part in parts],
            "page cache, read": lambda: (file.seek(0), [file.readinto(target[part]) for part in parts]),
            "at most: poll": partial(_poll, path, target, False),
            "with CRC": partial(_poll, path, target, True),
        }
        found = {name: statistics.median(_seconds(work) for _ in range(_ROUNDS)) for name, work in works.items()}
    for name, has_crc in (("on two cores", False), ("on two cores with CRC", True)):
        found[name] = statistics.median(_poll_on_two_cores(path, target, has_crc) for _ in range(_ROUNDS)) / 2
    path.unlink()
    for name, has_crc in (("produce", False), ("produce with CRC", True)):
        found[name] = statistics.median(_produce(directory, source, has_crc) for _ in range(_ROUNDS))
    return "   ".join(f"{name} {len(source) / seconds / 1e9:.1f} GB/s" for name, seconds in found.items())


def _poll(path: Path, target: memoryview, has_crc: bool) -> None:
    with path.open("rb") as file, mmap(file.fileno(), 0, prot=PROT_READ) as mapping, memoryview(mapping) as data:
        for start in range(0, len(target), MB):
            with data[start : start + MB] as part:
                if has_crc:
                    crc32c(part)
                target[start : start + MB] = part


def _poll_on_two_cores(path: Path, target: memoryview, has_crc: bool) -> float:
    """Two processes poll the file at the same time; the seconds until both have done so. Raises BrokenBarrierError if
    one fails.
    """
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(3, timeout=_MOST_S)
    pollers = [fork.Process(target=_poll_behind, args=(barrier, path, target, has_crc)) for _ in range(2)]
    for poller in pollers:
        poller.start()
    barrier.wait()
    took_s = _seconds(barrier.wait)
    for poller in pollers:
        poller.join()
    return took_s


def _poll_behind(barrier: Barrier, path: Path, target: memoryview, has_crc: bool) -> None:
    target[:] = bytes(len(target))  # this process has no memory of its own before
    barrier.wait()
    _poll(path, target, has_crc)
    barrier.wait()


def _produce(directory: Path, source: memoryview, has_crc: bool) -> float:
    """Copy all of it into shared memory, from where another process writes it to files; returns the seconds of it.

    Raises TimeoutError if that fails.
    """
    touch(TOUCHED_BYTES)
    fork = multiprocessing.get_context("fork")
    free, full = fork.Semaphore(0), fork.Semaphore(0)
    with mmap(-1, _SHARED_MB * MB) as memory:
        memory[:] = bytes(len(memory))
        writer = fork.Process(target=_write, args=(directory, memory, len(source) // MB, has_crc, free, full))
        writer.start()
        _wait_for(free)  # the writer has begun
        began = time.perf_counter()
        for number in range(len(source) // MB):
            _wait_for(free)
            at = number % _SHARED_MB * MB
            memory[at : at + MB] = source[number * MB : (number + 1) * MB]
            if has_crc:
                crc32c(source[number * MB : (number + 1) * MB])
            full.release()
        for _ in range(_SHARED_MB):
            _wait_for(free)
        took_s = time.perf_counter() - began
        writer.join()
    return took_s


def _write(directory: Path, memory: mmap, count: int, has_crc: bool, free: Semaphore, full: Semaphore) -> None:
    paths = [directory / f"machine-{number}" for number in range(_FILES)]
    files = [path.open("wb", buffering=0) for path in paths]
    own = memoryview(bytearray(MB))
    for _ in range(1 + _SHARED_MB):
        free.release()
    with memoryview(memory) as shared:
        for number in range(count):
            _wait_for(full)
            at = number % _SHARED_MB * MB
            written = shared[at : at + MB]
            if has_crc:
                own[:] = written
                crc32c(own)
                written = own
            files[number % _FILES].write(written)
            free.release()
    for path, file in zip(paths, files, strict=True):
        file.close()
        path.unlink()


def _wait_for(semaphore: Semaphore) -> None:
    if not semaphore.acquire(timeout=_MOST_S):
        raise TimeoutError("The other process has failed, or is too slow")


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
