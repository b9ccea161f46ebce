"""`python -m benchmarks.soak`: full load for a long time while the memory of all processes is sampled.

A producer and a consumer run without a pause on a topic whose retention keeps the log at a constant size, so memory
must not grow. The growth, `MB/h`, is the slope of a straight line through the samples after the first quarter.
With `--client rayka` three programs on actor handles, which send, iterate and take tables, are the load instead of
confluent-kafka, and their memory is sampled too.

Only anonymous and shared memory counts. That of mapped files is the page cache's, and a process has a larger share of
a library when others that use it end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import linear_regression

from benchmarks import load, python_client
from benchmarks.brokers import BROKERS, CACHE, Broker, Rayka

SAMPLE_S = 5.0
KEPT_BYTES = 2_000_000_000
ON_HANDLES = ("ours_send", "ours_iterate", "ours_poll_table")
ENDLESS = 10**12


def own_mb(pids: Iterable[int]) -> float:
    """Memory of these processes without that of files; what they share with each other counts once."""
    kilobytes = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            fields = dict(line.split()[:2] for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
            kilobytes += sum(int(fields[name]) for name in ("Pss_Anon:", "Pss_Shmem:", "SwapPss:"))
    return kilobytes * 1024 / 1e6


def sample(broker: Broker, until: float, work: list[subprocess.Popen[str]]) -> list[list[float]]:
    """Seconds since the start, and MB of all processes of the broker and of each one of `work`."""
    began, samples = time.monotonic(), []
    while (now := time.monotonic()) < until:
        if any(process.poll() is not None for process in work):
            raise RuntimeError("the load ended")
        samples.append(
            [now - began, own_mb(each.pid for each in broker.processes()), *(own_mb([each.pid]) for each in work)]
        )
        print(f"{now - began:6.0f} s " + " ".join(f"{each:7,.0f} MB" for each in samples[-1][1:]), flush=True)
        time.sleep(SAMPLE_S)
    return samples


def growth_mb_per_hour(samples: list[list[float]], column: int) -> float:
    settled = samples[len(samples) // 4 :]
    return linear_regression([each[0] for each in settled], [each[column] for each in settled]).slope * 3600


def start_work(broker: Broker, client: str, topic: str, size: int) -> dict[str, subprocess.Popen[str]]:
    """The endless loads, by name."""
    if client == "rayka":
        assert isinstance(broker, Rayka)
        arguments = (python_client.address_of(broker), topic, size, ENDLESS)
        return {name: python_client.start("driver", name, *arguments) for name in ON_HANDLES}
    return {
        "produce": load.start("produce_on", bootstrap=broker.bootstrap, topic=topic, size=size, seconds=ENDLESS),
        "consume": load.start("consume_on", bootstrap=broker.bootstrap, topic=topic),
    }


def run(broker: Broker, client: str, minutes: float, size: int) -> dict[str, float]:
    topic = "soak"
    load.create_topic(
        broker.bootstrap, topic, 4, {"retention.bytes": str(KEPT_BYTES // 4), "segment.bytes": "104857600"}
    )
    seconds = minutes * 60
    work = start_work(broker, client, topic, size)
    try:
        samples = sample(broker, time.monotonic() + seconds, list(work.values()))
        records = sum(load.end_offsets(broker.bootstrap, topic).values())
        return {
            "minutes": minutes,
            "records": records,
            "MB/s": records * size / seconds / 1e6,
            "MB/h": growth_mb_per_hour(samples, 1),
            **{f"{name} MB/h": growth_mb_per_hour(samples, column) for column, name in enumerate(work, 2)},
        }
    finally:
        for process in work.values():
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--broker", choices=list(BROKERS), default="rayka")
    parser.add_argument("--client", choices=("confluent-kafka", "rayka"), default="confluent-kafka")
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
        figures = run(broker, chosen.client, chosen.minutes, chosen.size)
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
