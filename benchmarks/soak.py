"""`python -m benchmarks.soak`: full load for a long time while the memory of all processes is sampled.

A producer and a consumer run without a pause on a topic whose retention keeps the log at a constant size, so memory
must not grow. The growth, `MB/h`, is the slope of a straight line through the samples after the first quarter.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import linear_regression

from benchmarks import load
from benchmarks.brokers import BROKERS, CACHE, Broker
from rayka.testing import memory_bytes

SAMPLE_S = 5.0
KEPT_BYTES = 2_000_000_000


def sample(broker: Broker, until: float, work: list[subprocess.Popen[str]]) -> list[tuple[float, float]]:
    """Seconds since the start, and MB of all processes of the broker."""
    began, samples = time.monotonic(), []
    while (now := time.monotonic()) < until:
        if any(process.poll() is not None for process in work):
            raise RuntimeError("the load ended")
        samples.append((now - began, memory_bytes(broker.processes()) / 1e6))
        print(f"{samples[-1][0]:6.0f} s  {samples[-1][1]:7,.0f} MB", flush=True)
        time.sleep(SAMPLE_S)
    return samples


def growth_mb_per_hour(samples: list[tuple[float, float]]) -> float:
    settled = samples[len(samples) // 4 :]
    return linear_regression([at for at, _ in settled], [mb for _, mb in settled]).slope * 3600


def run(broker: Broker, minutes: float, size: int) -> dict[str, float]:
    topic = "soak"
    load.create_topic(
        broker.bootstrap, topic, 4, {"retention.bytes": str(KEPT_BYTES // 4), "segment.bytes": "104857600"}
    )
    seconds = minutes * 60
    work = [
        load.start("produce_on", bootstrap=broker.bootstrap, topic=topic, size=size, seconds=seconds + 3600),
        load.start("consume_on", bootstrap=broker.bootstrap, topic=topic),
    ]
    try:
        growth = growth_mb_per_hour(sample(broker, time.monotonic() + seconds, work))
        records = sum(load.end_offsets(broker.bootstrap, topic).values())
        return {
            "minutes": minutes,
            "records": records,
            "MB/s": records * size / seconds / 1e6,
            "MB/h": growth,
        }
    finally:
        for process in work:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--broker", choices=list(BROKERS), default="rayka")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--size", type=int, default=1000, help="bytes of a record; default: %(default)s")
    parser.add_argument(
        "--dir", type=Path, default=CACHE, help="where the log lies while it runs; default: %(default)s"
    )
    parser.add_argument("--json", type=Path, help="write the figures there")
    chosen = parser.parse_args()
    chosen.dir.mkdir(parents=True, exist_ok=True)
    broker = BROKERS[chosen.broker](
        Path(tempfile.mkdtemp(prefix="soak-", dir=chosen.dir)), ("log.retention.check.interval.ms=5000",)
    )
    broker.start()
    try:
        figures = run(broker, chosen.minutes, chosen.size)
        print(broker.name, "  ".join(f"{name} {value:,.0f}" for name, value in figures.items()))
        if chosen.json:
            chosen.json.write_text(json.dumps(figures))
        broker.stop()
    except BaseException:
        print(*broker.log[-50:], sep="\n", file=sys.stderr)
        broker.kill()
        raise
    finally:
        shutil.rmtree(broker.directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
