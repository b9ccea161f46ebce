"""How fast the cleaner's core compacts a log, on one core.

    python -m benchmarks.compaction [MEGABYTES]

For each shape of records and codec a log of two versions of every key is written and cleaned in one round. The rate
counts the bytes of the values once, before compression, though they are read twice. A run of each
shape before its first may have to compile.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterator

from rayka.config import LogConfig
from rayka.storage.cleaner.cleaner import Cleaner
from rayka.storage.cleaner.dirtiness import aborted_transactions, measure, plan_of
from rayka.storage.cleaner.plan import CleanerLimits, RoundEnd
from rayka.storage.files import RealFiles
from rayka.storage.format.compression import Codec
from rayka.storage.format.records import Record, build_batch
from rayka.storage.log.log import Log
from rayka.types import TopicPartition

NOW_MS = 1_700_000_000_000
SHAPES = (
    ("records of 1 KB, 64 a batch", 1000, 64, Codec.NONE),
    ("records of 100 B, 570 a batch", 100, 570, Codec.NONE),
    ("records of 100 B, 1 a batch", 100, 1, Codec.NONE),
    ("records of 1 KB, 64 a batch, lz4", 1000, 64, Codec.LZ4),
    ("records of 1 KB, 64 a batch, zstd", 1000, 64, Codec.ZSTD),
)
CONFIG = LogConfig(cleanup_policy=("compact",), segment_bytes=64 << 20)


def batches(megabytes: int, value_bytes: int, per_batch: int, codec: Codec) -> Iterator[bytearray]:
    """Updates of keys in random order; each key comes twice on average."""
    chance = random.Random(7)
    value = chance.randbytes(value_bytes // 2).hex().encode()
    keys = (megabytes << 20) // value_bytes // 2
    for _ in range((megabytes << 20) // value_bytes // per_batch):
        names = [b"key-%09d" % chance.randrange(keys) for _ in range(per_batch)]
        yield build_batch([Record(0, NOW_MS, name, value) for name in names], codec=codec)


def main(megabytes: int) -> None:
    """Print a line for each shape and size; the small ones warm up."""
    for megabytes, (title, *shape) in [(1, shape) for shape in SHAPES] + [(megabytes, shape) for shape in SHAPES]:
        with tempfile.TemporaryDirectory() as directory:
            log = Log.open(directory, TopicPartition("compacted", 0), CONFIG, RealFiles(), now_ms=NOW_MS)
            for batch in batches(megabytes, *shape):
                log.append_as_leader(batch, 0, NOW_MS)
            log.update_high_watermark(log.log_end_offset)
            log.roll(NOW_MS)
            log.flush()
            dirtiness = measure(log, None, NOW_MS)
            plan = plan_of(dirtiness, aborted_transactions(dirtiness), NOW_MS)
            started, computed = time.perf_counter(), time.process_time()
            cleaner = Cleaner(RealFiles(), plan, CleanerLimits(), lambda _: None)
            end = [step for step in cleaner.clean() if isinstance(step, RoundEnd)][-1]
            seconds, processor_s = time.perf_counter() - started, time.process_time() - computed
            size = megabytes * 1.048576
            print(
                f"{title:36s} {size / seconds:6.0f} MB/s   {size / processor_s:6.0f} MB/s of a core   "
                f"{end.records_kept} of {end.records_read} records kept",
                flush=True,
            )
            log.close(NOW_MS)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 128)
