"""How fast the log engine's core is, on one core and without a broker: `python -m benchmarks.log_engine`.

Batches of 64 KB are appended to the page cache and read from it; both check the CRC of each batch. Conversions are
between batches and the message sets of before 2017. A log in many segments is loaded after a clean stop, with none of
it in the page cache, and after its writer was killed; "read" counts the bytes that the load asked the kernel for.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import click

from benchmarks.batches import build_batches
from rayka.config import LogConfig
from rayka.storage.directory.log_directory import LogDirectory
from rayka.storage.files import RealFiles
from rayka.storage.format.batch import ensure_intact, iter_headers
from rayka.storage.format.compression import Codec
from rayka.storage.format.legacy.down_conversion import convert_down
from rayka.storage.format.legacy.up_conversion import convert_up
from rayka.storage.format.records import Record
from rayka.storage.log.log import Log
from rayka.types import TopicPartition

NOW_MS = 1_700_000_000_000
PARTITION = TopicPartition("log", 0)
BATCH_BYTES = 64 * 1024
READ_BYTES = 1 << 20
CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)

T = TypeVar("T")


def _batch(value_bytes: int = 1_000, codec: Codec = Codec.NONE) -> bytearray:
    """One batch of `BATCH_BYTES` before compression; half of each value is chance."""
    value = os.urandom(value_bytes // 2) + bytes(value_bytes // 2)
    records = (Record(index, NOW_MS, None, value) for index in range(BATCH_BYTES // value_bytes))
    return next(build_batches(records, max_batch_size=BATCH_BYTES, codec=codec))


def _timed(work: Callable[[], T]) -> tuple[T, float, float]:
    """What the work returns, its seconds, and its seconds of processor time."""
    started, computed = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - started, time.process_time() - computed


def _show(title: str, size: int, seconds: float, processor_s: float) -> None:
    print(f"{title:36s} {size / seconds / 1e6:7,.0f} MB/s  {size / processor_s / 1e6:7,.0f} MB/s of a core", flush=True)


# -- append and read ----------------------------------------------------------------------------


def _append(log: Log, size: int) -> None:
    batch = _batch()
    for _ in range(size // len(batch)):
        log.append_as_leader(batch, 0, NOW_MS)
    log.update_high_watermark(log.log_end_offset)


def _read(log: Log) -> int:
    """Bytes of all batches, each of them intact."""
    offset = size = 0
    while (records := log.read(offset, READ_BYTES, log.log_end_offset)) is not None:
        descriptor = os.open(records.path, os.O_RDONLY)
        data = os.pread(descriptor, records.size, records.position)
        os.close(descriptor)
        for position, header in iter_headers(data):
            ensure_intact(data, position, header)
            offset = header.next_offset
            size += header.size_in_bytes
    return size


def append_and_read(size: int) -> None:
    """Print both rates; the log stays in the page cache."""
    with tempfile.TemporaryDirectory() as directory:
        log = Log.open(directory, PARTITION, LogConfig(), RealFiles(), now_ms=NOW_MS)
        _append(log, size // 8)
        _, *took = _timed(lambda: _append(log, size))
        _show("append, batches of 64 KB", size, *took)
        size, *took = _timed(lambda: _read(log))
        _show("read, batches of 64 KB", size, *took)
        log.close(NOW_MS)


# -- conversion ---------------------------------------------------------------------------------


def _conversions() -> Iterator[tuple[str, Callable[[], object]]]:
    for value_bytes in (1_000, 100):
        for codec in CODECS:
            batch = _batch(value_bytes, codec)
            for magic in (0, 1):
                down = partial(convert_down, batch, magic, 0, 1 << 30, is_hard_limit=False)
                title = f"{value_bytes:,} B, {codec.name.lower()}, magic {magic}"
                yield f"{title}, up", partial(convert_up, down().messages)
                yield f"{title}, down", down


def conversion(times: int) -> None:
    """Print the rate of each direction, codec and magic; the bytes are those before compression."""
    for title, convert in _conversions():
        convert()
        _, *took = _timed(partial(_repeat, convert, times))
        _show(title, times * BATCH_BYTES, *took)


def _repeat(work: Callable[[], object], times: int) -> None:
    for _ in range(times):
        work()


# -- loading ------------------------------------------------------------------------------------


def _open(path: str, segment_bytes: int) -> tuple[LogDirectory, Log]:
    directory = LogDirectory.open(path, RealFiles(), now_ms=NOW_MS)
    return directory, directory.open_log(PARTITION, None, LogConfig(segment_bytes=segment_bytes), now_ms=NOW_MS)


def _load(title: str, path: str, segment_bytes: int) -> tuple[LogDirectory, Log]:
    before = _bytes_read()
    (directory, log), seconds, processor_s = _timed(lambda: _open(path, segment_bytes))
    print(
        f"{title:36s} {seconds:7.3f} s  {processor_s:7.3f} s of a core  {len(log.segments):,} segments of "
        f"{log.size / 1e9:.2f} GB  {(_bytes_read() - before) / 1e6:,.1f} MB read",
        flush=True,
    )
    return directory, log


def _bytes_read() -> int:
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["rchar"])


def _killed_writer(path: str, segment_bytes: int) -> int:
    """Bytes that a writer has appended to the log, flushing none of them, before it is killed."""
    size = segment_bytes * 5 // 2
    pid = os.fork()
    if pid == 0:
        directory, log = _open(path, segment_bytes)
        directory.opened()
        _append(log, size)
        os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "the writer ended by itself"
    return size


def _forget_pages(path: str) -> None:
    """Leave no page of the directory's files in the cache."""
    os.sync()
    for file in Path(path).rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def loading(size: int, segments: int, directory_path: str | None) -> None:
    """Print how long a log of `size` bytes takes to open."""
    segment_bytes = size // segments
    with tempfile.TemporaryDirectory(dir=directory_path) as path:
        directory, log = _open(path, segment_bytes)
        directory.opened()
        _append(log, size)
        directory.close([log], now_ms=NOW_MS)
        _forget_pages(path)
        directory, log = _load("load after a clean stop", path, segment_bytes)
        directory.opened()
        directory.close([log], now_ms=NOW_MS)
        lost = _killed_writer(path, segment_bytes)
        directory, log = _load(f"load after kill -9, {lost / 1e6:.1f} MB unflushed", path, segment_bytes)
        directory.close([log], now_ms=NOW_MS)


@click.command()
@click.option("--mb", default=512, show_default=True, help="To append and to read.")
@click.option("--times", default=200, show_default=True, help="Each conversion of a batch.")
@click.option("--gb", default=10.0, show_default=True, help="Of the log that is loaded.")
@click.option("--segments", default=1_000, show_default=True, help="Of the log that is loaded.")
@click.option("--directory", help="Where the log that is loaded lies; default: the temporary directory.")
def main(mb: int, times: int, gb: float, segments: int, directory: str | None) -> None:
    """Print a line for each figure."""
    append_and_read(mb * 1_000_000)
    conversion(times)
    loading(int(gb * 1e9), segments, directory)


if __name__ == "__main__":
    main()
