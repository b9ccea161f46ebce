"""What this machine can do at most, and memory that does not distort what a benchmark measures.

Many virtual machines give memory that is free back to their host within seconds, and the first use of it afterwards
costs several times what copying to it does: writing to the page cache then has a tenth of its rate. A load that begins
with `touch` measures the brokers and not that. But the kernel may give out other free memory before what was touched.
So a benchmark holds most of the free memory (`most_held`), and each load touches what is left of it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from mmap import PROT_READ, mmap
from multiprocessing.synchronize import Barrier, Semaphore
from pathlib import Path

from crc32c import crc32c

from rayka.storage.fallocate import set_blocks_aside
from rayka.storage.segments.blocks_ahead import STEP_BYTES

MB = 1 << 20
_FILE_MB = 256
_SHARED_MB = 32
"""As much as a producer's default `buffer_memory`."""
_FILES = 4
_TABLE_MB = 24
"""As much as a table has."""
_ROUNDS = 3
_MOST_S = 60
"""Two processes wait no longer for each other: one may have failed."""
TOUCHED_BYTES = 5 << 30
_SPARED_BYTES = 1 << 30
"""Of free memory: programs that start need some."""
_MOST_SETTLE_S = 10
_LOOK_S = 0.3
_QUIET_SHARE = 0.15
"""Of one processor; a broker at rest takes less."""


def touch() -> None:
    """Use `TOUCHED_BYTES` of memory and free them."""
    used().close()


def used() -> mmap:
    """`TOUCHED_BYTES` of memory that were used, or fewer if not so much is free."""
    return _use(max(MB, min(TOUCHED_BYTES, _free_bytes() - _SPARED_BYTES)))


@contextlib.contextmanager
def most_held() -> Iterator[None]:
    """Hold the free memory of this machine but what a load touches, and some for programs that start."""
    size = _free_bytes() - TOUCHED_BYTES - _SPARED_BYTES
    with contextlib.nullcontext() if size < MB else contextlib.closing(_use(size)):
        yield


def _use(size: int) -> mmap:
    memory = mmap(-1, size)
    for start in range(0, size, MB):
        memory[start : start + MB] = bytes(min(MB, size - start))
    return memory


def _free_bytes() -> int:
    """Memory that nobody uses; the page cache does not count."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemFree"].split()[0]) << 10


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
    touch()
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
        found[name] = statistics.median(_produced_s(directory, source, has_crc) for _ in range(_ROUNDS))
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


def _produced_s(directory: Path, source: memoryview, has_crc: bool) -> float:
    touch()
    with Producing(directory, source, len(source) // MB, has_crc) as producing:
        return _seconds(producing.run)


class Producing:
    """Copy `count` MB from `source`, again and again, to shared memory, from where another process writes it to files.

    Raises TimeoutError if that fails.
    """

    def __init__(self, directory: Path, source: memoryview, count: int, has_crc: bool) -> None:
        fork = multiprocessing.get_context("fork")
        self._free, self._full = fork.Semaphore(0), fork.Semaphore(0)
        self._parts = [source[start : start + MB] for start in range(0, len(source) - MB + 1, MB)]
        self._count, self._has_crc = count, has_crc
        self._memory = mmap(-1, _SHARED_MB * MB)
        self._memory[:] = bytes(len(self._memory))
        work = (directory, self._memory, count, has_crc, self._free, self._full)
        self._writer = fork.Process(target=_write, args=work)

    def __enter__(self) -> Producing:
        """Start the other process."""
        self._writer.start()
        _wait_for(self._free)
        return self

    def run(self) -> None:
        """Return when all is in the page cache."""
        for number in range(self._count):
            _wait_for(self._free)
            part, at = self._parts[number % len(self._parts)], number % _SHARED_MB * MB
            self._memory[at : at + MB] = part
            if self._has_crc:
                crc32c(part)
            self._full.release()
        for _ in range(_SHARED_MB):
            _wait_for(self._free)

    def __exit__(self, *_: object) -> None:
        self._writer.join()
        self._memory.close()


class Polling:
    """Two processes copy a half of some files each, 1 MB at a time, to the same memory again and again, with CRCs.

    Raises BrokenBarrierError if one fails.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        fork = multiprocessing.get_context("fork")
        self._barrier = fork.Barrier(3, timeout=_MOST_S)
        self._pollers = [fork.Process(target=_poll_files, args=(self._barrier, paths[each::2])) for each in range(2)]

    def __enter__(self) -> Polling:
        """Start the processes."""
        for poller in self._pollers:
            poller.start()
        return self

    def run(self) -> None:
        """Return when both have copied everything."""
        self._barrier.wait()
        self._barrier.wait()

    def __exit__(self, *_: object) -> None:
        for poller in self._pollers:
            poller.join()


def _poll_files(barrier: Barrier, paths: Sequence[Path]) -> None:
    target = memoryview(bytearray(_TABLE_MB * MB))
    barrier.wait()
    for path in paths:
        size = path.stat().st_size
        with path.open("rb") as file, mmap(file.fileno(), 0, prot=PROT_READ) as mapping, memoryview(mapping) as data:
            for start in range(0, size, MB):
                with data[start : start + MB] as part:
                    crc32c(part)
                    at = start % len(target)
                    target[at : at + len(part)] = part
    barrier.wait()


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
            file = files[number % _FILES]
            if number // _FILES * MB % STEP_BYTES == 0:
                set_blocks_aside(file.fileno(), file.tell(), STEP_BYTES)
            file.write(written)
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
