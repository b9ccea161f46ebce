"""Share consumers beside Apache Kafka: `python -m benchmarks.share`.

The brokers take turns in one run. Four partitions are filled; then the members of a share group, each a process with
confluent-kafka's ShareConsumer, read them to the end, whole polls at a time (implicit mode). A member that has its
first records waits until all members have their assignment: the brokers differ by seconds in how soon a group begins,
and sixteen Python processes need a second of both cores to start. The rate is from then on to the last record. "group"
is the same with a consumer group and its Consumer: what of that rate share consumption reaches is the second aim.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from benchmarks import load
from benchmarks.brokers import Broker, Kafka, Rayka
from benchmarks.measures import delete, new_name
from rayka.testing import cpu_s, wait_until

PARTITIONS = 4
MEMBERS = (1, 4, 16)
SIZES = (1000, 100)
RECORDS = {1000: 300_000, 100: 1_000_000}
_POLL_S = 0.2
_JOINED_S = 8.0
"""After the last process has started: Kafka tells a member its assignment with the second heartbeat, after 5 s."""
_HELD_S = 0.02
_QUIET_S = 3.0
_CALL_RECORDS = 500
_MODULE = "benchmarks.share"
Poll = Callable[[], list[Any]]


def share(bootstrap: str, topic: str, group: str) -> load.Figures:
    """One member of a share group."""
    consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    consumer.subscribe([topic])
    figures = _read(lambda: consumer.poll(_POLL_S), list)
    consumer.close()
    return figures


def group(bootstrap: str, topic: str, group: str) -> load.Figures:
    """One member of a consumer group."""
    settings = {**load.CONSUMER, "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])

    def hold() -> list[Any]:
        consumer.pause(consumer.assignment())
        return consumer.consume(_CALL_RECORDS, 0)

    figures = _read(
        lambda: consumer.consume(_CALL_RECORDS, _POLL_S), hold, lambda: consumer.resume(consumer.assignment())
    )
    consumer.close()
    return figures


def _read(poll: Poll, hold: Poll, resume: Callable[[], None] = lambda: None) -> load.Figures:
    """How many records came before all members were there and after, and when the last, by the clock of the machine.

    With its first records a member waits for the others; meanwhile it calls `hold`, which may return records too.
    """
    directory = Path(sys.argv[3])
    Path(directory, f"{os.getpid()}").touch()
    early, count, last = 0, 0, time.monotonic() + load.TIMEOUT_S
    while time.monotonic() < last + _QUIET_S:
        records = [record for record in poll() if record.error() is None]
        if not records:
            if not count and Path(directory, "over").exists():
                break
            continue
        sum(len(record.value()) for record in records)
        last = time.monotonic()
        if Path(directory, "go").exists():
            count += len(records)
        else:
            early += len(records)
            while not Path(directory, "go").exists():
                early += len(hold())
                time.sleep(_HELD_S)
            resume()
            last = time.monotonic()
    return {"early": early, "records": count, "last": last if count else 0.0}


def measure(broker: Broker, kind: str, size: int, members: int) -> load.Figures:
    """Records a second, and the processor time of the broker for a million."""
    topic, name = new_name("share"), new_name("members")
    load.run("produce", bootstrap=broker.bootstrap, topic=topic, size=size, seconds=60, max_records=RECORDS[size])
    if kind == "share":
        _read_from_the_beginning(broker.bootstrap, name)
    with tempfile.TemporaryDirectory() as directory:
        arguments = json.dumps({"bootstrap": broker.bootstrap, "topic": topic, "group": name})
        command = [sys.executable, "-m", _MODULE, kind, arguments, directory]
        started = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for _ in range(members)
        ]
        wait_until(lambda: len(list(Path(directory).iterdir())) == members, load.TIMEOUT_S, "all processes run")
        time.sleep(_JOINED_S)
        before_s, began = cpu_s(broker.processes()), time.monotonic()
        Path(directory, "go").touch()
        wait_until(lambda: any(each.poll() is not None for each in started), load.TIMEOUT_S, "one has read to the end")
        Path(directory, "over").touch()
        found = [json.loads(each.communicate()[0]) for each in started]
        used_s = cpu_s(broker.processes()) - before_s
    delete(broker, topic)
    read = sum(each["records"] for each in found)
    came = read + sum(each["early"] for each in found)
    if came < RECORDS[size]:
        raise AssertionError(f"{broker.name}, {kind}: {came} of {RECORDS[size]} records came")
    return {
        "records/s": read / (max(each["last"] for each in found) - began),
        "CPU s/M records": used_s / read * 1e6,
    }


def _read_from_the_beginning(bootstrap: str, group_id: str) -> None:
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.GROUP, group_id, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(load.TIMEOUT_S)


def main() -> None:
    """Print a line for each case with both brokers' rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--members", type=int, nargs="*", default=MEMBERS)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        brokers: list[Broker] = [Rayka(Path(directory, "rayka")), Kafka(Path(directory, "kafka"))]
        try:
            for broker in brokers:
                broker.start()
                measure(broker, "share", 100, 1)  # warm up
            for size in options.sizes:
                for members in options.members:
                    report(brokers, size, members, options.rounds)
        finally:
            for broker in brokers:
                broker.stop()


def report(brokers: list[Broker], size: int, members: int, rounds: int) -> None:
    """One line."""
    figures: dict[tuple[str, str], float] = {}
    cases = [(broker, kind) for broker in brokers for kind in ("share", "group")]
    found = [[measure(broker, kind, size, members)["records/s"] for broker, kind in cases] for _ in range(rounds)]
    for (broker, kind), rates in zip(cases, zip(*found, strict=True), strict=True):
        figures[broker.name, kind] = statistics.median(rates)
    ours, kafkas = figures["rayka", "share"], figures["kafka", "share"]
    of_group, of_kafkas = ours / figures["rayka", "group"], kafkas / figures["kafka", "group"]
    print(
        f"{size:>5} B, {members:>2} members: rayka {ours:>9,.0f}/s, kafka {kafkas:>9,.0f}/s, ratio {ours / kafkas:.2f};"
        f" of the group's rate {of_group:.2f}, kafka {of_kafkas:.2f}",
        flush=True,
    )


LOADS = {load_.__name__: load_ for load_ in (share, group)}

if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in LOADS:
        print(json.dumps(LOADS[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
    else:
        main()
