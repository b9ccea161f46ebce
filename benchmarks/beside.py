"""What producing and fetching wait for while a partition actor decodes: `python -m benchmarks.spark --produce-beside`.

One actor leads all partitions. A client sends one acknowledged record at a time, then one that waits for each of 500
records a second is measured end to end; first alone, then beside a reader in a process of its own for which the actor
decodes all the time. To tell decoding from mere want of a core there is a third round, in which two processes that
have nothing to do with the broker are busy.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import load

TOPIC = "read"
RECORDS, PARTITIONS = 2_000_000, 4
ROOT = Path(__file__).parents[1]
BUSY = "while True: pass"


def decode_on(address: str) -> None:
    """Read the topic on and on, from another offset each time: no table is there already. Prints records/s."""
    import ray

    from rayka.client.consumer.range_reader import COLUMNS
    from rayka.client.consumer.topic_offsets import TopicOffsets
    from rayka.client.joined import RayCluster
    from rayka.ranges.plan import plan_ranges
    from rayka.types import IsolationLevel

    ray.init(address=address, log_to_driver=False)
    cluster = RayCluster.here()
    reader = cluster.reader(COLUMNS, IsolationLevel.READ_COMMITTED)
    offsets = TopicOffsets(cluster.join().admin(), TOPIC)
    ranges = plan_ranges(offsets.topic_ids(), offsets.list_offsets)
    began, rows, skipped = time.monotonic(), 0, 0
    while True:
        for whole in ranges:
            for records in reader.read(whole.between(whole.start_offset + skipped, whole.end_offset)):
                rows += records.batch.num_rows
                print(rows / (time.monotonic() - began), flush=True)
        skipped += 1


@contextlib.contextmanager
def beside(*commands: list[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that run as long as this lasts."""
    started = [subprocess.Popen(each, stdout=subprocess.PIPE, text=True, cwd=ROOT) for each in commands]
    try:
        yield started
    finally:
        for each in started:
            each.kill()
            each.wait()


def measure(seconds: float) -> None:
    """Start a broker, fill a topic, measure, print."""
    import ray

    import rayka

    with tempfile.TemporaryDirectory(prefix="rayka-beside-") as directory:
        ray.init(object_store_memory=2**30, include_dashboard=False, log_to_driver=False)
        with rayka.start(os.path.join(directory, "data"), "127.0.0.1:0") as cluster:
            where = cluster.bootstrap_servers
            load.create_topic(where, TOPIC, PARTITIONS)
            load.run(
                "produce_on", bootstrap=where, topic=TOPIC, size=100, seconds=3600, codec="lz4", max_records=RECORDS
            )
            show("alone", where, seconds)
            address = ray.get_runtime_context().gcs_address
            reader = [sys.executable, "-c", f"from benchmarks.beside import decode_on; decode_on({address!r})"]
            with beside(reader) as (process,):
                assert process.stdout is not None
                process.stdout.readline()
                show("beside decoding", where, seconds)
                process.kill()
                print(f"{float(process.stdout.read().split()[-1]) / 1e6:.2f} M records/s were decoded meanwhile")
            with beside(*[[sys.executable, "-c", BUSY]] * 2):
                show("beside two busy processes", where, seconds)
        ray.shutdown()


def show(what: str, bootstrap: str, seconds: float) -> None:
    """Two lines of the report, in ms."""
    name = what.replace(" ", "-")
    for kind, figures in (
        ("one acked record at a time", load.run("one_at_a_time", bootstrap=bootstrap, topic=name, seconds=seconds)),
        ("500/s, end to end", load.run("end_to_end", bootstrap=bootstrap, topic=f"{name}-end", seconds=seconds)),
    ):
        times = "  ".join(f"{key} {figures[key]:7.2f}" for key in ("p50", "p99", "p99.9"))
        print(f"{what:<26} {kind:<27} {times} ms", flush=True)
