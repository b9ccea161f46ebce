"""What a queue of `rayka.Queue`'s design can move at most: `python -m benchmarks.queue_limit DIRECTORY`.

Three processes do what can't be left out for an item of 1 MB, and nothing else. One computes its CRC and writes it into
a file of 16 MB that is used again and again, as a put journal. One reads it from there, checks the CRC, and appends it
to segments of 64 MB, of which it removes those that were read. One reads it from the segments into memory that is used
again, and checks the CRC. There is no request, no lease, no acknowledgement and no Python for an item but these calls.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from mmap import mmap
from pathlib import Path

from crc32c import crc32c

from benchmarks.machine import touch

ITEM_BYTES = 1_000_000
ITEMS = 4_000
JOURNAL_ITEMS = (16 << 20) // ITEM_BYTES
SEGMENT_ITEMS = (64 << 20) // ITEM_BYTES
_SEGMENTS_AHEAD = 3
_WRITTEN, _COPIED, _READ = range(3)
_PAUSE_S = 0.0003


class Limit:
    """One run, in a directory of its own. Each process counts its items in memory that all share."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._journal = os.open(directory / "journal", os.O_RDWR | os.O_CREAT)
        self._counts = memoryview(mmap(-1, 4096)).cast("q")

    def run(self) -> tuple[float, float]:
        """Items a second, and the processor time of an item of all three in microseconds."""
        before, began = _children_s(), time.monotonic()
        processes = [_fork(work) for work in (self._write, self._copy, self._read)]
        for process in processes:
            _, status = os.waitpid(process, 0)
            if status:
                raise RuntimeError(f"a process of the limit ended with status {status}")
        took_s = time.monotonic() - began
        os.close(self._journal)
        return ITEMS / took_s, (_children_s() - before) / ITEMS * 1e6

    def _wait(self, what: int, count: int) -> None:
        while self._counts[what] < count:
            time.sleep(_PAUSE_S)

    def _segment(self, item: int) -> Path:
        return self._directory / f"{item // SEGMENT_ITEMS}.log"

    def _write(self) -> None:
        item = os.urandom(ITEM_BYTES)
        for number in range(ITEMS):
            self._wait(_COPIED, number - JOURNAL_ITEMS + 1)
            crc32c(item)
            os.pwrite(self._journal, item, number % JOURNAL_ITEMS * ITEM_BYTES)
            self._counts[_WRITTEN] = number + 1

    def _copy(self) -> None:
        room, segment = bytearray(ITEM_BYTES), -1
        for number in range(ITEMS):
            self._wait(_WRITTEN, number + 1)
            self._wait(_READ, number - _SEGMENTS_AHEAD * SEGMENT_ITEMS)
            if number % SEGMENT_ITEMS == 0:
                segment = self._roll(number, segment)
            os.preadv(self._journal, [room], number % JOURNAL_ITEMS * ITEM_BYTES)
            crc32c(room)
            os.pwrite(segment, room, number % SEGMENT_ITEMS * ITEM_BYTES)
            self._counts[_COPIED] = number + 1

    def _roll(self, number: int, segment: int) -> int:
        if segment >= 0:
            os.close(segment)
        read = self._segment(number - 2 * SEGMENT_ITEMS)
        if number >= 2 * SEGMENT_ITEMS and self._counts[_READ] >= number - SEGMENT_ITEMS:
            read.unlink()
        return os.open(self._segment(number), os.O_RDWR | os.O_CREAT)

    def _read(self) -> None:
        room, segment = bytearray(ITEM_BYTES), -1
        for number in range(ITEMS):
            self._wait(_COPIED, number + 1)
            if number % SEGMENT_ITEMS == 0:
                if segment >= 0:
                    os.close(segment)
                segment = os.open(self._segment(number), os.O_RDONLY)
            os.preadv(segment, [room], number % SEGMENT_ITEMS * ITEM_BYTES)
            crc32c(room)
            self._counts[_READ] = number + 1


def _fork(work: Callable[[], None]) -> int:
    process = os.fork()
    if process:
        return process
    try:
        work()
    except BaseException:
        os._exit(1)
    os._exit(0)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the median of some runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="on the file system of the log")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    found = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            os.sync()
            touch()
            found.append(Limit(Path(directory)).run())
    rates, costs = zip(*found, strict=True)
    print(
        f"{statistics.median(rates):,.0f} items of 1 MB a second ({min(rates):,.0f} to {max(rates):,.0f}),"
        f" {statistics.median(costs):,.0f} us of processor time for each"
    )


if __name__ == "__main__":
    main()
