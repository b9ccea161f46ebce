"""What is measured: each name, its figures, and whether more or less is better."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import AdminClient

from benchmarks import compacted_topic, groups, load, many_groups
from benchmarks.brokers import Broker
from benchmarks.transactions import EARLY_COMMITS, ENDS
from rayka.testing import cpu_s, memory_bytes

Figures = dict[str, float]
IDLE_SECONDS = 10.0
RECOVERY_RECORD_BYTES = 1000
TRANSACTIONS = "benchmarks.transactions"
PER_S, COMMIT_COST = ("transactions/s",), ("p99", EARLY_COMMITS, ENDS)
LEAST_COMMITS = 200
LEVEL = 0.05
MOST_WARM_UPS = 12
WARM_UP_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Options:
    """`seconds` of each measured load; `recovery_bytes` of log for the starts; `compaction_gb` of updates of keys."""

    seconds: float = 10.0
    recovery_bytes: int = 1_000_000_000
    compaction_gb: float = 1.0


@dataclass(frozen=True, slots=True)
class Measure:
    """`figures` are the keys of what `run` returns that the report shows, with their units."""

    name: str
    title: str
    figures: tuple[str, ...]
    more_is_better: bool
    run: Callable[[Broker, Options], Figures]
    costs: tuple[str, ...] = ()
    """Figures of what it took, of which less is better."""


def new_name(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def delete(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result(load.TIMEOUT_S)


def with_cpu(broker: Broker, work: Callable[[], Figures]) -> Figures:
    """The figures of a load, and the processor time that all processes of the broker used for it.

    `CPU s/GB` counts the payload; `CPU s/M requests` the samples of a load that waits for each answer.
    """
    processes = broker.processes()
    before_s = cpu_s(processes)
    figures = work()
    used_s = cpu_s(processes) - before_s
    if "bytes" in figures:
        figures["CPU s/GB"] = used_s / figures["bytes"] * 1e9
    if "samples" in figures:
        figures["CPU s/M requests"] = used_s / figures["samples"] * 1e6
    return figures


def produce(size: int, codec: str, partitions: int = 4) -> Callable[[Broker, Options], Figures]:
    def run(broker: Broker, options: Options) -> Figures:
        topic = new_name("produce")
        arguments = {"size": size, "codec": codec, "partitions": partitions, "seconds": options.seconds}
        figures = with_cpu(broker, lambda: load.run("produce", bootstrap=broker.bootstrap, topic=topic, **arguments))
        delete(broker, topic)
        return figures

    return run


def consume(size: int, codec: str) -> Callable[[Broker, Options], Figures]:
    """Reads what was written before the clock started, from a warm page cache."""

    def run(broker: Broker, options: Options) -> Figures:
        topic, where = new_name("consume"), broker.bootstrap
        load.run("produce", bootstrap=where, topic=topic, size=size, codec=codec, seconds=options.seconds)
        figures = with_cpu(broker, lambda: load.run("consume", bootstrap=where, topic=topic))
        delete(broker, topic)
        return figures

    return run


def simple(name: str) -> Callable[[Broker, Options], Figures]:
    def run(broker: Broker, options: Options) -> Figures:
        arguments = {"bootstrap": broker.bootstrap, "topic": new_name(name), "seconds": options.seconds}
        return with_cpu(broker, lambda: load.run(name, **arguments))

    return run


def half_load(broker: Broker, options: Options) -> Figures:
    """Latency at half of the rate that this broker takes at full load, which is measured first."""
    full = load.run("produce", bootstrap=broker.bootstrap, topic=new_name("full"), size=1000, seconds=options.seconds)
    arguments = {"topic": new_name("half"), "seconds": options.seconds, "rate": full["records/s"] / 2}
    return load.run("paced", bootstrap=broker.bootstrap, **arguments)


def many_connections(broker: Broker, options: Options) -> Figures:
    topic = new_name("connections")
    arguments = {"bootstrap": broker.bootstrap, "topic": topic, "seconds": options.seconds}
    return with_cpu(broker, lambda: load.run("connections", **arguments))


def topic_creation(broker: Broker, options: Options) -> Figures:
    return load.run("topic_creation", bootstrap=broker.bootstrap, topic=new_name("creation"))


def transactions(open_ms: float) -> Callable[[Broker, Options], Figures]:
    def run(broker: Broker, options: Options) -> Figures:
        topic = new_name("transactions")
        arguments = {"topic": topic, "size": 1000, "seconds": options.seconds, "open_ms": open_ms}
        arguments["least_commits"] = LEAST_COMMITS
        figures = with_cpu(broker, lambda: load.run("write", TRANSACTIONS, bootstrap=broker.bootstrap, **arguments))
        delete(broker, topic)
        return figures

    return run


def consume_committed(broker: Broker, options: Options) -> Figures:
    """Reads transactions of 100 ms that were written before the clock started."""
    topic, where = new_name("committed"), broker.bootstrap
    load.run("write", TRANSACTIONS, bootstrap=where, topic=topic, size=1000, seconds=options.seconds, open_ms=100)
    figures = with_cpu(broker, lambda: load.run("consume", TRANSACTIONS, bootstrap=where, topic=topic))
    delete(broker, topic)
    return figures


def group(name: str, **arguments: Any) -> Callable[[Broker, Options], Figures]:
    def run(broker: Broker, options: Options) -> Figures:
        return groups.run(name, bootstrap=broker.bootstrap, topic=new_name(name), **arguments)

    return run


def commits(broker: Broker, options: Options) -> Figures:
    return group("commits", seconds=options.seconds)(broker, options)


def groups_at_rest(broker: Broker, options: Options) -> Figures:
    own = broker.own()
    return many_groups.measure(broker.bootstrap, lambda: cpu_s(own), IDLE_SECONDS)


def compaction(broker: Broker, options: Options) -> Figures:
    return compacted_topic.measure(broker, new_name("compaction"), options.compaction_gb)


def idle(broker: Broker, options: Options) -> Figures:
    """Percent of one core without any client, Ray's own processes apart, and the memory of all of them."""
    own = broker.own()
    rays = [process for process in broker.processes() if process not in own]
    before = cpu_s(own), cpu_s(rays)
    time.sleep(IDLE_SECONDS)
    after = cpu_s(own), cpu_s(rays)
    return {
        "% of a core": (after[0] - before[0]) / IDLE_SECONDS * 100,
        "Ray's % of a core": (after[1] - before[1]) / IDLE_SECONDS * 100,
    }


def memory(broker: Broker, options: Options) -> Figures:
    return {"MB": memory_bytes(broker.processes()) / 1e6}


def recovery(broker: Broker, options: Options) -> Figures:
    """Start after kill -9, and then after a clean stop, with so much log; nothing acknowledged may be missing."""
    topic, where = new_name("recovery"), broker.bootstrap
    records = options.recovery_bytes // RECOVERY_RECORD_BYTES
    written = load.run(
        "produce", bootstrap=where, topic=topic, size=RECOVERY_RECORD_BYTES, seconds=3600, max_records=records
    )["records"]
    broker.kill()
    killed = _restart(broker, topic)
    broker.stop()
    stopped = _restart(broker, topic)
    if (killed["records"], stopped["records"]) != (written, written + 4):
        raise AssertionError(f"{broker.name}: {written} records were acknowledged, then {killed}, then {stopped}")
    delete(broker, topic)
    return {"s after kill -9": killed["s"], "s after a clean stop": stopped["s"]}


def _restart(broker: Broker, topic: str) -> Figures:
    began = time.monotonic()
    broker.launch()
    return load.run("serving", bootstrap=broker.bootstrap, topic=topic, began=began)


RATE, LATENCY = ("MB/s", "records/s"), ("p50", "p99", "p99.9")
COST, REQUEST_COST = ("CPU s/GB",), ("CPU s/M requests",)
AT_REST = (
    "s until settled",
    "slowest heartbeat, ms",
    "% of a core, heartbeats",
    "% of a core, all empty",
    "% of a core, before",
)
CRASH = ("s until all is read", "s of standstill")
MEASURES = {
    measure.name: measure
    for measure in (
        Measure("idle", "idle CPU, no client", ("% of a core", "Ray's % of a core"), False, idle),
        Measure("idle-memory", "resident memory, idle", ("MB",), False, memory),
        Measure("produce-1k", "produce 1 KB, no codec", RATE, True, produce(1000, "none"), COST),
        Measure("produce-1k-lz4", "produce 1 KB, lz4", RATE, True, produce(1000, "lz4"), COST),
        Measure("produce-100b", "produce 100 B, no codec", RATE, True, produce(100, "none"), COST),
        Measure("produce-100b-lz4", "produce 100 B, lz4", RATE, True, produce(100, "lz4"), COST),
        Measure("consume-1k", "consume 1 KB, no codec", RATE, True, consume(1000, "none"), COST),
        Measure("consume-1k-lz4", "consume 1 KB, lz4", RATE, True, consume(1000, "lz4"), COST),
        Measure("consume-100b", "consume 100 B, no codec", RATE, True, consume(100, "none"), COST),
        Measure("consume-100b-lz4", "consume 100 B, lz4", RATE, True, consume(100, "lz4"), COST),
        Measure("produce-1000", "produce 100 B to 1,000 partitions", RATE, True, produce(100, "none", 1000), COST),
        Measure("latency", "one acked record at a time, ms", LATENCY, False, simple("one_at_a_time"), REQUEST_COST),
        Measure("half-load", "produce 1 KB at half of full load, ms", LATENCY, False, half_load),
        Measure(
            "connections",
            "100 connections, one record each at a time",
            ("requests/s",),
            True,
            many_connections,
            ("p99", *REQUEST_COST),
        ),
        Measure("end-to-end", "end to end at 500/s, ms", LATENCY, False, simple("end_to_end")),
        Measure("topics", "topic of 12 partitions, created and visible", ("ms",), False, topic_creation),
        Measure(
            "groups-classic",
            "50 members of a classic group settled",
            ("s",),
            False,
            group("settle", protocol="classic"),
        ),
        Measure(
            "groups-consumer",
            "50 members of a consumer group settled",
            ("s",),
            False,
            group("settle", protocol="consumer"),
        ),
        Measure("groups-commits", "synchronous offset commits, one client", ("commits/s",), True, commits),
        Measure(
            "groups-crash-classic",
            "a member of ten killed, classic group",
            CRASH,
            False,
            group("crash", protocol="classic"),
        ),
        Measure(
            "groups-crash-consumer",
            "a member of ten killed, consumer group",
            CRASH,
            False,
            group("crash", protocol="consumer"),
        ),
        Measure("transactions-100ms", "transactions of 100 ms, 1 KB", RATE, True, transactions(100), COMMIT_COST),
        Measure(
            "transactions-one", "transactions of one record", ("transactions/s",), True, transactions(0), COMMIT_COST
        ),
        Measure("consume-committed", "consume 1 KB, read_committed", RATE, True, consume_committed, COST),
        Measure("groups-many", "1,000 groups, 5,000 members", AT_REST, False, groups_at_rest),
        Measure(
            "compaction",
            "compacted topic, updates of 1 KB",
            ("MB/s cleaned",),
            True,
            compaction,
            (
                "CPU s/GB cleaned",
                "p99 in ms without the cleaner",
                "p99 in ms with the cleaner",
                "CPU s/GB written without the cleaner",
                "CPU s/GB written with the cleaner",
                "largest size through live bytes",
            ),
        ),
        Measure("memory", "resident memory after all this", ("MB",), False, memory),
        Measure("recovery", "start", ("s after kill -9", "s after a clean stop"), False, recovery),
    )
}


def warm_up(broker: Broker) -> list[float]:
    """Produce and consume until the rates are level, so that a just-in-time compiler has done its work.

    They are level when the last two differ by less than a twentieth; after 12 times it is given up. Returns MB/s.
    """
    rates: list[float] = []
    while len(rates) < 2 or (abs(rates[-1] / rates[-2] - 1) > LEVEL and len(rates) < MOST_WARM_UPS):
        rates.append(produce(1000, "none")(broker, Options(seconds=WARM_UP_SECONDS))["MB/s"])
        consume(1000, "lz4")(broker, Options(seconds=WARM_UP_SECONDS))
    return rates
