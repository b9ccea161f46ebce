"""A nightly job in Spark, from the program's first line to its answers: `python -m benchmarks.spark_cold`.

The job reads a topic (records of 100 B, lz4) in a new process and asks for the count, the sum of lengths, the largest
key and the largest timestamp: once cold, then again. It runs in turns with `rayka.spark` on RayDP and PySpark 3.5, with
`format("rayka")` on PySpark 4, whose environment `--spark4` names, without and with `local_settings()`, and with
Spark's own Kafka source on Apache Kafka in both versions of PySpark; each has 2 cores, and its broker runs already,
filled. The archives of `python -m rayka.spark.archive` are made before. Times begin when the process is started; the
load of the machine stands beside them. `--page` writes the medians into docs/spark.md; the runs are in
benchmarks/results/spark_cold.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import functools
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TOPIC = "records"
QUERY = ("count(*)", "sum(length(value))", "max(key)", "max(timestamp)")
COLUMNS = ("key", "value", "timestamp")
MEMORY = "2g"
LATER = 2
SOURCE_JARS = "SPARK_KAFKA_SOURCE_JARS"
Result = dict[str, Any]


def local_spark(cores: int, **settings: str) -> Any:
    """Spark in local mode."""
    from pyspark.sql import SparkSession

    given = {"spark.driver.memory": MEMORY, "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    builder: Any = SparkSession.builder
    builder = builder.master(f"local[{cores}]")
    for name, value in {**given, **settings}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def kafka_job(bootstrap: str, cores: int) -> tuple[Any, Callable[[], Any]]:
    """Spark's own Kafka source."""
    spark = local_spark(cores, **{"spark.jars": os.environ[SOURCE_JARS]})
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC}
    return spark, lambda: spark.read.format("kafka").options(**options).load()


def spark4_job(bootstrap: str, cores: int, **settings: str) -> tuple[Any, Callable[[], Any]]:
    """`format("rayka")`, which needs PySpark 4."""
    spark = local_spark(cores, **settings)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC}
    schema = "key binary, value binary, timestamp timestamp"
    return spark, lambda: spark.read.format("rayka").schema(schema).options(**options).load()


def spark4_settings_job(bootstrap: str, cores: int) -> tuple[Any, Callable[[], Any]]:
    """`format("rayka")` with the settings that docs/spark.md recommends."""
    import rayka.spark

    return spark4_job(bootstrap, cores, **rayka.spark.local_settings())


def raydp_job(bootstrap: str, cores: int) -> tuple[Any, Callable[[], Any]]:
    """`rayka.spark` on the Ray of the broker, which `rayka up` has started."""
    import rayka.spark

    spark = rayka.spark.session(executor_cores=cores, executor_memory=MEMORY)
    return spark, lambda: rayka.spark.read_topic(spark, TOPIC, columns=COLUMNS)


JOBS = {
    "kafka": kafka_job,
    "raydp": raydp_job,
    "kafka4": kafka_job,
    "spark4": spark4_job,
    "spark4-settings": spark4_settings_job,
}
PEERS = {"raydp": "kafka", "spark4": "kafka4", "spark4-settings": "kafka4"}
"""The same work with Spark's own Kafka source, on the same version of Spark."""
ON_SPARK_4 = {"kafka4", "spark4", "spark4-settings"}


def run_job(name: str, bootstrap: str, cores: int, started: float) -> Result:
    """In the job's process: its stages, in seconds from `started` (`time.time()` of the parent)."""
    first_line_s = time.time() - started
    spark, frame = JOBS[name](bootstrap, cores)
    session_s = time.time() - started
    counted, answers, ends = 0, [], []
    for _ in range(1 + LATER):
        row = frame().selectExpr(*QUERY).collect()[0]
        counted = row[0]
        answers.append(str(row))
        ends.append(time.time() - started)
    later = [end - start for start, end in itertools.pairwise(ends)]
    result = {
        "first line": first_line_s,
        "session": session_s - first_line_s,
        "first query": ends[0] - session_s,
        "whole": ends[0],
        "later": statistics.median(later),
        "records": counted,
        "version": spark.version,
    }
    assert len(set(answers)) == 1, answers
    spark.stop()
    return result


def in_process(name: str, python: str, bootstrap: str, cores: int, environment: dict[str, str]) -> Result:
    """Run one job in a new process."""
    load = os.getloadavg()[0]
    root = Path(__file__).parents[1]
    command = [python, "-m", "benchmarks.spark_cold", "--job", name, "--bootstrap", bootstrap, "--cores", str(cores)]
    command += ["--started", repr(time.time())]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=root,
        env={**inherited, "PYSPARK_PYTHON": python, **environment},
    )
    return {**json.loads(done.stdout[done.stdout.rindex("{") :]), "load before": load}


@contextlib.contextmanager
def filled_brokers(names: set[str], records: int, partitions: int) -> Iterator[dict[str, tuple[str, dict[str, str]]]]:
    """For each job its broker's address, and the environment in which it finds the broker's Ray."""
    from benchmarks.brokers import Kafka, Rayka
    from benchmarks.load import create_topic
    from benchmarks.spark import write

    with contextlib.ExitStack() as stack:
        found: dict[str, tuple[str, dict[str, str]]] = {}
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-cold-")))
        for kind, jobs in ((Kafka, {"kafka", "kafka4"}), (Rayka, {"raydp", "spark4", "spark4-settings"})):
            if not jobs & names:
                continue
            broker: Any = kind(directory / kind.name)
            broker.start()
            stack.callback(broker.stop)
            create_topic(broker.bootstrap, TOPIC, partitions)
            write(broker.bootstrap, records)
            state = directory / kind.name / "data" / "rayka.json"
            address = json.loads(state.read_text())["address"] if state.exists() else ""
            found |= dict.fromkeys(jobs, (broker.bootstrap, {"RAY_ADDRESS": address} if address else {}))
        yield found


def has_archive(python: str) -> bool:
    """Whether there is an archive of Java's classes for the PySpark of this environment."""
    command = "from rayka.spark.archive import archive_path; raise SystemExit(not archive_path().exists())"
    return subprocess.run([python, "-c", command], check=False, cwd=Path(__file__).parents[1]).returncode == 0


@functools.cache
def source_jars(python: str) -> str:
    """The jars of Spark's Kafka source for the PySpark of this environment, as `spark.jars` names them."""
    from benchmarks.spark import spark_jars

    version = subprocess.check_output([python, "-c", "import pyspark; print(pyspark.__version__)"], text=True)
    return ",".join(map(str, spark_jars(version.strip())))


STAGES = ("session", "first query", "whole", "later")
TITLES = {
    "kafka": "Spark's Kafka source on Apache Kafka",
    "raydp": "`rayka.spark` on RayDP",
    "kafka4": "Spark's Kafka source on Apache Kafka",
    "spark4": '`format("rayka")`',
    "spark4-settings": '`format("rayka")` with `local_settings()`',
}
PAGE = Path(__file__).parents[1] / "docs" / "spark.md"
BEGIN, END = "<!-- written by python -m benchmarks.spark_cold --page -->\n", "<!-- end -->\n"


def medians(runs: list[Result]) -> dict[str, float]:
    """A job's stages; the session is counted from the start of the process."""
    return {
        stage: statistics.median(run[stage] + run["first line"] * (stage == "session") for run in runs)
        for stage in STAGES
    }


def table(results: dict[str, list[Result]], context: dict[str, str]) -> str:
    """The medians of each job, with their ratios to those of its peer, in Markdown."""
    runs = [run for runs in results.values() for run in runs]
    loads = [run["load before"] for run in runs]
    rounds = min(len(runs) for runs in results.values())
    lines = [
        f"Medians of {rounds} turns in seconds, and the ratio to Spark's Kafka source on the same PySpark"
        f" ({context['date']}, commit {context['commit']}, {context['machine']}, load {min(loads):.1f} to"
        f" {max(loads):.1f}):",
        "",
        f"| | {' | '.join(STAGES)} |",
        "|" + " --- |" * (1 + len(STAGES)),
    ]
    for name, found in results.items():
        peer = medians(results.get(PEERS.get(name, name), found))
        cells = [f"{value:.1f} ({value / peer[stage]:.2f})" for stage, value in medians(found).items()]
        lines.append(f"| {TITLES[name]}, PySpark {found[0]['version']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_page(text: str) -> None:
    """Put the table into docs/spark.md."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{text}\n\n{END}{rest.partition(END)[2]}")


def main() -> None:
    """Run the jobs in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000, help="records in the topic")
    parser.add_argument("--partitions", type=int, default=8, help="partitions of the topic")
    parser.add_argument("--cores", type=int, default=2, help="cores of Spark")
    parser.add_argument("--rounds", type=int, default=5, help="turns")
    parser.add_argument("--minutes", type=float, default=60, help="no further turns that would last longer in all")
    parser.add_argument("--only", nargs="+", choices=tuple(JOBS), default=tuple(JOBS))
    parser.add_argument("--page", action="store_true", help="write the table into docs/spark.md")
    parser.add_argument("--spark4", default=".venv/spark4/bin/python", help="the Python that has PySpark 4")
    for name in ("--job", "--bootstrap", "--started"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.job:
        print(json.dumps(run_job(chosen.job, chosen.bootstrap, chosen.cores, float(chosen.started))))
        return
    compare(chosen)


def compare(chosen: argparse.Namespace) -> None:
    """Run the jobs in turns; what is imported here is not imported by the jobs."""
    import rayka
    from benchmarks.report import RESULTS, commit, machine
    from rayka.spark.archive import archive_path, make_archive

    context = {"command": shlex.join(["python", "-m", "benchmarks.spark_cold", *sys.argv[1:]])}
    context |= {"date": time.strftime("%Y-%m-%d"), "commit": commit(), "machine": machine()}
    path = RESULTS / "spark_cold" / f"{time.strftime('%Y-%m-%d-%H%M')}.json"
    results: dict[str, list[Result]] = {name: [] for name in chosen.only}
    if "raydp" in chosen.only and not archive_path().exists():
        make_archive()
    if "spark4-settings" in chosen.only and not has_archive(chosen.spark4):
        subprocess.run([chosen.spark4, "-m", "rayka.spark.archive"], check=True, cwd=Path(__file__).parents[1])
    compileall.compile_dir(Path(rayka.__file__).parent, quiet=1)  # as pip does at an installation
    began = time.monotonic()
    with filled_brokers(set(chosen.only), chosen.records, chosen.partitions) as brokers:
        turns_began = time.monotonic()
        for turn in range(chosen.rounds):
            now = time.monotonic()
            if turn and now - began + (now - turns_began) / turn > 60 * chosen.minutes:
                break
            for name in chosen.only:
                results[name].append(one_turn(name, chosen, brokers[name]))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(context | {"runs": results}, indent=1) + "\n")
    text = table(results, context)
    print(text)
    if chosen.page:
        write_page(text)


def one_turn(name: str, chosen: argparse.Namespace, broker: tuple[str, dict[str, str]]) -> Result:
    """Run one job, and show its times."""
    bootstrap, environment = broker
    python = chosen.spark4 if name in ON_SPARK_4 else sys.executable
    if name not in PEERS:
        environment = {**environment, SOURCE_JARS: source_jars(python)}
    result = in_process(name, python, bootstrap, chosen.cores, environment)
    assert result["records"] == chosen.records, result
    print(name, json.dumps(result), file=sys.stderr, flush=True)
    return result


if __name__ == "__main__":
    main()
