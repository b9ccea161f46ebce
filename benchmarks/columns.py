"""How fast records become Arrow columns and columns become records: `python -m benchmarks.columns`.

One core, records of 100 B with a key of 10 B, in batches of 1 MB and of 16 KB. Rates count the bytes of the
uncompressed batches; each figure is the median of the rounds, after one round that compiles.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from benchmarks.batches import build_batches, write_columns
from rayka.storage.columns.read import COLUMNS, read_columns
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import Record, read_records

ROUNDS = 7
NOW = 1_700_000_000_000


def records(count: int) -> list[Record]:
    """Records whose values look like text: they compress to about a fifth."""
    values = [(b"event %d of user %d; " % (i, i % 997) * 8)[:100] for i in range(count)]
    return [Record(i, NOW + i // 10, b"key-%06d" % i, value) for i, value in enumerate(values)]


def seconds(work: Callable[[], object]) -> float:
    """The median duration of `work`."""
    work()
    durations = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)


def show(name: str, count: int, size: int, duration: float) -> None:
    """One line of the report."""
    print(f"{name:<44} {count / duration / 1e6:7.2f} M records/s {size / duration / 1e9:7.2f} GB/s", flush=True)


def measure(data: list[Record], batch_size: int, codec: Codec) -> None:
    """Read and write columns of one batch size and codec."""
    size = sum(len(batch) for batch in build_batches(data, max_batch_size=batch_size))
    log = b"".join(build_batches(data, max_batch_size=batch_size, codec=codec))
    label = f"{codec.config_name}, batches of {batch_size // 1000} KB"
    for columns in (COLUMNS, ("key", "value"), ("value",), ("offset",)):
        what = "all columns" if columns is COLUMNS else ", ".join(columns)
        duration = seconds(lambda columns=columns: read_columns(log, topic="events", partition=0, columns=columns))  # type: ignore[misc]
        show(f"read {what} ({label})", len(data), size, duration)
    table = read_columns(log, topic="events", partition=0).batch
    duration = seconds(lambda: list(write_columns(table, now_ms=NOW, codec=codec, max_batch_size=batch_size)))
    show(f"write ({label})", len(data), size, duration)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=300_000, help="records in each run")
    data = records(parser.parse_args().records)
    for batch_size, codec in [(1_000_000, codec) for codec in Codec] + [(16_000, Codec.NONE), (16_000, Codec.LZ4)]:
        measure(data, batch_size, codec)
    log = b"".join(build_batches(data, max_batch_size=1_000_000))
    show("read_records, plain Python, for comparison", len(data), len(log), seconds(lambda: list(read_records(log))))


if __name__ == "__main__":
    main()
