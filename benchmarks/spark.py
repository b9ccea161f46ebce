"""Reading a topic into Spark and Ray Data, against what there is for Apache Kafka: `python -m benchmarks.spark`.

The same records (lz4, a key of 8 B, a value of 100 B) go through the wire into Apache Kafka and into rayka, one after
the other. Spark's own Kafka source reads the one in local mode, `rayka.spark` the other with one executor; both have
the same Spark version and number of cores, and their query is a count and a sum of lengths. "first" is the first
query of a new session, sessions started beforehand; "later" the median of those that follow. Then Ray Data's
`read_kafka`, once, and `rayka.data` read from the same rayka. Where the time of a read goes is shown by stage.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from benchmarks import beside
from benchmarks.brokers import SPARK_JARS, Kafka
from benchmarks.load import PRODUCER, TIMEOUT_S, create_topic, payload
from rayka.client.cluster import Cluster

TOPIC = "records"
DRIVER_MEMORY = "2g"
QUERY = ("count(*)", "sum(length(value))")
KEYS = 100_000
ALL = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
Rates = dict[str, list[float]]


def write(bootstrap: str, records: int, topic: str = TOPIC) -> None:
    """Fill a topic that is there; `records` is a multiple of the number of values, 10,000."""
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4", **PRODUCER})
    values = [payload(100) for _ in range(10_000)]
    sent = 0
    while sent < records:
        batch = [{"value": value, "key": b"%08d" % ((sent + i) % KEYS)} for i, value in enumerate(values)]
        while batch:
            producer.produce_batch(topic, batch)
            batch = [{"value": each["value"], "key": each["key"]} for each in batch if "_error" in each]
            if batch:
                producer.poll(0.01)
        sent += len(values)
    if producer.flush(TIMEOUT_S):
        raise TimeoutError("records are not acknowledged")


def measured(name: str, query: Callable[[], int], records: int, rounds: int, rates: Rates) -> None:
    """The rates of a first query and `rounds` later ones, in records/s. Raises AssertionError for a wrong count."""
    for _ in range(rounds + 1):
        started = time.perf_counter()
        counted = query()
        rates.setdefault(name, []).append(records / (time.perf_counter() - started))
        assert counted == records, f"{name}: {counted} of {records} records"
        print(f"{name}: {rates[name][-1] / 1e6:.2f} M records/s", file=sys.stderr, flush=True)


def count_rows(frame: Any) -> int:
    """Runs the query."""
    return int(frame.selectExpr(*QUERY).collect()[0][0])


def kafka_source(bootstrap: str, records: int, rounds: int, cores: int) -> Rates:
    """Spark's own source in local mode."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.jars", ",".join(map(str, spark_jars())))
        .config("spark.driver.memory", DRIVER_MEMORY)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.range(1000).count()
    rates: Rates = {}
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest"}

    def query() -> int:
        return count_rows(spark.read.format("kafka").options(**options).load())

    measured("Spark's Kafka source", query, records, rounds, rates)
    spark.stop()
    return rates


def rayka_source(
    records: int, rounds: int, cores: int, partitions: int, store_bytes: int, only: Sequence[str]
) -> Rates:
    """rayka with its Ray and Spark in this process and its children."""
    import ray

    import rayka

    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    rates: Rates = {}
    with tempfile.TemporaryDirectory(prefix="rayka-spark-") as directory:
        ray.init(object_store_memory=store_bytes, include_dashboard=False, log_to_driver=False, num_cpus=2 * cores)
        with rayka.start(os.path.join(directory, "data"), "127.0.0.1:0") as cluster:
            run_child("write", cluster.bootstrap_servers, records, rounds, cores, partitions)
            if "spark" in only:
                rayka_spark(cluster, records, rounds, cores, rates)
            if "data" in only:
                rayka_data(cluster.bootstrap_servers, records, rounds, rates)
        ray.shutdown()
    return rates


def rayka_spark(cluster: Cluster, records: int, rounds: int, cores: int, rates: Rates) -> None:
    """`rayka.spark.read_topic` with all columns, then with one."""
    import rayka.spark
    from benchmarks.spark_stages import staged

    profiles: dict[str, Any] = {}
    for name, columns in (("rayka.spark", ALL), ("rayka.spark, column value", ("value",))):
        rayka.spark.stop()  # a first query is the first of a new session
        spark = rayka.spark.session(executor_cores=cores, executor_memory=DRIVER_MEMORY)
        spark.range(1000).count()

        def query(columns: Sequence[str] = columns, *what: str, spark: Any = spark) -> int:
            frame = rayka.spark.read_topic(spark, TOPIC, columns=columns)
            return int(frame.selectExpr(*(what or QUERY)).collect()[0][0])

        def first(name: str = name, query: Callable[..., int] = query) -> int:
            counted: list[int] = []
            profiles.setdefault(f"{name}, first", staged(cluster, TOPIC, lambda: counted.append(query())))
            return counted[0]

        measured(name, first, records, 0, rates)
        measured(name, query, records, rounds - 1, rates)
        profiles[f"{name}, later"] = staged(cluster, TOPIC, query)
        only_count = functools.partial(query, columns, "count(*)")
        profiles[f"{name}, later, only count(*)"] = staged(cluster, TOPIC, only_count)
    profiles["no column but the partition, only count(*)"] = staged(
        cluster, TOPIC, lambda: query(("partition",), "count(*)")
    )
    rayka.spark.stop()
    for name, stages in profiles.items():
        print(f"{name}\n{stages}", file=sys.stderr, flush=True)


def rayka_data(bootstrap: str, records: int, rounds: int, rates: Rates) -> None:
    """Counting, and a `map_batches`, with Ray Data's `read_kafka` and with `rayka.data`."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import ray.data

    import rayka.data

    def lengths(batch: pa.Table) -> pa.Table:
        return pa.table({"bytes": [pc.sum(pc.binary_length(batch["value"])).as_py()], "rows": [batch.num_rows]})

    def mapped(dataset: Any) -> int:
        return int(dataset.map_batches(lengths, batch_format="pyarrow", zero_copy_batch=True).sum("rows"))

    sources: dict[str, Callable[[], Any]] = {
        "rayka.data": lambda: rayka.data.read_topic(TOPIC),
        "Ray Data's read_kafka": lambda: ray.data.read_kafka(TOPIC, bootstrap_servers=bootstrap),
    }
    for name, source in sources.items():
        again = rounds if "rayka" in name else 0
        measured(f"{name}, count", lambda source=source: source().count(), records, again, rates)  # type: ignore[misc]
        measured(f"{name}, map_batches", lambda source=source: mapped(source()), records, again, rates)  # type: ignore[misc]


def spark_jars(version: str = "3.5.7") -> list[Path]:
    """The jars of Spark's Kafka source for this Spark; the first time Maven brings them from Maven Central."""
    folder = SPARK_JARS.with_name(f"spark-kafka-{version}")
    complete = folder / ".complete"
    if not complete.exists():
        pom = Path(__file__).with_name("spark-kafka-pom.xml")
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}", f"-Dspark.version={version}"]
        goal += ["-Dscala.version=2.12" if version.startswith("3.") else "-Dscala.version=2.13"]
        subprocess.run(["mvn", "-q", "-B", "-f", str(pom), *goal], check=True)
        complete.touch()
    return sorted(folder.glob("*.jar"))


def run_child(task: str, bootstrap: str, records: int, rounds: int, cores: int, partitions: int) -> Rates:
    """`write` or `kafka` in a process of its own, so that neither Spark finds the other's traces."""
    command = [sys.executable, "-m", "benchmarks.spark", "--task", task, "--bootstrap", bootstrap]
    for name, value in (("records", records), ("rounds", rounds), ("cores", cores), ("partitions", partitions)):
        command += [f"--{name}", str(value)]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=root)
    rates: Rates = json.loads(done.stdout[done.stdout.rindex("{") :])
    return rates


def table(rates: Rates) -> str:
    """First and later rates, and their ratio to the peer's: first with first, and later with later or with nothing."""
    lines = [f"{'M records/s':<36} {'first':>7} {'later':>7} {'first':>8} {'later':>8}"]
    for name, each in rates.items():
        peer = rates.get(peer_of(name))
        first, later = each[0], statistics.median(each[1:] or each)
        line = f"{name:<36} {first / 1e6:7.2f} {later / 1e6:7.2f}"
        if peer and peer is not each:
            line += f" {first / peer[0]:7.1f}x"
        if peer and peer is not each and len(peer) > 1:
            line += f" {later / statistics.median(peer[1:]):7.1f}x"
        lines.append(line)
    return "\n".join(lines)


def peer_of(name: str) -> str:
    """What a measurement is compared with."""
    return "Spark's Kafka source" if "park" in name else name.replace("rayka.data", "Ray Data's read_kafka")


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000_000, help="records in the topic")
    parser.add_argument("--partitions", type=int, default=8, help="partitions of the topic")
    parser.add_argument("--rounds", type=int, default=3, help="later reads after the first")
    parser.add_argument("--cores", type=int, default=2, help="cores of Spark")
    parser.add_argument("--store-gb", type=float, default=4.0, help="size of Ray's object store")
    parser.add_argument("--only", nargs="+", choices=("kafka", "spark", "data"), default=("kafka", "spark", "data"))
    parser.add_argument("--produce-beside", action="store_true", help="latencies while an actor decodes, nothing else")
    parser.add_argument("--task", choices=("write", "kafka"), help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.produce_beside:
        beside.measure(seconds=5.0)
        return
    settings = (chosen.records, chosen.rounds, chosen.cores)
    if chosen.task == "write":
        create_topic(chosen.bootstrap, TOPIC, chosen.partitions)
        write(chosen.bootstrap, chosen.records)
        print("{}")
        return
    if chosen.task == "kafka":
        print(json.dumps(kafka_source(chosen.bootstrap, *settings)))
        return
    rates: Rates = {}
    if "kafka" in chosen.only:
        rates |= measure_kafka(*settings, chosen.partitions)
    if {"spark", "data"} & set(chosen.only):
        rates |= rayka_source(*settings, chosen.partitions, int(chosen.store_gb * 2**30), chosen.only)
    print(table(rates))


def measure_kafka(records: int, rounds: int, cores: int, partitions: int) -> Rates:
    """Start Apache Kafka, fill it, read it with Spark, stop it."""
    with tempfile.TemporaryDirectory(prefix="kafka-spark-") as directory:
        kafka = Kafka(Path(directory))
        kafka.start()
        try:
            run_child("write", kafka.bootstrap, records, rounds, cores, partitions)
            return run_child("kafka", kafka.bootstrap, records, rounds, cores, partitions)
        finally:
            kafka.stop()


if __name__ == "__main__":
    main()
