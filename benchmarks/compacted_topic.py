"""A topic whose keys are updated steadily, without and with the log cleaner: part of `python -m benchmarks`.

10 GB are 10 updates of each of a million keys, 1 KB each, in 20 minutes and in segments of 100 MB; a smaller size has
fewer keys, less time, and smaller segments. First the topic only grows; then `cleanup.policy=compact` lets the cleaner
go over all of it at once, which shows its speed; at last another topic is compacted while it is updated.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from benchmarks import load
from benchmarks.brokers import Broker
from rayka.testing import cpu_s, wait_until

RECORD_BYTES = 1_000
UPDATES = 10
SECONDS_PER_GB = 120.0
SEGMENTS = 100
WARM_UP_S = 20.0
POLL_S = 0.2
CLEAN_TIMEOUT_S = 900.0

T = TypeVar("T")


def measure(broker: Broker, topic: str, gb: float) -> dict[str, float]:
    """All figures. `MB/s cleaned` counts the bytes of the log that the cleaner found."""
    segment = max(int(gb * 1e9 / SEGMENTS), 1 << 20)
    live = gb * 1e9 / UPDATES
    _update(broker, f"{topic}-warm-up", min(gb, WARM_UP_S / SECONDS_PER_GB), segment, "compact")
    without, grown_cpu_s = _with_cpu(broker, lambda: _update(broker, topic, gb, segment, "delete"))
    grown = log_bytes(broker, topic)
    cleaned_s, cleaned_cpu_s = _with_cpu(broker, lambda: _clean(broker, topic, 1.5 * live + segment))
    compacted = f"{topic}-compacted"
    compacting, cpu = _with_cpu(broker, lambda: _update(broker, compacted, gb, segment, "compact"))
    return {
        "MB/s cleaned": grown / cleaned_s / 1e6,
        "CPU s/GB cleaned": cleaned_cpu_s / grown * 1e9,
        "p99 in ms without the cleaner": without["p99"],
        "p99 in ms with the cleaner": compacting["p99"],
        "CPU s/GB written without the cleaner": grown_cpu_s / gb,
        "CPU s/GB written with the cleaner": cpu / gb,
        "largest size through live bytes": compacting["largest"] / live,
        "GB": gb,
    }


def log_bytes(broker: Broker, topic: str) -> int:
    """The size of the topic's one log, without what is deleted or not yet in place."""
    return sum(_size(path) for path in broker.directory.glob(f"data/**/{topic}-0/*.log"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # a segment that was just replaced
        return 0


def _update(broker: Broker, topic: str, gb: float, segment: int, policy: str) -> dict[str, float]:
    """The latencies of the updates, and the `largest` size of the log meanwhile."""
    updates = load.start(
        "paced",
        bootstrap=broker.bootstrap,
        topic=topic,
        seconds=gb * SECONDS_PER_GB,
        rate=1e9 / RECORD_BYTES / SECONDS_PER_GB,
        size=RECORD_BYTES,
        partitions=1,
        keys=int(gb * 1e9 / RECORD_BYTES / UPDATES),
        configs={"cleanup.policy": policy, "segment.bytes": str(segment)},
    )
    largest = 0
    with updates:
        while updates.poll() is None:
            largest = max(largest, log_bytes(broker, topic))
            time.sleep(POLL_S)
        assert updates.stdout is not None
        output = updates.stdout.read()
    return load.figures_of("paced", updates.returncode, output) | {"largest": largest}


def _clean(broker: Broker, topic: str, size: float) -> float:
    """Seconds until the log is not larger than this any more."""
    began = time.perf_counter()
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    compact = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource.add_incremental_config(compact)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result(load.TIMEOUT_S)
    wait_until(lambda: log_bytes(broker, topic) <= size, CLEAN_TIMEOUT_S, "cleaned log")
    return time.perf_counter() - began


def _with_cpu(broker: Broker, work: Callable[[], T]) -> tuple[T, float]:
    """What the work returns, and the processor time of the broker, with that of a cleaner that it has started."""
    before_s = cpu_s(broker.processes())
    result = work()
    return result, cpu_s(broker.processes()) - before_s
